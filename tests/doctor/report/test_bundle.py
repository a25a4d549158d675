"""The file for a bug report holds what is needed and nothing private."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from fakes.doctor import missing
from recordings.compose import RECORDINGS

from rl_compat.doctor.report.bundle import describe_bundle, installed_versions, newest_run, read_tail, write_bundle
from rl_compat.doctor.report.redact import Owner
from rl_compat.errors import UsageError
from rl_compat.hardware.recording import load_recording, save_recording

ADA = Owner(homes=("/home/ada",), users=("ada",), hosts=("lovelace",))
SECRETS = {
    "home": "/home/ada",
    "user": "ada",
    "other": "/home/boole",
    "host": "lovelace",
    "address": "10.11.12.13",
    "email": "ada@example.org",
    "hub": "hf_abcdefghijklmnopqrstuvwxyz012345",
    "github": "ghp_0123456789abcdefABCDEF0123456789abcd",
    "amazon": "AKIAIOSFODNN7EXAMPLE",
    "wandb": "0123456789abcdef0123456789abcdef01234567",
    "url": "boole:s3cr3t@",
    "bearer": "Bearer abcdefghijkl",
    "uuid": "11111111-2222-3333",
    "serial": "0323418094512",
}
PLANTED = (
    "/home/ada/x /home/boole/y on lovelace 10.11.12.13 ada@example.org hf_abcdefghijklmnopqrstuvwxyz012345 "
    "ghp_0123456789abcdefABCDEF0123456789abcd AKIAIOSFODNN7EXAMPLE 0123456789abcdef0123456789abcdef01234567 "
    "https://boole:s3cr3t@git.example.org Bearer abcdefghijkl GPU-11111111-2222-3333-4444-555555555555 "
    "serial: 0323418094512 ada"
)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_who_may_read_the_bundle_follows_from_the_umask(mask: int, mode: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        write_bundle(tmp_path / "report.zip", hardware=RECORDINGS["p40"](), reports={}, owner=ADA)
    finally:
        os.umask(before)
    assert (tmp_path / "report.zip").stat().st_mode & 0o777 == mode


def a_run(folder: Path, planted: str = PLANTED) -> Path:
    """A run folder with that text in every kind of file, those that must stay out included."""
    folder.mkdir(parents=True)
    save_recording(RECORDINGS["p40"](), folder / "hardware.json")
    (folder / "plan.json").write_text(json.dumps({"profile": "pascal", "model": planted, planted: [planted]}))
    (folder / "run.toml").write_text(f'[model]\npath = "{planted}"\n')
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "note": planted}) + f"\nhalf {planted}")
    (folder / "train.log").write_text(f"step:1\n{planted}\n")
    (folder / "samples.jsonl").write_text("a prompt that nobody may see")
    (folder / "model.safetensors").write_bytes(b"weights that nobody may see")
    return folder


def write(path: Path, run: Path | None = None, **facts: Any) -> tuple[str, ...]:
    values: dict[str, Any] = {
        "hardware": RECORDINGS["p40"](),
        "reports": {
            "findings.json": {"schema": "rlc.doctor/2", "findings": [{"what": PLANTED}]},
            "report.txt": f"failure: {PLANTED}\n",
        },
        "run_folder": run,
        "owner": ADA,
        "versions": {"torch": "2.14.1+cu126", "nvidia-cudnn-cu12": "9.10.2.21"},
        **facts,
    }
    return write_bundle(path, **values)


def contents(path: Path) -> dict[str, str]:
    with zipfile.ZipFile(path) as bundle:
        return {name: bundle.read(name).decode() for name in bundle.namelist()}


def test_it_holds_the_probe_the_findings_the_versions_and_the_run(tmp_path: Path) -> None:
    names = write(tmp_path / "out.zip", a_run(tmp_path / "runs" / "a"))
    assert names == (
        "hardware.json",
        "findings.json",
        "report.txt",
        "versions.txt",
        "run/plan.json",
        "run/run.toml",
        "run/hardware.json",
        "run/metrics.jsonl",
        "run/train.log",
    )
    found = contents(tmp_path / "out.zip")
    assert tuple(found) == names
    assert found["versions.txt"] == "nvidia-cudnn-cu12 9.10.2.21\ntorch 2.14.1+cu126\n"
    assert json.loads(found["run/plan.json"])["profile"] == "pascal"
    assert not any("nobody may see" in text for text in found.values())


@pytest.mark.parametrize("kind", SECRETS)
def test_no_planted_secret_is_in_any_file_of_it(tmp_path: Path, kind: str) -> None:
    write(tmp_path / "out.zip", a_run(tmp_path / "run"))
    with zipfile.ZipFile(tmp_path / "out.zip") as bundle:
        found = [name for name in bundle.namelist() if SECRETS[kind].encode() in bundle.read(name).lower()]
        found += [name for name in bundle.namelist() if SECRETS[kind].encode() in bundle.read(name)]
    assert found == []


def test_a_secret_written_with_escapes_is_found_in_json(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    (run / "plan.json").write_text(r'{"a": "\u002fhome\u002fada\u002fx", "b": "hf\u005fabcdefghijklmnop"}')
    write(tmp_path / "out.zip", run)
    assert json.loads(contents(tmp_path / "out.zip")["run/plan.json"]) == {"a": "~/x", "b": "<secret-7>"}


def test_the_same_thing_has_the_same_word_in_all_files(tmp_path: Path) -> None:
    write(tmp_path / "out.zip", a_run(tmp_path / "run"))
    found = contents(tmp_path / "out.zip")
    words = "~/x /home/<user-1>/y on <host> <address-1> <email-1> <secret-2> <secret-3> <secret-4> <secret-5>"
    for name in ("report.txt", "run/run.toml", "run/metrics.jsonl", "run/train.log", "findings.json"):
        assert words in found[name], name


def test_the_recordings_in_it_load(tmp_path: Path) -> None:
    write(tmp_path / "out.zip", a_run(tmp_path / "run"))
    for name in ("hardware.json", "run/hardware.json"):
        copy = tmp_path / "copy.json"
        copy.write_text(contents(tmp_path / "out.zip")[name])
        loaded = load_recording(copy)
        assert loaded.devices[0].name == "Tesla P40"
        assert loaded.devices[0].uuid == "GPU-11111111"
        assert loaded.software.packages["nvidia-cudnn-cu12"] == "9.10.2.21"
        assert loaded.software.executable == "~/rl/.venv/bin/python"


def test_two_bundles_of_the_same_are_the_same(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    for name in ("one.zip", "two.zip"):
        write(tmp_path / name, run, today=datetime(2026, 11, 29, 12))
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()


def test_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "out.zip"
    path.write_text("precious")
    with pytest.raises(UsageError, match="exists") as caught:
        write(path)
    assert caught.value.exit_code == 2
    assert path.read_text() == "precious"
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="exists"):
        write(path)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("place", ["missing/out.zip", "file/out.zip"])
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"out.zip` .*`.*/(missing|file)`"):
        write(tmp_path / place)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_of_somebody_else_is_named(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    with pytest.raises(UsageError, match="Permission denied"):
        write(closed / "out.zip")


FULL = """
import resource, sys
from pathlib import Path
from test_bundle import write
from rl_compat.errors import UsageError
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    write(Path(sys.argv[1]))
except UsageError as error:
    print(error.message)
