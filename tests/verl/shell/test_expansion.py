"""Words of a shell script: each becomes what bash makes of it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable

import pytest

from rl_compat.verl.shell.arithmetic import evaluate
from rl_compat.verl.shell.builtins import OUTPUT
from rl_compat.verl.shell.expansion import array_items, expand_text, expand_word
from rl_compat.verl.shell.scope import Scope, mark_of, unknown, without_unset

VARIABLES = {
    "A": "1 2",
    "N": "8",
    "EMPTY": "",
    "FILE": "/data/gsm8k/train.parquet",
    "NAME": "Qwen2.5-0.5B",
    "INDEX": "1",
    "TO": "N",
}

WORDS = [
    "plain",
    "a.b=c",
    "+a.b=c",
    "'single $N'",
    '"double $N"',
    r"back\ slash\$N",
    r'"in \"double\" \$N \x"',
    "$A",
    '"$A"',
    "pre${A}post",
    "$EMPTY",
    '"$EMPTY"',
    "k=$EMPTY",
    "${NOT_SET:-fallback}",
    "${NOT_SET:-$N}",
    '${NOT_SET:-"a b"}',
    "\"${NOT_SET:-['a', 'b']}\"",
    "${NOT_SET:-['a','b']}",
    "${EMPTY:-filled}",
    "${EMPTY-kept}",
    "${N:+given}",
    "${EMPTY:+given}",
    "${N+given}",
    "${NOT_SET:=8}${NOT_SET}",
    "${#N}",
    "${#LIST[@]}",
    "${!TO}",
    "${LIST[1]}",
    "${LIST[$INDEX]}",
    '"${LIST[1]}"',
    '"${LIST[@]}"',
    "${LIST[@]}",
    '"${LIST[*]}"',
    'pre"${LIST[@]}"post',
    '"${LIST[@]:1}"',
    '"${LIST[@]:0:2}"',
    '"${NONE[@]}"',
    "${NONE[@]:-none}",
    "$((N * 2 + 1))",
    "$(( (N + 4) / 3 ))",
    "$(($N % 3))",
    "$((2 ** 10))",
    "$((N > 4 && N < 9))",
    "$((-7 / 2))",
    "${FILE##*/}",
    "${FILE#*/}",
    "${FILE%/*}",
    "${FILE%%/*}",
    "${FILE%.parquet}.json",
    "${FILE/gsm8k/math}",
    "${FILE//a/_}",
    "${NAME,,}",
    "${NAME^^}",
    "${NAME:0:4}",
    "${NAME:5}",
    "$(basename $FILE)",
    "$(basename $FILE .parquet)",
    "$(dirname $FILE)",
    "$(echo one two)",
    '"$(echo one two)"',
    "`echo $N`",
    "$(printf '%s-%d' a 3)",
    "$(true && echo yes || echo no)",
    "$(false && echo yes || echo no)",
    "$'tab\\there'",
    "['a.parquet','b.parquet']",
    "\"['$N','b']\"",
    "'{a: 1}'",
    "$1",
    '"$@"',
    "$*",
    "$#",
    "${1:-none}",
    "${9:-none}",
    "a$",
]
SETUP = "; ".join([*(f"{name}='{text}'" for name, text in VARIABLES.items()), "LIST=(x=1 'y=a b' '')", "NONE=()"])
SHOW = 'show() { for text in "$@"; do printf "%s\\0" "$text"; done; }'


def scope(**variables: str) -> Scope:
    def substitute(text: str) -> str:
        name, *words = text.split()
        return OUTPUT[name](words) if name in OUTPUT else unknown(f"`{text}` is not run")

    return Scope(environment={}, substitute=substitute, variables=dict(variables))


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize("word", WORDS)
def test_a_word_becomes_what_bash_makes_of_it(word: str, read_words: Callable[[str, list[str]], list[str]]) -> None:
    script = f"{SETUP}; set -f; {SHOW}; show {word}"
    shown = subprocess.run(["bash", "-c", script, "s", "p q", "r"], capture_output=True, text=True, check=True).stdout

    assert read_words(f"{SETUP}\nshow {word}", ["p q", "r"]) == shown.split("\0")[:-1]


def test_what_is_not_set_leaves_a_mark_and_without_quotes_no_argument_of_nothing_else() -> None:
    empty = scope()

    (argument,) = expand_word("data.train_files=$DATA/train.parquet", empty)
    mark = mark_of(argument)
    assert mark is not None
    assert (mark[1], mark[2]) == ("u", "DATA")
    assert without_unset(argument) == "data.train_files=/train.parquet"
    assert expand_word("$EXTRA", empty) == []
    assert [without_unset(text) for text in expand_word('"$EXTRA"', empty)] == [""]


def test_a_mark_follows_its_value_through_variables_and_arithmetic() -> None:
    known = scope(GPUS=unknown("`nvidia-smi -L` is not run"))

    for word in ("$((GPUS * 2))", "${GPUS}", "$GPUS", "${GPUS%x}", "${GPUS:-8}"):
        mark = mark_of(expand_text(word, known))
        assert mark is not None
        assert mark[2] == "`nvidia-smi -L` is not run"


def test_blanks_in_a_reason_do_not_split_a_word() -> None:
    assert len(expand_word("a=$(nvidia-smi -L)", scope())) == 1


def test_an_array_has_its_words_without_comments() -> None:
    items = array_items("(\n  a=1   # don't\n  'b=2 3'\n  c=$N\n)", scope(N="8"))

    assert items == ["a=1", "b=2 3", "c=8"]


@pytest.mark.parametrize(("text", "value"), [("1 + 2 * 3", 7), ("x", 5), ("!x", 0), ("x != 5 || x == 5", 1), ("", 0)])
def test_arithmetic_is_in_whole_numbers(text: str, value: int) -> None:
    assert evaluate(text, {"x": "5"}.get) == value  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["1 / 0", "1.5", "a[", "x +"])
def test_what_is_not_arithmetic_is_said(text: str) -> None:
    with pytest.raises(ValueError, match="`"):
        evaluate(text, lambda name: "1")
