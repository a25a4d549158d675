"""What the cards' compute capability means, and which variables matter."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from fakes.doctor import missing
from fakes.machines import GTX_1660, H200, P40, P100, T4, V100, machine, recorded

from rl_compat.capability.binaries import TEGRA
from rl_compat.doctor.checks.cards.precision import HALF, check_attention, check_kernels, check_precision
from rl_compat.doctor.checks.system.variables import check_variables
from rl_compat.doctor.diagnosis import select_checks
from rl_compat.doctor.findings import Finding, Severity
from rl_compat.doctor.table import CHECKS as EVERY_CHECK
from rl_compat.hardware.gpu.catalogue import all_gpus
from rl_compat.hardware.types import Device, Hardware

CHECKS = select_checks(EVERY_CHECK, ("precision", "attention", "kernels"))


def found(findings: Iterable[Finding]) -> dict[str, Finding]:
    return {finding.id: finding for finding in findings}


class TestPrecision:
    @pytest.mark.parametrize(
        ("device", "case", "rate"),
        [
            (H200, "native", "full"),
            (T4, "bf16_emulated", "full"),
            (V100, "bf16_emulated", "full"),
            (P40, "bf16_emulated", "1/64"),
            (P100, "bf16_emulated", "double"),
            (GTX_1660, "fp16_collapses", "vector_only"),
        ],
    )
    def test_each_kind_of_card_is_told_what_it_multiplies_in(self, device: Device, case: str, rate: str) -> None:
        """A-ENV-03."""
        (finding,) = check_precision(machine(device))
        assert finding.id == f"precision.{case}"
        assert finding.severity is (Severity.OK if case == "native" else Severity.NOTE)
        assert not missing(finding.what, device.name, HALF[rate], "TF32")

    def test_torchs_yes_does_not_make_bf16_native(self) -> None:
        """A-ENV-03: 7.5 with the flag unknown, or even set."""
        for flag in (None, True, False):
            (finding,) = check_precision(machine(replace(T4, bf16_native=flag)))
            assert finding.id == "precision.bf16_emulated"

    def test_mixed_cards_are_told_apart(self) -> None:
        results = found(check_precision(recorded("mixed_p40_a100")))
        assert results["precision.native"].severity is Severity.OK
        assert results["precision.bf16_emulated"].affects == ("cuda:1",)
        assert "Tesla P40" in results["precision.bf16_emulated"].what

    def test_cards_of_one_kind_share_a_line(self) -> None:
        (finding,) = check_precision(machine(P40, P40))
        assert finding.what.startswith("2 × Tesla P40 (compute capability 6.1): ")

    def test_a_card_that_the_catalogue_does_not_know_is_judged_by_its_capability(self) -> None:
        (unnamed,) = check_precision(machine(replace(P40, name="Graphics Device")))
        assert "1/64" in unnamed.what
        (small,) = check_precision(machine(replace(T4, name="NVIDIA T550 Laptop GPU")))
        assert small.id == "precision.fp16_collapses"
        (newer,) = check_precision(machine(replace(H200, name="NVIDIA X1", compute_capability=(13, 0))))
        assert HALF["unknown"] in newer.what

    def test_every_card_of_the_catalogue_that_some_torch_serves_gets_one_line(self) -> None:
        for gpu in all_gpus():
            device = replace(P40, name=gpu.name, compute_capability=gpu.compute_capability)
            findings = list(check_precision(machine(device)))
            native = gpu.compute_capability >= (8, 0)
            unserved = gpu.compute_capability < (5, 0) or gpu.compute_capability in TEGRA - {(8, 7)}
            expected = [] if unserved else [Severity.OK if native else Severity.NOTE]
            assert [finding.severity for finding in findings] == expected


class TestAttentionAndKernels:
    @pytest.mark.parametrize(("device", "kernel"), [(H200, "flash kernel"), (P40, "memory-efficient kernel")])
    def test_fused_attention_is_fine(self, device: Device, kernel: str) -> None:
        (finding,) = check_attention(machine(device))
        assert (finding.id, finding.severity) == ("attention.fused", Severity.OK)
        assert kernel in finding.what

    def test_a_card_without_it_is_told_to_keep_lengths_short(self) -> None:
        k80 = recorded("k80")
        assert k80.software.torch is not None
        own_build = replace(k80.software.torch, version="2.6.0+git1b2c3d4")
        (finding,) = check_attention(replace(k80, software=replace(k80.software, torch=own_build)))
        assert (finding.id, finding.severity) == ("attention.math_only", Severity.NOTE)

    def test_of_a_card_that_no_torch_serves_nothing_is_said(self) -> None:
        checks = (check_precision, check_attention, check_kernels)
        assert [list(check(recorded("k80"))) for check in checks] == [[], [], []]

    def test_the_weakest_card_decides(self) -> None:
        (finding,) = check_attention(recorded("mixed_p40_a100"))
        assert "Tesla P40" in finding.what

    @pytest.mark.parametrize("device", [P40, P100])
    def test_below_7_0_triton_and_compile_are_off_and_no_error(self, device: Device) -> None:
        """A-ENV-12."""
        (finding,) = check_kernels(machine(device))
        assert (finding.id, finding.severity, finding.remedies) == ("kernels.off", Severity.NOTE, ())
        major, minor = device.compute_capability
        assert f"are off: {device.name} (compute capability {major}.{minor}) is below 7.0" in finding.what
        assert "48.0 KiB of shared memory" in finding.what

    @pytest.mark.parametrize(("device", "shared"), [(V100, "96.0 KiB"), (T4, "64.0 KiB"), (H200, "227.0 KiB")])
    def test_from_7_0_they_are_on(self, device: Device, shared: str) -> None:
        (finding,) = check_kernels(machine(device))
        assert (finding.id, finding.severity) == ("kernels.on", Severity.OK)
        assert shared in finding.what

    def test_the_shared_memory_that_was_read_counts_more_than_the_table(self) -> None:
        (finding,) = check_kernels(machine(replace(H200, shared_memory_optin_bytes=102400)))
        assert "100.0 KiB" in finding.what

    def test_of_mixed_cards_the_old_one_is_named(self) -> None:
        (finding,) = check_kernels(recorded("mixed_p40_a100"))
        assert finding.affects == ("cuda:1",)

    def test_without_a_gpu_none_of_this_applies(self) -> None:
        for look in (check_precision, check_attention, check_kernels):
            assert list(look(recorded("laptop_no_gpu"))) == []


def with_variable(base: Hardware, **variables: str) -> dict[str, Finding]:
    return found(check_variables(replace(base, environment=variables)))


class TestEnvironment:
    def test_a_clean_shell_is_fine(self) -> None:
        (finding,) = check_variables(recorded("rtx3090"))
        assert finding.severity is Severity.OK

    @pytest.mark.parametrize(
        ("name", "value", "case", "severity"),
        [
            ("CUDA_LAUNCH_BLOCKING", "1", "launch_blocking", Severity.WARNING),
            ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", "no_caching", Severity.WARNING),
            ("NVIDIA_TF32_OVERRIDE", "0", "tf32_off", Severity.NOTE),
            ("NVIDIA_TF32_OVERRIDE", "1", "tf32_on", Severity.WARNING),
            ("CUDA_MODULE_LOADING", "eager", "eager_loading", Severity.NOTE),
        ],
    )
    def test_a_variable_that_hurts_is_unset(self, name: str, value: str, case: str, severity: Severity) -> None:
        finding = with_variable(recorded("rtx3090"), **{name: value})[f"environment.{case}"]
        assert finding.severity is severity
        assert f"`{name}={value}`" in finding.what
        assert finding.remedies[0].commands == (f"unset {name}",)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("CUDA_LAUNCH_BLOCKING", "0"),
            ("CUDA_MODULE_LOADING", "LAZY"),
            ("TORCH_CUDA_ARCH_LIST", "8.0"),
            ("PYTORCH_ALLOC_CONF", "expandable_segments:True"),
            ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),
            ("VLLM_ATTENTION_BACKEND", "FLASH_ATTN"),
        ],
    )
    def test_one_that_does_nothing_bad_here_is_not_mentioned(self, name: str, value: str) -> None:
        assert list(with_variable(recorded("rtx3090"), **{name: value})) == ["environment.clean"]

    def test_without_a_gpu_cudas_variables_do_not_matter(self) -> None:
        variables = {"CUDA_LAUNCH_BLOCKING": "1", "NVIDIA_TF32_OVERRIDE": "1", "CUDA_MODULE_LOADING": "EAGER"}
        assert list(with_variable(recorded("laptop_no_gpu"), **variables)) == ["environment.clean"]

    def test_tf32_is_nothing_to_a_card_without_it(self) -> None:
        assert list(with_variable(recorded("p40"), NVIDIA_TF32_OVERRIDE="1")) == ["environment.clean"]

    def test_the_allocators_new_name_is_not_read_by_an_older_torch(self) -> None:
        base = machine(H200)
        finding = with_variable(base, PYTORCH_ALLOC_CONF="expandable_segments:True")["environment.alloc_conf_not_read"]
        assert finding.severity is Severity.NOTE
        assert finding.remedies[0].commands == ("export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",)
        both = {"PYTORCH_ALLOC_CONF": "a:1", "PYTORCH_CUDA_ALLOC_CONF": "a:1"}
        assert list(with_variable(base, **both)) == ["environment.clean"]

    @pytest.mark.parametrize(("version", "noted"), [("0.14.1", False), ("0.25.0", True)])
    def test_vllms_backend_variable_has_no_effect_since_0_15(self, version: str, noted: bool) -> None:
        results = with_variable(machine(H200, vllm=version), VLLM_ATTENTION_BACKEND="FLASHINFER")
        assert ("environment.vllm_backend_not_read" in results) is noted


def test_a_healthy_machine_hears_nothing() -> None:
    for name in ("rtx3090", "rtx4090", "a100", "h100", "h200", "rtx5090"):
        findings = [finding for check in CHECKS for finding in check.run(recorded(name))]
        assert {finding.severity for finding in findings} == {Severity.OK}
