"""Weights that a trainer offers: shared where both sides have the same storage, copied where they do not."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from rl_compat.errors import ModelError
from rl_compat.resharding.source import SharedStorage, WeightReceiver


def model(width: int = 3) -> nn.Module:
    torch.manual_seed(width)
    return nn.Sequential(nn.Linear(2, width), nn.Linear(width, 1))


def test_a_model_that_shares_the_storage_receives_no_byte() -> None:
    trained = model()
    addresses = [parameter.data_ptr() for parameter in trained.parameters()]
    versions = [parameter._version for parameter in trained.parameters()]

    handover = WeightReceiver(trained).receive(SharedStorage(trained, version=3))

    assert (handover.written_bytes, handover.received_bytes, handover.peak_bytes) == (0, 0, 0)

    assert [parameter.data_ptr() for parameter in trained.parameters()] == addresses
    assert [parameter._version for parameter in trained.parameters()] == versions


def test_a_model_with_storage_of_its_own_receives_every_weight_in_place() -> None:
    trained = model()
    other = copy.deepcopy(trained).half()
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.add_(1.0)
    addresses = [parameter.data_ptr() for parameter in other.parameters()]

    handover = WeightReceiver(other).receive(SharedStorage(trained, version=3))

    assert handover.version == 3
    assert handover.written_bytes == sum(parameter.nbytes for parameter in other.parameters())
    assert [parameter.data_ptr() for parameter in other.parameters()] == addresses
    for ours, theirs in zip(other.parameters(), trained.parameters(), strict=True):
        assert torch.equal(ours, theirs.half())


def test_weights_carry_their_names_and_the_version_of_the_policy() -> None:
    trained = model()
    weights = list(SharedStorage(trained, version=5))
    assert [weight.name for weight in weights] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert {weight.version for weight in weights} == {5}
    assert all(weight.tensor is trained.get_parameter(weight.name) for weight in weights)


@pytest.mark.parametrize("other", [model(4), nn.Linear(2, 3)])
def test_the_weights_of_another_model_are_refused_by_name(other: nn.Module) -> None:
    with pytest.raises(ModelError) as refused:
        WeightReceiver(model()).receive(SharedStorage(other, version=0))
    assert "weight`" in str(refused.value)


def test_a_source_that_lacks_weights_is_refused() -> None:
    trained = model()
    with pytest.raises(ModelError) as refused:
        WeightReceiver(nn.Sequential(*trained, nn.Linear(1, 1))).receive(SharedStorage(trained, version=0))
    assert "`2.weight`" in str(refused.value)


def test_a_released_storage_is_refused_until_it_is_filled_again() -> None:
    trained = model()
    other = copy.deepcopy(trained)
    receiver = WeightReceiver(other)
    receiver.release()
    assert sum(parameter.nbytes for parameter in other.parameters()) == 0
    with pytest.raises(ModelError):
        receiver.check()
    receiver.receive(SharedStorage(trained, version=1))
    receiver.confirm()
    receiver.check()
    assert all(torch.equal(*pair) for pair in zip(other.parameters(), trained.parameters(), strict=True))


def test_weights_are_refused_after_a_handover_that_failed_in_the_middle() -> None:
    trained = model()
    receiver = WeightReceiver(copy.deepcopy(trained))
    with pytest.raises(ModelError):
        receiver.receive(SharedStorage(nn.Sequential(trained[0], nn.Linear(9, 9)), version=1))
    with pytest.raises(ModelError):
        receiver.check()
