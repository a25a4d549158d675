"""Shell scripts that are read without running them start the programs that bash would start."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from fakes.facts import facts

from rl_compat.errors import ConfigError
from rl_compat.verl.shell.scope import mark_of
from rl_compat.verl.shell.script import ReadScript

SCRIPTS = {
    "continued lines": """
        set -xeuo pipefail
        # a comment with "quotes' and $signs
        train \\
            data.train_batch_size=8 \\
            trainer.logger='["console","wandb"]' \\
            "data.train_files=['a.parquet', 'b.parquet']" 2>&1 | cat
    """,
    "a comment ends the command": """
        train a.b=1 \\
            a.c=2 \\
            # a.d=3 \\
            a.e=4 2>/dev/null || true
    """,
    "variables and arithmetic": """
        export N=4
        local_size=$((N * 2))
        NAME=grpo_$N-${SUFFIX:-plain}
        readonly ROOT=/data
        FILES="['$ROOT/a.parquet', '$ROOT/b.parquet']"
        N=16 train a.b=$local_size a.c=$NAME a.d="$FILES" a.e=$N
    """,
    "arrays": """
        DATA=(
            data.train_batch_size=8   # don't
            "data.train_files=['a', 'b']"
            # data.seed=1
        )
        EXTRA=()
        DATA+=(data.shuffle=False)
        DATA[3]=data.seed=2
        train "${DATA[@]}" "${EXTRA[@]}" count=${#DATA[@]} first=${DATA[0]} "$@"
    """,
    "conditions": """
        if [ "${DEVICE:-gpu}" = gpu ] && [ $# -ge 1 ]; then A=1; else A=2; fi
        if [[ "$A" == 2 || -z "$UNSET" ]]; then B=(b=1); elif [ $A -gt 1 ]; then B=(b=2); fi
        if (( A > 1 )); then C=3; else C=4; fi
        [ -d /nowhere ] && D=5 || D=6
        [[ abc == a* ]] && E=7
        test -n "$E" || E=8
        if ! false; then F=9; fi
        train a=$A "${B[@]}" c=$C d=$D e=$E f=$F
    """,
    "case": """
        MODEL=Qwen3-8B
        case "$MODEL" in
            llama*|mistral*) TP=1 ;;
            (Qwen3-*) TP=2; NAME=qwen
                ;;
            *) TP=4 ;;
        esac
        case ${1:-x} in "first argument") KIND=one;; *) KIND=other;; esac
        train tp=$TP name=$NAME kind=$KIND
    """,
    "loops": """
        OUT=()
        for lr in 1e-6 5e-7; do
            [ $lr = 5e-7 ] && continue
            OUT+=(lr=$lr)
        done
        for word; do OUT+=("word=$word"); done
        i=0
        while [ $i -lt 3 ]; do i=$((i + 1)); [ $i -eq 2 ] && break; done
        until [[ $i -ge 5 ]]; do ((i++)); done
        train "${OUT[@]}" i=$i
    """,
    "arguments": """
        while [[ $# -gt 0 ]]; do
            case "$1" in
                --model) MODEL="$2"; shift 2 ;;
                *) REST+=("$1"); shift ;;
            esac
        done
        set -- --model x y
        train model=${MODEL:-none} "${REST[@]}" "$@" n=$#
    """,
    "functions": """
        launch() {
            local lr=$1; shift
            if [ "$lr" = skip ]; then return 0; fi
            train lr=$lr "$@" n=$#
        }
        function other { launch "$@" other=1; }
        launch skip a=0
        other 1e-6 "a=b c"
    """,
    "groups": """
        A=1
        ( A=2; cd /tmp; : )
        { A=$((A + 2)); } > /dev/null
        train a=$A
    """,
    "text as a command": """
        CMD="train a.b=1 a.c=2"
        $CMD a.d=3
    """,
    "evaluated text": """
        CMD="train 'a.b=1 2'"
        eval "$CMD" a.c=3
    """,
    "here-documents": """
        cat > /dev/null <<EOF
        train a.wrong=1 "
