"""The tables are whole and agree; the script that says so finds what is wrong."""

from __future__ import annotations

import ast
import copy
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
KNOWLEDGE = ROOT / "doctor" / "knowledge"
OURS = (
    "gpus",
    "compute_capability",
    "drivers",
    "torch",
    "vllm",
    "bitsandbytes",
    "libs",
    "sdpa",
    "mig",
)


def read(name: str) -> dict[str, Any]:
    table: dict[str, Any] = json.loads((KNOWLEDGE / f"{name}.json").read_text())
    return table


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import check_knowledge

    return check_knowledge


@pytest.fixture
def tables(script: ModuleType) -> dict[str, dict[str, Any]]:
    return copy.deepcopy(script.read_tables())


def test_the_tables_are_sound_with_the_standard_library_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(ROOT / "scripts/check_knowledge.py")], capture_output=True, text=True, cwd="/"
    )

    assert done.stdout == ""
    assert done.returncode == 0


def test_a_row_has_its_own_source_before_its_sections_and_its_tables(script: ModuleType) -> None:
    table = {
        "source": "table",
        "as_of": "2026-11",
        "confidence": "high",
        "sections": {"rows": {"source": "section", "confidence": "medium"}},
    }

    assert script.provenance(table, "rows", {}) == script.Provenance(
        source="section", date="2026-11", confidence="medium"
    )
    assert script.provenance(table, "other", {}) == script.Provenance(source="table", date="2026-11", confidence="high")
    own = {"source": "row", "date": "2026-01-02", "confidence": "low"}
    assert script.provenance(table, "rows", own) == script.Provenance(source="row", date="2026-01-02", confidence="low")
    assert script.provenance({}, "rows", {}) == script.Provenance(source="", date="", confidence="")


def test_no_fact_comes_from_a_place_that_a_reader_cannot_go_to() -> None:
    texts = [path.read_text() for path in KNOWLEDGE.glob("*.json") if path.stem in OURS]

    assert not any(re.search(r"\bids? [0-9]{8,}|compat\.md", text) for text in texts)


def test_every_field_is_read_or_meant_for_a_reader(script: ModuleType) -> None:
    descriptive = set(json.loads((ROOT / "scripts/knowledge_schema.json").read_text())["descriptive"])
    files = [*(ROOT / "doctor").rglob("*.py"), *(ROOT / "rl_compat").rglob("*.py"), ROOT / "scripts/knowledge_rules.py"]
    code = "".join(path.read_text() for path in files)
    fields = {
        name for table in script.TABLES.values() for part in table.values() for name in (*part.fields, *part.optional)
    }

    unread = {name for name in fields if f'"{name}"' not in code and f"'{name}'" not in code}

    assert unread <= descriptive
    assert fields >= descriptive


