"""Scripts, commands and YAML files written for verl, down to settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.facts import facts
from fakes.launch_scripts import SCRIPT
from fakes.verl_settings import judge_config, load_config

from rl_compat.config.load import LoadedConfig
from rl_compat.config.report import KeyVerdict
from rl_compat.errors import ConfigError
from rl_compat.verl import read_words


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DATA", "/data")
    path = tmp_path / "run_grpo.sh"
    path.write_text(SCRIPT, encoding="utf-8")
    return path


def write(folder: Path, text: str, name: str = "run.sh") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def line_of(loaded: LoadedConfig, key: str) -> KeyVerdict:
    return next(line for line in loaded.report if line.key == key)


def test_a_script_is_a_configuration(script: Path) -> None:
    config = load_config(script).config

    assert config.data.train_files == ("/data/train.parquet", "/b.parquet")
    assert (config.trainer.batch_size, config.algorithm.name, config.algorithm.group_size) == (16, "grpo", 4)
    assert (config.trainer.experiment, config.trainer.output_dir) == ("grpo-64", "runs/verl_examples/grpo-64")
    assert (config.plan.attention, config.trainer.loggers, config.trainer.num_epochs) == (
        "eager",
        ("console", "wandb"),
        1,
    )


def test_the_scripts_own_arguments_and_the_environment_count(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCH", "8")

    config = load_config(script, ["trainer.total_epochs=3", "data.train_files=/c.parquet"]).config

    assert (config.trainer.batch_size, config.trainer.num_epochs) == (8, 3)
    assert config.data.train_files == ("/c.parquet",)


def test_the_notes_say_which_command_was_read_and_what_was_not_done(script: Path) -> None:
    notes = load_config(script).notes

    assert facts(notes[0]) == {"verl.trainer.main_ppo", "14", "run_grpo.sh"}
    assert facts(notes[1]) == {"VLLM_ATTENTION_BACKEND", "CUDA_VISIBLE_DEVICES"}


def test_arguments_that_a_script_does_not_pass_on_are_added(tmp_path: Path) -> None:
    path = write(tmp_path, "python3 -m verl.trainer.main_ppo data.train_batch_size=8\n")

    loaded = load_config(path, ["data.train_batch_size=4"])

    assert loaded.config.trainer.batch_size == 4
    assert facts(loaded.notes[1]) == {"run.sh", "data.train_batch_size=4"}


def test_arguments_that_reach_the_script_and_not_its_command_are_added(tmp_path: Path) -> None:
    path = write(tmp_path, 'main() {\n  python3 -m verl.trainer.main_ppo data.train_batch_size=$1\n}\nmain "$@"\n')

    loaded = load_config(path, ["8", "trainer.total_epochs=3"])

    assert (loaded.config.trainer.batch_size, loaded.config.trainer.num_epochs) == (8, 3)
    assert facts(loaded.notes[1]) == {"run.sh", "trainer.total_epochs=3"}


def test_a_variable_that_nothing_sets_refuses_its_key_alone(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATA")

    loaded = judge_config(script)

    line = line_of(loaded, "data.train_files")
    assert (line.verdict, facts(line.reason)) == ("refused", {"$DATA"})
    assert line.value == "['$DATA/train.parquet', '/b.parquet']"
    assert facts(line.hint) == {"DATA=… rlc …"}
    assert loaded.config.trainer.batch_size == 16


def test_a_value_that_needs_running_is_refused_by_name(tmp_path: Path) -> None:
    path = write(tmp_path, "python3 -m verl.trainer.main_ppo trainer.n_gpus_per_node=$(nvidia-smi -L | wc -l)\n")

    with pytest.raises(ConfigError) as caught:
        load_config(path)

    assert "trainer.n_gpus_per_node=$(nvidia-smi -L | wc -l)" in facts(caught.value.message)
    assert facts(caught.value.hint) == {"trainer.n_gpus_per_node=…"}
    assert load_config(path, ["trainer.n_gpus_per_node=1"]).config.plan.num_devices == 1


def test_a_key_without_effect_may_have_a_value_that_needs_running(tmp_path: Path) -> None:
    path = write(tmp_path, "python3 -m verl.trainer.main_ppo ray_kwargs.ray_init.num_cpus=$(nproc)\n")

    assert line_of(load_config(path), "ray_kwargs.ray_init.num_cpus").verdict == "without effect"


def test_the_training_command_is_found_among_others_and_the_first_of_several_is_read(tmp_path: Path) -> None:
    text = """python3 -m verl.trainer.main_eval data.path=x
for size in 8 16; do
  python3 -m verl.trainer.main_ppo data.train_batch_size=$size
