"""Names and parameters: a class name is used once, and a function has few parameters."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from architecture.source_tree import REPOSITORY, Source, sources

MOST_PARAMETERS = 7
LONGER = {
    "algorithms/advantages/gae:vtrace": "the inputs and constants of the formula",
    "algorithms/losses/preference:dpo_loss": "the inputs and constants of the formula",
    "api/train:train": "the public entry point: one parameter for each part of a run",
    "cli/data:build": "one parameter for each option of the command",
    "cli/plan:plan": "one parameter for each option of the command",
    "data/builtin/build:build_file": "one parameter for each option of the command",
    "data/encode/training_data:load_training": "one parameter for each setting of the data",
    "models/attention:sdpa_with_repeated_keys": "the attention interface of transformers",
    "objectives/experience:make_experience": "public: one parameter for each source of reward or cost",
    "rewards/builtin/texts:cosine_length": "a reward function: its parameters are settings",
    "workers/actor:generate": "public: one parameter for each sampling option",
}
"the functions with more than MOST_PARAMETERS parameters, and why"

SCRIPTS = [
    Source(name=f"scripts/{path.stem}", tree=ast.parse(path.read_text(encoding="utf-8")))
    for path in sorted((REPOSITORY / "scripts").glob("*.py"))
]


def nodes() -> Iterator[tuple[str, ast.AST]]:
    for source in (*sources(), *SCRIPTS):
        yield from ((source.name, node) for node in ast.walk(source.tree))


def test_a_class_name_is_used_once() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for name, node in nodes():
        if isinstance(node, ast.ClassDef):
            homes[node.name].append(name)

    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def test_a_function_has_few_parameters() -> None:
    long = set()
    for name, node in nodes():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = node.args
            named = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
            count = sum(item is not None and item.arg not in ("self", "cls") for item in named)
            if count > MOST_PARAMETERS:
                long.add(f"{name}:{node.name}")

    assert long == set(LONGER)
