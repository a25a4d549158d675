"""What a benchmark of rollout engines measures, as plain data that a process can be given."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

from rl_compat.planning.types import DType

ENGINES: dict[str, tuple[str, DType]] = {
    "generate-fp32": ("generate", "fp32"),
    "generate-fp16": ("generate", "fp16"),
    "generate-bf16": ("generate", "bf16"),
    "transformers-fp32": ("transformers", "fp32"),
    "native-fp32": ("native", "fp32"),
    "native-fp16": ("native", "fp16"),
    "native-bf16": ("native", "bf16"),
    "vllm-fp32": ("vllm", "fp32"),
    "vllm-fp16": ("vllm", "fp16"),
    "vllm-bf16": ("vllm", "bf16"),
    "vllm-alone-fp32": ("vllm-alone", "fp32"),
    "vllm-alone-fp16": ("vllm-alone", "fp16"),
    "vllm-alone-bf16": ("vllm-alone", "bf16"),
}
"""Engine and dtype of the matrix products by name. `generate` is transformers' own, without log-probabilities;
`vllm-alone` is vLLM with its own sampler and log-probabilities, where `vllm` draws as every engine here does."""
ROW = "ROW "
"before a row on the stdout of the process that measures"
NOW = "NOW "
"before what it is doing"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    device: str
    "`cpu` or `cuda`"
    architecture: str | None = None
    "of the device, such as `sm_61`, to compile kernels for; None compiles for any"
    shape: str | None = "qwen2.5-0.5b"
    "of a model with random weights; None measures none"
    batches: tuple[int, ...] = (8, 64, 256)
    "prompts of the cases whose responses all have the same length"
    prompt_length: int = 128
    new_tokens: int = 128
    ragged: int = 256
    "prompts of the case whose responses end at random; 0 leaves it out"
    ragged_batch: int = 64
    ragged_tokens: int = 384
    model: str | None = None
    "a Hugging Face folder, measured on questions of GSM8K"
    questions: tuple[int, ...] = (256,)
    question_batch: int = 64
    question_tokens: int = 256
    slots: int = 256
    "responses at once, but for the static batches of `generate`"
    repeats: int = 2

    @property
    def num_cases(self) -> int:
        """Of each engine."""
        random = 0 if self.shape is None else len(self.batches) + (1 if self.ragged else 0)
        return random + (0 if self.model is None else len(self.questions))

    def apart(self) -> tuple[BenchOptions, ...]:
        """The same cases, one model at a time: a process that has had one vLLM is not the place to measure another."""
        parts = (replace(self, model=None), replace(self, shape=None))
        return tuple(part for part in parts if part.num_cases)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> BenchOptions:
        fields = json.loads(text)
        return cls(**fields | {name: tuple(fields[name]) for name in ("batches", "questions")})