done
python3 -m verl.model_merger merge --backend fsdp
"""
    loaded = load_config(write(tmp_path, text))

    assert loaded.config.trainer.batch_size == 8
    assert facts(loaded.notes[0]) == {"run.sh", "2", "verl.trainer.main_ppo", "3"}


@pytest.mark.parametrize(
    "command",
    [
        "python3 -m verl.trainer.main_ppo",
        "python -m recipe.dapo.main_dapo",
        "uv run --frozen python3 -u -m verl.trainer.main_ppo",
        "ray job submit --working-dir . -- python3 -m verl.trainer.main_ppo",
        "HYDRA_FULL_ERROR=1 torchrun --nproc_per_node=1 -m verl.trainer.main_ppo",
        "python3 verl/trainer/main_ppo.py",
        "exec python3 -m verl.trainer.main_ppo",
    ],
)
def test_a_command_is_found_behind_what_launches_it(command: str, tmp_path: Path) -> None:
    arguments = "data.train_batch_size=8 trainer.total_epochs=2"

    assert load_config(write(tmp_path, f"{command} {arguments}\n")).config.trainer.batch_size == 8
    source = read_words([*command.removeprefix("exec ").split(), *arguments.split()])
    assert [argument.key for argument in source.arguments] == ["data.train_batch_size", "trainer.total_epochs"]


def test_a_line_that_fell_out_of_the_command_is_said(tmp_path: Path) -> None:
    text = "python3 -m verl.trainer.main_ppo data.train_batch_size=8 \\\n  # data.seed=1 \\\n  trainer.total_epochs=2\n"

    loaded = load_config(write(tmp_path, text))

    assert loaded.config.trainer.num_epochs == 1
    assert {"trainer.total_epochs=2", "3"} <= facts(loaded.notes[1])


def test_a_choice_that_needs_running_is_made_so_that_the_script_trains(tmp_path: Path) -> None:
    text = 'if [ "$(hostname)" = a ]; then python3 -m verl.trainer.main_ppo data.train_batch_size=8; else exit 1; fi\n'

    loaded = load_config(write(tmp_path, text))

    assert loaded.config.trainer.batch_size == 8
    assert [facts(note) for note in loaded.notes[1:]] == [{"run.sh", "1", "if"}, {"run.sh", "1"}]


@pytest.mark.parametrize(
    ("text", "program", "hint"),
    [
        ("pip install verl\n", "pip", "python3 -m verl.trainer.main_ppo key=value …"),
        (
            "torchrun -m verl.trainer.fsdp_sft_trainer data.train_files=x\n",
            "verl.trainer.fsdp_sft_trainer",
            "algorithm.name=sft",
        ),
        (
            "python3 -m verl.trainer.main_generation data.path=x trainer.nnodes=1\n",
            "verl.trainer.main_generation",
            "python3 -m verl.trainer.main_ppo key=value …",
        ),
    ],
)
def test_a_script_that_does_not_train_is_said(text: str, program: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, text))

    assert facts(caught.value.message) == {"run.sh", program}
    assert hint in facts(caught.value.hint)


def test_the_flags_of_hydra_are_understood(tmp_path: Path) -> None:
    write(tmp_path, "data:\n  train_batch_size: 8\ntrainer:\n  total_epochs: 2\n", "mine.yaml")
    words = ["python3", "-m", "verl.trainer.main_ppo", f"--config-path={tmp_path}", "--config-name", "mine"]

    source = read_words([*words, "trainer.total_epochs=3"])
    loaded = load_config(None, source)

    assert (loaded.config.trainer.batch_size, loaded.config.trainer.num_epochs) == (8, 3)
    assert facts(loaded.notes[0]) == {str(tmp_path / "mine.yaml")}


@pytest.mark.parametrize(
    ("flag", "verdict"),
    [
        ("--config-name=ppo_trainer", "without effect"),
        ("--config-name=ppo_megatron_trainer.yaml", "without effect"),
        ("--config-name=of_a_colleague", "refused"),
        ("--multirun", "refused"),
        ("--local_rank=0", "refused"),
    ],
)
def test_a_flag_has_a_verdict(flag: str, verdict: str) -> None:
    source = read_words(["python3", "-m", "verl.trainer.main_ppo", flag, "trainer.total_epochs=2"])

    line = line_of(judge_config(None, source.arguments), flag.partition("=")[0])
    assert line.verdict == verdict


def test_an_exchanged_group_is_refused() -> None:
    source = read_words(["actor@actor_rollout_ref.actor=mine", "trainer.total_epochs=2"])

    assert line_of(judge_config(None, source.arguments), "actor@actor_rollout_ref.actor").verdict == "refused"


def test_a_word_among_the_arguments_is_refused() -> None:
    source = read_words(["trainer.total_epochs=2", "word"])

    assert line_of(judge_config(None, source), "word").verdict == "refused"


def test_two_spellings_of_one_setting_that_differ_are_said() -> None:
    old, new = "custom_reward_function.path=a.py", "reward.custom_reward_function.path=b.py"

    line = line_of(judge_config(None, [old, new]), "reward.custom_reward_function.path")

    assert line.verdict == "refused"
    assert facts(line.reason) == {"custom_reward_function.path=a.py", "reward.functions"}
    assert load_config(None, [old, new.replace("b.py", "a.py")]).config.reward.functions == ("a.py:compute_score",)


def test_a_command_of_verl_is_one_of_verl_whatever_its_keys_are_called(tmp_path: Path) -> None:
    words = "python3 -m verl.trainer.main_ppo data.train_files=a.parquet data.max_prompt_length=64 algorithm.gamma=0.9"

    for loaded in (judge_config(None, read_words(words.split())), judge_config(write(tmp_path, f"{words}\n"))):
        assert [line.verdict for line in loaded.report[:3]] == ["honoured"] * 3
        assert line_of(loaded, "data.train_batch_size").verdict == "not given"
        assert (loaded.config.data.max_prompt_length, loaded.config.algorithm.gamma) == (64, 0.9)
    assert judge_config(None, words.split()[3:]).report == ()
