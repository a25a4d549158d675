"""Who may import whom: two towers that meet in plain data, and one home for each foreign package."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping

from architecture.source_tree import Source, imports, sources

CONTROL = ("errors", "units", "hardware", "capability", "config", "planning", "verl", "doctor", "profiles", "cli")
COMPUTE = (
    "algorithms",
    "trajectory",
    "batch",
    "data",
    "rewards",
    "models",
    "distributed",
    "objectives",
    "resharding",
    "rollout",
    "training",
    "workers",
    "replay",
    "trainer",
)

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "units": {"errors"},
    "seeds": set(),
    "hardware": {"errors", "units", "__init__"},
    "capability": {"errors", "units", "hardware"},
    "config": {"errors", "units", "algorithms.table", "algorithms.off_policy.rejection_rules"},
    "verl": {"errors", "units", "config", "algorithms.table"},
    "planning": {"errors", "units", "hardware", "capability", "config", "profiles", "algorithms.table"},
    "profiles": set(),
    "doctor": {"errors", "units", "hardware", "capability", "config", "planning", "profiles"},
    "algorithms": set(),
    "trajectory": {"errors"},
    "batch": {"errors", "trajectory"},
    "data": {"errors", "units", "seeds", "trajectory", "batch", "rewards.builtin.answers"},
    "rewards": {"errors", "trajectory", "config.types"},
    "models": {"errors", "units", "planning.types"},
    "distributed": {
        "errors",
        "batch",
        "seeds",
        "trajectory",
        "emulation.device",
        "hardware.types",
        "hardware.probe",
        "hardware.cluster",
        "hardware.nodes",
        "hardware.gpu.catalogue",
        "hardware.system.interfaces",
        "planning.types",
    },
    "objectives": {"errors", "algorithms", "trajectory", "batch", "config.options", "config.types", "data", "training"},
    "resharding": {"errors"},
    "rollout": {"errors", "units", "algorithms", "config.types", "trajectory", "models", "planning.types", "resharding"}
    | {"planning.shapes.decoder_families", "distributed.ranks"},
    "bench": {
        "errors",
        "units",
        "algorithms",
        "capability",
        "config",
        "data.builtin",
        "emulation",
        "hardware",
        "models",
        "planning",
        "resharding",
        "rollout",
    },
    "training": {"errors", "config.types", "units", "algorithms", "trajectory", "batch", "models", "planning.types"}
    | {"distributed.ranks"},
    "emulation": {"errors", "units", "planning.types"},
    "tracking": {"errors", "units"},
    "workers": {
        *COMPUTE,
        "emulation",
        "errors",
        "units",
        "seeds",
        "config",
        "hardware.types",
        "hardware.nodes",
        "planning",
    }
    - {"replay", "trainer"},
    "replay": {"errors", "algorithms", "trajectory", "batch", "config.types", "rewards.types"}
    | {"models.files.atomic"},
    "trainer": {
        *COMPUTE,
        "emulation",
        "errors",
        "units",
        "seeds",
        "config",
        "planning",
        "hardware.types",
        "hardware.recording",
        "tracking",
    },
    "cli": {*CONTROL, "algorithms.table", "bench", "data", "models", "replay", "trainer", "emulation", "tracking"},
    "__main__": {"cli"},
    "api": {*COMPUTE, "errors", "units", "config", "planning", "hardware"},
    "__init__": {
        "api",
        "batch",
        "config.types",
        "distributed",
        "objectives",
        "replay.buffer",
        "replay.levels",
        "rewards.types",
        "rollout.types",
        "trainer",
    }
    | {"trajectory", "workers"},
}
"area, to areas or single modules; an area may always import itself"

HOMES: dict[str, tuple[str, ...]] = {
    "pynvml": ("hardware/gpu/nvml",),
    "psutil": ("hardware/system/host",),
    "vllm": ("rollout/vllm", "bench/engines"),
    "ray": ("distributed/ray", "hardware/cluster"),
    "bitsandbytes": ("training/optimizers", "models/", "hardware/torch_child"),
    "peft": ("models/",),
    "gguf": ("models/",),
    "tokenizers": ("models/",),
    "huggingface_hub": ("models/",),
    "jinja2": ("models/",),
    "datasets": ("data/",),
    "pyarrow": ("data/", "replay/"),
    "pydantic": ("config/", "hardware/recording"),
    "math_verify": ("rewards/",),
    "pandas": (),
    "tensorboard": ("tracking/",),
    "wandb": ("tracking/",),
    "typer": ("cli/",),
    "click": (),
    "rich": ("cli/render",),
    "simpy": ("planning/simulation",),
}
"foreign package, to the files or folders that may import it"

HEAVY = ("torch", "transformers", "numpy", "safetensors", *HOMES)


def faults(find: Callable[[Source], set[str]], areas: Collection[str] = tuple(MAY_IMPORT)) -> dict[str, set[str]]:
    """What a search finds, by file, where it finds something."""
    found = {source.name: find(source) for source in sources() if source.area in areas}
    return {name: what for name, what in found.items() if what}


def test_a_file_imports_only_what_its_area_may() -> None:
    def strangers(source: Source) -> set[str]:
        allowed = MAY_IMPORT[source.area] | {source.area}
        ours = {found.ours for found in imports(source.tree) if found.top == "rl_compat" and found.ours}
        return {name for name in ours if not any(f"{name}.".startswith(f"{module}.") for module in allowed)}

    assert faults(strangers) == {}


def test_a_foreign_package_has_one_home() -> None:
    def strangers(source: Source) -> set[str]:
        foreign = {found.top for found in imports(source.tree)} & set(HOMES)
        return {name for name in foreign if not any(source.name.startswith(home) for home in HOMES[name])}

    assert faults(strangers) == {}


def test_the_control_tower_imports_nothing_heavy_when_imported() -> None:
    def heavy(source: Source) -> set[str]:
        allowed = {"typer"} if source.area == "cli" else set()
        return {found.top for found in imports(source.tree) if found.at_import} & set(HEAVY) - allowed

    assert faults(heavy, CONTROL) == {}


def test_what_the_control_tower_reads_of_the_algorithms_imports_nothing_heavy() -> None:
    names = (
        "algorithms/__init__",
        "algorithms/off_policy/__init__",
        "algorithms/table",
        "algorithms/off_policy/rejection_rules",
    )
    tables = [source for source in sources() if source.name in names]

    assert len(tables) == len(names)
    assert not {found.top for source in tables for found in imports(source.tree)} & {*HEAVY, "rl_compat"}


def test_torch_is_looked_at_from_a_child_process_only() -> None:
    def torch(source: Source) -> set[str]:
        return {found.top for found in imports(source.tree)} & {"torch", "transformers"}

    assert set(faults(torch, CONTROL)) <= {"hardware/torch_child", "hardware/exchange_child"}


def test_the_compute_tower_does_not_ask_what_the_hardware_is() -> None:
    questions = {"get_device_capability", "get_device_properties", "get_device_name", "is_bf16_supported"}

    def asked(source: Source) -> set[str]:
        return {node.attr for node in ast.walk(source.tree) if isinstance(node, ast.Attribute)} & questions

    assert faults(asked, COMPUTE) == {}


def test_every_file_says_what_it_is() -> None:
    def silent(source: Source) -> set[str]:
        docstring = ast.get_docstring(source.tree) or ""
        first = docstring.split("\n\n")[0].rstrip()
        return set() if first.endswith((".", ":", "?")) else {first or "no docstring"}

    assert faults(silent) == {}


def test_nothing_untrusted_is_unpickled() -> None:
    def unsafe(source: Source) -> set[str]:
        calls = [node for node in ast.walk(source.tree) if isinstance(node, ast.Call)]
        return {ast.unparse(call) for call in calls if _unpickles(call)}

    assert set(faults(unsafe)) == {"data/read/records"}, "rows in an unnamed file that only this process can open"


def _unpickles(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    return name in ("pickle.load", "pickle.loads") or (name == "torch.load" and given.get("weights_only") != "True")


def test_every_area_has_its_rule() -> None:
    assert {source.area for source in sources()} <= set(MAY_IMPORT)


def test_no_import_cycle_even_of_imports_inside_functions() -> None:
    """Imports for types alone do not count: nothing runs them."""
    names = {dotted(source): source for source in sources()}
    graph = {
        name: {
            target.removeprefix("rl_compat.")
            for found in imports(source.tree)
            if not found.for_types
            for target in (found.module, *(f"{found.module}.{item}" for item in found.names))
            if target.removeprefix("rl_compat.") in names
        }
        for name, source in names.items()
    }

    assert cycles(graph) == []


def dotted(source: Source) -> str:
    return source.name.removesuffix("/__init__").replace("/", ".")


def cycles(graph: Mapping[str, Collection[str]]) -> list[list[str]]:
    """One path for each edge that closes a cycle, in the order of a depth-first search."""
    found: list[list[str]] = []
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            found.append([*path[path.index(name) :], name])
        elif name not in done:
            for imported in sorted(graph.get(name, ())):
                visit(imported, [*path, name])
            done.add(name)

    for name in sorted(graph):
        visit(name, [])
    return found


def test_a_cycle_is_found() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [["b", "c", "b"]]
