"""`rlc plan` as its user meets it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from fakes.machines import RECORDINGS

from rl_compat.cli.app import main
from rl_compat.hardware.recording import load_recording
from rl_compat.units import GIB, format_bytes

P40 = ("--hardware", str(RECORDINGS / "p40.json"))


def test_the_choices_the_phases_and_the_verdict_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *P40]) == 0

    text = capsys.readouterr().out
    assert text.startswith("device   Tesla P40 (cuda:0)\nprofile  pascal: ")
    for word in ("compute_dtype", "sdpa", "native", "actor_update", "critic_update", "reference", "kv cache"):
        assert word in text
    assert "128 prompts x 2 = 256 sequences" in text
    assert text.splitlines()[-1].startswith("fits: `")
    assert "\x1b[" not in text


def test_the_algorithm_what_its_name_sets_and_its_models_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *P40, "algorithm.name=dapo", "algorithm.kl_in_reward=none", "algorithm.clip_high=0.3"]) == 0
    dapo = capsys.readouterr().out
    assert "method   dapo: " in dapo
    assert "policy loss `ppo_clip`" in dapo
    assert "`algorithm.dynamic_sampling=true`" in dapo
    assert "`algorithm.clip_high=" not in dapo
    assert "models   actor\n" in dapo

    assert main(["plan", *P40, "algorithm.name=ppo_lagrangian", "cost.functions=repetition"]) == 0
    constrained = capsys.readouterr().out
    assert "models   actor, critic, cost critic, reference\n" in constrained
    assert "cost_critic_update" in constrained


def test_explain_adds_every_item_and_every_rejected_value(capsys: pytest.CaptureFixture[str]) -> None:
    main(["plan", *P40])
    plain = capsys.readouterr().out
    main(["plan", *P40, "--explain"])
    explained = capsys.readouterr().out

    for word in ("flash_attention_2", "needs the package `vllm`", "last-token logits"):
        assert word in explained
        assert word not in plain


def test_json_is_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *P40, "--json"]) == 0

    plan = json.loads(capsys.readouterr().out)
    pool = plan["pools"]["main"]
    assert (pool["profile"], pool["devices"]) == ("pascal", ["cuda:0"])
    assert plan["roles"]["actor"]["compute_dtype"] == "fp32"
    assert {row["phase"] for row in pool["budgets"]} == {
        "rollout",
        "logprobs",
        "reference",
        "values",
        "critic_update",
        "actor_update",
    }
    assert pool["peak_bytes"] == max(row["total_bytes"] for row in pool["budgets"])


def test_another_card_can_be_tried(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *P40, "--as", "NVIDIA A100-SXM4-80GB", "--json"]) == 0

    plan = json.loads(capsys.readouterr().out)
    pool = plan["pools"]["main"]
    assert (pool["profile"], pool["emulated"]) == ("ampere", "NVIDIA A100-SXM4-80GB")


def test_another_card_is_planned_on_this_machines_host_memory_and_that_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    laptop = ("--hardware", str(RECORDINGS / "laptop_no_gpu.json"))
    host = load_recording(RECORDINGS / "laptop_no_gpu.json").host

    assert main(["plan", *laptop, "--as", "h200", "--json"]) == 0
    here = capsys.readouterr()
    assert json.loads(here.out)["pools"]["main"]["memory_available_bytes"] < host.ram_available_bytes
    for fact in ("NVIDIA H200", format_bytes(host.ram_available_bytes), "`--host-memory SIZE`", "`vllm`", "laptop_no"):
        assert fact in here.err


def test_another_machine_has_the_host_memory_that_is_given_and_a_real_card(capsys: pytest.CaptureFixture[str]) -> None:
    laptop = ("--hardware", str(RECORDINGS / "laptop_no_gpu.json"))

    assert main(["plan", *laptop, "--as", "h200", "--host-memory", "256GiB", "--json"]) == 0
    there = capsys.readouterr()
    plan = json.loads(there.out)
    pool = plan["pools"]["main"]
    assert (pool["devices"], pool["emulated"], pool["memory_cap_bytes"]) == (["cuda:0"], None, None)
    assert pool["memory_available_bytes"] == int(141 * GIB * 15 / 16 * 0.9)
    assert plan["rollout"]["cuda_graphs"]
    assert "256.0 GiB" in there.err and "`vllm`" in there.err


def test_host_memory_bounds_what_is_offloaded(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", *P40, "plan.offload_optimizer=true"]

    assert main([*arguments, "--host-memory", "1GiB"]) == 2
    assert "`host memory`" in capsys.readouterr().err
    assert main([*arguments, "--host-memory", "64GiB"]) == 0
    for wrong in ("lots", "0", "0GiB", "-1GiB"):
        assert main([*arguments, "--host-memory", wrong]) == 2
        assert f"`{wrong}`" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["RTX 4090", "4090", "rtx4090", "NVIDIA GeForce RTX 4090"])
def test_a_card_is_known_by_any_unambiguous_name(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *P40, "--as", name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pools"]["main"]["emulated"] == "NVIDIA GeForce RTX 4090"


def test_an_ambiguous_card_lists_the_candidates(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *P40, "--as", "a100"]) == 2
    assert set(re.findall(r"`(a100-[\w-]+)`", capsys.readouterr().err)) == {
        "a100-sxm4-40",
        "a100-pcie-40",
        "a100-sxm4-80",
        "a100-pcie-80",
    }


def test_a_model_folder_is_read_from_its_configuration_alone(
    llama_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text((llama_folder / "config.json").read_text())

    assert main(["plan", *P40, f"model.path={tmp_path}"]) == 0
    assert "fits: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (["plan.compute_dtype=bf16"], "error: `plan.compute_dtype=bf16` needs compute capability 8.0", "hint: set "),
        (["plan.num_devices=3"], "error: devices requested: 3, visible: 1", "hint: set `plan.num_devices=1`"),
        (["plan.profile=pascl"], "error: there is no profile `pascl`", "hint: did you mean `pascal`"),
        (["data.max_prompt_length=200000"], "error: `", "hint: "),
    ],
)
def test_what_cannot_be_done_exits_with_2(
    arguments: list[str], error: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *P40, *arguments]) == 2

    output = capsys.readouterr()
    assert output.out == ""
    note, first, second = output.err.splitlines()
    assert note.startswith("note: ")
    assert first.startswith(error)
    assert second.startswith(hint)


def test_a_cluster_is_planned_without_its_machines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text('[[nodes]]\ngpus = ["4 x p40", "1 x a100-pcie-40"]\nhost_memory = "128GiB"\n')
    arguments = ["plan", "--cluster", str(file), "--pool", "score=4:reference", "algorithm.kl_loss=k3"]

    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "4 x Tesla P40 (cuda:1 to cuda:4)" in shown and "A100-PCIE-40GB (cuda:0)" in shown
    assert main([*arguments, "--json"]) == 0
    pools = json.loads(capsys.readouterr().out)["pools"]
    assert {name: len(pool["devices"]) for name, pool in pools.items()} == {"main": 1, "score": 4}
    assert main([*arguments, "--as", "p40"]) == 2


@pytest.mark.parametrize("pool", ["score", "score=1", "score=one:reference", "1=1:reference", "score=1:refrence"])
def test_a_pool_of_another_form_is_refused(pool: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *P40, "--pool", pool]) == 2
    assert "hint: " in capsys.readouterr().err


TWO = ("--hardware", str(RECORDINGS / "h100_eight.json"), "plan.num_devices=2", "algorithm.name=grpo")
LONG = ("data.max_response_length=512", "--lengths", "60,500")


def test_a_simulation_says_whether_dividing_the_devices_pays(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *TWO, "--simulate", *LONG]) == 0
    text = capsys.readouterr().out
    assert text.startswith("devices  2, ")
    assert "2 in turn" in text
    verdict, use = text.splitlines()[-2:]
    assert verdict.startswith("asynchronous learning pays")
    assert use == "use `trainer.flow=async trainer.max_staleness=2 plan.num_devices=1 --pool gen=1:rollout`"

    assert main(["plan", *TWO, "--simulate", *LONG, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == verdict
    best = found["best"]
    assert best["generating_devices"] + best["learning_devices"] == 2
    assert found["gain"] == pytest.approx(best["steps_per_hour"] / found["synchronous"]["steps_per_hour"])
    assert found["pays"] is (found["gain"] >= 1.05)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--lengths", "100,200"], "--lengths"),
        (["--measured", "runs/x"], "--measured"),
        (["--simulate", "--lengths", "100,90"], "100"),
        (["--simulate", "--lengths", "nowhere"], "nowhere/samples.jsonl"),
        (["--simulate", "--measured", "nowhere"], "nowhere/run.toml"),
        (["--simulate", "algorithm.name=sft"], "sft"),
    ],
)
def test_a_simulation_of_what_is_not_there_is_a_usage_error(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *TWO, *arguments]) == 2
    assert named in capsys.readouterr().err
