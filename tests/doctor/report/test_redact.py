"""What identifies people and machines is taken out of texts, the same thing always by the same word."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from recordings.compose import RECORDINGS

from rl_compat.doctor.diagnosis import run_checks
from rl_compat.doctor.findings import Severity
from rl_compat.doctor.report.redact import Owner, Redactor, find_owner
from rl_compat.doctor.table import CHECKS
from rl_compat.hardware.recording import from_json, to_json
from rl_compat.hardware.types import Hardware

ADA = Owner(homes=("/home/ada",), users=("ada",), hosts=("lovelace.example.org", "lovelace"))


def cleaned(text: str, *, owner: Owner = ADA, keep: tuple[str, ...] = ()) -> str:
    return Redactor(owner, keep=keep).text(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/ada/rl/run.toml", "~/rl/run.toml"),
        ("file:///home/ada/rl", "file://~/rl"),
        ("/home/ada", "~"),
        ("/home/adam/rl", "/home/<user-1>/rl"),
        ("/home/bob/x and /home/eve/y and /home/bob/z", "/home/<user-1>/x and /home/<user-2>/y and /home/<user-1>/z"),
        ("/Users/bob/rl", "/Users/<user-1>/rl"),
        ("/mnt/c/Users/Bob/AppData", "/mnt/c/Users/<user-1>/AppData"),
        (r"C:\Users\Bob\rl", r"C:\Users\<user-1>\rl"),
        ("/data/ada/models--ada--tiny", "/data/<user>/models--<user>--tiny"),
        ("Ada@lovelace:~$", "<user>@<host>:~$"),
        ("Canada and nadal", "Canada and nadal"),
        ("listening on lovelace.example.org:29500", "listening on <host>:29500"),
        ("Lovelace", "<host>"),
    ],
)
def test_home_folders_users_and_hosts_are_replaced(text: str, expected: str) -> None:
    assert cleaned(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz012345", "HF_TOKEN=<secret-1>"),
        ('token = "s3cr3tvalue"', 'token = "<secret-1>"'),
        ("login with ghp_0123456789abcdefABCDEF0123456789abcd", "login with <secret-1>"),
        ("github_pat_11ABCDEFG0abcdefghijk_xyz", "<secret-1>"),
        ("key AKIAIOSFODNN7EXAMPLE!", "key <secret-1>!"),
        ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEX", "aws_secret_access_key = <secret-1>"),
        ("wandb: 0123456789abcdef0123456789abcdef01234567", "wandb: <secret-1>"),
        ("WANDB_API_KEY: abcd1234", "WANDB_API_KEY: <secret-1>"),
        ("https://ada:pa55@word@pypi.example.org/simple", "https://<secret-1>@pypi.example.org/simple"),
        ("Authorization: Basic YWRhOnBhc3N3b3Jk", "Authorization: Basic <secret-1>"),
        ("curl -H 'Bearer abcdefgh.ijkl'", "curl -H 'Bearer <secret-1>'"),
        ("eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJSM", "<secret-1>"),
        ("rlc train --hub-token abcd1234 --steps 3", "rlc train --hub-token <secret-1> --steps 3"),
        ("password=1234567", "password=<secret-1>"),
        ("?X-Amz-Signature=0a1b2c3d&x=1", "?X-Amz-Signature=<secret-1>&x=1"),
        ("sk-proj-abcdefghijklmnopqrst", "<secret-1>"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl\n-----END OPENSSH PRIVATE KEY-----\nafter", "<secret-1>\nafter"),
        ("-----BEGIN PRIVATE KEY-----\nb3BlbnNzaC1rZXk", "<secret-1>"),
    ],
)
def test_secrets_are_replaced(text: str, expected: str) -> None:
    assert cleaned(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tcp://10.1.2.3:29500", "tcp://<address-1>:29500"),
        ("from 10.1.2.3 to 10.1.2.4, again 10.1.2.3.", "from <address-1> to <address-2>, again <address-1>."),
        ("peer fe80::1ff:fe23:4567:890a%eth0", "peer <address-1>%eth0"),
        ("[2001:db8::8a2e:370:7334]:80", "[<address-1>]:80"),
        ("link/ether 02:42:ac:11:00:02", "link/ether <address-1>"),
        ("node ip-10-0-3-17 joined", "node <address-1> joined"),
        ("mail ada.l@example.org", "mail <email-1>"),
        ("Serial Number : 0323418094512", "Serial Number : <serial-1>"),
        ("GPU-2a3b4c5d-1111-2222-3333-444455556666", "GPU-2a3b4c5d"),
        ("MIG-2a3b4c5d-1111-2222-3333-444455556666,GPU-2a3b", "MIG-2a3b4c5d,GPU-2a3b"),
        ("uuid 2a3b4c5d-1111-2222-3333-444455556666", "uuid 2a3b4c5d"),
    ],
)
def test_addresses_and_numbers_of_devices_are_replaced_or_shortened(text: str, expected: str) -> None:
    assert cleaned(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "num_tokens=16384 max_tokens_per_micro_batch: 8192",
        "seconds_per_token: 0.00123456",
        '"eos_token": "<|endoftext|>"',
        "driver 580.95.05 at 0000:01:00.0, cuda:0, step:3 - actor/pg_loss:-0.0123",
        "nvidia-cudnn-cu12==9.10.2.21 and cuDNN version 9.10.2.21 and nvidia-cudnn-cu12 9.10.2.21",
        "http://127.0.0.1:8265 and 0.0.0.0",
        "c10::cuda::CUDAStream std::vector torch::add c10::add",
        "2026-11-29 23:15:16,123 it took 12:34:56",
        "<host> <user> <secret-1>",
    ],
)
def test_what_looks_alike_and_is_harmless_stays(text: str) -> None:
    assert cleaned(text) == text


def test_a_version_of_four_parts_that_is_installed_is_no_address() -> None:
    assert cleaned("it has 9.26.0.41, not 9.26.0.42", keep=("9.26.0.41",)) == "it has 9.26.0.41, not <address-1>"


def test_names_that_are_words_of_a_report_stay_readable() -> None:
    lab = Owner(homes=("/home/gpu",), users=("gpu",), hosts=("cuda",))
    assert cleaned("no gpu for cuda in /home/gpu/rl", owner=lab) == "no gpu for cuda in ~/rl"


def test_a_home_at_the_root_replaces_nothing() -> None:
    assert cleaned("/usr/bin/python3", owner=Owner(homes=("/",), users=("root",))) == "/usr/bin/python3"


def test_the_same_thing_gets_the_same_word_in_every_text() -> None:
    redactor = Redactor(ADA)
    first = redactor.text("10.0.0.1 by bob@example.org")
    second = redactor.value({"peer": "10.0.0.2", "seen": ["10.0.0.1"]})
    assert first == "<address-1> by <email-1>"
    assert second == {"peer": "<address-2>", "seen": ["<address-1>"]}


def test_json_is_cleaned_by_the_name_of_a_field_and_keeps_numbers_and_fields() -> None:
    values = {
        "lovelace": 1,
        "canada": 2,
        "hub_token": "short",
        "WANDB_API_KEY": "(set)",
        "num_tokens": 4096,
        "files": {"/home/ada/data/x.parquet": 3.5},
        "list": ["/home/ada", None, True],
    }
    assert Redactor(ADA).value(values) == {
        "<host>": 1,
        "canada": 2,
        "hub_token": "<secret-1>",
        "WANDB_API_KEY": "(set)",
        "num_tokens": 4096,
        "files": {"~/data/x.parquet": 3.5},
        "list": ["~", None, True],
    }


@pytest.mark.parametrize("name", ["p40", "visible_by_uuid_prefix", "a100_mig_3g20gb", "h100_eight", "hub_mirror"])
def test_a_cleaned_recording_loads_and_its_devices_are_still_told_apart(name: str) -> None:
    recorded = to_json(RECORDINGS[name]())
    found = from_json(Redactor(ADA, keep=recorded["software"]["packages"].values()).value(recorded))
    everything = (*found.devices, *found.hidden_devices)
    assert len({device.uuid for device in everything}) == len(everything)
    assert found.software.packages == recorded["software"]["packages"]
    assert "ada" not in json.dumps(to_json(found))
    wanted = found.environment.get("CUDA_VISIBLE_DEVICES")
    if wanted is not None:
        assert [device.uuid for device in everything if (device.uuid or "").startswith(wanted)] == [
            found.devices[0].uuid
        ]


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_cleaned_recording_gets_the_same_diagnosis(name: str) -> None:
    hardware = RECORDINGS[name]()
    cleaned_hardware = from_json(Redactor(ADA, keep=hardware.software.packages.values()).value(to_json(hardware)))
    assert found_on(cleaned_hardware) == found_on(hardware)


def found_on(hardware: Hardware) -> list[tuple[str, Severity]]:
    return [(finding.id, finding.severity) for result in run_checks(CHECKS, hardware) for finding in result.findings]


def test_this_process_knows_its_own_names(tmp_path: Path) -> None:
    owner = find_owner({"HOME": str(tmp_path), "USER": "ada"})
    assert str(tmp_path) in owner.homes
    assert "ada" in owner.users
    assert socket.gethostname() in owner.hosts
