"""The doctor on environments that are really broken, run as people run it: `python3 doctor` in that environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

DOCTOR = Path(__file__).resolve().parents[2] / "doctor"
PATIENCE_SECONDS = 20
"for a torch that only a busy machine makes slow"
HANG_SECONDS = 1
TORCH = "2.14.1+cu126"
HEALTHY_TORCH = f"""
class version:
    cuda = "12.6"
class _C:
    _cuda_getArchFlags = staticmethod(lambda: "sm_60 sm_70 sm_75 sm_80 sm_86 sm_90")
class cuda:
    is_available = staticmethod(lambda: False)
    device_count = staticmethod(lambda: 0)
__version__ = "{TORCH}"
"""
SMI = """#!{python}
import sys
FACTS = {{
    "index": "0", "name": "Tesla P40", "uuid": "GPU-11111111-2222-3333-4444-555555555555",
    "driver_version": "535.274.02", "pci.bus_id": "00000000:01:00.0", "memory.total": "23040",
    "memory.free": "22913", "compute_cap": "6.1", "compute_mode": "Default", "pcie.link.width.current": "16",
    "pcie.link.width.max": "16", "mig.mode.current": "[N/A]",
}}
query = next(word for word in sys.argv if word.startswith("--query-gpu="))
print(", ".join(FACTS.get(field, "[N/A]") for field in query.partition("=")[2].split(",")))
"""

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the broken parts are made with POSIX tools")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one run of the doctor gave."""

    exit_code: int
    diagnosis: dict[str, Any]
    stderr: str

    def ids(self, *severities: str) -> set[str]:
        return {
            finding["id"]
            for finding in self.diagnosis["findings"]
            if not severities or finding["severity"] in severities
        }

    def finding(self, finding_id: str) -> dict[str, Any]:
        (found,) = (finding for finding in self.diagnosis["findings"] if finding["id"] == finding_id)
        return dict(found)

    @property
    def asked(self) -> list[str]:
        """Ids of the checks that ran to their end."""
        return [check["id"] for check in self.diagnosis["checks"] if check["skipped"] is None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A virtual environment without pip, a home folder and a PATH of its own."""

    root: Path

    @property
    def python(self) -> Path:
        return self.root / "venv/bin/python"

    @property
    def packages(self) -> Path:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.root / "venv/lib" / version / "site-packages"

    @property
    def home(self) -> Path:
        return self.root / "home"

    def replace(self, package: str, program: str) -> None:
        """Have the import of a package run that program."""
        folder = self.packages / package
        folder.mkdir(exist_ok=True)
        (folder / "__init__.py").write_text(program)

    def put_program(self, name: str, text: str) -> None:
        path = self.root / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def examine(
        self,
        *arguments: str,
        variables: dict[str, str | None] | None = None,
        within: Sequence[str] = (),
        folder: Path | None = None,
    ) -> Outcome:
        """`python3 doctor --json`, inside another program when `within` is given; a variable set to None is absent."""
        done = self.run("--json", *arguments, variables=variables, within=within, folder=folder)
        assert "Traceback" not in done.stdout + done.stderr
        return Outcome(exit_code=done.returncode, diagnosis=json.loads(done.stdout), stderr=done.stderr)

    def run(
        self,
        *arguments: str,
        variables: dict[str, str | None] | None = None,
        within: Sequence[str] = (),
        folder: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        command = (str(DOCTOR), "--no-network", "--torch-timeout", str(PATIENCE_SECONDS), *arguments)
        return self.run_python(*command, variables=variables, within=within, folder=folder)

    def run_python(
        self,
        *arguments: str,
        variables: dict[str, str | None] | None = None,
        within: Sequence[str] = (),
        folder: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        given: dict[str, str | None] = {
            "PATH": f"{self.root / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.home),
            "TMPDIR": str(self.root / "tmp"),
            "LANG": "C.UTF-8",
            **(variables or {}),
        }
        return subprocess.run(
            [*within, str(self.python), *arguments],
            env={name: value for name, value in given.items() if value is not None},
            cwd=folder or self.root / "work",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
        )


def install(packages: Path, name: str, version: str) -> None:
    """A package as far as its metadata goes."""
    folder = packages / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def required_packages() -> list[tuple[str, str]]:
    """What this project needs besides torch, each in the oldest version that will do."""
    project = tomllib.loads((DOCTOR.parent / "pyproject.toml").read_text())["project"]
    pairs = (line.split(">=") for line in project["dependencies"])
    return [(name, version.split(",")[0]) for name, version in pairs if name != "torch"]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """A healthy environment, as far as a stub can be: a CUDA build of torch on a machine that shows it no GPU."""
    root = tmp_path_factory.mktemp("healthy")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(root / "venv")], check=True)
    for name in ("home", "tmp", "work", "bin"):
        (root / name).mkdir()
    environment = Environment(root=root)
    install(environment.packages, "torch", TORCH)
    for name, version in required_packages():
        install(environment.packages, name, version)
    environment.replace("torch", HEALTHY_TORCH)
    environment.replace("transformers", "")
    return environment


@pytest.fixture(scope="module")
def healthy(template: Environment, no_driver: None) -> Outcome:
    return template.examine()


@pytest.fixture
def environment(template: Environment, tmp_path: Path) -> Environment:
    shutil.copytree(template.root, tmp_path / "machine", symlinks=True)
    return Environment(root=tmp_path / "machine")


@pytest.fixture(scope="module")
def mounting() -> Callable[[str], list[str]]:
    """A program around another one that sees mounts of its own; skips where the system does not allow it."""
    own = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    try:
        tried = subprocess.run([*own, "mount -t tmpfs none /mnt"], capture_output=True, text=True, timeout=10)
    except OSError as error:
        pytest.skip(f"`unshare` cannot be run: {error}")
    if tried.returncode != 0:
        pytest.skip(f"mounts of one's own are not allowed here: {tried.stderr.strip()}")
    return lambda script: [*own, f'{script} && exec "$0" "$@"']


@pytest.fixture(scope="module")
def no_driver() -> None:
    """For tests that bring a driver of their own, or none."""
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("this machine has a driver, which answers before what the test brings")


def assert_bounded_and_whole(outcome: Outcome, healthy: Outcome) -> None:
    """Every check that runs in a healthy environment ran here, and none of them broke."""
    assert outcome.asked == healthy.asked
    assert not [found for found in outcome.ids() if found.endswith(".broken")]


def test_the_healthy_environment_has_no_failure(healthy: Outcome) -> None:
    assert healthy.ids("failure") == set()
    assert healthy.exit_code == 0
    assert "torch.works" in healthy.ids("ok")


OF_TORCH = {"torch.works", "libraries.own"}
"what only a torch that imports can be told of"
BROKEN_TORCH = {
    "raises": ("raise RuntimeError('built on a Friday')", "torch.fails", "RuntimeError: built on a Friday"),
    "hangs": ("import time\ntime.sleep(3600)", "torch.hangs", f"no answer within {HANG_SECONDS} s"),
    "hangs and cannot be asked to end": (
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True:\n    time.sleep(3600)",
        "torch.hangs",
        f"no answer within {HANG_SECONDS} s",
    ),
    "leaves a child behind": (
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)'])\ntime.sleep(3600)",
        "torch.hangs",
        f"no answer within {HANG_SECONDS} s",
    ),
    "crashes": ("import ctypes\nctypes.string_at(0)", "torch.crashes", "SIGSEGV"),
    "meets an illegal instruction": (
        "import os, signal\nos.kill(os.getpid(), signal.SIGILL)",
        "torch.illegal_instruction",
        "SIGILL",
    ),
    "is killed": ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "torch.killed", "SIGKILL"),
    "misses a library": (
        "import ctypes\nctypes.CDLL('libcudart.so.99')",
        "torch.library_missing",
        "libcudart.so.99: cannot open shared object file",
    ),
    "misses a symbol": (
        "raise ImportError('libtorch_cuda.so: undefined symbol: ncclCommRegister')",
        "torch.undefined_symbol",
        "undefined symbol: ncclCommRegister",
    ),
    "ends the program": ("raise SystemExit(3)", "torch.fails", "SystemExit: 3"),
    "is interrupted": ("raise KeyboardInterrupt", "torch.fails", "KeyboardInterrupt"),
    "is half installed": ("import torch._C", "torch.incomplete", "No module named 'torch._C'"),
    "writes what cannot be read": (
        "import os\nos.write(1, b'\\xff\\xfe rl_compat-reading:{\\n'); os.write(2, b'\\xff' * 100000)\n"
        "raise RuntimeError('after noise')",
        "torch.fails",
        "RuntimeError: after noise",
    ),
}


@pytest.mark.parametrize(("program", "found", "said"), BROKEN_TORCH.values(), ids=BROKEN_TORCH)
def test_a_torch_that_breaks_is_one_failure(
    environment: Environment, healthy: Outcome, program: str, found: str, said: str
) -> None:
    environment.replace("torch", program)
    patience = HANG_SECONDS if found == "torch.hangs" else PATIENCE_SECONDS
    outcome = environment.examine("--torch-timeout", str(patience))
    assert outcome.exit_code == 1
    assert outcome.ids("failure") == {found}
    assert said in outcome.finding(found)["what"]
    assert TORCH in outcome.finding(found)["what"]
    assert outcome.ids("ok", "note", "warning") == healthy.ids() - OF_TORCH
    assert_bounded_and_whole(outcome, healthy)


def test_a_transformers_that_breaks_leaves_torch_as_it_is(environment: Environment, healthy: Outcome) -> None:
    environment.replace("transformers", "raise RuntimeError('half an upgrade')")
    outcome = environment.examine()
    assert outcome.ids("failure") == {"transformers.does_not_import"}
    assert "half an upgrade" in outcome.finding("transformers.does_not_import")["what"]
    assert "torch.works" in outcome.ids("ok")
    assert_bounded_and_whole(outcome, healthy)


def test_the_report_in_words_of_a_broken_torch_is_complete(environment: Environment) -> None:
    environment.replace("torch", "raise RuntimeError('built on a Friday')")
    done = environment.run()
    assert done.returncode == 1
    assert "RuntimeError: built on a Friday" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_a_python_with_nothing_installed_is_told_to_install_torch(environment: Environment, healthy: Outcome) -> None:
    shutil.rmtree(environment.packages)
    environment.packages.mkdir()
    outcome = environment.examine()
    assert outcome.exit_code == 1
    assert "torch.missing" in outcome.ids("failure")
    assert any("install" in line and "torch==" in line for line in outcome.diagnosis["commands"])
    assert_bounded_and_whole(outcome, healthy)


def test_garbage_in_cuda_visible_devices_hides_the_card_and_is_named(
    environment: Environment, healthy: Outcome, no_driver: None
) -> None:
    environment.put_program("nvidia-smi", SMI.format(python=sys.executable))
    outcome = environment.examine(variables={"CUDA_VISIBLE_DEVICES": "gpu zero; 1"})
    assert outcome.exit_code == 1
    assert "visible_devices.unmatched" in outcome.ids("failure")
    assert "`gpu zero; 1`" in outcome.finding("visible_devices.unmatched")["what"]
    assert [card["name"] for card in outcome.diagnosis["hardware"]["hidden_devices"]] == ["Tesla P40"]
    assert outcome.diagnosis["hardware"]["devices"] == []
    assert_bounded_and_whole(outcome, healthy)


def test_a_card_that_nvidia_smi_lists_is_found_without_any_package(environment: Environment, no_driver: None) -> None:
    environment.put_program("nvidia-smi", SMI.format(python=sys.executable))
    outcome = environment.examine(variables={"CUDA_VISIBLE_DEVICES": None})
    assert [card["name"] for card in outcome.diagnosis["hardware"]["devices"]] == ["Tesla P40"]
    assert not any(found.startswith("visible_devices") for found in outcome.ids())


@pytest.mark.parametrize(
    "program",
    ["#!/bin/sh\nexit 9\n", "#!/bin/sh\nkill -SEGV $$\n", "#!/bin/sh\nprintf '\\377\\376,,,'\n", "no program"],
    ids=["fails", "crashes", "writes noise", "cannot be run"],
)
def test_an_nvidia_smi_that_breaks_stops_nothing(
    environment: Environment, healthy: Outcome, no_driver: None, program: str
) -> None:
    environment.put_program("nvidia-smi", program)
    outcome = environment.examine()
    assert outcome.diagnosis["hardware"]["devices"] == []
    assert_bounded_and_whole(outcome, healthy)


HUNG_DRIVER = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from rl_compat.doctor.diagnosis import run_checks
from rl_compat.doctor.table import CHECKS
from rl_compat.hardware.gpu.driver import read_driver
from rl_compat.hardware.system.host import read_host
from rl_compat.hardware.probe import assemble
from rl_compat.hardware.gpu.readings import TorchReading
driver = read_driver(os.environ, timeout_seconds=1.0)
host = read_host(environment=os.environ)
hardware = assemble(driver, TorchReading(), host, environment=os.environ)
findings = [finding for result in run_checks(CHECKS, hardware) for finding in result.findings]
print(json.dumps({"error": hardware.driver.nvml_error, "ids": [finding.id for finding in findings]}))
"""


def test_an_nvidia_smi_that_hangs_is_given_up_on(environment: Environment, healthy: Outcome, no_driver: None) -> None:
    """With a shorter patience than the command's."""
    environment.put_program("nvidia-smi", "#!/bin/sh\nsleep 3600\n")
    done = environment.run_python("-c", HUNG_DRIVER, str(DOCTOR.parent))
    said = json.loads(done.stdout)
    assert "no answer within 1 s" in said["error"]
    assert not [found for found in said["ids"] if found.endswith(".broken")]
    assert "gpu.hung" in said["ids"]
    assert healthy.ids("ok") - OF_TORCH - {"gpu.none"} <= set(said["ids"])


def test_a_cache_on_a_read_only_file_system_is_a_warning(
    environment: Environment, healthy: Outcome, mounting: Callable[[str], list[str]]
) -> None:
    cache = environment.root / "cache"
    cache.mkdir()
    outcome = environment.examine(
        variables={"HF_HOME": str(cache / "huggingface"), "RLC_CACHE": str(cache / "rl_compat")},
        within=mounting(f"mount -t tmpfs -o ro none {cache}"),
    )
    assert outcome.exit_code == 0
    assert outcome.ids("warning") - healthy.ids("warning") == {"caches.read_only"}
    finding = outcome.finding("caches.read_only")
    assert finding["affects"] == ["hub_cache", "model_cache"]
    assert str(cache) in finding["what"]
    assert_bounded_and_whole(outcome, healthy)


def test_a_cache_where_nobody_can_write_is_a_warning(environment: Environment, healthy: Outcome) -> None:
    """Not even root can make a file under /proc."""
    outcome = environment.examine(variables={"HF_HOME": "/proc/huggingface"})
    assert outcome.exit_code == 0
    assert outcome.ids("warning") - healthy.ids("warning") == {"caches.not_writable"}
    assert_bounded_and_whole(outcome, healthy)


def test_a_full_disk_is_a_failure_and_the_doctor_needs_no_room_itself(
    environment: Environment, healthy: Outcome, mounting: Callable[[str], list[str]]
) -> None:
    disk = environment.root / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size=64k none {disk} && mkdir {disk}/tmp && cd {disk}"
    outcome = environment.examine(
        variables={"HF_HOME": f"{disk}/hf", "RLC_CACHE": f"{disk}/rlc", "TMPDIR": f"{disk}/tmp"},
        within=mounting(f"{mount} && {{ cat /dev/zero 2>/dev/null >zeros || true; }}"),
    )
    assert outcome.exit_code == 1
    assert outcome.ids("failure") == {"disk.full"}
    assert outcome.ids("warning") - healthy.ids("warning") == {"caches.full"}
    assert outcome.finding("disk.full")["affects"] == ["run", "temporary"]
    assert "0 B free" in outcome.finding("disk.full")["what"]
    assert_bounded_and_whole(outcome, healthy)


@pytest.mark.parametrize(
    "home", [None, "/proc/nobody", "relative", ""], ids=["unset", "no folder", "relative", "empty"]
)
def test_a_home_that_is_none_stops_nothing(environment: Environment, healthy: Outcome, home: str | None) -> None:
    outcome = environment.examine(variables={"HOME": home})
    assert outcome.ids("failure") == set()
    assert ("caches.not_writable" in outcome.ids("warning")) == (home == "/proc/nobody")
    assert_bounded_and_whole(outcome, healthy)


def test_an_environment_without_any_variable_is_still_examined(environment: Environment, healthy: Outcome) -> None:
    nothing = dict.fromkeys(("PATH", "HOME", "TMPDIR", "LANG"))
    outcome = environment.examine(variables=nothing)
    assert outcome.ids("failure") == set()
    assert_bounded_and_whole(outcome, healthy)


def test_a_working_folder_that_is_gone_is_a_failure(environment: Environment, healthy: Outcome) -> None:
    gone = environment.root / "gone"
    gone.mkdir()
    outcome = environment.examine(within=["sh", "-c", 'rmdir "$PWD" && exec "$0" "$@"'], folder=gone)
    assert outcome.exit_code == 1
    assert outcome.ids("failure") == {"disk.gone"}
    assert_bounded_and_whole(outcome, healthy)


@pytest.mark.parametrize("encoding", [None, "latin-1"])
def test_a_terminal_that_is_not_utf8_is_a_warning_and_gets_readable_text(
    environment: Environment, healthy: Outcome, encoding: str | None
) -> None:
    variables: dict[str, str | None] = {
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONIOENCODING": encoding,
    }
    outcome = environment.examine(variables=variables)
    assert outcome.exit_code == 0
    assert outcome.ids("warning") - healthy.ids("warning") == {"terminal.encoding"}
    assert_bounded_and_whole(outcome, healthy)
    done = environment.run("--all", variables=variables)
    assert done.returncode == 0
    assert "Traceback" not in done.stdout + done.stderr
