"""Which of vLLM's layers compute with what they load, what a reload need not warn of, and collecting around sleep."""

from __future__ import annotations

import gc
import logging
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from rl_compat.rollout.vllm.start import LastLines
from rl_compat.rollout.vllm.weights import collecting_lately, computes_with_what_it_loads, hand_over

RELOADING = "vllm.model_executor.model_loader.reload.layerwise"


class UnquantizedLinearMethod:
    pass


class Fp8LinearMethod:
    pass


class RotaryEmbedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(2))


class TiedHead(nn.Module):
    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight


class Model(nn.Module):
    """Of vLLM's shape: layers with a method, a table, an output tied to the embedding."""

    def __init__(self, method: object, *, loads: set[str]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(3, 2)
        self.linear = nn.Linear(2, 2, bias=False)
        self.linear.quant_method = method
        self.rotary = RotaryEmbedding()
        self.head = TiedHead(self.embedding.weight)
        self._loads = loads

    def load_weights(self, tensors: list[tuple[str, Tensor]]) -> set[str]:
        list(tensors)
        return self._loads


class Engine:
    """One worker, asked as vLLM's engine asks its workers."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.warned: list[str] = []

    def apply_model(self, function: object) -> list[object]:
        return [function(self.model)]  # type: ignore[operator]

    def collective_rpc(self, method: object, args: tuple = (), kwargs: dict | None = None) -> list[object]:
        if method == "reload_weights":
            for name in self.warned:
                logging.getLogger(RELOADING).warning("%s: Failed to load weights", name)
            return [None]
        worker = SimpleNamespace(model_runner=SimpleNamespace(get_model=lambda: self.model))
        return [method(worker, *args)]  # type: ignore[operator]

    def reset_prefix_cache(self) -> bool:
        return True


EVERY = {"embedding.weight", "linear.weight"}


def test_on_a_cpu_no_layer_computes_with_what_it_loads() -> None:
    assert not computes_with_what_it_loads(Engine(Model(UnquantizedLinearMethod(), loads=EVERY)))


@pytest.mark.gpu
@pytest.mark.parametrize(("method", "expected"), [(UnquantizedLinearMethod(), True), (Fp8LinearMethod(), False)])
def test_on_a_gpu_only_plain_layers_compute_with_what_they_load(method: object, expected: bool) -> None:
    assert computes_with_what_it_loads(Engine(Model(method, loads=EVERY).cuda())) is expected


def test_weights_that_are_not_loaded_in_place_are_an_error() -> None:
    trainer = nn.Linear(2, 2)
    hand_over(Engine(Model(None, loads=EVERY)), trainer, in_place=True)
    with pytest.raises(AssertionError, match=r"vLLM did not load \['linear.weight'\]"):
        hand_over(Engine(Model(None, loads={"embedding.weight"})), trainer, in_place=True)


def test_a_reload_warns_of_layers_that_lack_weights_and_not_of_those_that_have_none() -> None:
    kept, logger = LastLines(), logging.getLogger(RELOADING)
    engine = Engine(Model(None, loads=EVERY))
    engine.warned = ["RotaryEmbedding", "TiedHead", "Linear"]
    logger.addHandler(kept)
    try:
        hand_over(engine, nn.Linear(2, 2), in_place=False)
    finally:
        logger.removeHandler(kept)
    assert kept.lines == ["Linear: Failed to load weights"]


class Ring:
    """Refers to itself: only a collection frees it."""

    def __init__(self) -> None:
        self.me = self


def test_collecting_inside_leaves_what_is_old_and_frees_what_is_young() -> None:
    old = Ring()
    gc.collect()
    young, kept = Ring(), weakref.ref(old)
    freed = weakref.ref(young)
    del old, young
    with collecting_lately():
        gc.collect()
        assert freed() is None
        assert kept() is not None
    gc.collect()
    assert kept() is None