def strings_of_the_checks() -> tuple[set[str], list[str]]:
    """Every string of doctor/checks, and a regular expression for every one with values in it."""
    whole: set[str] = set()
    patterns: list[str] = []
    for path in (ROOT / "doctor/checks").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                whole.add(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = [re.escape(str(p.value)) if isinstance(p, ast.Constant) else "[a-z0-9_]+" for p in node.values]
                patterns.append("".join(parts))
    return whole, [pattern for pattern in patterns if re.fullmatch(r"[a-z0-9_.\\[\]+-]+", pattern)]


@pytest.mark.parametrize("section", ["findings", "remedies"])
def test_the_checks_name_every_finding_and_remedy_of_the_table(section: str) -> None:
    whole, patterns = strings_of_the_checks()

    unused = {
        row["id"]
        for row in read("findings")[section]
        if row["id"] not in whole and not any(re.fullmatch(pattern, row["id"]) for pattern in patterns)
    }

    assert unused == set()


def test_the_table_has_every_finding_and_remedy_that_a_check_names() -> None:
    table = read("findings")
    ids = {"finding": {row["id"] for row in table["findings"]}, "remedy": {row["id"] for row in table["remedies"]}}
    for path in (ROOT / "doctor").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in ids:
                first = call.args[0]
                options = (first.body, first.orelse) if isinstance(first, ast.IfExp) else (first,)
                named = {option.value for option in options if isinstance(option, ast.Constant)}

                assert named <= ids[call.func.id], path


def change(tables: dict[str, dict[str, Any]], table: str, part: str, row: int, **values: Any) -> None:
    tables[table][part][row].update(values)


@pytest.mark.parametrize(
    ("table", "part", "values", "fault"),
    [
        ("torch", "releases", {"newest": "two"}, "`newest` is 'two'"),
        ("torch", "releases", {"python": "3.8 to 3.11"}, "`python` is '3.8 to 3.11'"),
        ("torch", "releases", {"speed": 3}, "`speed` is not in the schema"),
        ("torch", "releases", {"confidence": "quite"}, "confidence is 'quite'"),
        ("torch", "releases", {"date": "last summer"}, "date is 'last summer'"),
        ("torch", "releases", {"torch": "2.1", "newest": "2.1.2"}, "2 times"),
        ("gpus", "gpus", {"pci_device_ids": ["10de:102d"]}, "`pci_device_ids` is ['10de:102d']"),
        ("vllm", "releases", {"wheel_sm": []}, "`wheel_sm` is []"),
        ("mig", "profiles", {"profiles": ["half"]}, "`profiles` is ['half']"),
        ("bitsandbytes", "wheels", {"libraries": [{"cuda_min": "12.6"}]}, "`libraries` is"),
        ("libs", "newest", {"released": "2026"}, "`released` is '2026'"),
        ("errors", "errors", {"patterns": ["("]}, "does not compile"),
    ],
)
def test_a_row_of_the_wrong_form_is_a_fault(script, tables, table, part, values, fault) -> None:
    change(tables, table, part, 0, **values)

    assert any(fault in found for found in script.find_faults(tables)), script.find_faults(tables)


@pytest.mark.parametrize(
    ("table", "part", "row", "values", "fault"),
    [
        (
            "torch",
            "releases",
            -1,
            {"x86_64_wheels": {"cu132": ["7.5"], "cu135": ["7.5"]}},
            "cu135 has no row of minimum",
        ),
        ("torch", "releases", -1, {"x86_64_wheels": {"cu130": ["7.5"]}}, "the PyPI build cu132"),
        ("torch", "releases", -1, {"x86_64_wheels": {"cu132": ["7.4"]}}, "compute capability 7.4 is not in the table"),
        (
            "torch",
            "releases",
            -1,
            {"x86_64_wheels": {"cu132": ["6.0"]}},
            "has 6.0, but CUDA 12.9",
        ),
        ("torch", "releases", -1, {"newest": "2.14.9"}, "newest is 2.14.9"),
        ("torch", "pinned_libraries", 0, {"variants": ["cu130"]}, "no build cu130 to pin"),
        ("torch", "newest_by_capability", 3, {"newest": "2.13.0"}, "torch==2.14.1+cu126 is chosen"),
        ("torch", "newest_by_capability", 3, {"driver_min": "470.86"}, "driver 470.86 does not support cu126"),
        ("torch", "features", 0, {"torch_min": "2.13"}, "the rule says (2, 14)"),
        ("gpus", "gpus", 0, {"cc": "3.9"}, "compute capability 3.9 is not in the table"),
        ("gpus", "gpus", 0, {"bf16_native": True}, "bf16_native is True"),
        ("gpus", "gpus", 0, {"pci_device_ids": ["1b38"]}, "PCI id 1b38: belongs to k80, p40"),
        ("gpus", "gpus", 0, {"shared_pci_device_ids": ["102d"]}, "belongs to k80 only"),
        (
            "compute_capability",
            "capabilities",
            0,
            {"sdpa_backends": ["efficient", "math"]},
            "by their minimums ['math']",
        ),
        ("vllm", "releases", -1, {"torch": "==2.19.0"}, "torch ==2.19.0"),
        ("vllm", "releases", -1, {"wheel_min_cc": "7.0"}, "its wheel at sm_75"),
        ("vllm", "releases", 0, {"vllm": "0.32.5"}, "are not in order"),
        ("bitsandbytes", "features", 0, {"version_min": "0.30"}, "no row for the oldest releases"),
        ("bitsandbytes", "features", 1, {"cc_min": "5.0"}, "the newest wheel starts at sm_60"),
        ("drivers", "arch_support", 1, {"last_driver_branch": 471}, "branch 471"),
        ("drivers", "cuda_min_driver_linux", 0, {"minor_compat": "600"}, "515.43.04 for PTX"),
        ("mig", "profiles", 0, {"profiles": ["4g.48gb"]}, "4g.48gb is larger than the GPU"),
        ("mig", "profiles", 0, {"gpus": ["a31"]}, "a31 is not in"),
        ("sdpa", "backends", 0, {"cc_min": "7.5"}, "starts at 7.5, the rule at (8, 0)"),
        ("libs", "newest", 0, {"version": "2.14.0"}, "torch 2.15.0: newer than 2.14.0"),
        ("libs", "required", 0, {"versions": ">=2.5,<2.16"}, "is not in pyproject.toml"),
    ],
)
def test_tables_that_contradict_each_other_are_a_fault(script, tables, table, part, row, values, fault) -> None:
    change(tables, table, part, row, **values)

    assert any(fault in found for found in script.find_faults(tables)), script.find_faults(tables)


def test_a_missing_table_and_a_missing_field_are_faults(script, tables) -> None:
    del tables["mig"]
    del tables["torch"]["releases"][0]["python"]

    faults = script.find_faults(tables)

    assert "mig: the table is missing" in faults
    assert "torch.releases[2.0]: `python` is missing" in faults


def test_a_row_without_any_source_is_a_fault(script, tables) -> None:
    tables["mig"]["source"] = ""

    assert "mig.profiles[0]: has no source" in script.find_faults(tables)
