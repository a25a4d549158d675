"""Errors of several processes, nodes and schedulers, in logs as they come: `distributed.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from rl_compat.doctor.explain.patterns import known_errors
from rl_compat.doctor.explain.ranking import Cause
from rl_compat.hardware.gpu.catalogue import read_table

Ranked = Callable[[str | bytes], tuple[Cause, ...]]

LOGS = tomllib.loads(Path(__file__).with_name("distributed.toml").read_text(encoding="utf-8"))
NCCL: dict[str, str] = LOGS["nccl"]
"NCCL's own reasons, and the advice to ask for one where none stands there"
KILLED: dict[str, str] = LOGS["killed"]
OUT_OF_MEMORY: dict[str, str] = LOGS["out_of_memory"]
SEVERAL = [(error, line) for error, lines in LOGS["several"].items() for line in lines]
"what torch 2.13 prints on a CPU for two dtypes in each operation, older releases and CUDA included; each errno"
PREFIXES = {
    "torchrun": "[rank1]: {}",
    "torchrun, default": "[default0]:{}",
    "Ray": "(WorkerDict pid=4101, ip=10.0.0.2) {}",
    "Ray, without a name": "(pid=123, ip=10.0.0.2) {}",
    "Ray, a method": "(Worker.update pid=4101) {}",
    "Ray, in colour": "\x1b[36m(WorkerDict pid=4101)\x1b[0m {}",
    "srun": "0: {}",
    "mpirun": "[1,3]<stderr>:{}",
    "kubectl": "[pod/rlc-0/trainer] {}",
    "docker compose": "trainer-1  | {}",
    "time and rank": "2026-02-03 10:11:12,123 [rank1]: {}",
    "Ray, srun, rank": "3: (WorkerDict pid=4101) [rank7]: {}",
}
DAMAGED = "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer\n"


def names(ranked: Ranked, text: str) -> list[str]:
    return [cause.match.error.id for cause in ranked(text)]


def test_every_error_of_the_table_has_a_log() -> None:
    table = {row["id"] for row in read_table("errors_distributed")["errors"]}

    assert len(table) >= 60
    assert table <= {*NCCL, *LOGS["one"], *LOGS["several"]}


@pytest.mark.parametrize("error", NCCL)
def test_nccls_own_reason_comes_first_and_alone(error: str, ranked: Ranked) -> None:
    assert names(ranked, f"starting\n{NCCL[error]}") == [error]


@pytest.mark.parametrize("error", NCCL)
def test_the_reason_of_one_rank_is_found_far_from_the_echoes_of_the_others(error: str, ranked: Ranked) -> None:
    echo = "[rank0]: RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1691, unhandled system error\n"
    between = "".join(f"step {number}\n" for number in range(30))

    assert names(ranked, f"{echo}{between}{NCCL[error]}{between}{echo}") == [error]


def test_only_an_error_without_a_reason_is_answered_with_a_request_for_one() -> None:
    first = {error.id: error.remedies[0] for error in known_errors() if error.id in NCCL}

    assert [id for id, remedy in first.items() if "NCCL_DEBUG" in str(remedy)] == ["nccl_generic"]


@pytest.mark.parametrize(("error", "log"), LOGS["one"].items(), ids=LOGS["one"])
def test_an_error_is_recognised_in_a_log_and_no_other(error: str, log: str, ranked: Ranked) -> None:
    assert names(ranked, f"step 1\nstep 2\n{log}\nstep 3\n") == [error]


@pytest.mark.parametrize("log", KILLED.values(), ids=KILLED)
def test_a_killed_process_is_recognised_in_the_words_of_its_shell(log: str, ranked: Ranked) -> None:
    assert names(ranked, log) == ["worker_killed"]


@pytest.mark.parametrize("log", OUT_OF_MEMORY.values(), ids=OUT_OF_MEMORY)
def test_a_kill_for_memory_is_recognised_in_the_words_of_every_scheduler(log: str, ranked: Ranked) -> None:
    assert names(ranked, log) == ["host_oom"]


@pytest.mark.parametrize("killed", [*KILLED.values(), *OUT_OF_MEMORY.values()], ids=[*KILLED, *OUT_OF_MEMORY])
def test_a_kill_while_saving_is_the_cause_of_the_damaged_file(killed: str, ranked: Ranked) -> None:
    (cause,) = ranked(f"saving step 40\n{killed}\n$ rlc train gsm8k\n{DAMAGED}")

    assert cause.match.error.id in ("worker_killed", "host_oom")
    assert "checkpoint_damaged" in [other.error.id for other in cause.consequences]
    assert any("`trainer.resume=auto`" in remedy.what for remedy in cause.match.error.remedies)


@pytest.mark.parametrize(
    "text",
    ["the run was killed yesterday", "Killed 3 stale workers", "killed: 0, failed: 0", "[2] killed requests: 0"],
)
def test_a_word_in_a_sentence_is_no_kill(text: str, ranked: Ranked) -> None:
    assert names(ranked, f"step 1\n{text}\nstep 2\n") == []


@pytest.mark.parametrize(("error", "line"), SEVERAL, ids=[line[:40] for _, line in SEVERAL])
def test_every_form_of_an_error_is_recognised_as_that_error_alone(error: str, line: str, ranked: Ranked) -> None:
    assert names(ranked, f"saving step 40\n[rank0]: RuntimeError: {line}\n") == [error]


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("tensors used as indices must be long, int, byte or bool tensors", "dtype_index"),
        ("FSDP expects uniform original parameter dtype but got {torch.bfloat16, torch.float32}", "fsdp_dtype"),
        ("Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be the same", "device_mix"),
        ("Attempting to unscale FP16 gradients.", "unscale_fp16"),
    ],
)
def test_what_only_resembles_two_formats_is_another_error(message: str, error: str, ranked: Ranked) -> None:
    assert names(ranked, f"RuntimeError: {message}\n") == [error]


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
@pytest.mark.parametrize(
    ("lines", "error"),
    [
        (("Killed",), "worker_killed"),
        (("RuntimeError: expected mat1 and mat2 to have", "the same dtype, but got: float != c10::Half"), "dtype_mix"),
        (("Last error:", "Duplicate GPU detected : rank 1 and rank 0", "both on CUDA device 10"), "nccl_duplicate_gpu"),
    ],
)
def test_the_prefix_of_a_launcher_does_not_hide_a_message(
    prefix: str, lines: tuple[str, ...], error: str, ranked: Ranked
) -> None:
    assert names(ranked, "".join(f"{prefix.format(line)}\n" for line in ("step 1", *lines))) == [error]


APART = "step\n" * 30


@pytest.mark.parametrize(
    ("logs", "cause", "consequences"),
    [
        (
            ("The actor is dead because its worker process has died.", OUT_OF_MEMORY["Slurm"]),
            "host_oom",
            {"ray_actor_died"},
        ),
        (
            (
                "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
                "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)",
                LOGS["one"]["nccl_watchdog_stuck"],
            ),
            "cuda_oom",
            {"nccl_timeout", "nccl_watchdog_stuck"},
        ),
        (
            ("OSError: [Errno 122] Disk quota exceeded", LOGS["one"]["dcp_missing_key"]),
            "disk_quota",
            {"dcp_missing_key"},
        ),
        ((LOGS["one"]["ray_worker_start"], LOGS["one"]["thread_limit"]), "thread_limit", {"ray_worker_start"}),
        ((LOGS["one"]["ray_get_timeout"], LOGS["one"]["ray_unschedulable"]), "ray_unschedulable", {"ray_get_timeout"}),
        ((LOGS["one"]["time_limit"], LOGS["one"]["worker_terminated"]), "time_limit", {"worker_terminated"}),
        ((LOGS["one"]["ray_node_died"], LOGS["one"]["ray_object_lost"]), "ray_node_died", {"ray_object_lost"}),
        ((LOGS["one"]["dtype_mix"], LOGS["one"]["nccl_watchdog_stuck"]), "dtype_mix", {"nccl_watchdog_stuck"}),
        ((NCCL["nccl_connect"], LOGS["one"]["rendezvous_incomplete"]), "nccl_connect", {"rendezvous_incomplete"}),
    ],
)
def test_the_first_cause_stands_above_what_follows_from_it(
    logs: tuple[str, ...], cause: str, consequences: set[str], ranked: Ranked
) -> None:
    found = ranked(APART.join(f"{log}\n" for log in logs))

    assert found[0].match.error.id == cause
    assert consequences <= {other.error.id for other in found[0].consequences}
