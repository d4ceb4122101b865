"""A stand-in for the Hub's reading side, on this machine: model folders as repositories, and every refusal.

    with stand_in({"org/name": folder}, refusals={"org/gone": (404, "RepoNotFound", "")}) as hub:
        run(CODE, hub.environment(tmp_path))

`hub.tokens` names repositories that want a token; `hub.broken` files whose bytes are not those that the server
announces, or of which half comes. Asked as a proxy, it answers for any host. Every path also serves a plain file
of `root`, for sources that are web addresses.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

TAG = "v1.0"


@dataclass
class Hub:
    """What the server has.

    repositories: name -> folder; their one commit is also the branch main and the tag v1.0.
    refusals: "name" or "name@revision" -> status, the header by which the Hub tells refusals apart, and its message.
    tokens: name -> the token that it wants.
    broken: file's name -> "half" or "flipped".
    xet: whether the server claims to support Xet, which it does not.
    root: folder of plain files.
    asked: the paths of all requests so far.
    """

    repositories: Mapping[str, Path]
    refusals: Mapping[str, tuple[int, str, str]] = field(default_factory=dict)
    tokens: Mapping[str, str] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    xet: bool = False
    root: Path | None = None
    asked: list[str] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def environment(self, cache: Path, **more: str) -> dict[str, str]:
        """Return the environment of a process that uses this server as its Hub."""
        variables = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
        ours = {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(cache),
            "HF_HUB_CACHE": str(cache / "hub"),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_ETAG_TIMEOUT": "5",
            "NNCLR_CACHE": str(cache / "nnclr"),
            "TORCH_HOME": str(cache / "torch"),
            "NO_PROXY": "127.0.0.1",
        }
        return variables | ours | more


def commit_of(folder: Path) -> str:
    """Return the only commit of a repository."""
    return sha1(str(folder).encode()).hexdigest()


@contextmanager
def stand_in(repositories: Mapping[str, Path], **has: object) -> Iterator[Hub]:
    """Run the server until the block ends."""
    hub = Hub(repositories, **has)  # type: ignore[arg-type]
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("ThisHub", (_Answer,), {"hub": hub}))
    hub.port = server.server_port
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


class _Answer(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, *_: object) -> None:
        """Silent."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = urlsplit(self.path).path  # a proxy receives whole URLs
        self.hub.asked.append(path)
        for source, (status, code, message) in self.hub.refusals.items():
            repository, _, revision = source.partition("@")
            if f"/{repository}" in path and revision in path:
                return self._send(status, b"", {"X-Error-Code": code, "X-Error-Message": message})
        for name, folder in self.hub.repositories.items():
            if f"{path}/".startswith((f"/api/models/{name}/", f"/{name}/")):
                return self._repository(name, folder, path)
        file = (self.hub.root or Path("/nowhere")) / path.lstrip("/")
        return self._file(file) if self.hub.root is not None and file.is_file() else self._send(404, b"", {})

    def _repository(self, name: str, folder: Path, path: str) -> None:
        token = self.hub.tokens.get(name)
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token is not None and given != token:
            refusal = {"X-Error-Message": "Invalid credentials in Authorization header"} if given else {}
            return self._send(401, b"", refusal or {"X-Error-Code": "RepoNotFound"})
        if "/xet-read-token/" in path:
            return self._send(404, b"", {})
        commit, files = commit_of(folder), sorted(file.name for file in folder.iterdir())
        revision = path.removeprefix(f"/api/models/{name}").removeprefix(f"/{name}/").strip("/").partition("/")[2]
        if revision and revision.partition("/")[0] not in ("main", TAG, commit):
            return self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        if path.startswith(f"/api/models/{name}/tree/"):
            return self._send(200, json.dumps([_entry(folder / file) for file in files]).encode(), {})
        if path.startswith("/api/"):
            facts = {"id": name, "sha": commit, "siblings": [{"rfilename": file} for file in files]}
            return self._send(200, json.dumps(facts).encode(), {})
        file = folder / path.rpartition("/")[2]
        if not file.is_file():
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
        return self._file(file, {"X-Repo-Commit": commit})

    def _file(self, path: Path, headers: Mapping[str, str] = {}) -> None:
        data, broken = path.read_bytes(), self.hub.broken.get(path.name)
        headers = {"ETag": f'"{_etag(path)}"', **headers}
        if self.hub.xet and path.suffix == ".safetensors":
            route = f"{self.hub.url}/api/models/org/name/xet-read-token/main"
            headers |= {"X-Xet-Hash": "0" * 64, "X-Xet-Refresh-Route": route}
        if broken == "flipped":
            data = data[:-1] + bytes([data[-1] ^ 1])
        self._send(200, data, headers, half=broken == "half")

    def _send(self, status: int, data: bytes, headers: Mapping[str, str], half: bool = False) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[: len(data) // 2] if half else data)


def _etag(path: Path) -> str:
    """Return the sha256 of a large file, and the git hash of other files."""
    data = path.read_bytes()
    large = path.suffix == ".safetensors"
    return sha256(data).hexdigest() if large else sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _entry(path: Path) -> dict[str, object]:
    entry: dict[str, object] = {"type": "file", "path": path.name, "size": path.stat().st_size, "oid": _etag(path)}
    if path.suffix == ".safetensors":
        entry |= {"lfs": {"oid": _etag(path), "size": path.stat().st_size, "pointerSize": 134}, "oid": _etag(path)[:40]}
    return entry
