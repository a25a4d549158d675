"""A configuration from a file and arguments."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.facts import facts

from rl_compat.config.load import load_config
from rl_compat.config.settings import settings, values_of
from rl_compat.config.types import RunConfig
from rl_compat.errors import ConfigError


def write(folder: Path, text: str, name: str = "run.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_nothing_given_is_the_defaults() -> None:
    loaded = load_config(None, [])

    assert loaded.config == RunConfig()
    assert loaded.report == ()
    assert set(loaded.sources) == set(settings())
    assert set(loaded.sources.values()) == {"default"}


def test_arguments_win_over_the_file_and_the_file_over_the_defaults(tmp_path: Path) -> None:
    path = write(tmp_path, "[trainer]\nnum_steps = 5\nproject = 'mine'\n")

    loaded = load_config(path, ["trainer.num_steps=7"])

    assert loaded.config.trainer.num_steps == 7
    assert loaded.config.trainer.project == "mine"
    assert loaded.sources["trainer.num_steps"] == "command line"
    assert loaded.sources["trainer.project"] == "file"
    assert loaded.sources["trainer.seed"] == "default"


def test_every_section_is_read_from_a_file(tmp_path: Path) -> None:
    text = """
model = { path = "m" }
data.train_files = ["a.parquet", "b.parquet"]
[reward]
functions = ["gsm8k", "own.py:score"]
weights = [1, 0.5]
function_arguments = { bonus = 0.1 }
[algorithm]
name = "grpo"
group_size = 4
clip_dual = "none"
[rollout]
max_num_seqs = 8
[optimizer]
betas = [0.9, 0.95]
[trainer]
max_seconds = 60
[plan]
gradient_checkpointing = true
micro_batch_size = "auto"
"""
    config = load_config(write(tmp_path, text)).config

    assert config.model.path == "m"
    assert config.data.train_files == ("a.parquet", "b.parquet")
    assert config.reward.weights == (1.0, 0.5)
    assert config.reward.function_arguments == {"bonus": "0.1"}
    assert config.algorithm.clip_dual is None
    assert config.rollout.max_num_seqs == 8
    assert config.optimizer.betas == (0.9, 0.95)
    assert config.trainer.max_seconds == 60.0
    assert config.plan.gradient_checkpointing is True
    assert config.plan.micro_batch_size == "auto"


def test_every_setting_takes_its_own_default_as_an_argument() -> None:
    def text(value: object) -> str:
        if isinstance(value, tuple):
            return f"[{','.join(str(item) for item in value)}]"
        return "{}" if value == {} else str(value)

    arguments = [f"{key}={text(value)}" for key, value in values_of(RunConfig()).items()]

    assert load_config(None, arguments).config == RunConfig()


def test_one_entry_of_a_dictionary_is_added_to_those_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "[reward.function_arguments]\nbonus = '1'\n")

    config = load_config(path, ["reward.function_arguments.unit=km"]).config

    assert config.reward.function_arguments == {"bonus": "1", "unit": "km"}


def test_a_deletion_brings_the_default_back(tmp_path: Path) -> None:
    path = write(tmp_path, "[trainer]\nnum_steps = 5\n")

    assert load_config(path, ["~trainer.num_steps"]).config.trainer.num_steps is None


def test_the_mini_batch_follows_the_batch_unless_given() -> None:
    assert load_config(None, ["trainer.batch_size=6"]).config.trainer.mini_batch_size == 6
    assert load_config(None, ["trainer.batch_size=6", "trainer.mini_batch_size=3"]).config.trainer.mini_batch_size == 3


def test_the_home_folder_is_filled_in() -> None:
    config = load_config(None, ["data.train_files=[~/a.parquet,gsm8k]", "model.path=~/m"]).config

    assert config.data.train_files == (str(Path.home() / "a.parquet"), "gsm8k")
    assert config.model.path == str(Path.home() / "m")


def test_a_key_given_twice_counts_the_last_time_and_says_so() -> None:
    loaded = load_config(None, ["trainer.num_steps=5", "trainer.num_steps=7"])

    assert loaded.config.trainer.num_steps == 7
    (line,) = loaded.report
    assert (line.key, line.value, line.verdict, line.warn) == ("trainer.num_steps", "5", "without effect", True)


def test_a_setting_that_changes_nothing_is_reported() -> None:
    loaded = load_config(None, ["algorithm.name=grpo", "algorithm.group_size=4", "algorithm.clip_value=0.3"])

    (line,) = loaded.report
    assert (line.key, line.value, line.verdict) == ("algorithm.clip_value", "0.3", "without effect")
    assert facts(line.reason) == {"algorithm.name=grpo"}


@pytest.mark.parametrize(
    ("argument", "named", "hint"),
    [
        ("optimizer.lerning_rate=1e-6", (), {"optimizer.actor_lr"}),
        ("trainer.num-epochs=2", (), {"trainer.num_epochs"}),
        ("num-epochs=2", (), {"trainer.num_epochs"}),
        ("rollout.group_size=4", (), {"algorithm.group_size"}),
        ("trainer.batch_sise=4", (), {"trainer.batch_size"}),
        ("actor.lr=1e-6", (), {"optimizer.actor_lr"}),
        ("trainer=3", (), set()),
        ("model.path.x=3", (), set()),
        ("algorithm.clip_cov=3", (), set()),
        ("algorithm.clip_cov_high=3", (), {"algorithm.clip_cov.high"}),
        ("algorithm.lagrange_lr=3", (), {"algorithm.lagrangian.lr"}),
        ("algorithm.kl_target=0.2", (), {"algorithm.kl_controller.target"}),
        ("dpo.beta=0.2", (), {"algorithm.dpo.beta"}),
        ("trainer.batch_size=many", ("many",), set()),
        ("plan.compute_dtype=bf61", ("auto", "bf16"), {"bf16"}),
        ("plan.offload_optimizer=perhaps", ("true", "false", "auto"), set()),
        ("optimizer.betas=0.9", ("2",), set()),
    ],
)
def test_a_wrong_argument_names_the_key_and_the_nearest(argument: str, named: tuple[str, ...], hint: set[str]) -> None:
    """A-UX-05."""
    with pytest.raises(ConfigError) as caught:
        load_config(None, [argument])

    assert caught.value.exit_code == 2
    assert {argument, argument.partition("=")[0], *named} <= facts(caught.value.message)
    assert hint <= facts(caught.value.hint)


@pytest.mark.parametrize(
    ("argument", "names"), [("trainer=3", "batch_size"), ("algorithm.clip_cov=3", "fraction, low, high")]
)
def test_a_section_in_the_place_of_a_setting_is_answered_with_its_settings(argument: str, names: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, [argument])
    assert names in str(caught.value.hint)


def test_the_last_of_two_arguments_counts_and_the_earlier_one_is_reported() -> None:
    loaded = load_config(overrides=["trainer.num_steps=1", "trainer.seed=2", "trainer.num_steps=3"])

    assert (loaded.config.trainer.num_steps, loaded.config.trainer.seed) == (3, 2)
    verdicts = [(line.key, line.value, line.verdict, line.warn) for line in loaded.report]
    assert verdicts == [("trainer.num_steps", "1", "without effect", True)]
