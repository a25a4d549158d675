"""`rlc settings`: a setting, a section, a word, and the page in docs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rl_compat.algorithms.table import ALGORITHMS
from rl_compat.cli.app import main
from rl_compat.config.explain import explain, page
from rl_compat.config.settings import settings
from rl_compat.verl.keys.table import verl_keys

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["settings", *arguments]) == 0
    return capsys.readouterr().out


def test_a_key_shows_default_limits_readers_and_verl_keys(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "algorithm.clip_cov.fraction")

    for word in ("0.0002", "above 0 and at most 1", "clip_cov", settings()["algorithm.clip_cov.fraction"].sentence):
        assert word in text
    assert "actor_rollout_ref.actor.policy_loss.clip_cov_ratio" in text


def test_a_section_lists_its_settings_and_those_of_its_groups(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "off_policy")

    assert all(key in text for key in settings() if key.startswith("off_policy."))
    assert "trainer." not in text


def test_words_search_keys_and_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "Lagrange", "multiplier")

    assert "algorithm.lagrangian.lr" in text
    assert "algorithm.kl_coef" not in text


def test_json_has_every_setting_with_its_choices(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["key"]: row for row in json.loads(shown(capsys, "--json"))}

    assert list(rows) == [*settings(), "pools.NAME.roles", "pools.NAME.gpus", "pools.NAME.emulate"]
    assert rows["algorithm.name"]["choices"] == list(ALGORITHMS)
    assert rows["optimizer.betas"]["default"] == [0.9, 0.999]
    assert rows["trainer.save_every"]["verl"] == ["trainer.save_freq"]
    assert "data.train_batch_size" in rows["trainer.batch_size"]["verl"]


def test_an_unknown_key_leads_to_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings", "algorithm.clp_low"]) == 2
    assert "`algorithm.clip_low`" in capsys.readouterr().err


def test_a_key_of_an_earlier_version_leads_to_the_new_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings", "preference.label_smoothing"]) == 2
    assert "`algorithm.dpo.label_smoothing`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("key", "algorithms"),
    [
        ("algorithm.kto.beta", {"kto"}),
        ("algorithm.lagrangian.lr", {"ppo_lagrangian"}),
        ("algorithm.clip_value", {"ppo", "ppo_lagrangian"}),
        ("algorithm.dro.beta", {name for name, row in ALGORITHMS.items() if row.learns_from == "prompts"}),
        ("data.label_key", {"kto"}),
        ("optimizer.min_lr_fraction", set(ALGORITHMS)),
    ],
)
def test_a_setting_names_the_algorithms_that_read_it(key: str, algorithms: set[str]) -> None:
    assert set(explain(key).algorithms) == algorithms


def test_every_setting_is_read_by_some_algorithm() -> None:
    assert [key for key in settings() if not explain(key).algorithms] == []


def test_verl_keys_name_settings() -> None:
    assert [key for key in verl_keys() if key not in settings()] == []
    assert len(verl_keys()) > 90


def test_the_page_is_current() -> None:
    """Written by `rlc settings --markdown > docs/settings.md`."""
    assert PAGE.read_text(encoding="utf-8") == page()
