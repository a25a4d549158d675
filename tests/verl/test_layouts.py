"""A training command keeps its settings in every layout of a launch script."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from fakes.facts import facts
from fakes.launch_scripts import GUARDS, MODULE, TAILS, launch_scripts
from fakes.verl_settings import judge_config

from rl_compat.config.load import LoadedConfig
from rl_compat.config.settings import values_of
from rl_compat.errors import ConfigError
from rl_compat.verl.shell.syntax import Chain, Simple, parse_script

SHUFFLES = 8
"of each script"
DEPEND_ON_THE_MACHINE = ("conditions", "unset variables in quotes")
GIVEN = ["trainer.total_epochs=3"]
"after the name of the script"


class Parts(NamedTuple):
    """A script around its training command."""

    before: str
    launcher: str
    arguments: Sequence[str]
    end: str
    "of the command: pipes and redirections"
    after: str


def parts_of(script: str) -> Parts | None:
    """The last training command of a script that stands on lines of its own; None if there is none."""
    lines = script.splitlines()
    for last in reversed(range(len(lines))):
        first = last
        while first > 0 and lines[first - 1].rstrip().endswith("\\"):
            first -= 1
        words = words_of("\n".join(lines[first : last + 1])) if MODULE in lines[first] else []
        if MODULE in words and not lines[last].rstrip().endswith("\\"):
            split = next(number for number, word in enumerate(words) if word == MODULE) + 1
            return Parts(
                before="".join(f"{line}\n" for line in lines[:first]),
                launcher=" ".join(words[:split]),
                arguments=words[split:],
                end="",
                after="".join(f"{line}\n" for line in lines[last + 1 :]),
            )
    return None


def words_of(command: str) -> Sequence[str]:
    """The words of one command, which may be piped, as they are written; none for several commands."""
    try:
        nodes = parse_script(command, "command")
    except (ConfigError, ValueError):
        return []
    node = nodes[0] if len(nodes) == 1 else None
    if isinstance(node, Chain) and all(joint == "|" for joint, _ in node.rest):
        node = node.first
    return node.words if isinstance(node, Simple) else []


def broken(draw: random.Random, parts: Parts) -> str:
    joints = [draw.choice([" ", "  ", " \\\n    ", " \\\n"]) for _ in parts.arguments]
    return (
        parts.launcher + "".join(joint + word for joint, word in zip(joints, parts.arguments, strict=True)) + parts.end
    )


def in_an_array(draw: random.Random, parts: Parts) -> str:
    joints = [draw.choice([" ", "\n  ", "  # a comment, don't read it\n  "]) for _ in parts.arguments]
    items = "".join(joint + word for joint, word in zip(joints, parts.arguments, strict=True))
    return f'ARGUMENTS=({items}\n)\n{parts.launcher} "${{ARGUMENTS[@]}}"{parts.end}'


def in_two_arrays(draw: random.Random, parts: Parts) -> str:
    cut = draw.randint(0, len(parts.arguments))
    first, second = " ".join(parts.arguments[:cut]), " ".join(parts.arguments[cut:])
    return f'A1=({first})\nA2=({second})\nA1+=("${{A2[@]}}")\n{parts.launcher} "${{A1[@]}}"{parts.end}'


def by_a_function(draw: random.Random, parts: Parts) -> str:
    head = draw.choice(["launch() {", "function launch {", "launch ()\n{"])
    call = broken(draw, parts._replace(launcher="launch", end=""))
    return f'{head}\n  {parts.launcher} "$@"{parts.end}\n}}\n{call}'


COMMANDS: Sequence[Callable[[random.Random, Parts], str]] = [broken, in_an_array, in_two_arrays, by_a_function]

WRAPPERS: Mapping[str, str] = {
    "nothing": "{}",
    "if": "if true; then\n{}\nfi",
    "if a file exists": "if [ -f /nowhere/data.parquet ]; then\n{}\nfi",
    "else": 'if [ "$UNSET_HERE" = x ]; then\n  exit 1\nelse\n{}\nfi',
    "for": "for once in 1; do\n{}\ndone",
    "counted for": "for ((once = 0; once < 1; once++)); do\n{}\ndone",
    "while": "while true; do\n{}\nbreak\ndone",
    "case": "case x in\n  *)\n{}\n  ;;\nesac",
    "function": 'main() {{\n{}\n}}\nmain "$@"',
    "group": "{{\n{}\n}}",
    "piped group": "{{\n{}\n}} 2>&1 | tee all.log",
    "subshell": "(\n{}\n)",
    "piped subshell": "( set -x\n{}\n) |& tee all.log",
    "texts in order": "if [[ a < b ]]; then\n{}\nfi",
    "options": 'while getopts "x:" o; do :; done\n{}',
    "here-document": "cat > /dev/null <<'END'\nit's \\ a \"text\" $(( \nEND\n{}",
    "function with a status": "ready() {{ local PATH=1; return 0; }}\nif ready; then\n{}\nfi",
    "read lines": "while read -r once; do\n{}\ndone <<< one",
    "comments": "# a comment with \"quotes' and $signs \\\n\n{}\n\n  # the end \\",
    "harmless commands": "set -xe\nexport A_1=1 B_2=two\nray stop --force\nmkdir -p x && cd .\n{}\necho done\nexit 0",
    **{
        f"check {number}": f"{guard.replace('{', '{{').replace('}', '}}')}\n{{}}" for number, guard in enumerate(GUARDS)
    },
}


def shuffled(name: str, seed: int) -> str:
    """A script in another layout, inside and outside.

    One whose settings depend on the machine is put in no branch that does: then all such conditions count as true.
    """
    script, draw = launch_scripts()[name], random.Random(f"{name} {seed}")
    parts = parts_of(script)
    wrappers = sorted(set(WRAPPERS) - ({"if a file exists"} if name in DEPEND_ON_THE_MACHINE else set()))
    if parts is not None:
        command = draw.choice(COMMANDS)(draw, parts._replace(end=draw.choice(TAILS)))
        for wrapper in draw.sample([wrapper for wrapper in wrappers if wrapper != "harmless commands"], 2):
            command = WRAPPERS[wrapper].format(command)
        script = f"{parts.before}{command}\n{parts.after}"
    first, separator, rest = script.partition("\n") if script.startswith("#!") else ("", "", script)
    return first + separator + WRAPPERS[draw.choice(wrappers)].format(rest) + "\n"


def read(folder: Path, text: str, given: Sequence[str] = ()) -> LoadedConfig:
    path = folder / "run.sh"
    path.write_text(text, encoding="utf-8")
    return judge_config(path, given)


def test_the_scripts_are_of_many_forms() -> None:
    assert len(launch_scripts()) >= 40
    assert sum(parts_of(text) is not None for text in launch_scripts().values()) >= 40


@pytest.mark.parametrize("name", launch_scripts())
def test_the_settings_do_not_depend_on_the_layout(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA", "/data")
    plain = read(tmp_path, launch_scripts()[name], GIVEN)
    assert plain.config.trainer.num_epochs == 3
    for seed in range(SHUFFLES):
        text = shuffled(name, seed)
        loaded = read(tmp_path, text, GIVEN)
        assert values_of(loaded.config) == values_of(plain.config), text
        assert [(line.key, line.value, line.verdict) for line in loaded.report] == [
            (line.key, line.value, line.verdict) for line in plain.report
        ], text


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_every_layout_is_a_script_of_bash() -> None:
    layouts = [shuffled(name, 0) for name, text in launch_scripts().items() if "\r" not in text]
    checked = subprocess.run(["bash", "-n"], input="\n".join(layouts), capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize("guard", GUARDS)
def test_a_check_of_the_machine_is_taken_as_passed_and_named_with_its_line(guard: str, tmp_path: Path) -> None:
    loaded = read(tmp_path, f"set -e\n{guard}\npython3 -m verl.trainer.main_ppo data.train_batch_size=16\n")

    assert loaded.config.trainer.batch_size == 16
    line = str(2 + guard.count("\n"))
    assert any({"run.sh", line} <= facts(note) for note in loaded.notes)


@pytest.mark.parametrize(
    "tail",
    [
        "2>&1 | tee run.log \\\n  trainer.total_epochs=3 trainer.save_freq=5",
        "&& trainer.total_epochs=3 trainer.save_freq=5",
        "&\ntrainer.total_epochs=3 \\\n  trainer.save_freq=5",
        "\n  trainer.total_epochs=3 \\\n  trainer.save_freq=5",
        "\\\n  # data.seed=1 \\\n  trainer.total_epochs=3 \\\n  trainer.save_freq=5",
        "; trainer.total_epochs=3 trainer.save_freq=5",
    ],
)
def test_every_key_that_falls_out_of_the_command_is_named(tail: str, tmp_path: Path) -> None:
    loaded = read(tmp_path, f"python3 -m verl.trainer.main_ppo data.train_batch_size=16 {tail}\n")

    assert loaded.config.trainer.num_epochs == 1
    named = set[str]().union(*(facts(note) for note in loaded.notes))
    assert {"trainer.total_epochs=3", "trainer.save_freq=5"} <= named


def test_a_script_that_stops_for_no_reason_has_no_training(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        read(tmp_path, "exit 1\npython3 -m verl.trainer.main_ppo data.train_batch_size=16\n")
