"""The choices of a pool: the user's explicit settings, or the profile's first preference that works here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from rl_compat.capability import attention, kernels, optimizers, precision, rollout_engines
from rl_compat.capability.choice import Choice, Reasons, choose
from rl_compat.errors import HardwareError
from rl_compat.hardware.types import Hardware
from rl_compat.planning.profile import Profile
from rl_compat.planning.workload import Requests, Workload

ORDERS = {
    "compute_dtype": precision.DTYPES,
    "rollout_dtype": precision.DTYPES,
    "frozen_storage_dtype": precision.DTYPES,
    "attention": attention.ATTENTIONS,
    "rollout_engine": rollout_engines.ENGINES,
}
"all values of a concern; a profile orders those it prefers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chooser:
    """Makes the choices of one pool."""

    requests: Requests
    workload: Workload
    hardware: Hardware
    profile: Profile
    engine: Choice | None = None
    "the rollout engine, if it is chosen already"

    def everything(self) -> dict[str, Choice]:
        """All choices that do not depend on memory, by concern. Raises HardwareError for an impossible setting."""
        found: dict[str, Choice] = {}
        for take in (self._precision, self._attention, self._engine, self._optimizer, self._kernels):
            found |= take(found)
        return found

    def _precision(self, found: Mapping[str, Choice]) -> dict[str, Choice]:
        unwise = partial(precision.unwise_compute_dtype, self.hardware)
        against = partial(precision.against_dtype, self.hardware)
        compute = self._preferred("compute_dtype", "plan.compute_dtype", against, unwise)
        enough = () if compute.value == "fp16" else (f"{compute.value} has the range of fp32",)
        return {
            "compute_dtype": compute,
            "loss_scaling": _switch(enough, "fp16 gradients underflow without it"),
            "rollout_dtype": self._preferred("rollout_dtype", "plan.rollout_dtype", against, unwise),
            "frozen_storage_dtype": self._preferred("frozen_storage_dtype", "plan.frozen_storage_dtype", against),
        }

    def _attention(self, found: Mapping[str, Choice]) -> dict[str, Choice]:
        dtype = found["compute_dtype"].value
        against = partial(attention.against_attention, self.hardware, compute_dtype=dtype)
        chosen = self._preferred("attention", "plan.attention", against)
        if chosen.value != "sdpa":
            return {"attention": chosen}
        exact = "fp32" if "fp32" in (dtype, found["rollout_dtype"].value) else dtype
        unneeded = attention.against_repeated_keys(self.hardware, compute_dtype=exact)
        reason = "grouped keys would fall back to math attention, whose memory grows with the square of the length"
        return {"attention": chosen, "repeat_kv": _switch(unneeded, reason)}

    def _engine(self, found: Mapping[str, Choice]) -> dict[str, Choice]:
        engine = self.engine or self._preferred_engine()
        without_graphs = kernels.against_graphs(self.hardware, engine=engine.value)
        return {
            "rollout_engine": engine,
            "cuda_graphs": _switch(without_graphs, "one launch for a whole decode step, on every CUDA card"),
        }

    def _preferred_engine(self) -> Choice:
        obstacle = self.workload.main_model.native_obstacle
        against = partial(
            rollout_engines.against_engine,
            self.hardware,
            native_obstacle=obstacle,
            tensor_parallel=self.requests.rollout.tensor_parallel,
        )
        unwise = partial(rollout_engines.unwise_engine, native_obstacle=obstacle)
        try:
            engine = self._preferred("rollout_engine", "rollout.engine", against, unwise)
        except HardwareError as error:
            if error.hint is None and self.requests.rollout.tensor_parallel > 1:
                raise HardwareError(error.message, hint="set `rollout.tensor_parallel=1`") from None
            raise
        if obstacle is None or engine.asked:
            return engine
        return replace(engine, reason=f"native cannot run this model: {obstacle}")

    def _optimizer(self, found: Mapping[str, Choice]) -> dict[str, Choice]:
        plan, optimizer = self.requests.plan, self.requests.optimizer
        steps = partial(optimizers.against_optimizer, self.hardware, offloaded=plan.offload_optimizer is True)
        keeps = partial(optimizers.against_quantization, self.hardware, lora_rank=self.workload.lora_rank)
        return {
            "optimizer": _set("optimizer.name", optimizers.OPTIMIZERS, steps, optimizer),
            "quantization": _set("plan.quantization", optimizers.QUANTIZATIONS, keeps, plan.quantization),
        }

    def _kernels(self, found: Mapping[str, Choice]) -> dict[str, Choice]:
        slower = kernels.against_tf32(self.hardware, compute_dtype=found["compute_dtype"].value)
        changing = "sequence lengths change with every batch, and each change would recompile"
        return {
            "triton": _off(kernels.against_triton(self.hardware), "no kernel of this program needs it"),
            "torch_compile": _off(kernels.against_compile(self.hardware), changing),
            "tf32": _switch(slower, "the remaining fp32 products stay at least as exact as half precision"),
        }

    def _preferred(self, concern: str, key: str, against: Reasons, unwise: Reasons = lambda value: ()) -> Choice:
        """The setting `key`, or the profile's first preference that works here."""
        section, _, name = key.partition(".")
        asked = getattr(getattr(self.requests, section), name)
        preference = self.profile.prefer[concern]
        rest = tuple(value for value in ORDERS[concern] if value not in preference.order)
        return choose(
            key,
            preference.order + rest,
            because=preference.because,
            against=against,
            unwise=unwise,
            asked=None if asked == "auto" else asked,
        )


def _set(key: str, values: tuple[str, ...], against: Reasons, value: str) -> Choice:
    """A setting without `auto`. Raises HardwareError if its value cannot work here."""
    chosen = choose(key, values, because="", against=against, asked=value)
    return replace(chosen, reason=f"set by `{key}`", asked=value != values[0])


def _switch(against: tuple[str, ...], reason: str) -> Choice:
    """On with the reason, or off with everything against it."""
    return _off(against, "") if against else Choice(value="on", reason=reason)


def _off(against: tuple[str, ...], otherwise: str) -> Choice:
    """Off, because the hardware lacks it or because nothing uses it."""
    return Choice(value="off", reason="; ".join(against) or otherwise)
