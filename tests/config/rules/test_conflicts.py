"""Values that make no sense are refused, alone and together."""

from __future__ import annotations

import pytest
from fakes.facts import facts

from rl_compat.config.load import load_config
from rl_compat.errors import ConfigError


def error_of(*arguments: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_config(None, arguments)
    return caught.value


@pytest.mark.parametrize(
    ("argument", "numbers"),
    [
        ("trainer.batch_size=0", {"0", "1"}),
        ("trainer.num_steps=-3", {"-3", "1"}),
        ("data.max_response_length=0", {"0", "1"}),
        ("rollout.temperature=0", {"0.0", "0"}),
        ("trainer.validation_temperature=-0.1", {"-0.1", "0"}),
        ("rollout.top_p=1.5", {"1.5", "0", "1"}),
        ("rollout.min_p=1", {"1.0", "0", "1"}),
        ("plan.memory_fraction=0", {"0.0", "0", "1"}),
        ("rollout.gpu_memory_utilization=90", {"90.0", "0", "1"}),
        ("algorithm.clip_high=0", {"0.0", "0"}),
        ("algorithm.clip_low=1.5", {"1.5", "1"}),
        ("algorithm.clip_dual=1", {"1.0", "1"}),
        ("algorithm.gamma=1.01", {"1.01", "0", "1"}),
        ("optimizer.betas=0.9,1", {"1.0", "1"}),
        ("optimizer.actor_lr=nan", set()),
        ("algorithm.entropy_coef=inf", set()),
        ("plan.micro_batch_size=0", {"0", "1"}),
    ],
)
def test_a_number_out_of_range_is_refused(argument: str, numbers: set[str]) -> None:
    assert {argument, argument.split("=")[0], *numbers} <= facts(error_of(argument))


@pytest.mark.parametrize("key", ["model.path", "data.train_files", "reward.functions", "trainer.output_dir"])
def test_what_a_run_needs_cannot_be_empty(key: str) -> None:
    assert {f"{key}=", key} <= facts(error_of(f"{key}="))


def test_a_stop_string_has_at_least_one_character() -> None:
    assert "rollout.stop_strings" in facts(error_of("rollout.stop_strings=a,,b"))


def test_a_mini_batch_that_does_not_divide_the_batch_gets_the_nearest_that_do() -> None:
    error = error_of("trainer.batch_size=32", "trainer.mini_batch_size=12")

    assert {"trainer.mini_batch_size", "12", "trainer.batch_size", "32", "trainer.batch_size=32"} <= facts(error)
    assert facts(error.hint) == {"trainer.mini_batch_size", "8", "16"}


def test_a_mini_batch_counted_in_responses_is_recognized() -> None:
    """A-MEM-04: both units are shown and the one meant is named."""
    error = error_of(
        "algorithm.name=grpo", "algorithm.group_size=8", "trainer.batch_size=32", "trainer.mini_batch_size=64"
    )

    assert {"64", "512", "32", "256"} <= facts(error.message)
    assert "trainer.mini_batch_size=8" in facts(error.hint)


def test_a_mini_batch_of_eight_prompts_times_eight_responses_is_fine() -> None:
    """A-MEM-04: 32 prompts, 8 responses each, 64 responses in a mini-batch."""
    config = load_config(
        None, ["algorithm.name=grpo", "algorithm.group_size=8", "trainer.batch_size=32", "trainer.mini_batch_size=8"]
    ).config

    assert config.trainer.batch_size // config.trainer.mini_batch_size == 4


def test_grpo_needs_groups() -> None:
    error = error_of("algorithm.name=grpo", "algorithm.group_size=1")

    assert {"algorithm.group_size", "1", "algorithm.name=grpo"} <= facts(error.message)
    assert "algorithm.group_size=8" in facts(error.hint)


def test_weights_belong_to_functions() -> None:
    error = error_of("reward.functions=gsm8k,format", "reward.weights=1")

    assert {"reward.weights", "1", "reward.functions", "2"} <= facts(error)


def test_an_unknown_tracker_gets_the_nearest() -> None:
    error = error_of("trainer.loggers=console,tensorbord")

    assert "trainer.loggers" in facts(error.message)
    assert facts(error.hint) == {"tensorboard"}


def test_a_quantized_base_needs_adapters() -> None:
    assert {"plan.quantization=nf4", "model.lora_rank", "0"} <= facts(error_of("plan.quantization=nf4"))


def test_the_token_budget_holds_the_longest_sequence() -> None:
    error = error_of("plan.max_tokens_per_micro_batch=500")

    assert {"plan.max_tokens_per_micro_batch", "500", "768"} <= facts(error)


ASYNC = ("algorithm.name=grpo", "trainer.flow=async", "trainer.num_steps=4")


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (("trainer.on_stale=drop", "trainer.max_staleness=2"), "trainer.on_stale"),
        (("trainer.on_stale=drop", "pools.gen.roles=rollout"), "trainer.max_staleness"),
        (("trainer.batch_tokens=100", "trainer.max_staleness=0"), "trainer.max_staleness"),
        (("trainer.batch_tokens=100", "trainer.num_steps=none"), "trainer.num_steps"),
        (("trainer.batch_tokens=100", "algorithm.dynamic_sampling=true"), "algorithm.dynamic_sampling"),
    ],
)
def test_steps_of_other_prompts_than_were_drawn_need_room_and_a_number_of_steps(
    arguments: tuple[str, ...], key: str
) -> None:
    error = error_of(*ASYNC, *arguments)
    assert any(key in fact for fact in facts(error) | facts(error.hint))
    assert load_config(None, [*ASYNC, "trainer.batch_tokens=100"]).config.trainer.draws_more
