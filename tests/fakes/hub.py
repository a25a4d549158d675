"""A hub on this machine that serves a folder as one dataset repository: what `HF_ENDPOINT` may point to."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlparse

COMMIT = "0" * 40


@contextmanager
def serve(folder: Path, repository: str) -> Iterator[str]:
    """The address of a hub with one dataset; it answers 401 for any other, as the real one does."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_HEAD(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self._answer()

        def log_message(self, *arguments: Any) -> None:
            pass

        def _answer(self) -> None:
            path = unquote(urlparse(self.path).path)
            file = re.fullmatch(rf"/datasets/{repository}/resolve/[^/]+/(.+)", path)
            tree = re.fullmatch(rf"/api/datasets/{repository}/tree/[^/]+/?(.*)", path)
            if file and (folder / file[1]).is_file():
                self._send_file(folder / file[1])
            elif tree and (folder / tree[1]).is_dir():
                self._send_json(_entries(folder, folder / tree[1], deep="recursive=True" in self.path))
            elif re.fullmatch(rf"/api/datasets/{repository}/paths-info/[^/]+", path):
                body = self._body.decode()
                wanted = json.loads(body)["paths"] if body.startswith("{") else parse_qs(body)["paths"]
                self._send_json([_entry(folder, folder / name) for name in wanted if (folder / name).exists()])
            elif re.fullmatch(rf"/api/datasets/{repository}(/revision/[^/]+)?", path):
                files = [{"rfilename": entry["path"]} for entry in _entries(folder, folder, deep=True)]
                self._send_json({"id": repository, "sha": COMMIT, "siblings": files, "private": False, "gated": False})
            elif file or tree:
                self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            else:
                self._send(401, b"", {"X-Error-Code": "RepoNotFound"})

        def _send_json(self, value: Any) -> None:
            self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

        def _send_file(self, path: Path) -> None:
            data = path.read_bytes()
            tags = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": COMMIT}
            part = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
            if part is None:
                self._send(200, data, tags)
                return
            start, end = int(part[1]), int(part[2] or len(data) - 1)
            self._send(206, data[start : end + 1], tags | {"Content-Range": f"bytes {start}-{end}/{len(data)}"})

        def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for key, value in (headers | {"Content-Length": str(len(data))}).items():
                self.send_header(key, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def _entries(root: Path, folder: Path, *, deep: bool) -> list[dict[str, Any]]:
    return [_entry(root, path) for path in sorted(folder.rglob("*") if deep else folder.iterdir())]


def _entry(root: Path, path: Path) -> dict[str, Any]:
    name = path.relative_to(root).as_posix()
    if path.is_dir():
        return {"type": "directory", "path": name, "oid": COMMIT, "size": 0}
    return {
        "type": "file",
        "path": name,
        "size": path.stat().st_size,
        "oid": hashlib.sha1(path.read_bytes()).hexdigest(),
    }
