"""Datasets of a hub: one on this machine, in a process that has `HF_ENDPOINT` set from its start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes.hub import serve

from rl_compat.data.read.names import HubName
from rl_compat.data.read.reading import load_rows
from rl_compat.errors import DataError

CARD = """---
configs:
- config_name: easy
  default: true
  data_files:
  - {split: train, path: easy/train.jsonl}
  - {split: validation, path: easy/dev.jsonl}
- config_name: hard
  data_files:
  - {split: train, path: hard.jsonl}
---
"""
READ = """
import json, sys
from fakes.encoders import CharacterEncoder
from rl_compat.data.encode.training_data import load_training
from rl_compat.data.read.reading import Reading, load_rows
from rl_compat.errors import DataError
found = []
for name, split, streaming in json.loads(sys.argv[1]):
    try:
        if streaming:
            reading = Reading(task="prompts", split=split)
            prompts = load_training(
                [name], reading, chat=CharacterEncoder(), max_prompt_length=64, streaming=True
            ).prompts
            found.append([prompt.text for prompt in prompts[:]])
        else:
            found.append([row.prompt for row in load_rows([name], split=split)])
    except DataError as error:
        found.append({"message": error.message, "hint": error.hint})
print(json.dumps(found))
"""


def _read(endpoint: str, cache: Path, *wanted: tuple[str, str, bool], offline: str = "0") -> list[Any]:
    root = Path(__file__).parents[3]
    environment = os.environ | {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(cache),
        "HF_HUB_OFFLINE": offline,
        "HF_UPDATE_DOWNLOAD_COUNTS": "0",
        "PYTHONPATH": f"{root}{os.pathsep}{root / 'tests'}",
        "no_proxy": "127.0.0.1",
    }
    done = subprocess.run(
        [sys.executable, "-c", READ, json.dumps(wanted)], capture_output=True, text=True, env=environment, timeout=1000
    )
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout)
    return found


def test_configurations_and_splits_are_read_from_a_hub_streamed_and_again_from_the_cache(tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    (hub / "easy").mkdir(parents=True)
    (hub / "README.md").write_text(CARD)
    for path, prompts in (("easy/train.jsonl", "abc"), ("easy/dev.jsonl", "d"), ("hard.jsonl", "xy")):
        (hub / path).write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    local = [
        (("acme/sums", "train", False), ["a", "b", "c"]),
        (("acme/sums", "test", False), ["d"]),
        (("acme/sums:hard", "train", False), ["x", "y"]),
        (("acme/sums@validation", "train", False), ["d"]),
        (("acme/sums:easy@train[1:]", "train", False), ["b", "c"]),
    ]
    with serve(hub, "acme/sums") as endpoint:
        streamed = (("acme/sums:hard@train", "train", True), ("acme/sums", "test", True))
        wrong = (
            ("acme/sums:hard", "test", False),
            ("acme/sums:medium", "train", False),
            ("acme/nothing", "train", False),
        )
        found = _read(endpoint, tmp_path / "cache", *(name for name, _ in local), *streamed, *wrong)
    assert found[: len(local)] == [prompts for _, prompts in local]
    assert found[len(local) : -3] == [["x", "y"], ["d"]]
    split, config, repository = found[-3:]
    assert "`test`" in split["message"] and "`train`" in split["message"]
    assert "medium" in config["message"] and "easy" in config["message"]
    assert "`acme/nothing`" in repository["message"] and endpoint in repository["message"]
    cached = [(name, prompts) for name, prompts in local if ":" in name[0]]
    again = _read(endpoint, tmp_path / "cache", *(name for name, _ in cached), offline="1")
    assert again == [prompts for _, prompts in cached]


def test_a_hub_that_does_not_answer_is_named_at_once(tmp_path: Path) -> None:
    (error,) = _read("http://127.0.0.1:9", tmp_path, ("acme/sums", "train", False))
    assert "`acme/sums`" in error["message"] and "http://127.0.0.1:9" in error["message"]
    assert "`HF_HUB_OFFLINE=1`" in error["hint"] and "`HF_ENDPOINT`" in error["hint"]


def test_without_a_network_a_hub_name_is_a_usage_error() -> None:
    with pytest.raises(DataError, match=r"`acme/sums`.*`HF_HUB_OFFLINE`") as error:
        load_rows(["acme/sums:hard@train"])
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a/b", ("a/b", None, None)),
        ("a/b:main", ("a/b", "main", None)),
        ("a/b@test", ("a/b", None, "test")),
        ("a/b:main@train[:10%]", ("a/b", "main", "train[:10%]")),
        ("gsm8k", None),
        ("./a/b", None),
        ("/a/b", None),
        ("a/b/c", None),
    ],
)
def test_a_name_of_the_hub_has_a_repository_a_configuration_and_a_split(text: str, expected: Any) -> None:
    found = HubName.parse(text)
    assert (None if found is None else (found.repository, found.config, found.split)) == expected
