"""The profiles that ship, and the reading of them."""

from __future__ import annotations

from importlib.resources import files

import pytest
from fakes.machines import A100, GTX_1660, H200, P40, P100, T4, V100, gpu, machine

from rl_compat.errors import ConfigError, HardwareError
from rl_compat.planning.choices import ORDERS
from rl_compat.planning.profile import CONCERNS, find_profile, load_profiles, match_profile, parse_profile

TEXT = files("rl_compat.profiles").joinpath("pascal.toml").read_text()


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (gpu("Tesla M40", (5, 2)), "maxwell"),
        (P100, "pascal"),
        (P40, "pascal"),
        (V100, "volta"),
        (T4, "turing"),
        (GTX_1660, "turing16"),
        (A100, "ampere"),
        (gpu("NVIDIA GeForce RTX 3090", (8, 6)), "ampere"),
        (gpu("NVIDIA GeForce RTX 4090", (8, 9)), "ada"),
        (H200, "hopper"),
        (gpu("NVIDIA B200", (10, 0)), "blackwell"),
        (gpu("NVIDIA GeForce RTX 5090", (12, 0)), "blackwell"),
    ],
)
def test_each_card_gets_the_profile_of_its_family(device, expected) -> None:
    profile, why = match_profile(machine(device))

    assert profile.name == expected
    assert why == profile.summary


def test_no_gpu_gets_the_cpu_profile() -> None:
    assert match_profile(machine())[0].name == "cpu"


def test_the_weakest_card_decides() -> None:
    assert match_profile(machine(A100, P40))[0].name == "pascal"


def test_a_card_newer_than_every_profile_gets_the_newest_and_says_so() -> None:
    profile, why = match_profile(machine(gpu("NVIDIA R300", (14, 0))))

    assert profile.name == "blackwell"
    assert "14.0" in why and "`blackwell`" in why


def test_a_card_older_than_every_profile_is_refused_with_both_values() -> None:
    with pytest.raises(HardwareError, match=r"Tesla K80 .*3\.7.*5\.0"):
        match_profile(machine(gpu("Tesla K80", (3, 7))))


@pytest.mark.parametrize(
    ("asked", "device", "message"),
    [
        ("ampere", P40, r"`ampere` .*8\.0 to 8\.7.*Tesla P40 .*6\.1"),
        ("cpu", P40, "`cpu` .*Tesla P40"),
        ("turing", GTX_1660, "`turing` .*NVIDIA GeForce GTX 1660 Ti"),
        ("turing16", T4, "`turing16` .*Tesla T4"),
    ],
)
def test_a_profile_whose_conditions_are_broken_is_refused(asked, device, message) -> None:
    with pytest.raises(HardwareError, match=message):
        match_profile(machine(device), asked)


def test_a_cuda_profile_is_refused_on_a_cpu() -> None:
    with pytest.raises(HardwareError, match="`pascal`"):
        match_profile(machine(), "pascal")


def test_an_unknown_profile_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError) as caught:
        find_profile("pascl")

    assert caught.value.hint == "did you mean `pascal`"


@pytest.mark.parametrize("profile", load_profiles(), ids=lambda profile: profile.name)
def test_a_shipped_profile_names_only_values_that_exist_and_a_reason_for_each_concern(profile) -> None:
    assert set(profile.prefer) == set(CONCERNS)
    for concern, preference in profile.prefer.items():
        assert preference.order
        assert set(preference.order) <= set(ORDERS[concern])
        assert preference.because


def test_a_profile_that_is_like_another_changes_only_the_entries_that_it_names() -> None:
    maxwell, pascal = find_profile("maxwell"), find_profile("pascal")
    assert maxwell.limits.max_num_seqs == 64
    assert maxwell.limits.max_prefill_tokens == pascal.limits.max_prefill_tokens
    assert maxwell.prefer["compute_dtype"].order == pascal.prefer["compute_dtype"].order
    assert maxwell.prefer["compute_dtype"].because != pascal.prefer["compute_dtype"].because


@pytest.mark.parametrize("profile", load_profiles(), ids=lambda profile: profile.name)
def test_no_profile_below_8_0_prefers_bf16(profile) -> None:
    """A-ENV-03."""
    lowest = profile.match.min_capability
    if lowest is None or lowest < (8, 0):
        assert all("bf16" not in preference.order for preference in profile.prefer.values())


@pytest.mark.parametrize(
    ("old", "new", "literal"),
    [
        ("max_num_seqs", "max_nun_seqs", "max_nun_seqs"),
        ('device = "cuda"', 'device = "tpu"', "`tpu`"),
        ('device = "cuda"\n', "", "'device'"),
        ("allocator_factor = 1.13\n", "", "allocator_factor"),
        ('context = "450MiB"\n', "", "`context`"),
        ("[match]", "[match", "line 3"),
        ("[match]", 'like = "pascl"\n[match]', "pascl.toml"),
        ('min_capability = "6.0"', 'min_capability = "six"', "pascal.toml"),
        ("max_num_seqs = 128", 'max_num_seqs = "many"', "'many'"),
        ("max_num_seqs = 128", "max_num_seqs = 0", "max_num_seqs=0"),
        ('order = ["fp32"]', "order = []", r"order=\(\)"),
    ],
)
def test_a_malformed_profile_is_refused_by_file_and_key(old, new, literal) -> None:
    assert old in TEXT
    with pytest.raises(ConfigError, match=literal) as caught:
        parse_profile("pascal", TEXT.replace(old, new, 1))
    assert "`pascal.toml`" in caught.value.message
