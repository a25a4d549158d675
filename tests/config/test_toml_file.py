"""What is wrong with a settings file is said with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.facts import facts

from rl_compat.config.load import load_config
from rl_compat.config.toml_file import key_lines
from rl_compat.errors import ConfigError


def error_of(folder: Path, text: str, name: str = "run.toml") -> ConfigError:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    return caught.value


@pytest.mark.parametrize(
    ("text", "line", "named", "hint"),
    [
        (
            "[optimizer]\nlerning_rate = 1e-6",
            2,
            {"optimizer.lerning_rate"},
            {"optimizer.actor_lr", "optimizer.critic_lr"},
        ),
        ("[trainer]\nseed = 1\nnum-epochs = 2", 3, {"trainer.num-epochs"}, {"trainer.num_epochs"}),
        ("[rollout]\ngroup_size = 8", 2, {"rollout.group_size"}, {"group_size", "algorithm.group_size"}),
        ("# first\n[trianer]\nbatch_size = 8", 2, set(), set()),
        ("batch_size = 8", 1, {"batch_size"}, {"trainer.batch_size"}),
        ("[trainer]\nbatch_size = '8'", 2, {"trainer.batch_size", '"8"'}, set()),
        ("[trainer]\nvalidate_before = 1", 2, {"trainer.validate_before", "true", "false", "1"}, set()),
        ("[plan]\nattention = 'spda'", 2, {"plan.attention", "auto", "eager", "sdpa"}, {"sdpa"}),
        ("[model.path]\nx = 1", 1, {"model.path"}, set()),
        ("[algorithm.clip_cov]\nlow = 'a'", 2, {"algorithm.clip_cov.low"}, set()),
        ("[algorithm]\nclip_cov.low = 'a'", 2, {"algorithm.clip_cov.low"}, set()),
        ("[algorithm]\nclip_cov_low = 1", 2, {"algorithm.clip_cov_low"}, {"algorithm.clip_cov.low"}),
        ("[supervised]\npacking = true", 1, set(), {"algorithm.sft.packing"}),
        ("[trainer]\nbatch_size = 0", 2, {"trainer.batch_size", "0", "1"}, set()),
    ],
)
def test_a_wrong_file_names_line_key_and_nearest(
    tmp_path: Path, text: str, line: int, named: set[str], hint: set[str]
) -> None:
    """A-UX-05."""
    error = error_of(tmp_path, text)

    assert error.exit_code == 2
    assert {str(tmp_path / "run.toml"), str(line), *named} <= facts(error.message)
    assert hint <= facts(error.hint)


def test_a_misspelled_section_gets_the_nearest_and_a_section_of_verl_the_command_line(tmp_path: Path) -> None:
    assert "[trainer]" in str(error_of(tmp_path, "[trianer]\nbatch_size = 8").hint)
    assert "rlc train actor_rollout_ref.model.path=…" in facts(error_of(tmp_path, "[actor_rollout_ref.rollout]\nn = 8"))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[trainer]\nbatch_size = 8\nbatch_size = 9", "3"),
        ("[trainer]\nproject = mine", "2"),
        ("[trainer", "1"),
    ],
)
def test_a_syntax_error_names_its_line(tmp_path: Path, text: str, line: str) -> None:
    assert {str(tmp_path / "run.toml"), line} <= facts(error_of(tmp_path, text).message)


def test_a_json_file_is_told_what_is_expected(tmp_path: Path) -> None:
    error = error_of(tmp_path, '{"trainer": {"batch_size": 8}}', "run.json")

    assert facts(error.hint) == {"[section]", "key = value"}


def test_a_missing_file_gets_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "grpo.toml").write_text("", encoding="utf-8")

    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "gpro.toml")

    assert facts(caught.value.message) == {str(tmp_path / "gpro.toml")}
    assert facts(caught.value.hint) == {str(tmp_path / "grpo.toml")}


def test_a_folder_or_binary_file_is_an_error_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_bytes(b"\xff\xfe\x00")

    for path in (tmp_path, tmp_path / "run.toml"):
        with pytest.raises(ConfigError) as caught:
            load_config(path)
        assert facts(caught.value.message) >= {str(path)}


def test_lines_of_keys_are_found() -> None:
    text = "a.b = 1\n[trainer]\n# seed = 2\nseed = 3\n'quoted' = 4\n[ plan ]\nfiles = [\n  'x',\n]\n"

    assert key_lines(text) == {
        "a.b": 1,
        "trainer": 2,
        "trainer.seed": 4,
        "trainer.quoted": 5,
        "plan": 6,
        "plan.files": 7,
    }