"""


def test_a_disk_that_takes_no_more_leaves_nothing_behind(tmp_path: Path) -> None:
    here, tests = Path(__file__).parent, Path(__file__).parents[2]
    command = [sys.executable, "-c", FULL, str(tmp_path / "out.zip")]
    said = subprocess.run(
        command, cwd=here, env={**os.environ, "PYTHONPATH": str(tests)}, capture_output=True, text=True
    )
    assert not missing(said.stdout, "out.zip`", "File too large")
    assert list(tmp_path.iterdir()) == []


def test_without_a_run_it_holds_the_machine_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert write(tmp_path / "out.zip") == ("hardware.json", "findings.json", "report.txt", "versions.txt")


def test_the_newest_run_is_taken_when_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for seconds, name in ((100, "old"), (300, "group/new"), (200, "between")):
        plan = a_run(tmp_path / "runs" / name, planted=name) / "plan.json"
        os.utime(plan, (seconds, seconds))
    (tmp_path / "runs" / "no_plan").mkdir()
    assert newest_run() == Path("runs/group/new")
    write(tmp_path / "out.zip")
    assert json.loads(contents(tmp_path / "out.zip")["run/plan.json"])["model"] == "group/new"


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no `plan\.json`"):
        write(tmp_path / "out.zip", tmp_path)
    assert not (tmp_path / "out.zip").exists()


def test_a_plan_that_was_half_written_is_taken_as_text(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    (run / "plan.json").write_text('{"model": "/home/ada/m", "prof')
    write(tmp_path / "out.zip", run)
    assert contents(tmp_path / "out.zip")["run/plan.json"] == '{"model": "~/m", "prof'


def test_only_the_end_of_a_log_is_taken_in_whole_lines(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("".join(f"line {number}\n" for number in range(1000)))
    assert read_tail(log).splitlines() == [f"line {number}" for number in range(800, 1000)]
    assert read_tail(log, size=25).splitlines() == ["line 998", "line 999"]
    log.write_bytes(b"\xff\xfe broken")
    assert read_tail(log) == "\ufffd\ufffd broken"


def test_links_are_not_followed_out_of_the_run(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    (tmp_path / "private").write_text("nobody may see")
    (run / "other.log").symlink_to(tmp_path / "private")
    assert "run/other.log" not in write(tmp_path / "out.zip", run)


def test_what_is_inside_is_told_with_sizes(tmp_path: Path) -> None:
    write(tmp_path / "out.zip", a_run(tmp_path / "run"))
    lines = describe_bundle(tmp_path / "out.zip")
    assert lines[3] == "versions.txt  47 B"
    assert len(lines) == 9


def test_the_versions_are_those_of_every_installed_package() -> None:
    found = installed_versions()
    assert {"torch", "pytest"} <= set(found)
    assert all(found.values())
