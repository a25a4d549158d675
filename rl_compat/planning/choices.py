"""The choices of a plan: the user's explicit settings, else the profile's first preference that works here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from rl_compat.capability import attention, kernels, optimizers, precision, quantization, rollout_engines
from rl_compat.capability.choose import choose
from rl_compat.capability.types import Capability, Choice
from rl_compat.config.types import RunConfig
from rl_compat.hardware.types import Hardware
from rl_compat.planning.profile import Profile
from rl_compat.planning.shapes.shape import ModelShape

Check = Callable[[str], Capability]
ORDERS = {
    "compute_dtype": precision.DTYPES,
    "rollout_dtype": precision.DTYPES,
    "frozen_storage_dtype": precision.DTYPES,
    "attention": attention.ATTENTIONS,
    "rollout_engine": rollout_engines.ENGINES,
}
"every value of a concern; a profile orders those it prefers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chooser:
    """Chooses for one request on the selected devices."""

    config: RunConfig
    hardware: Hardware
    profile: Profile
    shape: ModelShape
    "of the actor"
    engine: Choice | None = None
    "the rollout engine, when it has been chosen already"

    def everything(self) -> dict[str, Choice]:
        """All choices that do not depend on memory, by concern. Raises HardwareError for an impossible setting."""
        found: dict[str, Choice] = {}
        for take in (self._precision, self._attention, self._engine, self._optimizer, self._kernels):
            found |= take(found)
        return found

    def _precision(self, found: Mapping[str, Choice]) -> dict[str, Choice]:
        unwise = partial(precision.unwise_compute_dtype, self.hardware)
        check = partial(precision.compute_dtype, self.hardware)
        store = partial(precision.storage_dtype, self.hardware)
        asked = self.config.plan
        compute = self._preferred("compute_dtype", "plan.compute_dtype", asked.compute_dtype, check, unwise)
        scaling = precision.loss_scaling(compute.value)
        return {
            "compute_dtype": compute,
            "loss_scaling": _switch(scaling, "fp16 gradients underflow without it"),
            "rollout_dtype": self._preferred("rollout_dtype", "plan.rollout_dtype", asked.rollout_dtype, check, unwise),
            "frozen_storage_dtype": self._preferred(
                "frozen_storage_dtype", "plan.frozen_storage_dtype", asked.frozen_storage_dtype, store
            ),
        }

    def _attention(self, found: Mapping[str, Choice]) -> dict[str, Choice]:
        dtype = found["compute_dtype"].value
        check = partial(attention.attention, self.hardware, compute_dtype=dtype)
        chosen = self._preferred("attention", "plan.attention", self.config.plan.attention, check)
        if chosen.value != "sdpa":
            return {"attention": chosen}
        exact = "fp32" if "fp32" in (dtype, found["rollout_dtype"].value) else dtype
        repeated = attention.repeated_keys(self.hardware, compute_dtype=exact)
        reason = "grouped keys would fall to math attention, whose memory grows with the square of the length"
        return {"attention": chosen, "repeat_kv": _switch(repeated, reason)}

    def _engine(self, found: Mapping[str, Choice]) -> dict[str, Choice]:
        engine = self.engine or self._preferred_engine()
        graphs = kernels.cuda_graphs(self.hardware, engine=engine.value)
        return {
            "rollout_engine": engine,
            "cuda_graphs": _switch(graphs, "one launch for a whole decode step, on any CUDA card"),
        }

    def _preferred_engine(self) -> Choice:
        obstacle = self.shape.native_obstacle
        check = partial(rollout_engines.rollout_engine, self.hardware, native_obstacle=obstacle)
        unwise = partial(rollout_engines.unwise_engine, native_obstacle=obstacle)
        engine = self._preferred("rollout_engine", "rollout.engine", self.config.rollout.engine, check, unwise)
        if obstacle is None or engine.asked:
            return engine
        return replace(engine, reason=f"native cannot run this model: {obstacle}")

    def _optimizer(self, found: Mapping[str, Choice]) -> dict[str, Choice]:
        config, offloaded = self.config, self.config.plan.offload_optimizer is True
        steps = partial(optimizers.optimizer, self.hardware, offloaded=offloaded)
        keeps = partial(quantization.quantization, self.hardware, lora_rank=config.model.lora_rank)
        return {
            "optimizer": _set("optimizer.name", optimizers.OPTIMIZERS, steps, config.optimizer.name),
            "quantization": _set("plan.quantization", quantization.QUANTIZATIONS, keeps, config.plan.quantization),
        }

    def _kernels(self, found: Mapping[str, Choice]) -> dict[str, Choice]:
        fast = kernels.tf32(self.hardware, compute_dtype=found["compute_dtype"].value)
        return {
            "triton": _unused(kernels.triton(self.hardware), "no kernel of this program needs it"),
            "torch_compile": _unused(kernels.torch_compile(self.hardware), "lengths change from batch to batch"),
            "tf32": _switch(fast, "the remaining fp32 products are at least as exact as half precision"),
        }

    def _preferred(
        self,
        concern: str,
        key: str,
        asked: str,
        check: Check,
        unwise: Callable[[str], tuple[str, ...]] = lambda value: (),
    ) -> Choice:
        preference = self.profile.prefer[concern]
        rest = tuple(value for value in ORDERS[concern] if value not in preference.order)
        return choose(
            key,
            preference.order + rest,
            because=preference.because,
            against=_against(check),
            unwise=unwise,
            asked=None if asked == "auto" else asked,
        )


def _set(key: str, values: tuple[str, ...], check: Check, value: str) -> Choice:
    """A setting that has a value of its own and no `auto`. Raises HardwareError when it cannot work here."""
    chosen = choose(key, values, because="", against=_against(check), asked=value)
    return replace(chosen, reason=f"`{key}` says so", asked=value != values[0])


def _against(check: Check) -> Callable[[str], tuple[str, ...]]:
    return lambda value: check(value).reasons_against


def _switch(able: Capability, reason: str) -> Choice:
    """On with the reason, or off with everything against it."""
    if able.supported:
        return Choice(value="on", reason=reason)
    return Choice(value="off", reason="; ".join(able.reasons_against))


def _unused(able: Capability, reason: str) -> Choice:
    """Off; because the hardware lacks it, or else because nothing here wants it."""
    return Choice(value="off", reason="; ".join(able.reasons_against) or reason)
