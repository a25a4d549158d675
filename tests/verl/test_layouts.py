"""A training command keeps its settings in every layout of a launch script."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from fakes.facts import facts
from fakes.verl_settings import judge_config

from rl_compat.config.load import LoadedConfig
from rl_compat.config.settings import values_of
from rl_compat.errors import ConfigError

ARGUMENTS = [
    'data.train_files="[a.parquet,b.parquet]"',
    "data.train_batch_size=16",
    "data.max_prompt_length=300",
    "algorithm.adv_estimator=grpo",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.actor.optim.lr=3e-6",
    "+actor_rollout_ref.model.override_config.attn_implementation=eager",
    """trainer.logger='["console","wandb"]'""",
    "trainer.total_epochs=3",
]

COMMANDS = [
    "python3 -m verl.trainer.main_ppo",
    "python -u -m recipe.dapo.main_dapo",
    "HYDRA_FULL_ERROR=1 uv run python3 -m verl.trainer.main_ppo",
    "ray job submit --working-dir . -- python3 -m verl.trainer.main_ppo",
    "nohup torchrun --nproc_per_node=1 -m verl.trainer.main_ppo",
    "CUDA_VISIBLE_DEVICES=0,1 python3 verl/trainer/main_ppo.py",
]

GUARDS = [
    'if [ -z "$WANDB_API_KEY" ]; then echo "no key"; exit 1; fi',
    "[ -f /nowhere/train.parquet ] || exit 1",
    '[[ -d /nowhere ]] || { echo "no folder" >&2; exit 2; }',
    'python3 -c "import no_such_module" || exit',
    'if [ $# -lt 2 ]; then echo "usage: $0 A B"; exit 1; fi',
    "if ! command -v no_such_command &> /dev/null; then exit 1; fi",
    '[ -z "$HF_TOKEN" ] && exit 1',
    'die() { echo "$1"; exit 1; }\ntest -n "$NODE_RANK" || die "no rank"',
    'if [ -n "$MASTER" ]; then echo ok; else exit 1; fi',
    'case "$MACHINE" in h100) N=8 ;; *) echo "unknown machine"; exit 1 ;; esac',
]
HARMLESS = ["set -xeuo pipefail", "export A=1 B=two", "# a comment", "ray stop --force", "mkdir -p logs && cd .", "N=8"]
ENDS = ["", " 2>&1 | tee run.log", " > run.log 2>&1", " &\nwait", " || exit 1", ' "$@"', "\necho done\nexit 0"]


def continued(command: str, arguments: Sequence[str]) -> str:
    return f"{command} \\\n    " + " \\\n    ".join(arguments)


def on_one_line(command: str, arguments: Sequence[str]) -> str:
    return f"{command} {' '.join(arguments)}"


def in_an_array(command: str, arguments: Sequence[str]) -> str:
    items = "\n  ".join(arguments)
    return f'ARGS=(\n  {items}  # the last\n)\n{command} "${{ARGS[@]}}"'


def in_two_arrays(command: str, arguments: Sequence[str]) -> str:
    first, second = " ".join(arguments[:3]), " ".join(arguments[3:])
    return f'A=({first})\nB=({second})\nA+=("${{B[@]}}")\n{command} "${{A[@]}}"'


def by_a_function(command: str, arguments: Sequence[str]) -> str:
    return f'launch() {{\n  {command} "$@"\n}}\nlaunch {" ".join(arguments)}'


def with_variables(command: str, arguments: Sequence[str]) -> str:
    names = [f"V{number}={argument.partition('=')[2]}" for number, argument in enumerate(arguments)]
    uses = [f'{argument.partition("=")[0]}="$V{number}"' for number, argument in enumerate(arguments)]
    return "\n".join([*names, continued(command, uses)])


def in_a_loop(command: str, arguments: Sequence[str]) -> str:
    return f"for ((i = 0; i < 1; i++)); do\n{continued(command, arguments)}\ndone"


def in_a_condition(command: str, arguments: Sequence[str]) -> str:
    return f'if [ "${{MODE:-train}}" = train ]; then\n{continued(command, arguments)}\nelse\n  exit 1\nfi'


def where_the_data_is(command: str, arguments: Sequence[str]) -> str:
    return f"if [ -f /nowhere/data.parquet ]; then\n{continued(command, arguments)}\nfi"


def in_a_subshell(command: str, arguments: Sequence[str]) -> str:
    return f"(cd /tmp; {on_one_line(command, arguments)})"


LAYOUTS = [
    continued,
    on_one_line,
    in_an_array,
    in_two_arrays,
    by_a_function,
    with_variables,
    in_a_loop,
    in_a_condition,
    where_the_data_is,
    in_a_subshell,
]
SCRIPTS = 40


def read(folder: Path, text: str) -> LoadedConfig:
    path = folder / "run.sh"
    path.write_text(text, encoding="utf-8")
    return judge_config(path)


@pytest.mark.parametrize("seed", range(SCRIPTS))
def test_the_settings_do_not_depend_on_the_layout(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    arguments = draw.sample(ARGUMENTS, len(ARGUMENTS))
    before = draw.sample([*GUARDS, *HARMLESS], 3)
    layout, command = LAYOUTS[seed % len(LAYOUTS)], draw.choice(COMMANDS)
    wrapped = layout in (in_a_loop, in_a_condition, where_the_data_is, in_a_subshell)
    text = "\n".join([*before, layout(command, arguments) + ("" if wrapped else draw.choice(ENDS))]) + "\n"

    loaded = read(tmp_path, text)

    plain = read(tmp_path, continued(COMMANDS[0], ARGUMENTS) + "\n")
    assert values_of(loaded.config) == values_of(plain.config), text
    assert {line.key: line.verdict for line in loaded.report} == {line.key: line.verdict for line in plain.report}
    lines = [1 + "\n".join([*before[:number], ""]).count("\n") for number in range(len(before))]
    for guard, line in zip(before, lines, strict=True):
        last = line + guard.count("\n")
        assert guard not in GUARDS or any({"run.sh", str(last)} <= facts(note) for note in loaded.notes), text


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
