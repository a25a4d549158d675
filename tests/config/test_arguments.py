"""Arguments in the forms of Hydra."""

from __future__ import annotations

import pytest

from rl_compat.config.arguments import last_of_each, split_arguments
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
    ("texts", "message"),
    [
        (["word"], "`word` is not of the form `key=value`"),
        (["=1"], "does not start with a key"),
        (["a.b=${a.c}"], "refers to `a.c`, which is not given"),
        (["a.b=${a.c}", "a.c=${a.b}"], "`a.b` refers to itself"),
        (["a.b=${oc.env:HOME}"], "refers to `oc.env:HOME`, which is not given"),
    ],
)
def test_arguments_that_cannot_be_read_are_refused(texts: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        split_arguments(texts)


def test_the_last_of_two_arguments_counts() -> None:
    kept, replaced = last_of_each(split_arguments(["a.b=1", "a.c=2", "a.b=3"]))

    assert [argument.text for argument in kept] == ["a.c=2", "a.b=3"]
    assert [(earlier.value, later.value) for earlier, later in replaced] == [("1", "3")]
