"""The comparison with TRL: options, results and ratios, and our side's process."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("bench_trl")


def options(*extra: str) -> list[str]:
    return ["--algorithm", "ppo", "--trl-python", sys.executable, *extra]


def grpo_on_gpu(*extra: str) -> list[str]:
    return ["--algorithm", "grpo", "--device", "cuda", "--trl-path", "/trl:/vllm", *extra]


def side(steps: list[float], *, device_bytes: int | None = None, **work: int) -> dict:
    return {
        "versions": {"torch": "2.13.0"},
        "step_seconds": steps,
        "rollout_seconds": [s / 2 for s in steps],
        "work": {"prompt_tokens": 7, "response_tokens": 5} | work,
        "peak_rss_bytes": int(sum(steps)),
        "peak_device_bytes": device_bytes,
    }


def test_the_ratio_is_the_peers_median_over_ours_and_above_one_when_we_are_faster(bench: ModuleType) -> None:
    rounds = [
        {"rl_compat": side([9.0, 1.0, 1.0, 3.0]), "trl": side([9.0, 2.0, 2.0, 8.0])},
        {"rl_compat": side([9.0, 2.0, 2.0, 2.0]), "trl": side([9.0, 3.0, 3.0, 3.0])},
        {"rl_compat": side([9.0, 1.0, 1.0, 1.0]), "trl": side([9.0, 3.0, 3.0, 3.0])},
    ]

    found = bench.ratio(rounds, "trl", "step_seconds")

    assert found == {"median": 2.0, "lowest": 1.5, "highest": 3.0}


def test_first_steps_of_every_round_are_no_part_of_the_times(bench: ModuleType) -> None:
    rounds = [{"rl_compat": side([100.0, 1.0, 2.0, 3.0]), "trl": side([100.0, 4.0, 5.0, 6.0])}] * 2

    found = bench.summary(rounds)

    assert found["sides"]["rl_compat"]["step_seconds"] == {"median": 2.0, "low": 1.25, "high": 2.75}
    assert found["sides"]["trl"]["step_seconds"]["median"] == 5.0
    assert found["sides"]["trl"]["peak_rss_bytes"] == 115


def test_one_timed_step_is_its_own_spread(bench: ModuleType) -> None:
    assert bench.spread([3.0]) == {"median": 3.0, "low": 3.0, "high": 3.0}


def test_a_sides_result_is_found_among_what_its_libraries_print(bench: ModuleType) -> None:
    mark = bench.RESULT_MARK
    output = f"{{'loss': 0.1}}\n{mark}{json.dumps({'step_seconds': [1.0]})}\nbye\n"

    assert bench.parse_result(output) == {"step_seconds": [1.0]}
    with pytest.raises(ValueError) as error:
        bench.parse_result("nothing")
    assert mark.strip() in str(error.value)


def test_sides_that_generated_different_numbers_of_tokens_are_told_apart(bench: ModuleType) -> None:
    same = {"rl_compat": side([1.0])["work"], "trl": side([1.0], score_forwards=3)["work"]}
    other = {"rl_compat": side([1.0])["work"], "trl": side([1.0], response_tokens=4)["work"]}

    assert bench.different_work(same) == []
    assert bench.different_work(other) == ["response_tokens is 5 in rl_compat and 4 in trl"]


def test_every_peer_has_a_ratio_to_ours_whoever_ran_first(bench: ModuleType) -> None:
    first = {"rl_compat": side([9.0, 1.0]), "trl": side([9.0, 3.0]), "trl + vllm": side([9.0, 2.0])}
    second = dict(reversed(first.items()))

    found = bench.summary([second, first])

    assert list(found["sides"]) == ["rl_compat", "trl + vllm", "trl"]
    assert {peer: spread["median"] for peer, spread in found["ratio_step"].items()} == {"trl": 3.0, "trl + vllm": 2.0}
    assert found["ratio_rollout"]["trl"]["median"] == 3.0


def test_memory_is_the_gpus_where_there_is_one(bench: ModuleType) -> None:
    on_gpu = bench.summary([{"rl_compat": side([9.0, 1.0], device_bytes=3 << 30), "trl": side([9.0, 2.0])}])
    on_gpu["sides"]["trl"]["peak_device_bytes"] = 5 << 30
    on_cpu = bench.summary([{"rl_compat": side([9.0, 1.0]), "trl": side([9.0, 2.0])}])

    assert "peak on GPU" in bench.as_text("", on_gpu)
    assert "3,072 MiB" in bench.as_text("", on_gpu) and "5,120 MiB" in bench.as_text("", on_gpu)
    assert "peak RSS" in bench.as_text("", on_cpu)


def test_the_group_and_the_kl_coefficient_follow_the_algorithm(bench: ModuleType) -> None:
    ppo = bench.parse(options())
    grpo = bench.parse(options("--algorithm", "grpo"))

    assert (ppo.group, ppo.kl_coef, ppo.model, ppo.new_tokens) == (1, 0.05, "tiny", 64)
    assert (grpo.group, grpo.kl_coef) == (4, 0.0)


def test_a_gpu_is_measured_on_64_responses_of_128_tokens(bench: ModuleType) -> None:
    found = bench.parse(grpo_on_gpu("--new-tokens", "16"))

    assert (found.model, found.prompts, found.group, found.prompt_tokens) == ("qwen2.5-0.5b", 8, 8, 128)
    assert found.new_tokens == 16
    assert bench.parse(grpo_on_gpu()).new_tokens == 128


def test_a_peer_runs_under_its_own_interpreter_and_path_once_for_each_way_to_generate(bench: ModuleType) -> None:
    found = bench.parse(grpo_on_gpu("--peer-rollout", "generate,vllm"))
    commands = bench.commands_of(found, Path("workload.json"))

    assert list(commands) == ["rl_compat", "trl", "trl + vllm"]
    assert commands["trl"][0] == sys.executable
    assert [command[-1] for command in commands.values()] == ["workload.json", "generate", "vllm"]
    assert bench.environment_of(found, path=found.trl_path)["PYTHONPATH"] == "/trl:/vllm"
    assert bench.environment_of(found, path=None).get("PYTHONPATH") == os.environ.get("PYTHONPATH")


def test_a_side_sees_one_gpu_or_none(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")

    assert bench.environment_of(bench.parse(grpo_on_gpu()), path=None)["CUDA_VISIBLE_DEVICES"] == "3"
    assert bench.environment_of(bench.parse(options()), path=None)["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(
    ("extra", "literals"),
    [
        (["--steps", "1"], ["--steps is 1", "2"]),
        (["--prompts", "3", "--mini-batches", "2"], ["--prompts 3", "--mini-batches 2"]),
        (["--kl-coef", "0"], ["--kl-coef", "PPO"]),
        (["--algorithm", "grpo", "--group", "1"], ["--group", "2", "GRPO"]),
        (["--model", "medium"], ["--model medium", "tiny", "small", "qwen2.5-0.5b"]),
        (["--dtype", "bf16"], ["--dtype bf16", "--device cuda"]),
        (["--device", "cuda"], ["--algorithm ppo", "--device cpu"]),
        (["--peer-rollout", "vllm"], ["--peer-rollout vllm", "--device cuda"]),
        (["--peer-rollout", "sglang"], ["--peer-rollout sglang", "generate", "vllm"]),
        (["--trl-python", "nowhere/python"], ["--trl-python nowhere/python"]),
        (["--new-tokens", "0"], ["--new-tokens is 0", "1"]),
    ],
)
def test_options_that_cannot_be_measured_are_refused(
    bench: ModuleType, capsys: pytest.CaptureFixture[str], extra: list[str], literals: list[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        bench.parse(options(*extra))

    assert exit_info.value.code == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert all(literal in error for literal in literals), error


def test_somebody_must_say_where_the_peer_is(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.parse(["--algorithm", "grpo"])

    assert "--trl-python" in capsys.readouterr().err.splitlines()[-1]


def test_every_id_of_the_model_has_a_text_and_prompts_stay_as_long_as_asked(bench: ModuleType, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    bench.save_tokenizer(tmp_path, vocab_size=2048)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    prompts = bench.make_prompts(str(tmp_path), steps=2, prompts=3, longest=20)

    assert len(tokenizer) == 2048
    assert all(tokenizer.decode([token_id]) for token_id in (300, 1500, 2047))
    assert [len(step) for step in prompts] == [3, 3]
    assert all(10 <= len(tokenizer(text)["input_ids"]) <= 20 for step in prompts for text in step)


def test_our_side_learns_from_every_prompt_and_says_what_it_did(bench: ModuleType, tmp_path: Path) -> None:
    given = bench.parse(["--algorithm", "grpo", "--trl-path", "nowhere", "--threads", "1"])
    given.prompts, given.group, given.steps, given.new_tokens, given.prompt_tokens = 2, 2, 2, 4, 8
    model = bench.save_random_model(tmp_path / "model", "tiny")
    workload = bench.make_workload(given, str(model))
    workload.save(tmp_path / "workload.json")

    command = bench.commands_of(given, tmp_path / "workload.json")["rl_compat"]
    done = subprocess.run(command, capture_output=True, text=True, env=bench.environment_of(given, path=None))
    assert done.returncode == 0, done.stderr
    found = bench.parse_result(done.stdout)

    assert found["work"]["response_tokens"] == 2 * 2 * 4
    assert found["work"]["updated_weights"] > 0
    assert found["versions"]["engine"] == "native"
    assert found["peak_device_bytes"] is None
    assert all(0 < part < whole for part, whole in zip(found["rollout_seconds"], found["step_seconds"], strict=True))


def test_a_workload_reads_back_as_it_was_written_and_knows_its_sizes(bench: ModuleType, tmp_path: Path) -> None:
    workload = bench.BenchWorkload(
        algorithm="grpo",
        model="folder",
        prompts=[["a", "b"], ["c", "d"]],
        group=4,
        new_tokens=8,
        epochs=1,
        mini_batches=2,
        kl_coef=0.0,
        threads=2,
    )
    workload.save(tmp_path / "workload.json")

    assert bench.BenchWorkload.load(tmp_path / "workload.json") == workload
    assert (workload.responses_per_step, workload.mini_batch_responses) == (8, 4)
