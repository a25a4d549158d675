"""YAML files, of verl's keys or of ours."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from fakes.facts import facts
from fakes.verl_settings import judge_config, load_config

from rl_compat.errors import ConfigError
from rl_compat.verl.keys.table import releases
from rl_compat.verl.translate import default_text
from rl_compat.verl.yaml_file import read_yaml

FILE = """
hydra:
  run:
    dir: outputs
defaults:
  - ppo_trainer
  - base
  - _self_
data:
  train_files: [a.parquet, "b,c.parquet"]
  train_batch_size: 8
  seed: null
  shuffle: false
actor_rollout_ref:
  model: {path: "${oc.env:RLC_TEST_MODEL,some/model}", override_config: {}}
  actor:
    _target_: verl.workers.config.FSDPActorConfig
    optim: {lr: 1e-6}
    ppo_mini_batch_size: ${data.train_batch_size}
    checkpoint: {save_contents: [model], load_contents: "${.save_contents}"}
trainer:
  experiment_name: mine
  default_local_dir: runs/${trainer.project_name}/${.experiment_name}
"""


def write(folder: Path, text: str, name: str = "run.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_of_verls_is_a_configuration(tmp_path: Path) -> None:
    write(tmp_path, "trainer:\n  total_epochs: 7\n  project_name: theirs\n", "base.yaml")

    loaded = load_config(write(tmp_path, FILE), ["data.train_batch_size=16"])

    config = loaded.config
    assert config.data.train_files == ("a.parquet", "b,c.parquet")
    assert (config.trainer.batch_size, config.trainer.mini_batch_size) == (16, 16)
    assert (config.model.path, config.data.shuffle, config.optimizer.actor_lr) == ("some/model", False, 1e-6)
    assert (config.trainer.num_epochs, config.trainer.output_dir) == (7, "runs/theirs/mine")
    assert not any("_target_" in line.key or line.key.startswith("hydra") for line in loaded.report)


def test_a_base_that_is_not_there_is_refused(tmp_path: Path) -> None:
    (line,) = [line for line in judge_config(write(tmp_path, FILE)).report if line.verdict == "refused"]

    assert (line.key, line.value) == ("defaults", "base")
    assert {"base.yaml", str(tmp_path)} <= facts(line.reason)
    assert facts(line.hint) == {"hydra.searchpath"}


@pytest.mark.parametrize("place", ["file://{folder}/shared", "shared", "file://shared"])
def test_a_base_is_read_from_the_search_path(place: str, tmp_path: Path) -> None:
    (tmp_path / "shared" / "model").mkdir(parents=True)
    write(tmp_path / "shared", "trainer: {total_epochs: 7}\ndata: {train_batch_size: 4}\n", "base.yaml")
    write(tmp_path / "shared" / "model", "path: tiny\n", "small.yaml")
    text = f"""
hydra: {{searchpath: ["{place.format(folder=tmp_path)}"]}}
defaults:
  - ppo_trainer
  - /base
  - model@actor_rollout_ref.model: small
  - actor@actor_rollout_ref.actor: dp_actor
  - override hydra/job_logging: none
data: {{train_batch_size: 8}}
"""
    loaded = load_config(write(tmp_path, text))

    assert (loaded.config.trainer.num_epochs, loaded.config.trainer.batch_size) == (7, 8)
    assert loaded.config.model.path == "tiny"
    assert [facts(note) for note in loaded.notes] == [{"actor: dp_actor", str(tmp_path / "run.yaml")}]


def test_what_stands_after_self_overrides_the_file(tmp_path: Path) -> None:
    write(tmp_path, "trainer: {total_epochs: 7}\n", "base.yaml")

    config = load_config(write(tmp_path, "defaults: [_self_, base]\ntrainer: {total_epochs: 2}\n")).config

    assert config.trainer.num_epochs == 7


@pytest.mark.parametrize("release", releases().names)
def test_the_whole_configuration_of_a_release_is_understood(release: str, tmp_path: Path) -> None:
    """A file as Hydra writes it for a run: every key, mostly defaults, of which inapplicable ones are ignored."""
    number = releases().names.index(release)
    chosen = {key: defaults[number] for key, defaults in releases().defaults.items() if defaults[number] != "-"}
    tree: dict = {}
    for key, value in (chosen | {"actor_rollout_ref.rollout.name": "vllm", "trainer.nnodes": 1}).items():
        *groups, name = key.split(".")
        branch = tree
        for group in groups:
            branch = branch.setdefault(group, {})
        branch[name] = value
    path = write(tmp_path, yaml.safe_dump(tree))

    loaded = judge_config(path)

    assert [line for line in loaded.report if line.verdict == "refused"] == []
    assert loaded.config.trainer.batch_size == 1024
    assert loaded.config.trainer.mini_batch_size == 256
    assert len(loaded.report) >= len(chosen)


def test_our_own_keys_may_stand_in_yaml(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, "trainer:\n  batch_size: 8\noptimizer:\n  betas: [0.9, 0.95]\n")).config

    assert (config.trainer.batch_size, config.optimizer.betas) == (8, (0.9, 0.95))


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        ("optimizer:\n  lerning_rate: 1e-6\n", "optimizer.lerning_rate", {"optimizer.actor_lr"}),
        ("trainer:\n  num-epochs: 2\n", "trainer.num-epochs", {"trainer.num_epochs"}),
        ("rollout:\n  group_size: 2\n", "rollout.group_size", {"algorithm.group_size"}),
        ("trainer:\n  batch_size: many\n", "trainer.batch_size", set()),
        (
            "actor_rollout_ref:\n  rollout:\n    nn: 2\n",
            "actor_rollout_ref.rollout.nn",
            {"actor_rollout_ref.rollout.n"},
        ),
    ],
)
def test_a_wrong_key_or_value_is_refused_with_the_nearest(text: str, key: str, hint: set[str], tmp_path: Path) -> None:
    """A-UX-05."""
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, text))

    assert caught.value.exit_code == 2
    assert key in facts(caught.value.message)
    assert hint <= facts(caught.value.hint)


@pytest.mark.parametrize(("text", "named"), [("a: [1\nb: 2", {"2"}), ("- a\n- b\n", set()), ("", set())])
def test_what_is_not_a_tree_of_keys_is_said(text: str, named: set[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_yaml(write(tmp_path, text))
    assert {str(tmp_path / "run.yaml"), *named} <= facts(caught.value.message)


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("data: {seed: 1}\ntrainer: {nnodes: 1}\ndata: {shuffle: false}\n", "3", "data"),
        ("data:\n  seed: 1\n  seed: 2\n", "3", "seed"),
        ("data:\n  - {a: 1}\n  - {b: 1, b: 2}\n", "3", "b"),
    ],
)
def test_a_key_that_is_there_twice_is_refused_with_its_line(text: str, line: str, key: str, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        read_yaml(path)
    assert {str(path), key} <= facts(raised.value.message)
    assert f"line {line}" in raised.value.message


def test_a_reference_to_a_key_that_is_not_given_is_verls_default() -> None:
    assert default_text("trainer.project_name") == "verl_examples"
    assert default_text("data.train_batch_size") == "1024"
    assert default_text("trainer.project") is None
