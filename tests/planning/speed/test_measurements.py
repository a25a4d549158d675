"""Measured speeds as files: what is shipped, what this machine keeps, and what a damaged file does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from rl_compat.planning.speed.measurements import (
    OWN_FILE,
    Measurement,
    own_file,
    own_measurements,
    save_measurements,
    shipped_measurements,
)

ONE = Measurement(
    measured_by="`rlc bench rollout` on this machine",
    card="Tesla P40",
    compute_capability="6.1",
    torch="2.9.0+cu126",
    vllm=None,
    model="small",
    num_parameters=8_000_000,
    prompt_tokens=64,
    new_tokens=32,
    engine="native",
    dtype="fp32",
    batch=8,
    tokens_per_second=100.5,
)


def test_every_shipped_speed_says_where_it_comes_from_and_none_is_of_a_cpu() -> None:
    shipped = shipped_measurements()

    assert {(item.engine, item.dtype) for item in shipped} >= {("native", "bf16"), ("vllm", "fp32")}
    for item in shipped:
        assert item.measured_by and item.card and item.torch and item.model
        assert item.compute_capability is not None
        assert item.engine != "vllm" or item.vllm
    assert len({(item.engine, item.conditions) for item in shipped}) == len(shipped)


def test_saved_speeds_are_read_again_and_a_newer_one_takes_the_place_of_an_older(tmp_path: Path) -> None:
    path = tmp_path / "cache" / OWN_FILE
    other = replace(ONE, engine="vllm", vllm="0.24.0", tokens_per_second=50.0)
    save_measurements([ONE, other], path)
    newer = replace(ONE, torch="2.10.0+cu126", tokens_per_second=120.0)
    larger = replace(ONE, batch=64)

    assert save_measurements([newer, larger], path) == path

    assert set(own_measurements(path)) == {newer, larger, other}
    assert [file.name for file in path.parent.iterdir()] == [OWN_FILE]


def test_the_file_lies_in_the_cache_folder() -> None:
    assert own_file({"RLC_CACHE": "/somewhere"}) == Path("/somewhere", OWN_FILE)
    assert own_file({"HOME": "/home/me"}) == Path("/home/me/.cache/rl_compat", OWN_FILE)


def test_a_file_that_is_absent_or_damaged_holds_no_measurements_and_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / OWN_FILE
    assert own_measurements(path) == ()
    good = json.loads(save_measurements([ONE], tmp_path / "good.json").read_text())
    no_number = [good[0] | {"speeds": [good[0]["speeds"][0] | {"tokens_per_second": "fast"}]}]
    for text in ("", "{", "3", "{}", json.dumps([{"speeds": []}, 3]), '[{"speeds": [{}]}]', json.dumps(no_number)):
        path.write_text(text)
        assert own_measurements(path) == (), text

    save_measurements([ONE], path)

    assert own_measurements(path) == (ONE,)