EOF
        cat > /dev/null <<-'END'
	$(not run
	END
        train a.b=1 <<< "text"
    """,
    "windows line ends": "train a.b=1 \\\r\n  a.c=2\r\n",
    "stops early": """
        if [ $# -lt 1 ]; then echo "Usage: $0"; exit 1; fi
        train a.b=1
        exit 0
        train a.b=2
    """,
    "redirections": """
        train a.b=1 >/dev/null 2>&1 a.c=2 &
        wait
    """,
    "substitution": """
        HERE=$(cd / && pwd)
        BASE=$(basename "${HERE}/x/run.sh" .sh)
        WHO=$(false && echo one || echo two)
        train here=$HERE base=$BASE who=$WHO day=$(date +%Y)
    """,
    "nested quotes": """
        train a="$(echo "x $(echo 'y z')")" b='it'"'"'s' c="${UNSET:-"d e"}"
    """,
    "a chain": "true && train a.b=1 || train a.b=2",
    "counting": """
        for ((i = 0; i < 3; i++)); do OUT+=(a$i=$((i * 2))); done
        for (( j=5; j>3; j-- ))
        do
            train "${OUT[@]}" j=$j
        done
    """,
    "unset variables in quotes": """
        [ -n "$UNSET" ] && A=1 || A=2
        if test -z "$UNSET"; then B=1; fi
        train a=$A b=$B
    """,
    "one line": "A=1; B=$A; if true; then train a=$A b=$B; fi",
}
ARGUMENTS = ["first argument", "x=1"]


def read(text: str, *arguments: str, folder: Path = Path(), doubtful: bool = False, **environment: str) -> ReadScript:
    script = ReadScript(name="run.sh", arguments=arguments, environment=environment, folder=folder, doubtful=doubtful)
    script.run(text)
    return script


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_gives_its_program_the_words_that_bash_gives_it(name: str, tmp_path: Path) -> None:
    text = SCRIPTS[name]
    program = tmp_path / "train"
    program.write_text('#!/bin/sh\nfor text in "$@"; do printf "%s\\0" "$text" >> "$TO"; done\nprintf "\\n" >> "$TO"\n')
    program.chmod(0o755)
    environment = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "TO": str(tmp_path / "words")}
    unix = text.replace("\r\n", "\n").replace("set -xeuo", "set -xe").replace("\n        ", "\n")
    subprocess.run(["bash", "-c", unix, "run.sh", *ARGUMENTS], env=environment, capture_output=True, check=False)
    started = (tmp_path / "words").read_text(encoding="utf-8").split("\n")[:-1]

    found = [command.words[1:] for command in read(text, *ARGUMENTS).started if command.words[0] == "train"]

    assert found == [line.split("\0")[:-1] for line in started]
    assert found


def test_a_program_has_its_line_and_the_variables_set_for_it() -> None:
    (command,) = read('\nexport B=2\nA=1 C="x y" python3 -m verl.trainer.main_ppo \\\n  a.b=1\n').started

    assert command.line == 3
    assert command.environment == {"A": "1", "C": "x y"}
    assert read("export B=2 C; D=3").exported == {"B": "2", "C": ""}


def test_the_environment_is_seen_and_the_scripts_own_defaults_yield_to_it() -> None:
    (command,) = read("run n=${N:-4} home=$HOME", N="8", HOME="/home/x").started

    assert command.words == ["run", "n=8", "home=/home/x"]


def test_a_module_that_is_not_installed_is_known_without_running_python() -> None:
    text = "run device=$(python3 -c 'import no_such_module' 2>/dev/null && echo npu || echo gpu)"

    assert read(text).started[-1].words == ["run", "device=gpu"]
    assert read(text.replace("no_such_module", "json")).started[-1].words == ["run", "device=npu"]


def test_what_only_running_would_give_is_marked_with_the_command() -> None:
    (command,) = read("run gpus=$(nvidia-smi -L | wc -l)").started

    mark = mark_of(command.words[1])
    assert mark is not None
    assert facts(mark[2]) == {"$(nvidia-smi -L | wc -l)"}


@pytest.mark.parametrize(("doubtful", "words"), [(False, ["run", "b=2"]), (True, ["run", "a=1"])])
def test_a_condition_that_needs_running_is_noted_and_taken_as_asked(doubtful: bool, words: list[str]) -> None:
    script = read('if [ "$(hostname)" = big ]; then run a=1; else run b=2; fi', doubtful=doubtful)

    assert script.started[-1].words == words
    assert facts(script.notes[0]) == {"run.sh", "1", "if"}


def test_other_scripts_are_followed(tmp_path: Path) -> None:
    (tmp_path / "settings.sh").write_text("N=3\n", encoding="utf-8")
    (tmp_path / "inner.sh").write_text('run n=$N arguments="$*"\n', encoding="utf-8")

    script = read("source settings.sh\nexport N\nbash inner.sh a b\nbash -c 'run c=$N'\n", folder=tmp_path)

    assert [command.words for command in script.started] == [["run", "n=3", "arguments=a b"], ["run", "c=3"]]


def test_a_script_that_is_not_there_is_noted() -> None:
    assert facts(read("source secrets.sh\nrun a=1").notes[0]) == {"run.sh", "1", "secrets.sh"}


def test_nothing_is_run(tmp_path: Path) -> None:
    left = tmp_path / "left"

    read(f"touch {left}\nrm -rf {tmp_path}\necho x > {left}\nA=$(touch {left})\n")

    assert tmp_path.exists()
    assert not left.exists()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("if true; then run", {"fi"}),
        ("run 'a", {"1", "'"}),
        ("a=1\nrun $(x", {"2"}),
        ("run a )", {")"}),
        ("f() { f; }\nf", {"f"}),
        ("a=1\nrun ${a:-'}", {"2"}),
        ("for ((i = 0; i < 3)); do run; done", {"1"}),
        ("while true; do while true; do A=1; done; done", {"100000"}),
    ],
)
def test_what_is_not_a_script_is_said_with_its_line(text: str, named: set[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        read(text)

    assert {"run.sh", *named} <= facts(caught.value.message)


def test_a_loop_without_an_end_is_left() -> None:
    assert read("while true; do A=1; done\nrun a=$A").started[-1].words == ["run", "a=1"]
