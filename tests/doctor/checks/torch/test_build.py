"""Is torch there, does it import, has it code for the cards, and does the driver run it?"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from fakes.doctor import missing
from fakes.machines import recorded

from rl_compat.doctor.checks.torch.build import check_architectures, check_torch
from rl_compat.doctor.checks.torch.cuda import check_torch_driver
from rl_compat.doctor.findings import Finding, Remedy, Severity, Step
from rl_compat.hardware.types import Driver, Folder, Hardware, PciGpu, TorchBuild

CU126 = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")


def found(check: Callable[[Hardware], Iterable[Finding]], hardware: Hardware) -> dict[str, Finding]:
    return {finding.id: finding for finding in check(hardware)}


def only(check: Callable[[Hardware], Iterable[Finding]], hardware: Hardware) -> Finding:
    (finding,) = check(hardware)
    return finding


def commands(remedies: Iterable[Remedy]) -> str:
    return "\n".join(line for remedy in remedies for line in remedy.commands)


def with_software(hardware: Hardware, **facts: object) -> Hardware:
    return replace(hardware, software=replace(hardware.software, **facts))  # type: ignore[arg-type]


def with_torch(hardware: Hardware, **facts: object) -> Hardware:
    """The machine with facts of its torch changed."""
    torch = hardware.software.torch
    assert torch is not None
    return with_software(hardware, torch=replace(torch, **facts))  # type: ignore[arg-type]


def failing(error: str, **facts: object) -> Hardware:
    """A healthy machine on which torch does not import."""
    base = replace(recorded("rtx3090"), **facts)  # type: ignore[arg-type]
    return with_software(base, torch=None, torch_error=error)


def silent(error: str | None, **driver: object) -> Hardware:
    """A machine on which everything fits and CUDA does not answer."""
    base = recorded("rtx3090")
    base = replace(base, driver=replace(base.driver, **driver))  # type: ignore[arg-type]
    return with_torch(base, cuda_available=False, cuda_error=error)


class TestTorch:
    def test_one_that_works_is_fine(self) -> None:
        finding = only(check_torch, recorded("p40"))
        assert finding.severity is Severity.OK
        assert not missing(finding.what, "torch 2.14.1+cu126", "CUDA 12.6", "2.1 s")

    def test_one_that_is_not_installed_is_installed_for_the_card(self) -> None:
        finding = only(check_torch, recorded("rtx3090_no_torch"))
        assert (finding.id, finding.severity) == ("torch.missing", Severity.FAILURE)
        assert "whl/cu132 torch==2.15.0+cu132" in commands(finding.remedies)

    def test_one_that_was_not_looked_at_is_not_judged(self) -> None:
        assert list(check_torch(with_software(recorded("rtx3090"), torch=None))) == []

    def test_a_cpu_build_on_a_machine_with_a_gpu_is_a_cause_of_its_own(self) -> None:
        """A-ENV-10."""
        hardware = recorded("rtx3060_cpu_torch")
        finding = only(check_torch, hardware)
        assert (finding.id, finding.severity) == ("torch.cpu_build", Severity.FAILURE)
        assert "torch 2.6.0+cpu" in finding.what
        assert "`NVIDIA GeForce RTX 3060`" in finding.what
        assert "whl/cu126 torch==2.14.1+cu126" in commands(finding.remedies)
        assert found(check_torch_driver, hardware) == found(check_architectures, hardware) == {}

    def test_a_cpu_build_is_right_without_a_gpu_and_for_an_emulated_one(self) -> None:
        """A-ENV-15."""
        assert only(check_torch, recorded("laptop_no_gpu")).severity is Severity.OK
        emulated = replace(recorded("rtx3060_cpu_torch"), emulated="Tesla P40")
        assert only(check_torch, emulated).severity is Severity.OK

    def test_a_cpu_build_is_right_where_every_gpu_is_hidden(self) -> None:
        base = recorded("rtx3060_cpu_torch")
        assert only(check_torch, replace(base, devices=(), hidden_devices=base.devices)).severity is Severity.OK

    def test_a_cpu_build_beside_a_gpu_without_a_driver_will_be_wrong(self) -> None:
        bare = replace(recorded("laptop_no_gpu"), pci_gpus=(PciGpu(bus_id="0000:01:00.0", device_id="1b38"),))
        finding = only(check_torch, bare)
        assert (finding.id, finding.severity) == ("torch.cpu_build", Severity.WARNING)
        assert "torch==2.14.1+cu126" in commands(finding.remedies)

    def test_a_build_for_other_gpus_is_named(self) -> None:
        finding = only(check_torch, with_torch(recorded("rtx3060_cpu_torch"), version="2.14.1+rocm6.4"))
        assert finding.id == "torch.other_build"
        assert "ROCm" in finding.what

    def test_a_release_below_the_range_fails_and_one_above_is_unknown(self) -> None:
        old = only(check_torch, recorded("rtx3090_torch_2_5"))
        assert (old.id, old.severity) == ("torch.too_old", Severity.FAILURE)
        assert "transformers 5.24.0 needs 2.6" in old.why
        assert not missing(old.what, "torch 2.5.1+cu121", "2.6")
        new = only(check_torch, recorded("rtx4090_newer_than_the_tables"))
        assert (new.id, new.severity, new.remedies) == ("torch.unknown", Severity.NOTE, ())

    def test_a_slow_import_names_the_file_system(self) -> None:
        base = recorded("rtx3090")
        share = Folder(role="packages", path="/home/ada/rl/.venv/lib", writable=True, file_system="nfs4")
        slow = with_software(replace(base, host=replace(base.host, folders=(share,))), torch_seconds=61.4)
        finding = found(check_torch, slow)["torch.slow"]
        assert finding.severity is Severity.WARNING
        assert not missing(finding.what, "61 s", "`/home/ada/rl/.venv/lib`", "nfs4")
        assert "torch.slow" not in found(check_torch, with_software(base, torch_seconds=19.0))


class TestTorchThatDoesNotImport:
    @pytest.mark.parametrize(
        ("error", "case"),
        [
            ("ImportError: libcusparse.so.12: undefined symbol: __nvJitLinkComplete_12_4", "undefined_symbol"),
            ("ImportError: libcudnn.so.9: version `libcudnn.so.9' not found", "undefined_symbol"),
            ("ImportError: libcudart.so.13: cannot open shared object file: No such file", "library_missing"),
            ("ImportError: libcuda.so.1: cannot open shared object file: No such file", "driver_library_missing"),
            ("killed by signal 11 (SIGSEGV)", "crashes"),
            ("killed by signal 4 (SIGILL)", "illegal_instruction"),
            ("killed by signal 9 (SIGKILL)", "killed"),
            ("no answer within 60 s", "hangs"),
            ("ImportError: numpy.core.multiarray failed to import", "numpy"),
            ("OSError: [Errno 28] No space left on device", "no_room"),
            ("OSError: [Errno 30] Read-only file system: '/home/user/.cache'", "no_room"),
            ("ImportError: /lib/libc.so.6: version `GLIBC_2.28' not found", "system_too_old"),
            ("ImportError: libstdc++.so.6: version `GLIBCXX_3.4.30' not found", "runtime_too_old"),
            ("ModuleNotFoundError: No module named 'typing_extensions'", "incomplete"),
            ("AttributeError: partially initialized module 'torch' has no attribute 'version'", "incomplete"),
            ("RuntimeError: something that nobody has seen", "fails"),
        ],
    )
    def test_its_error_is_classified(self, error: str, case: str) -> None:
        finding = only(check_torch, failing(error))
        assert (finding.id, finding.severity) == (f"torch.{case}", Severity.FAILURE)
        assert error in finding.what
        assert finding.why

    def test_a_crash_or_a_missing_library_installs_the_same_version_anew(self) -> None:
        finding = only(check_torch, recorded("rtx3090_torch_segfault"))
        assert "pip install --force-reinstall --index-url" in commands(finding.remedies[:1])
        missing = only(check_torch, recorded("rtx3090_torch_missing_library"))
        assert "--force-reinstall" in commands(missing.remedies)

    def test_a_symbol_conflict_points_to_the_library_path_where_one_is_set(self) -> None:
        """A-ENV-13: reinstalling would not help."""
        finding = only(check_torch, recorded("rtx3090_library_conflict"))
        assert (finding.id, finding.remedies) == ("torch.undefined_symbol", ())
        assert "`libraries`" in finding.why
        without_path = replace(recorded("rtx3090_library_conflict"), environment={})
        assert "--force-reinstall" in commands(only(check_torch, without_path).remedies)

    def test_a_hang_says_how_long_it_was_waited_for_and_shows_where_it_stops(self) -> None:
        finding = only(check_torch, recorded("rtx3090_torch_hang"))
        assert "no answer within 60 s" in finding.what
        assert "-X faulthandler" in commands(finding.remedies[:1])

    def test_an_old_processor_is_named(self) -> None:
        assert "E5-2680" in only(check_torch, failing("killed by signal 4 (SIGILL)")).why

    def test_a_c_runtime_that_is_too_old_is_replaced_where_it_comes_from(self) -> None:
        conda = with_software(failing("version `GLIBCXX_3.4.30' not found"), environment_kind="conda")
        assert "conda install" in commands(only(check_torch, conda).remedies)
        assert only(check_torch, failing("version `GLIBCXX_3.4.30' not found")).remedies[0].step is Step.SYSTEM

    def test_a_long_error_is_cut(self) -> None:
        finding = only(check_torch, failing("RuntimeError: " + "x" * 2000))
        assert len(finding.what) < 400
        assert finding.what.endswith("…")


class TestArchitectures:
    def test_a_wheel_without_code_for_the_card_fails_although_cuda_answers(self) -> None:
        """A-ENV-01."""
        finding = only(check_architectures, recorded("p40_cu128_wheel"))
        assert (finding.id, finding.severity) == ("torch_architectures.no_code", Severity.FAILURE)
        assert not missing(finding.what, "torch 2.8.0+cu128", "CUDA 12.8", "Tesla P40 (compute capability 6.1)")
        assert "compute capability 6.1" in finding.what
        assert "sm_70, sm_75" in finding.what
        assert "whl/cu126 torch==2.14.1+cu126" in commands(finding.remedies)

    def test_code_for_6_0_runs_on_6_1(self) -> None:
        """A-ENV-02."""
        finding = only(check_architectures, with_torch(recorded("p40"), arch_list=CU126))
        assert finding.severity is Severity.OK
        assert not missing(finding.what, "torch 2.14.1+cu126", "Tesla P40 (compute capability 6.1)")

    def test_without_an_architecture_list_nothing_is_claimed(self) -> None:
        finding = only(check_architectures, with_torch(recorded("p40"), arch_list=()))
        assert (finding.id, finding.severity) == ("torch_architectures.not_known", Severity.OK)

    @pytest.mark.parametrize(
        ("driver", "case", "severity"),
        [
            ("580.95.05", "ptx_only", Severity.NOTE),
            ("570.26", "too_old_for_ptx", Severity.FAILURE),
            (None, "ptx_only", Severity.WARNING),
        ],
    )
    def test_ptx_alone_depends_on_the_driver(self, driver: str | None, case: str, severity: Severity) -> None:
        base = replace(recorded("rtx5090"), driver=Driver(version=driver))
        finding = only(check_architectures, with_torch(base, cuda="13.0", arch_list=("sm_90", "compute_90")))
        assert (finding.id, finding.severity) == (f"torch_architectures.{case}", severity)

    def test_of_mixed_cards_it_says_which_are_served(self) -> None:
        mixed = with_torch(recorded("mixed_p40_a100"), cuda="12.8", arch_list=("sm_70", "sm_80"))
        results = found(check_architectures, mixed)
        lacking = results["torch_architectures.some_without_code"]
        assert lacking.severity is Severity.WARNING
        assert lacking.affects == ("cuda:1",)
        assert lacking.affects == ("cuda:0",) or lacking.affects == ("cuda:1",)
        assert not missing(lacking.what, "Tesla P40", "6.1", "NVIDIA A100-PCIE-40GB", "8.0")
        assert commands(lacking.remedies[:1]).endswith("torch==2.14.1+cu126")
        assert results["torch_architectures.match"].severity is Severity.OK

    def test_where_the_first_card_is_not_served_training_as_it_is_fails(self) -> None:
        mixed = with_torch(recorded("mixed_p40_a100"), cuda="12.6", arch_list=("sm_60",))
        finding = found(check_architectures, mixed)["torch_architectures.some_without_code"]
        assert (finding.severity, finding.affects) == (Severity.FAILURE, ("cuda:0",))

    def test_where_no_build_serves_all_the_others_are_left_out(self) -> None:
        base = recorded("mixed_p40_a100")
        cards = (replace(base.devices[0], compute_capability=(12, 0)), base.devices[1])
        mixed = with_torch(replace(base, devices=cards), cuda="12.6", arch_list=CU126)
        finding = found(check_architectures, mixed)["torch_architectures.some_without_code"]
        assert finding.remedies[0].commands == (f"export CUDA_VISIBLE_DEVICES={base.devices[1].uuid}",)

    @pytest.mark.parametrize("name", ["laptop_no_gpu", "rtx3060_cpu_torch", "rtx3090_no_torch"])
    def test_without_a_gpu_or_a_cuda_build_it_does_not_apply(self, name: str) -> None:
        assert list(check_architectures(recorded(name))) == []

    def test_an_emulated_card_runs_on_what_is_there(self) -> None:
        emulated = replace(recorded("p40_cu128_wheel"), emulated="Tesla P40")
        assert list(check_architectures(emulated)) == list(check_torch_driver(emulated)) == []


class TestDriver:
    def test_a_driver_of_the_same_major_version_is_enough(self) -> None:
        finding = only(check_torch_driver, recorded("p40"))
        assert finding.severity is Severity.OK
        assert not missing(finding.what, "driver 535.274.02", "CUDA 12.2", "torch 2.14.1+cu126", "CUDA 12.6")

    def test_a_driver_that_is_too_old_has_two_ways_out(self) -> None:
        """A-ENV-09: 11040 is shown as 11.4, and it is not `no GPU`."""
        finding = only(check_torch_driver, recorded("rtx3090_old_driver"))
        assert (finding.id, finding.severity) == ("torch_driver.too_old", Severity.FAILURE)
        assert "CUDA 11.4" in finding.what
        assert "needs CUDA 12.x" in finding.what
        torch, driver = finding.remedies
        assert torch.commands[0].endswith("whl/cu118 torch==2.7.1+cu118")
        assert driver.step is Step.DRIVER
        assert "525.60.13 or newer" in driver.what

    def test_the_drivers_version_is_read_out_of_torchs_complaint_where_nothing_else_says(self) -> None:
        complaint = "The NVIDIA driver on your system is too old (found version 11040)."
        blind = replace(recorded("rtx3090_old_driver"), driver=Driver())
        finding = only(check_torch_driver, with_torch(blind, cuda_error=complaint))
        assert finding.id == "torch_driver.too_old"
        assert "CUDA 11.4" in finding.what
        assert "torch==2.7.1+cu118" in commands(finding.remedies)

    def test_under_wsl_the_driver_is_one_of_windows(self) -> None:
        finding = only(check_torch_driver, recorded("wsl_rtx4070_old_driver"))
        assert finding.id == "torch_driver.too_old"
        assert "in Windows" in finding.remedies[-1].what
        assert finding.remedies[-1].commands == ()

    def test_in_a_container_the_driver_is_the_hosts(self) -> None:
        base = recorded("rtx3090_old_driver")
        inside = replace(base, host=replace(base.host, container="docker"))
        assert "on the host" in only(check_torch_driver, inside).remedies[-1].what

    def test_a_driver_for_an_old_card_is_not_newer_than_its_last_branch(self) -> None:
        old = replace(recorded("p40"), driver=Driver(version="470.86", cuda_version="11.4"))
        finding = only(check_torch_driver, with_torch(old, cuda_available=False))
        assert "up to R580" in finding.remedies[-1].what

    def test_a_cuda_that_the_tables_do_not_know_is_not_called_too_new(self) -> None:
        finding = only(check_torch_driver, recorded("rtx4090_newer_than_the_tables"))
        assert finding.severity is Severity.OK

    def test_without_a_driver_or_a_gpu_it_does_not_apply(self) -> None:
        base = recorded("rtx3090")
        bare = with_torch(replace(base, devices=(), driver=Driver()), cuda_available=False)
        assert list(check_torch_driver(bare)) == []

    @pytest.mark.parametrize(
        ("error", "case", "command"),
        [
            ("Error 802: system not yet initialized", "fabric_manager", "nvidia-fabricmanager-580"),
            ("Error 803: system has unsupported display driver / cuda driver combination", "two_drivers", ""),
            ("Error 804: forward compatibility was attempted on non supported HW", "forward_compatibility", ""),
            ("Error 805: MPS client failed to connect", "mps", "unset CUDA_MPS_PIPE_DIRECTORY"),
            ("Error 999: unknown error", "not_initialised", "modprobe nvidia_uvm"),
            ("CUDA initialization: initialization error", "not_initialised", "modprobe nvidia_uvm"),
            ("RuntimeError: No CUDA-capable device is detected", "no_device", "modprobe"),
            ("Found no NVIDIA driver on your system", "no_library", ""),
            ("CUDA error: all CUDA-capable devices are busy or unavailable", "unavailable", "nvidia-smi"),
            ("CUDA error: out of memory", "out_of_memory", "nvidia-smi --query-compute-apps"),
            ("CUDA error: uncorrectable ECC error encountered", "lost", "dmesg"),
            (None, "silent", "torch.cuda.init()"),
        ],
    )
    def test_what_cuda_answered_instead_is_classified(self, error: str | None, case: str, command: str) -> None:
        finding = only(check_torch_driver, silent(error))
        assert (finding.id, finding.severity) == (f"torch_driver.{case}", Severity.FAILURE)
        assert (error or "") in finding.what
        assert finding.remedies
        assert command in commands(finding.remedies)

    @pytest.mark.parametrize(
        "name", ["rtx3090_prohibited", "rtx3090_exclusive_and_held", "rtx3090_driver_library_mismatch"]
    )
    def test_what_the_checks_of_the_driver_explain_is_not_said_again(self, name: str) -> None:
        """A compute mode that keeps programs out, libraries that do not go with the kernel module."""
        assert list(check_torch_driver(recorded(name))) == []

    def test_an_exclusive_card_that_nobody_is_seen_to_hold_is_set_free_by_its_mode(self) -> None:
        """As in a container, where the others' processes are not shown."""
        held = recorded("rtx3090_exclusive_and_held")
        alone = replace(held, devices=(replace(held.devices[0], processes=()),))
        finding = only(check_torch_driver, alone)
        assert finding.id == "torch_driver.unavailable"
        assert "--compute-mode=DEFAULT" in commands(finding.remedies)

    def test_a_missing_device_file_in_a_container_is_the_containers_start(self) -> None:
        finding = only(check_torch_driver, recorded("lxc_without_uvm"))
        assert finding.id == "torch_driver.not_initialised"
        assert finding.remedies[0].step is Step.CONTAINER

    def test_a_device_file_that_may_not_be_opened_is_a_matter_of_groups(self) -> None:
        closed = silent("initialization error", closed_device_nodes=("/dev/nvidia-uvm",))
        assert "usermod -aG" in commands(only(check_torch_driver, closed).remedies)

    def test_hiding_every_card_by_mistake_is_undone_first(self) -> None:
        hidden = replace(silent("no CUDA-capable device is detected"), environment={"CUDA_VISIBLE_DEVICES": "7"})
        assert only(check_torch_driver, hidden).remedies[0].commands == ("unset CUDA_VISIBLE_DEVICES",)

    def test_one_card_of_several_that_cannot_be_read_is_a_warning(self) -> None:
        base, error = recorded("mixed_p40_a100"), "RuntimeError: CUDA error: out of memory"
        second = only(check_torch_driver, with_torch(base, cuda_error=f"cuda:1: {error}"))
        assert (second.id, second.severity) == ("torch_driver.out_of_memory", Severity.WARNING)
        assert second.affects == ("cuda:1",)
        first = only(check_torch_driver, with_torch(base, cuda_error=f"cuda:0: {error}"))
        assert first.severity is Severity.FAILURE

    def test_under_wsl_no_linux_driver_is_touched(self) -> None:
        base = with_torch(recorded("wsl_rtx3070"), cuda_available=False, cuda_error="Error 999: unknown error")
        finding = only(check_torch_driver, base)
        assert "modprobe" not in commands(finding.remedies)
        assert "Windows" in finding.remedies[0].what


def test_every_text_reads_like_the_others() -> None:
    hardware = [failing("no answer within 60 s"), silent("Error 999: unknown error"), recorded("p40_cu128_wheel")]
    checks = (check_torch, check_architectures, check_torch_driver)
    findings = [finding for machine in hardware for check in checks for finding in check(machine)]
    for finding in findings:
        texts = [finding.what, finding.why, *(remedy.what for remedy in finding.remedies)]
        assert not any(text.endswith(".") for text in texts)
        assert finding.id.partition(".")[0] in ("torch", "torch_architectures", "torch_driver")


def test_a_torch_of_unknown_cuda_is_compared_by_its_major_version() -> None:
    newer = with_torch(recorded("rtx4090"), version="2.15.1+cu134", cuda="13.4")
    assert only(check_torch_driver, newer).severity is Severity.OK
    old = replace(recorded("rtx4090"), driver=Driver(version="550.54.14", cuda_version="12.4"))
    build = TorchBuild(version="2.15.1+cu134", cuda="13.4", arch_list=("sm_80",))
    assert only(check_torch_driver, with_software(old, torch=build)).id == "torch_driver.too_old"
