"""Each fix suits the machine that the earlier ones leave, on every recording and with every pair of cards."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from itertools import combinations_with_replacement, pairwise
from pathlib import Path

import pytest
from fakes.doctor import RECORDINGS, machine
from recordings.parts import CPU_TORCH, CU124, NEW_TORCH, OLD_TORCH, nvml_device, pci_gpus
from recordings.parts import machine as composed

from rl_compat.doctor.diagnosis import Diagnosis, findings_of, run_checks
from rl_compat.doctor.findings import Finding
from rl_compat.doctor.fix import Fix, can_run, plan_fixes, script
from rl_compat.doctor.repaired import after
from rl_compat.doctor.report.paper import Paper
from rl_compat.doctor.report.screen import render
from rl_compat.doctor.table import CHECKS
from rl_compat.hardware.gpu.catalogue import all_gpus
from rl_compat.hardware.types import Hardware, TorchBuild

KINDS = {gpu.compute_capability: gpu for gpu in reversed(all_gpus()) if gpu.form in ("datacenter", "consumer")}
"a card of each compute capability"
OF_KEPLER = TorchBuild(version="2.5.1+cu118", cuda="11.8", arch_list=("sm_37", *CU124), cuda_available=True)
SOFTWARE = (
    {"torch": NEW_TORCH, "driver": "595.45.04", "cuda_version": "13.2"},
    {"torch": OLD_TORCH, "driver": "580.95.05", "cuda_version": "13.0"},
    {"torch": CPU_TORCH, "driver": "580.95.05", "cuda_version": "13.0"},
    {"torch": OF_KEPLER, "driver": "470.256.02", "cuda_version": "11.4"},
    {"torch": None, "driver": "550.54.14", "cuda_version": "12.4"},
)


def examine(hardware: Hardware) -> list[Finding]:
    return findings_of(run_checks(CHECKS, hardware))


def fixes_of(hardware: Hardware) -> tuple[Fix, ...]:
    return plan_fixes(examine(hardware), hardware, examine)


def diagnosis_of(hardware: Hardware) -> Diagnosis:
    return Diagnosis(hardware=hardware, results=run_checks(CHECKS, hardware), seconds=0.0, fixes=fixes_of(hardware))


def commands_of(hardware: Hardware) -> list[str]:
    return [line for line in script(fixes_of(hardware)) if not line.startswith("#")]


def changed_by(fix: Fix) -> set[str]:
    """The variables, packages and folders that a fix sets, installs, removes or creates, and the driver."""
    names: set[str] = set()
    for line in fix.remedy.commands:
        words = shlex.split(line)
        if words[0] in ("export", "unset"):
            names |= {word.partition("=")[0] for word in words[1:]}
        elif "pip" in words:
            arguments = pairwise(words[words.index("pip") + 1 :])
            names |= {
                re.split("[=<>!]", word)[0]
                for before, word in arguments
                if word[0] != "-" and before not in ("--index-url", "--extra-index-url")
            }
        elif "venv" in words:
            names.add(words[-1])
        elif any("nvidia-driver" in word for word in words):
            names.add("the driver")
    return names


def runnable(fix: Fix) -> list[str]:
    return [line for line in fix.remedy.commands if fix.elsewhere is None and can_run(line, fix.remedy)]


def assert_sound(hardware: Hardware) -> None:
    """Nothing is set, installed or removed by two remedies or is installed already, and nothing is left to run."""
    fixes = fixes_of(hardware)
    changes = [name for fix in fixes for name in changed_by(fix)]
    assert len(changes) == len(set(changes)), [fix.remedy.commands for fix in fixes]
    fixed, done = hardware, set[str]()
    for fix in fixes:
        commands = runnable(fix)
        for name, version in re.findall(r" ([a-z0-9-]+)==([0-9][^ ']*)", " ".join(commands)):
            forced = "--force-reinstall" in commands[0] or fixed.software.torch_error is not None
            assert forced or fixed.software.packages.get(name) != version, commands
        fixed = after(fixed, commands)
        done |= changed_by(fix) if commands else set()
    later = fixes_of(fixed)
    left = {name for fix in later for name in changed_by(fix)}
    assert not left & done - {"the driver"}, left
    assert [fix.findings for fix in later if after(fixed, runnable(fix)) != fixed] == []


@pytest.mark.parametrize("path", sorted(RECORDINGS.glob("*.json")), ids=lambda path: path.stem)
def test_the_fixes_of_every_recording_are_one_consistent_shell_script(path) -> None:
    hardware = machine(path.stem)

    assert_sound(hardware)

    lines = list(script(fixes_of(hardware)))
    shell = shutil.which("sh")
    assert shell is not None
    assert subprocess.run([shell, "-n"], input="\n".join(lines), capture_output=True, text=True).stderr == ""
    assert not (hardware.host.wsl and any("nvidia-driver" in line for line in lines if line[0] != "#"))


@pytest.mark.parametrize("path", sorted(RECORDINGS.glob("*.json")), ids=lambda path: path.stem)
def test_the_fixes_of_every_recording_with_another_pair_of_cards_agree(path: Path) -> None:
    """The surroundings and the packages of a recording; over all of them, every pair of cards."""
    pairs = list(combinations_with_replacement(KINDS.values(), 2))
    recordings = sorted(RECORDINGS.glob("*.json"))
    base, chosen = machine(path.stem), pairs[recordings.index(path) % len(pairs)]
    cards = tuple(nvml_device(index, gpu.name, total=gpu.memory_bytes) for index, gpu in enumerate(chosen))
    devices = composed(cards, **SOFTWARE[0]).devices

    assert len(pairs) <= len(recordings)
    assert_sound(replace(base, devices=devices, hidden_devices=(), pci_gpus=pci_gpus(cards), links=()))


@pytest.mark.parametrize("first", KINDS, ids=lambda capability: ".".join(map(str, capability)))
def test_the_fixes_of_every_pair_of_cards_agree(first: tuple[int, int]) -> None:
    """Both listed by the driver, or the second one on the bus only; the software differs from pair to pair."""
    for number, second in enumerate(KINDS, list(KINDS).index(first)):
        software = SOFTWARE[number % len(SOFTWARE)]
        chosen = (KINDS[first], KINDS[second])
        cards = tuple(nvml_device(index, gpu.name, total=gpu.memory_bytes) for index, gpu in enumerate(chosen))

        assert_sound(composed(cards, **software))
        assert_sound(composed(cards[:1], pci=pci_gpus(cards), **software))


def test_a_package_that_suits_the_new_torch_is_not_uninstalled_after_it() -> None:
    """bitsandbytes 0.50.2 needs torch 2.4 or newer: once torch is replaced it fits."""
    base = machine("rtx4090")
    torch = TorchBuild(version="2.3.1+cu121", cuda="12.1", arch_list=CU124, cuda_available=True)
    packages = {**base.software.packages, "torch": "2.3.1+cu121", "triton": "2.3.1"}
    old = replace(base, software=replace(base.software, torch=torch, packages=packages))

    fixes = fixes_of(old)

    assert "bitsandbytes.mismatch" in {finding.id for finding in examine(old)}
    assert [changed_by(fix) for fix in fixes] == [{"torch"}]
    assert "bitsandbytes.mismatch" in fixes[0].settles
    assert "uninstall --yes bitsandbytes" not in "\n".join(render(diagnosis_of(old), Paper()))


@pytest.mark.parametrize("name", ["Tesla K80", "Tesla K20c"])
def test_an_old_card_and_a_newer_one_get_one_choice_of_cards(name: str) -> None:
    """No torch has code for Kepler: the newer card is chosen once, and torch is installed for it."""
    old = nvml_device(0, name, total=5 << 30, compute_capability=(3, 7) if "K80" in name else (3, 5))
    hardware = composed((old, nvml_device(1, "NVIDIA A10", total=24 << 30)), **SOFTWARE[3])

    commands = commands_of(hardware)

    assert [line for line in commands if "CUDA_VISIBLE_DEVICES" in line] == [
        f"export CUDA_VISIBLE_DEVICES={hardware.devices[1].uuid}"
    ]
    assert sum(" torch==" in line for line in commands) == 1
    shown = {line.strip() for line in render(diagnosis_of(hardware), Paper()) if "export CUDA_VISIBLE" in line}
    assert shown == {line for line in commands if "CUDA_VISIBLE_DEVICES" in line}
