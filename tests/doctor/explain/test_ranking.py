"""What caused what: logs with several errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rl_compat.doctor.explain.ranking import Cause

Ranked = Callable[[str | bytes], tuple[Cause, ...]]

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB."
KILLED = "traceback : Signal 9 (SIGKILL) received by PID 36071"
TIMEOUT = "[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1580) ran for 600060 milliseconds"
CHILD = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"
NO_KERNEL = "RuntimeError: CUDA error: no kernel image is available for execution on the device"
INT8_SLOW = "WARNING: Compute capability < 7.5 detected! Only slow 8-bit matmul is supported for your GPU!"
OLD_DRIVER = "UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found version 12020)."
DISK = "OSError: [Errno 28] No space left on device"
BUS = "NVRM: Xid (PCI:0000:03:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
ACTOR = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."
KERNEL_OOM = "[82117.104412] Out of memory: Killed process 20390 (python) total-vm:118201000kB"


def shape(causes: tuple[Cause, ...]) -> list[tuple[str, tuple[str, ...]]]:
    return [(cause.match.error.id, tuple(match.error.id for match in cause.consequences)) for cause in causes]


def log(*lines: str, apart: int = 30) -> str:
    """The lines with `apart` ordinary ones between them."""
    filler = "step 12 loss 2.31\n" * apart
    return filler.join(f"{line}\n" for line in lines)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("oom_then_timeout", [("cuda_oom", ("nccl_timeout", "peer_gone", "child_failed"))]),
        ("worker_death_then_oom", [("host_oom", ("ray_actor_died", "cuda_oom"))]),
        ("driver_warning_then_no_kernel", [("torch_not_compatible", ("no_kernel_image",))]),
        ("old_driver_then_no_kernel", [("driver_too_old", ("no_cuda_devices",)), ("no_kernel_image", ())]),
        ("disk_full_then_load_error", [("disk_full", ("checkpoint_damaged",))]),
        ("uuid_then_inspection", [("visible_uuid", ("vllm_inspect",))]),
        ("bus_then_everything", [("fell_off_bus", ("illegal_memory", "nccl_timeout"))]),
        ("shared_memory_of_a_container", [("shm", ())]),
    ],
)
def test_logs_with_several_errors(
    name: str, expected: list[tuple[str, tuple[str, ...]]], ranked: Ranked, logs: Path
) -> None:
    """A-ENV-04, A-ENV-07, A-UX-03: the headline is the cause, not the timeout nor what followed from it."""
    assert shape(ranked((logs / "cases" / f"{name}.txt").read_bytes())) == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param((OOM, KILLED), [("cuda_oom", ("worker_killed",))], id="a death after an out-of-memory"),
        pytest.param((KILLED, OOM), [("worker_killed", ("cuda_oom",))], id="an out-of-memory after a death"),
        pytest.param((OOM, TIMEOUT), [("cuda_oom", ("nccl_timeout",))], id="a timeout after an out-of-memory"),
        pytest.param((TIMEOUT, OOM), [("nccl_timeout", ()), ("cuda_oom", ())], id="the earlier fault goes first"),
        pytest.param((CHILD, OOM), [("cuda_oom", ("child_failed",))], id="a report is never the cause"),
        pytest.param((CHILD,), [("child_failed", ())], id="unless it is all there is"),
        pytest.param((INT8_SLOW, OOM), [("cuda_oom", ()), ("bnb_int8_slow", ())], id="a fault goes before a note"),
        pytest.param((ACTOR, KERNEL_OOM), [("host_oom", ("ray_actor_died",))], id="the kernel's log is pasted below"),
        pytest.param((NO_KERNEL, BUS), [("no_kernel_image", ()), ("fell_off_bus", ())], id="unrelated, by position"),
        pytest.param((TIMEOUT, BUS), [("fell_off_bus", ("nccl_timeout",))], id="hardware explains what came before"),
        pytest.param((KILLED, TIMEOUT, CHILD), [("worker_killed", ("nccl_timeout", "child_failed"))], id="a chain"),
        pytest.param((DISK, OOM), [("disk_full", ()), ("cuda_oom", ())], id="no relation is invented"),
        pytest.param((NO_KERNEL, OLD_DRIVER), [("no_kernel_image", ()), ("driver_too_old", ())], id="far apart"),
    ],
)
def test_pairs(lines: tuple[str, ...], expected: list[tuple[str, tuple[str, ...]]], ranked: Ranked) -> None:
    assert shape(ranked(log(*lines))) == expected


def test_within_one_traceback_the_deeper_layer_goes_first(ranked: Ranked) -> None:
    assert shape(ranked(log(NO_KERNEL, OLD_DRIVER, apart=2))) == [("driver_too_old", ()), ("no_kernel_image", ())]


def test_a_warning_that_led_to_a_fault_counts_as_one(ranked: Ranked) -> None:
    nvml = "UserWarning: Can't initialize NVML"
    none = "RuntimeError: No CUDA GPUs are available"

    cause = ranked(log(nvml, none))[0]

    assert shape((cause,)) == [("nvml_missing", ("no_cuda_devices",))]
    assert cause.severity == 0


def test_the_order_of_the_log_is_kept_among_consequences(ranked: Ranked) -> None:
    assert shape(ranked(log(OOM, CHILD, TIMEOUT))) == [("cuda_oom", ("child_failed", "nccl_timeout"))]


def test_every_error_is_somewhere_in_the_result(ranked: Ranked) -> None:
    lines = (OLD_DRIVER, NO_KERNEL, DISK, OOM, KILLED, ACTOR, TIMEOUT, CHILD, BUS, INT8_SLOW, KERNEL_OOM)
    for turn in range(len(lines)):
        causes = ranked(log(*lines[turn:], *lines[:turn]))

        shown = [match.error.id for cause in causes for match in (cause.match, *cause.consequences)]
        assert len(shown) == len(set(shown)) == len(lines)


def test_a_fault_long_after_another_is_an_event_of_its_own(ranked: Ranked) -> None:
    assert shape(ranked(log(OOM, TIMEOUT, apart=6000))) == [("cuda_oom", ()), ("nccl_timeout", ())]
