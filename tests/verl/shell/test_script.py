"""Shell scripts that are read without running them start the programs that bash would start."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from fakes.facts import facts
from fakes.launch_scripts import SHELL_SCRIPTS

from rl_compat.errors import ConfigError
from rl_compat.verl.shell.scope import mark_of
from rl_compat.verl.shell.script import ReadScript

ARGUMENTS = ["first argument", "x=1"]


def read(text: str, *arguments: str, folder: Path = Path(), doubtful: bool = False, **environment: str) -> ReadScript:
    script = ReadScript(name="run.sh", arguments=arguments, environment=environment, folder=folder, doubtful=doubtful)
    script.run(text)
    return script


def started_by_bash(folder: Path, text: str, arguments: Sequence[str], **environment: str) -> list[list[str]]:
    """The arguments of each start of `train`."""
    program = folder / "train"
    program.write_text('#!/bin/sh\nfor text in "$@"; do printf "%s\\0" "$text" >> "$TO"; done\nprintf "\\1" >> "$TO"\n')
    program.chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    environment |= {"PATH": path, "TO": str(folder / "words")}
    subprocess.run(
        ["bash", "-c", text, "run.sh", *arguments], env=environment, capture_output=True, check=False, cwd=folder
    )
    starts = (folder / "words").read_text(encoding="utf-8").split("\1")[:-1]
    return [start.split("\0")[:-1] for start in starts]


def in_the_file() -> dict[str, tuple[str, list[str]]]:
    """The scripts of `scripts.txt`, each with its arguments, by name."""
    parts = (Path(__file__).parent / "scripts.txt").read_text(encoding="utf-8").split("#### ")[1:]
    heads = [part.partition("\n") for part in parts]
    return {head.split()[0]: (text, head.split()[1:]) for head, _, text in heads}


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize("name", SHELL_SCRIPTS)
def test_a_script_gives_its_program_the_words_that_bash_gives_it(name: str, tmp_path: Path) -> None:
    text = SHELL_SCRIPTS[name]
    unix = text.replace("\r\n", "\n").replace("set -xeuo", "set -xe").replace("\n        ", "\n")
    started = started_by_bash(tmp_path, unix, ARGUMENTS)

    found = [list(command.words[1:]) for command in read(text, *ARGUMENTS).started if command.words[0] == "train"]

    assert found == started
    assert found


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize("name", in_the_file())
def test_the_words_of_a_script_are_those_that_bash_makes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text, arguments = in_the_file()[name]
    started = started_by_bash(tmp_path, text, arguments, HOME="/home/somebody")
    found = read(text, *arguments, folder=tmp_path, HOME="/home/somebody").started

    assert [list(command.words[1:]) for command in found if command.words[0] == "train"] == started


def test_what_only_a_run_can_determine_is_marked_or_noted() -> None:
    (command,) = read("echo a=1 | xargs train b=2").started
    assert [bool(mark_of(word)) for word in command.words] == [False, False, False, True]

    for text in ("read A; train $A", "cat x | mapfile -t A; train $A", "declare -n A=B; train $A"):
        *_, command = read(text).started
        assert mark_of(command.words[1]), text

    assert len(read("nvidia-smi -q && A=1 || A=2; train $A").notes) == 1
    assert read("pip install x && train a=1").notes == []


@pytest.mark.parametrize("launcher", ["docker run --gpus all image", "srun -N 1", "nohup", "apptainer exec x.sif"])
def test_a_shell_behind_a_launcher_is_read_too(launcher: str) -> None:
    (command,) = read(f'{launcher} bash -c "cd /w && train a=1"').started

    assert command.words == ["train", "a=1"]


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
