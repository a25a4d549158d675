"""Engines and cases of a rollout benchmark: those that a machine supports, and options that a process can be given."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

from rl_compat.capability.devices import on_cpu
from rl_compat.capability.precision import against_dtype
from rl_compat.capability.rollout_engines import against_engine
from rl_compat.config.types import PlanConfig
from rl_compat.errors import HardwareError, UsageError, did_you_mean
from rl_compat.hardware.types import Hardware
from rl_compat.planning.decide import selected_hardware
from rl_compat.planning.types import DType
from rl_compat.planning.workload import Requests

ALL_DTYPES: tuple[DType, ...] = ("fp32", "fp16", "bf16")
DEFAULT_SHAPE = "qwen2.5-0.5b"
ENGINES: dict[str, tuple[str, DType]] = {
    f"{kind}-{dtype}": (kind, dtype)
    for kind in ("generate", "transformers", "native", "vllm", "vllm-alone")
    for dtype in (ALL_DTYPES if kind != "transformers" else ALL_DTYPES[:1])
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
    shape: str | None = DEFAULT_SHAPE
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


def measured_machine(machine: Hardware, *, cpu: bool) -> Hardware:
    """The machine with only its first GPU, or without GPUs. Raises HardwareError for a GPU that torch cannot use."""
    try:
        return selected_hardware(Requests(plan=PlanConfig(device="cpu" if cpu else "auto")), machine)
    except HardwareError as error:
        hint = "`rlc doctor` shows which torch to install; `--cpu` benchmarks the CPU"
        raise HardwareError(error.message, hint=hint) from error


def engines_here(machine: Hardware, asked: str) -> list[str]:
    """The requested engines, by default all that this machine supports. The first one is the baseline.

    A name without a dtype stands for every dtype that the machine supports. Raises UsageError for an unknown name and
    for an engine that does not run here.
    """
    check_names(asked)
    usable = [name for name in ENGINES if not obstacles(machine, name)]
    if not _parts(asked):
        usual = [
            f"{kind}-{dtype}" for kind in ("native", "vllm") for dtype in ALL_DTYPES[: 1 if on_cpu(machine) else None]
        ]
        return ["generate-fp32", *(name for name in usual if name in usable)]
    names: dict[str, None] = {}
    for name in _parts(asked):
        of_kind = [engine for engine, (kind, _) in ENGINES.items() if name in (engine, kind)]
        names |= dict.fromkeys([engine for engine in of_kind if engine in usable] or of_kind)
    for name in names:
        reasons = obstacles(machine, name)
        if reasons:
            raise UsageError(
                f"`{name}` does not run here: {'; '.join(reasons)}", hint=f"engines that run here: {', '.join(usable)}"
            )
    return list(names)


def obstacles(machine: Hardware, name: str) -> tuple[str, ...]:
    """Why an engine of `ENGINES` does not run on a machine."""
    kind, dtype = ENGINES[name]
    engine = () if kind == "generate" else against_engine(machine, kind.removesuffix("-alone"))
    return engine + against_dtype(machine, dtype)


def check_names(asked: str) -> None:
    """Raise UsageError for a name that is neither an engine nor a group of engines."""
    known = [*ENGINES, *dict.fromkeys(kind for kind, _ in ENGINES.values())]
    for name in _parts(asked):
        if name not in known:
            hint = did_you_mean(name, known, f"engines: {', '.join(ENGINES)}")
            raise UsageError(f"there is no engine `{name}`", hint=hint)


def _parts(asked: str) -> list[str]:
    return [part.strip() for part in asked.split(",")] if asked.strip() else []


def options_for(machine: Hardware, *, folder: str | None, batches: str, new_tokens: int | None) -> BenchOptions:
    """Cases that a CPU finishes within minutes, or larger ones for a GPU.

    Raises UsageError for batches that are not numbers.
    """
    sizes = _numbers(batches)
    if on_cpu(machine):
        return BenchOptions(
            device="cpu",
            shape=None if folder else "small",
            model=folder,
            batches=sizes or (8, 32),
            prompt_length=64,
            new_tokens=new_tokens or 32,
            ragged=48,
            ragged_batch=16,
            ragged_tokens=new_tokens or 96,
            questions=sizes or (16,),
            question_batch=16,
            question_tokens=new_tokens or 48,
            slots=max((48, *sizes)),
            repeats=1,
        )
    capability = machine.devices[0].compute_capability
    return BenchOptions(
        device="cuda",
        architecture="sm_{}{}".format(*capability),
        shape=None if folder else DEFAULT_SHAPE,
        model=folder,
        batches=sizes or (8, 64, 256),
        new_tokens=new_tokens or 128,
        questions=sizes or (256,),
        question_tokens=new_tokens or 256,
        slots=max((256, *sizes)),
    )


def questions_for(options: BenchOptions) -> list[str]:
    """The first test questions of GSM8K, as many as the largest case needs; none for random weights.

    Raises UsageError if GSM8K has fewer.
    """

    from rl_compat.data.builtin.gsm8k import raw_records

    if options.model is None:
        return []
    wanted = max(options.questions)
    found = [record["question"] for record in raw_records("test", limit=wanted)]
    if len(found) < wanted:
        raise UsageError(
            f"`--batches` needs {wanted} questions and GSM8K has {len(found)} test questions",
            hint=f"use at most {len(found)}",
        )
    return found


def check_numbers(batches: str) -> None:
    """Raise UsageError for batches that are not numbers above 0, separated by commas."""
    parts = batches.split(",") if batches.strip() else []
    if not all(part.strip().isascii() and part.strip().isdigit() and int(part) > 0 for part in parts):
        raise UsageError(f"`--batches={batches}` are not numbers above 0", hint="separate them by commas: `8,64`")


def _numbers(batches: str) -> tuple[int, ...]:
    check_numbers(batches)
    return tuple(dict.fromkeys(map(int, batches.split(",")))) if batches.strip() else ()
