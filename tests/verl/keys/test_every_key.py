"""All public keys of nine releases of verl: each has a verdict, and the settings that it names are set."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.facts import facts
from fakes.verl_settings import judge_config, load_config
from verl.verl_table import PAGE, VERDICTS, companions_of, plausible, rows

from rl_compat.config.settings import settings, values_of
from rl_compat.errors import ConfigError
from rl_compat.verl.keys.rules import Inert
from rl_compat.verl.keys.table import releases
from rl_compat.verl.settings_file import translated_toml
from rl_compat.verl.translate import default_text, find_rule

KEYS = sorted(releases().defaults)


def test_the_table_has_the_public_keys_of_nine_releases() -> None:
    assert len(releases().names) == 9
    assert len(KEYS) == 947
    assert releases().having("custom_reward_function.path")[0] == "0.4.1"
    assert releases().having("algorithm.filter_groups.enable") == ("0.9.0", "0.10.0.dev")
    assert releases().newest_default("actor_rollout_ref.rollout.max_num_seqs") == 256
    assert all(len(defaults) == 9 for defaults in releases().defaults.values())


def test_every_key_has_a_rule() -> None:
    assert [key for key in KEYS if find_rule(key) is None] == []


def test_every_key_has_the_verdict_of_the_page_and_sets_what_the_page_says() -> None:
    """Run `python tests/verl/verl_table.py` and read the difference when a rule was changed on purpose."""
    written = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]

    assert written == ["| " + " | ".join(row.cells) + " |" for row in rows()]


def test_a_verdict_says_what_is_set_or_why_not() -> None:
    made = rows()

    assert {row.verdict for row in made} == set(VERDICTS)
    assert [row.key for row in made if row.verdict in ("honoured", "translated") and not row.becomes] == []
    assert [row.key for row in made if row.verdict not in ("honoured",) and not row.why] == []
    assert [row.key for row in made if row.verdict == "without effect" and row.becomes] == []


def test_the_settings_file_of_a_key_loads_to_what_the_key_itself_gives(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    for key in (row.key.strip("`") for row in rows() if row.verdict in ("honoured", "translated")):
        arguments = [*companions_of(key), f"{key}={plausible(key)}"]
        path.write_text(translated_toml(judge_config(None, arguments)), encoding="utf-8")

        assert load_config(path).config == load_config(None, arguments).config, key


def test_a_refused_key_stops_a_run_and_is_named() -> None:
    refused = [row for row in rows() if row.verdict == "refused"]

    for row in refused:
        key = row.key.strip("`")
        with pytest.raises(ConfigError) as caught:
            load_config(None, [*companions_of(key), f"{key}={plausible(key)}"])
        assert caught.value.exit_code == 2
        assert f"{key}={plausible(key)}" in facts(caught.value.message)


def test_the_defaults_of_every_release_are_understood_one_by_one() -> None:
    """Writing down a default of verl's is never unknown, and refused only where verl's own default cannot run here."""
    refused = {
        key
        for key in KEYS
        for line in judge_config(None, [f"{key}={default_text(key)}"]).report
        if line.key == key and line.verdict == "refused"
    }

    assert refused == {"actor_rollout_ref.rollout.name", "actor_rollout_ref.rollout.tensor_model_parallel_size"}


def test_a_key_without_effect_leaves_every_setting_alone() -> None:
    idle = [row.key.strip("`") for row in rows() if row.verdict == "without effect" and not row.companions]
    config = judge_config(None, [f"{key}={plausible(key)}" for key in idle]).config

    assert values_of(config) == values_of(load_config().config)


@pytest.mark.parametrize("value", ["", "null", "[", "nan", "-1", "1e400", "[1,2]", "{a: 1}", "a b"])
def test_no_value_of_a_key_with_a_meaning_is_more_than_refused(value: str) -> None:
    """A-UX-05: a value of the wrong kind gets a verdict, never a traceback."""
    for key in (key for key in KEYS if not isinstance(find_rule(key), Inert)):
        loaded = judge_config(None, [f"{key}={value}"])

        assert loaded.report or key in settings()
