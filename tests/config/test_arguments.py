"""Arguments in the forms of Hydra."""

from __future__ import annotations

import pytest
from fakes.facts import facts

from rl_compat.config.arguments import split_arguments
from rl_compat.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "key", "value", "deletes"),
    [
        ("a.b=1", "a.b", "1", False),
        ("+a.b=1", "a.b", "1", False),
        ("++a.b = x=y ", "a.b", "x=y", False),
        ("~a.b", "a.b", "", True),
        ("a.b=", "a.b", "", False),
    ],
)
def test_an_argument_is_taken_apart(text: str, key: str, value: str, deletes: bool) -> None:
    (argument,) = split_arguments([text])

    assert (argument.key, argument.value, argument.deletes) == (key, value, deletes)


def test_references_are_filled_in() -> None:
    arguments = split_arguments(["a.dir=${a.root}/${a.name}-${a.name}", "a.root=runs", "a.name=${a.word}", "a.word=x"])

    assert arguments[0].value == "runs/x-x"


@pytest.mark.parametrize(
    ("value", "filled"),
    [
        ("${.d}", "x"),
        ("${..e}", "y"),
        ("${oc.select:a.missing,7}", "7"),
        ("${oc.select:a.missing}", "null"),
        ("${oc.select:a.b.d,${a.e}}", "x"),
        ("${oc.env:RLC_NOT_SET,fallback}", "fallback"),
        ("${a.default}/${a.e}", "from the table/y"),
    ],
)
def test_the_references_of_omegaconf_are_filled_in(value: str, filled: str) -> None:
    texts = [f"a.b.c={value}", "a.b.d=x", "a.e=y"]

    assert split_arguments(texts, default={"a.default": "from the table"}.get)[0].value == filled


def test_the_environment_is_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLC_TEST_FOLDER", "/data")

    assert split_arguments(["a.b=${oc.env:RLC_TEST_FOLDER}/x"])[0].value == "/data/x"


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        (["a.b=${a.c}"], "a.c"),
        (["a.b=${HOMEDIR}/x"], "HOMEDIR"),
        (["a.b=${a.c}", "a.c=${a.b}"], "a.b"),
        (["a.b=${oc.env:RLC_NOT_SET}"], "RLC_NOT_SET"),
        (["a.b=${my.resolver:1}"], "${my.resolver:1}"),
    ],
)
def test_a_reference_that_leads_nowhere_is_the_problem_of_its_argument(texts: list[str], problem: str) -> None:
    argument = split_arguments(texts)[0]

    assert problem in facts(argument.problem)
    assert argument.text == texts[0]
    assert argument.hint or texts == ["a.b=${a.c}", "a.c=${a.b}"]


@pytest.mark.parametrize("text", ["word", "=1"])
def test_arguments_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        split_arguments([text])
