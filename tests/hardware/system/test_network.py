"""Servers on this machine: one that answers, one that refuses, one that never says anything, and a proxy."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from rl_compat.hardware.system.network import endpoint_places, pip_files, proxies_for, read_network, read_pip_settings
from rl_compat.hardware.types import Endpoint

NO_FILES: list[Path] = []


@dataclass
class Server:
    url: str
    asked: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)


@contextmanager
def serving(status: int, context: ssl.SSLContext | None = None) -> Iterator[Server]:
    """A server that answers every request with a status."""
    server = Server(url="")

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            server.asked.append((self.command, self.path, dict(self.headers)))
            self.send_response(status)
            if status in (301, 302):
                self.send_header("Location", "http://127.0.0.1:1/elsewhere")
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if context is not None:
        listener.socket = context.wrap_socket(listener.socket, server_side=True)
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    server.url = f"{'https' if context else 'http'}://127.0.0.1:{listener.server_address[1]}"
    try:
        yield server
    finally:
        listener.shutdown()
        listener.server_close()


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that takes connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def hub(environment: dict[str, str], *, timeout_seconds: float = 5.0) -> Endpoint:
    found = read_network({**environment, "PIP_NO_INDEX": "1"}, timeout_seconds=timeout_seconds, pip_files=NO_FILES)
    assert [endpoint.role for endpoint in found] == ["hub"]
    return found[0]


@pytest.mark.parametrize("status", [200, 302, 401, 404, 405])
def test_any_answer_below_500_counts(status: int) -> None:
    with serving(status) as server:
        endpoint = hub({"HF_ENDPOINT": server.url})
    assert (endpoint.reachable, endpoint.error, endpoint.url) == (True, None, server.url)
    assert endpoint.seconds is not None
    assert [request[0] for request in server.asked] == ["HEAD"]


@pytest.mark.parametrize("status", [407, 500, 503])
def test_a_server_in_trouble_and_a_proxys_refusal_do_not(status: int) -> None:
    with serving(status) as server:
        endpoint = hub({"HF_ENDPOINT": server.url})
    assert not endpoint.reachable
    assert (endpoint.error or "").startswith(f"HTTP {status}")
    assert endpoint.seconds is None


def test_a_server_that_never_answers_is_given_up_on(silent: str) -> None:
    endpoint = hub({"HF_ENDPOINT": silent}, timeout_seconds=0.4)
    assert (endpoint.reachable, endpoint.error) == (False, "no answer within 0.4 s")


def test_all_are_asked_at_once() -> None:
    """The server answers none of three connections before it has all of them."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def serve() -> None:
            connections = [listener.accept()[0] for _ in range(3)]
            for connection in connections:
                with connection:
                    connection.recv(65536)
                    connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

        threading.Thread(target=serve, daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        found = read_network(
            {"HF_ENDPOINT": url, "PIP_INDEX_URL": f"{url}/simple/", "https_proxy": url},
            timeout_seconds=60.0,
            pip_files=NO_FILES,
        )
    assert {endpoint.role: endpoint.reachable for endpoint in found if endpoint.role != "torch_index"} == {
        "hub": True,
        "package_index": True,
    }
    through_proxy = next(endpoint for endpoint in found if endpoint.role == "torch_index")
    assert "404" in (through_proxy.error or "")


def test_nobody_listening_is_said() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert hub({"HF_ENDPOINT": f"http://127.0.0.1:{port}"}).error == "Connection refused"


def test_an_address_that_is_none_is_said() -> None:
    assert hub({"HF_ENDPOINT": "hf-mirror.com"}).error == "ValueError: unknown url type: 'hf-mirror.com'"


def test_credentials_are_neither_sent_nor_shown() -> None:
    with serving(200) as server:
        endpoint = hub({"HF_ENDPOINT": server.url.replace("://", "://ada:s3cret@") + "/api?token=s3cret"})
    assert endpoint.url == f"{server.url}/api"
    assert endpoint.reachable
    assert "s3cret" not in str(server.asked)
    failed = hub({"HF_ENDPOINT": "http://ada:s3cret@host:port/?token=s3cret"})
    assert failed.error
    assert "s3cret" not in str(failed)


def test_the_proxy_is_asked_with_its_credentials() -> None:
    with serving(200) as proxy:
        endpoint = hub({"HF_ENDPOINT": "http://hub.invalid", "http_proxy": proxy.url.replace("://", "://ada:s3cret@")})
    assert endpoint.reachable
    assert proxy.asked[0][1] in ("http://hub.invalid", "http://hub.invalid/")
    assert proxy.asked[0][2]["Proxy-Authorization"].startswith("Basic ")


def test_the_proxy_is_the_one_that_the_environment_names() -> None:
    assert proxies_for("https://hub.example", {"HTTPS_PROXY": "http://a", "https_proxy": "http://b"}) == {
        "https": "http://b"
    }
    assert proxies_for("https://hub.example", {"ALL_PROXY": "http://a"}) == {"https": "http://a"}
    assert proxies_for("https://hub.example", {"https_proxy": "http://a", "NO_PROXY": ".example"}) == {}
    assert proxies_for("https://hub.example", {"http_proxy": "http://a"}) == {}


def test_what_must_not_be_asked_is_not() -> None:
    assert set(endpoint_places({}, pip_files=NO_FILES)) == {"hub", "torch_index", "package_index"}
    assert set(endpoint_places({"HF_HUB_OFFLINE": "1"}, pip_files=NO_FILES)) == {"torch_index", "package_index"}
    assert set(endpoint_places({"PIP_NO_INDEX": "true"}, pip_files=NO_FILES)) == {"hub"}


def test_what_is_behind_a_socks_proxy_cannot_be_asked() -> None:
    hidden = {"ALL_PROXY": "socks5://ada:s3cret@proxy:1080", "NO_PROXY": "hub.example"}
    environment = {**hidden, "HF_ENDPOINT": "https://hub.example"}
    assert set(endpoint_places(environment, pip_files=NO_FILES)) == {"hub"}


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs to make a certificate")
def test_a_certificate_counts_that_pip_or_the_hubs_client_is_told_to_trust(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=here -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([*make.split(), "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with serving(200, context) as server:
        refused = hub({"HF_ENDPOINT": server.url})
        trusted = hub({"HF_ENDPOINT": server.url, "REQUESTS_CA_BUNDLE": str(certificate)})
    assert "certificate verify failed" in (refused.error or "")
    assert trusted.reachable


def test_an_index_in_a_folder_is_there_or_not(tmp_path: Path) -> None:
    for folder, reachable in ((tmp_path, True), (tmp_path / "missing", False)):
        environment = {"HF_HUB_OFFLINE": "1", "PIP_INDEX_URL": folder.as_uri(), "https_proxy": "http://127.0.0.1:1"}
        found = read_network(environment, timeout_seconds=5, pip_files=NO_FILES)
        assert found[1].role == "package_index"
        assert found[1].reachable is reachable


def conf(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_later_files_and_the_install_section_win_and_variables_go_before_all(tmp_path: Path) -> None:
    machine = conf(tmp_path / "a", "[global]\nindex_url = https://one/simple\nno-index = true\n")
    user = conf(tmp_path / "b", "[install]\nindex-url = https://two/%(x)s\n[global]\nindex-url = https://three\n")
    files = [machine, user, tmp_path / "missing"]
    assert read_pip_settings({}, files=files) == {"index-url": "https://two/%(x)s", "no-index": "true"}
    assert read_pip_settings({"PIP_INDEX_URL": "https://four"}, files=files)["index-url"] == "https://four"


def test_a_file_that_is_no_settings_file_counts_for_nothing(tmp_path: Path) -> None:
    bad = conf(tmp_path / "bad", "index-url = https://one\n")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe[global]")
    assert read_pip_settings({}, files=[bad, binary, tmp_path]) == {}


def test_the_usual_files_and_the_named_one_are_read(tmp_path: Path) -> None:
    named = conf(tmp_path / "pip.ini", "[global]\nindex-url = https://named\n")
    environment = {"HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path), "PIP_CONFIG_FILE": str(named)}
    assert read_pip_settings(environment)["index-url"] == "https://named"
    assert tmp_path / ".config/pip/pip.conf" in pip_files(environment)
    assert pip_files({"PIP_CONFIG_FILE": os.devnull}) == []
