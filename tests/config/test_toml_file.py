"""What is wrong with a settings file is said with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

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
    ("text", "line", "message", "hint"),
    [
        (
            "[optimizer]\nlerning_rate = 1e-6",
            2,
            "there is no setting `optimizer.lerning_rate`",
            "`optimizer.actor_lr` or `optimizer.critic_lr`, in section [optimizer]",
        ),
        ("[trainer]\nseed = 1\nnum-epochs = 2", 3, "there is no setting `trainer.num-epochs`", "`trainer.num_epochs`"),
        ("[rollout]\ngroup_size = 8", 2, "no setting `rollout.group_size`", "`group_size` belongs in [algorithm]"),
        ("# first\n[trianer]\nbatch_size = 8", 2, "there is no section [trianer]", "did you mean [trainer]"),
        ("[actor_rollout_ref.rollout]\nn = 8", None, "no section [actor_rollout_ref]", "on the command line"),
        ("batch_size = 8", 1, "`batch_size`", "[trainer]"),
        ("[trainer]\nbatch_size = '8'", 2, '`trainer.batch_size` takes a whole number, not the text `"8"`', None),
        ("[trainer]\nvalidate_before = 1", 2, "takes `true` or `false`, not `1`", None),
        ("[plan]\nattention = 'spda'", 2, "takes one of `auto`, `eager`, `sdpa`", "did you mean `sdpa`"),
        ("[model.path]\nx = 1", 1, "`model.path` takes text, not a section", None),
        ("[algorithm.clip_cov]\nlow = 'a'", 2, "`algorithm.clip_cov.low`", None),
        ("[algorithm]\nclip_cov.low = 'a'", 2, "`algorithm.clip_cov.low`", None),
        ("[algorithm]\nclip_cov_low = 1", 2, "`algorithm.clip_cov_low`", "`algorithm.clip_cov.low`"),
        ("[supervised]\npacking = true", 1, "[supervised]", "`algorithm.sft.packing`"),
        ("[trainer]\nbatch_size = 0", 2, "`trainer.batch_size` is 0 and must be at least 1", None),
    ],
)
def test_a_wrong_file_names_line_key_and_nearest(
    tmp_path: Path, text: str, line: int | None, message: str, hint: str | None
) -> None:
    """A-UX-05."""
    error = error_of(tmp_path, text)

    assert error.exit_code == 2
    place = f"`{tmp_path / 'run.toml'}`" + (f" line {line}: " if line else ": ")
    assert error.message.startswith(place)
    assert message in error.message
    assert hint is None or hint in str(error.hint)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[trainer]\nbatch_size = 8\nbatch_size = 9", "line 3"),
        ("[trainer]\nproject = mine", "line 2"),
        ("[trainer", "line 1"),
    ],
)
def test_a_syntax_error_names_its_line(tmp_path: Path, text: str, message: str) -> None:
    error = error_of(tmp_path, text)

    assert "is not valid TOML" in error.message
    assert message in error.message


def test_a_json_file_is_told_what_is_expected(tmp_path: Path) -> None:
    error = error_of(tmp_path, '{"trainer": {"batch_size": 8}}', "run.json")

    assert "settings files are TOML" in str(error.hint)


def test_a_missing_file_gets_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "grpo.toml").write_text("", encoding="utf-8")

    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "gpro.toml")

    assert f"`{tmp_path / 'gpro.toml'}`" in caught.value.message
    assert f"`{tmp_path / 'grpo.toml'}`" in str(caught.value.hint)


def test_a_folder_or_binary_file_is_an_error_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_bytes(b"\xff\xfe\x00")

    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)
    with pytest.raises(ConfigError, match="is not text in UTF-8"):
        load_config(tmp_path / "run.toml")


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
