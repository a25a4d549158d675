from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest
from fakes import wandb_recorder

from rl_compat.tracking.types import Destination
from rl_compat.tracking.wandb import WandbMode, can_connect, choose_mode, open_wandb

KEY = {"WANDB_API_KEY": "x" * 40}


def nobody_asks_the_network(host: str, port: int) -> bool:
    raise AssertionError(f"connected to {host}:{port}")


def mode(environ: dict[str, str], home: Path, connects=lambda host, port: True) -> WandbMode:
    return choose_mode(
        {"HOME": str(home)} | environ, default_url="https://api.example.org", working_folder=home, connects=connects
    )


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o600)
    return path


class TestMode:
    def test_without_a_key_it_is_offline_and_no_network_is_asked(self, tmp_path):
        """A-UX-01."""
        chosen = mode({}, tmp_path, connects=nobody_asks_the_network)

        assert chosen.name == "offline"
        assert "no API key" in chosen.reason

    @pytest.mark.parametrize("name", ["WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"])
    def test_a_key_in_a_variable_is_enough(self, tmp_path, name):
        assert mode({name: "x"}, tmp_path) == WandbMode(name="online")

    @pytest.mark.parametrize("file", [".netrc", "_netrc"])
    @pytest.mark.parametrize("host", ["api.example.org", "api.wandb.ai"])
    def test_a_login_in_the_netrc_file_is_enough(self, tmp_path, file, host):
        write(tmp_path / file, f"machine {host}\n  login user\n  password secret\n")

        assert mode({}, tmp_path).name == "online"

    def test_the_netrc_variable_names_another_file(self, tmp_path):
        path = write(tmp_path / "elsewhere", "machine api.example.org\n  login user\n  password secret\n")

        assert mode({"NETRC": str(path)}, tmp_path).name == "online"

    @pytest.mark.parametrize(
        "text", ["machine other.org\n login u\n password p\n", "machine api.example.org\n login u\n", "nonsense {", ""]
    )
    def test_a_netrc_file_without_this_login_is_none(self, tmp_path, text):
        write(tmp_path / ".netrc", text)

        assert mode({}, tmp_path, connects=nobody_asks_the_network).name == "offline"

    def test_a_server_of_ones_own_needs_its_own_login(self, tmp_path):
        write(tmp_path / ".netrc", "machine api.example.org\n login u\n password p\n")
        write(tmp_path / ".config" / "wandb" / "settings", "[default]\nbase_url = http://wandb.lan:8080\n")
        asked = []

        assert mode({}, tmp_path).name == "offline"
        assert mode(KEY, tmp_path, connects=lambda *target: not asked.append(target)).name == "online"
        assert asked == [("wandb.lan", 8080)]

    @pytest.mark.parametrize(
        ("environ", "name"),
        [
            ({"WANDB_MODE": "offline"}, "offline"),
            ({"WANDB_MODE": "dryrun"}, "offline"),
            ({"WANDB_MODE": "disabled"}, "disabled"),
            ({"WANDB_DISABLED": "true"}, "disabled"),
            ({"WANDB_MODE": "online"}, "online"),
        ],
    )
    def test_the_user_may_switch_it_off(self, tmp_path, environ, name):
        assert mode(KEY | environ, tmp_path).name == name

    def test_a_variable_beats_the_folder_and_the_folder_beats_the_user(self, tmp_path):
        write(tmp_path / ".config" / "wandb" / "settings", "[default]\nmode = disabled\n")
        assert mode(KEY, tmp_path).name == "disabled"
        write(tmp_path / "wandb" / "settings", "[default]\nmode = offline\n")
        assert mode(KEY, tmp_path).name == "offline"
        assert mode(KEY | {"WANDB_MODE": "online"}, tmp_path).name == "online"

    def test_a_damaged_settings_file_is_no_setting(self, tmp_path):
        write(tmp_path / ".config" / "wandb" / "settings", "mode = offline without a section")

        assert mode(KEY, tmp_path).name == "online"

    def test_a_server_out_of_reach_means_offline(self, tmp_path):
        chosen = mode(KEY, tmp_path, connects=lambda host, port: False)

        assert chosen == WandbMode(name="offline", reason="`api.example.org` cannot be reached")

    @pytest.mark.parametrize("proxy", ["http://proxy.lan:3128", "proxy.lan:3128"])
    def test_behind_a_proxy_the_proxy_is_what_must_be_reached(self, tmp_path, proxy):
        asked = []

        mode(KEY | {"HTTPS_PROXY": proxy}, tmp_path, connects=lambda *target: not asked.append(target))

        assert asked == [("proxy.lan", 3128)]

    def test_connecting_says_whether_somebody_listens(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            assert can_connect("127.0.0.1", port)
        assert not can_connect("127.0.0.1", port)

    def test_connecting_gives_up_in_time(self):
        test_ended = threading.Event()
        answered = threading.Event()

        def slow_name_server(address: tuple[str, int], timeout: float) -> socket.socket:
            test_ended.wait()
            answered.set()
            raise OSError(f"no address for {address[0]}")

        reached = can_connect("api.example.org", 443, seconds=0.05, connect=slow_name_server)

        assert not reached
        assert not answered.is_set()
        test_ended.set()


class TestTracker:
    def open(self, folder: Path, environ: dict[str, str], **changes):
        warnings: list[str] = []
        named = {"project": "p", "experiment": "e", "resume_step": 0}
        destination = Destination(
            folder=folder, warn=warnings.append, **{name: changes.get(name, value) for name, value in named.items()}
        )
        tracker = open_wandb(
            destination,
            environ={"HOME": str(folder)} | environ,
            package=changes.get("package", "fakes.wandb_recorder"),
            connects=changes.get("connects", lambda host, port: True),
        )
        return tracker, warnings

    def test_online_it_logs_without_a_word(self, tmp_path):
        tracker, warnings = self.open(tmp_path, KEY)

        tracker.log(1, {"a": 0.5})
        tracker.close()

        run = wandb_recorder.runs[-1]
        assert warnings == []
        assert (run.asked["mode"], run.asked["project"], run.asked["name"]) == ("online", "p", "e")
        assert run.asked["dir"] == str(tmp_path)
        assert run.logged == [(1, {"a": 0.5})]
        assert run.finished

    def test_without_a_key_it_writes_files_and_says_so_once(self, tmp_path):
        """A-UX-01."""
        tracker, warnings = self.open(tmp_path, {})

        asked = wandb_recorder.runs[-1].asked
        assert tracker is not None
        assert asked["mode"] == "offline"
        assert asked["settings"].values["silent"]
        assert len(warnings) == 1
        assert f"`{tmp_path / 'wandb'}`" in warnings[0]
        assert "no API key" in warnings[0]

    def test_waits_are_short_and_only_those_that_the_package_knows(self, tmp_path):
        self.open(tmp_path, KEY)

        settings = wandb_recorder.runs[-1].asked["settings"].values
        assert settings == {"silent": False, "init_timeout": 20.0, "login_timeout": 1.0}

    @pytest.mark.parametrize(
        ("environ", "changes", "reason"),
        [
            (KEY, {"package": "a_package_nobody_has"}, "pip install wandb"),
            ({"WANDB_MODE": "disabled"}, {}, "`WANDB_MODE`"),
            (KEY, {"project": "refused"}, "no such project"),
        ],
        ids=["missing", "disabled", "refused"],
    )
    def test_what_cannot_start_is_left_out_with_one_warning(self, tmp_path, environ, changes, reason):
        tracker, warnings = self.open(tmp_path, environ, **changes)

        assert tracker is None
        assert len(warnings) == 1
        assert reason in warnings[0]
        assert "\n" not in warnings[0]

    def test_a_resumed_run_continues_under_its_identity_and_a_new_one_gets_another(self, tmp_path):
        identities = []
        for resume_step in (0, 4, 0):
            self.open(tmp_path, KEY, resume_step=resume_step)
            identities.append(wandb_recorder.runs[-1].asked["id"])

        assert identities[0] == identities[1] != identities[2]

    def test_steps_that_the_run_already_has_are_not_sent_again(self, tmp_path):
        tracker, _ = self.open(tmp_path, KEY, project="has three steps")

        for step in (2, 3, 4):
            tracker.log(step, {"a": 1.0})

        assert [step for step, _ in wandb_recorder.runs[-1].logged] == [3, 4]

    def test_the_real_package_writes_files_without_a_network(self, tmp_path):
        """A-UX-01."""
        pytest.importorskip("wandb")
        tracker, warnings = self.open(tmp_path, {}, package="wandb")

        tracker.log(1, {"a": 0.5})
        tracker.close()

        assert len(warnings) == 1
        assert list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
