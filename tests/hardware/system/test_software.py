"""Python and its packages, from folders that look like environments."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

from rl_compat.hardware.system.software import (
    environment_kind,
    find_launcher,
    find_locations,
    find_shadowing_libraries,
    is_externally_managed,
    read_environment,
    read_software,
    without_credentials,
)


def install(folder: Path, *names: str) -> str:
    for name in names:
        (folder / f"{name}.dist-info").mkdir(parents=True)
    return str(folder)


def files(folder: Path, *names: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()
    return str(folder)


def test_this_python_is_described() -> None:
    software = read_software()
    assert software.executable == sys.executable
    assert software.environment_kind == ("venv" if sys.prefix != sys.base_prefix else "system")
    assert software.packages["pytest" if "pytest" in software.packages else "torch"]
    assert len(software.locations["torch"]) >= 1


def test_the_kind_of_environment_is_that_of_this_python(tmp_path: Path) -> None:
    prefix = str(tmp_path)
    assert environment_kind({}, prefix="/a", base_prefix="/usr") == "venv"
    assert environment_kind({"CONDA_PREFIX": "/other"}, prefix=prefix, base_prefix=prefix) == "system"
    assert environment_kind({"CONDA_PREFIX": prefix}, prefix=prefix, base_prefix=prefix) == "conda"
    (tmp_path / "conda-meta").mkdir()
    assert environment_kind({}, prefix=prefix, base_prefix=prefix) == "conda"


def test_a_marked_standard_library_is_managed_from_outside(tmp_path: Path) -> None:
    assert not is_externally_managed(str(tmp_path))
    (tmp_path / "EXTERNALLY-MANAGED").touch()
    assert is_externally_managed(str(tmp_path))


def test_two_copies_are_found_in_the_order_of_the_path(tmp_path: Path) -> None:
    user = install(tmp_path / "user", "torch-2.1.0", "flash_attn-2.7.0", "numpy-2.0")
    system = install(tmp_path / "system", "torch-2.14.1+cu126", "Flash.Attn-2.6", "transformers-5.5")
    found = find_locations([user, str(tmp_path / "missing"), system, user])
    assert found == {"torch": (user, system), "flash-attn": (user, system)}


def test_one_folder_under_two_names_counts_once(tmp_path: Path) -> None:
    folder = install(tmp_path / "lib", "torch-2.1.0")
    (tmp_path / "lib64").symlink_to("lib")
    assert find_locations([folder, str(tmp_path / "lib64")]) == {"torch": (folder,)}


def test_a_file_of_torchs_name_comes_before_torch(tmp_path: Path) -> None:
    here, site = files(tmp_path / "here", "torch.py"), install(tmp_path / "site", "torch-2.1.0")
    assert find_locations([here, site])["torch"] == (here, site)


def test_what_is_left_of_an_interrupted_installation_is_no_copy(tmp_path: Path) -> None:
    folder = install(tmp_path, "~orch-2.0.0", "torch-2.1.0", "torchaudio-2.1.0")
    assert find_locations([folder]) == {"torch": (folder,)}


def test_without_torch_there_is_no_location(tmp_path: Path) -> None:
    assert find_locations([install(tmp_path, "numpy-2.0")]) == {}


def test_cuda_libraries_of_the_library_path_are_found_once_each(tmp_path: Path) -> None:
    """A-ENV-13."""
    first = files(
        tmp_path / "cuda",
        "libcublas.so.12",
        "libcublasLt.so.12",
        "libcudart.so",
        "libcudart.so.12",
        "libcudart.so.12.4.127",
        "libcudnn_ops_infer.so.8",
        "libcupti.so.12",
        "libcusparse.so.12",
        "libnvjitlink.txt",
        "libnvJitLink.so.12.4",
    )
    second = files(tmp_path / "nccl", "libnccl.so.2")
    assert find_shadowing_libraries(f"{first}::{tmp_path}/missing:{second}:{first}") == (
        f"{first}/libcublas.so.12",
        f"{first}/libcublasLt.so.12",
        f"{first}/libcudart.so.12",
        f"{first}/libcudnn_ops_infer.so.8",
        f"{first}/libcusparse.so.12",
        f"{first}/libnvJitLink.so.12.4",
        f"{second}/libnccl.so.2",
    )


def test_no_more_than_twenty_are_kept(tmp_path: Path) -> None:
    folder = files(tmp_path, *(f"libcudnn_part{index}.so.9" for index in range(30)))
    assert len(find_shadowing_libraries(folder)) == 20


@pytest.mark.parametrize("system_packages", [False, True])
def test_a_real_environment_knows_itself_and_its_copies(tmp_path: Path, system_packages: bool) -> None:
    venv.EnvBuilder(with_pip=False, system_site_packages=system_packages, symlinks=True).create(tmp_path / "env")
    site = next((tmp_path / "env/lib").glob("python*/site-packages"))
    install(site, "torch-2.6.0")
    (site / "torch-2.6.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.6.0\n")
    program = (
        "from rl_compat.hardware.system.software import read_software\n"
        "s = read_software()\n"
        "print(s.environment_kind, s.externally_managed, s.packages['torch'], s.locations['torch'][0])"
    )
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [str(tmp_path / "env/bin/python"), "-c", program],
        env={"PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["venv", "False", "2.6.0", str(site)]


@pytest.mark.parametrize(
    ("script", "python"),
    [
        ("#!/home/ada/rl/.venv/bin/python3\nfrom rl_compat.cli import main\n", "/home/ada/rl/.venv/bin/python3"),
        ("#!/bin/sh\n'''exec' \"/home/ada/.venv/bin/python\" \"$0\" \"$@\"\n' '''\n", "/home/ada/.venv/bin/python"),
        ("\x7fELF", None),
    ],
)
def test_the_python_of_a_command_stands_in_its_first_lines(tmp_path: Path, script: str, python: str | None) -> None:
    (tmp_path / "rlc").write_text(script)

    assert find_launcher(str(tmp_path / "rlc")) == python
    assert find_launcher(None) is None


def test_the_versions_of_all_copies_are_read(tmp_path: Path) -> None:
    first, second = (tmp_path / name for name in ("user", "site"))
    for folder, version in ((first, "2.4.1"), (second, "2.15.0")):
        (folder / f"torch-{version}.dist-info").mkdir(parents=True)

    software = read_software(names=[], path=[str(first), str(second)])

    assert software.location_versions["torch"] == ("2.4.1", "2.15.0")


def test_variables_that_matter_are_kept_and_others_are_not() -> None:
    given = {"CUDA_VISIBLE_DEVICES": "", "LC_ALL": "C", "TMPDIR": "/tmp", "HOME": "/home/ada", "AWS_SECRET": "x"}
    assert read_environment(given) == {"CUDA_VISIBLE_DEVICES": "", "LC_ALL": "C", "TMPDIR": "/tmp"}


def test_of_a_token_only_that_it_is_set() -> None:
    assert read_environment({"HF_TOKEN": "hf_abc", "WANDB_API_KEY": ""}) == {"HF_TOKEN": "(set)"}


def test_addresses_lose_their_credentials() -> None:
    found = read_environment(
        {
            "https_proxy": "http://ada:s3cret@proxy:3128",
            "HF_ENDPOINT": "https://token@hub.example/api?key=s3cret",
            "PIP_EXTRA_INDEX_URL": "https://a:s3cret@one/simple https://b:s3cret@two/simple",
        }
    )
    assert found == {
        "HF_ENDPOINT": "https://hub.example/api",
        "PIP_EXTRA_INDEX_URL": "https://one/simple https://two/simple",
        "https_proxy": "http://proxy:3128",
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ada:s3cret@proxy:3128", "proxy:3128"),
        ("http://ada:p@ss@proxy", "http://proxy"),
        ("proxy:3128", "proxy:3128"),
        ("cannot reach https://u:p@host/x?token=1: refused", "cannot reach https://host/x refused"),
        ("https://host/path#part", "https://host/path"),
        ("git@github.com", "git@github.com"),
    ],
)
def test_credentials_query_and_fragment_are_cut(text: str, expected: str) -> None:
    assert without_credentials(text) == expected
