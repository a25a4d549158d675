"""The options of a rollout benchmark, as plain data that can be passed to a process."""

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
"""Engine and dtype of the matrix products, by name.

`generate` is that of transformers, without log-probabilities;
`vllm-alone` is vLLM with its own sampler and log-probabilities, while `vllm` samples like every engine here."""
ROW = "ROW "
"prefix of a row on the stdout of the benchmark process"
NOW = "NOW "
"prefix of its current activity"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    device: str
    "`cpu` or `cuda`"
    architecture: str | None = None
    "architecture of the device to compile kernels for, such as `sm_61`; None compiles for any"
    shape: str | None = "qwen2.5-0.5b"
    "shape of a model with random weights; None skips it"
    batches: tuple[int, ...] = (8, 64, 256)
    "number of prompts of each case with responses of equal length"
    prompt_length: int = 128
    new_tokens: int = 128
    ragged: int = 256
    "number of prompts of the case whose responses end at random; 0 skips it"
    ragged_batch: int = 64
    ragged_tokens: int = 384
    model: str | None = None
    "Hugging Face folder of a model to measure on questions of GSM8K"
    questions: tuple[int, ...] = (256,)
    question_batch: int = 64
    question_tokens: int = 256
    slots: int = 256
    "concurrent sequences, except in the static batches of `generate`"
    repeats: int = 2

    @property
    def num_cases(self) -> int:
        """Of each engine."""
        random = 0 if self.shape is None else len(self.batches) + (1 if self.ragged else 0)
        return random + (0 if self.model is None else len(self.questions))

    def apart(self) -> tuple[BenchOptions, ...]:
        """The same cases, one model at a time, since a process that has run vLLM cannot measure a second one fairly."""
        parts = (replace(self, model=None), replace(self, shape=None))
        return tuple(part for part in parts if part.num_cases)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> BenchOptions:
        fields = json.loads(text)
        return cls(**fields | {name: tuple(fields[name]) for name in ("batches", "questions")})
