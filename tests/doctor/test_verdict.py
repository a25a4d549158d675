"""The verdict: what training would look like, from the plans that a run would get."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from fakes.doctor import RECORDINGS, machine

from rl_compat.cli.app import main as rlc
from rl_compat.config.given import embedded_runs
from rl_compat.config.load import load_config
from rl_compat.doctor import verdict
from rl_compat.doctor.verdict import LADDER, METHODS, judge, judge_fixed, largest_model, largest_models, workload_of
from rl_compat.planning.fit import make_plan, plan_if_it_fits
from rl_compat.planning.workload import run_requests

SOME = ("gtx970", "p40", "rtx4090", "h200", "laptop_no_gpu")


def largest_by_trying_all(name: str, settings: list[str]) -> str | None:
    hardware = machine(name)
    run = "gsm8k" if hardware.devices else "gsm8k-cpu"
    config = load_config(embedded_runs()[run], settings).config
    fitting = [model for model in LADDER if plan_if_it_fits(workload_of(config, model), hardware, run_requests(config))]
    return fitting[-1] if fitting else None


@pytest.mark.parametrize("name", SOME)
def test_bisection_finds_the_largest_model_that_trying_all_of_them_finds(name: str) -> None:
    for found in largest_models(machine(name)):
        settings = [f"{key}={value}" for key, value in METHODS[found.method].items()]

        assert found.model == largest_by_trying_all(name, settings), found.method


@pytest.mark.parametrize("name", SOME)
def test_the_settings_that_are_named_give_the_plan_that_is_shown(name: str) -> None:
    for found in largest_models(machine(name)):
        if found.model is None:
            continue
        run, *settings = found.settings
        config = load_config(embedded_runs()[run], settings).config

        plan = make_plan(workload_of(config, config.model.path), machine(name), run_requests(config))

        assert plan == found.plan
        pool = plan.pool_of("actor")
        assert pool.peak_bytes <= pool.memory_available_bytes


def test_the_plan_command_shows_the_same_without_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    found = largest_models(machine("rtx4090"))[0]

    code = rlc(["plan", *found.settings, "--hardware", str(RECORDINGS / "rtx4090.json"), "--json"])

    assert code == 0
    assert found.plan is not None
    shown = json.loads(capsys.readouterr().out)
    rollout = found.plan.pool_of("actor").budgets[0]
    assert sum(shown["pools"]["main"]["budgets"][0]["items"].values()) == rollout.total_bytes


def test_a_larger_card_reaches_at_least_as_far() -> None:
    def reached(name: str) -> list[int]:
        return [LADDER.index(found.model or LADDER[0]) for found in largest_models(machine(name))]

    small, middle, large = reached("gtx970"), reached("rtx4090"), reached("h200")

    assert all(a <= b <= c for a, b, c in zip(small, middle, large, strict=True))
    assert small < large


def test_a_healthy_card_gets_its_profile_and_no_problem() -> None:
    verdict = judge(machine("rtx4090"))

    assert (verdict.works, verdict.problem, verdict.profile) == (True, None, "ada")
    assert verdict.device == "NVIDIA GeForce RTX 4090 (compute capability 8.9, 23.4 of 24.0 GiB free)"
    assert [found.method for found in verdict.methods] == ["full PPO", "LoRA PPO", "full GRPO"]


def test_without_a_gpu_the_verdict_is_for_the_processor() -> None:
    verdict = judge(machine("laptop_no_gpu"))

    assert (verdict.works, verdict.profile) == (True, "cpu")
    assert "8 cores" in verdict.device
    assert all(found.settings[0] == "gsm8k-cpu" for found in verdict.methods)


def test_a_failure_decides_although_a_plan_could_be_made() -> None:
    verdict = judge(machine("rtx4090"), ["transformers is not installed", "and something else"])

    assert (verdict.works, verdict.problem) == (False, "transformers is not installed")
    assert verdict.methods[0].plan is not None


def test_a_cpu_build_on_a_gpu_machine_is_judged_again_with_the_torch_that_suits_it() -> None:
    """A-ENV: the second verdict is what the block of commands leads to."""
    hardware = machine("rtx3060_cpu_torch")

    now, fixed = judge(hardware), judge_fixed(hardware, new_torch=True)

    assert now.problem is not None and "torch 2.6.0+cpu" in now.problem
    assert [found.model for found in now.methods] == [None, None, None]
    assert fixed is not None
    assert (fixed.works, fixed.profile) == (True, "ampere")
    assert fixed.torch is not None
    assert fixed.torch.startswith("2.")
    assert "+cu" in fixed.torch


def test_a_card_that_the_wheel_has_no_code_for_is_judged_with_one_that_has() -> None:
    fixed = judge_fixed(machine("p40_cu128_wheel"), new_torch=True)

    assert fixed is not None
    assert (fixed.torch, fixed.profile) == ("2.14.1+cu126", "pascal")


def test_a_card_that_no_torch_serves_leaves_the_processor() -> None:
    hardware = machine("k80")

    fixed = judge_fixed(hardware, new_torch=True)

    assert judge(hardware).works is False
    assert fixed is not None
    assert fixed.profile == "cpu"


def test_hidden_cards_are_judged_as_if_they_were_visible() -> None:
    hardware = machine("visible_garbage")
    assert hardware.devices == ()

    fixed = judge_fixed(hardware, new_torch=False)

    assert fixed is not None
    assert (fixed.visible, fixed.profile, fixed.torch) == (False, "ampere", None)


def test_a_card_without_a_driver_is_judged_by_the_catalogue() -> None:
    fixed = judge_fixed(machine("rtx3060_no_driver"), new_torch=False)

    assert fixed is not None
    assert (fixed.visible, fixed.torch) == (False, None)
    assert fixed.device.startswith("NVIDIA GeForce RTX 3060 (compute capability 8.6, 12.0 GiB ")


def test_a_missing_and_a_broken_torch_are_problems_even_without_a_gpu() -> None:
    healthy = machine("laptop_no_gpu")
    software = healthy.software
    without = {name: version for name, version in software.packages.items() if name != "torch"}
    missing = replace(healthy, software=replace(software, torch=None, packages=without))
    broken = replace(healthy, software=replace(software, torch=None, torch_error="OSError: libgomp.so.1"))
    unseen = replace(healthy, software=replace(software, torch=None))

    assert judge(missing).problem == "torch is not installed"
    assert judge(broken).problem == "torch does not import: OSError: libgomp.so.1"
    assert judge(unseen).problem is None


def test_a_machine_too_small_for_the_smallest_model_says_what_it_lacks() -> None:
    tiny = machine("laptop_no_gpu")
    host = replace(tiny.host, ram_total_bytes=2**30, ram_limit_bytes=2**30, ram_available_bytes=2**29)

    verdict = judge(replace(tiny, host=host))

    assert verdict.works is False
    assert verdict.problem is not None
    assert "512.0 MiB" in verdict.problem


def test_one_method_may_fit_where_another_does_not() -> None:
    hardware = machine("laptop_no_gpu")
    host = replace(hardware.host, ram_available_bytes=6 * 2**30)
    small = replace(hardware, host=host)

    full = largest_model(
        small, "full PPO", "gsm8k-cpu", {"data.max_response_length": 2048, "data.max_prompt_length": 2048}
    )
    adapters = largest_model(small, "LoRA PPO", "gsm8k-cpu", {"model.lora_rank": 16})

    assert full.plan is None
    assert full.problem is not None
    assert adapters.model is not None
    assert judge(small).works


def test_all_methods_take_few_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = 0

    def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal plans
        plans += 1
        return plan_if_it_fits(*arguments, **named)

    monkeypatch.setattr(verdict, "plan_if_it_fits", counted)
    judge(machine("rtx4090"))

    assert 0 < plans <= len(METHODS) * (len(LADDER).bit_length() + 1), "a binary search per method"


def test_an_error_of_the_planner_is_reported_and_takes_nothing_with_it() -> None:
    """A host whose memory is not a number cannot come out of a probe: the planner is not made for it."""
    hardware = machine("p40")
    odd = replace(hardware, host=replace(hardware.host, ram_available_bytes="much"))  # type: ignore[arg-type]

    verdict = judge(odd)

    assert not verdict.works
    assert verdict.problem is not None and verdict.problem.startswith("the planner failed: ")
