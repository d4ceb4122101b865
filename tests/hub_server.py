"""A local server that answers as the Hugging Face Hub does, for its real client: create, upload, tag and download.

    with running_hub({"org/name": folder}) as hub:
        run(CODE, hub.environment(tmp_path))     # a process that uses this server as its Hub
        hub.repositories["org/name"].files()     # {path: bytes} at the head of main
        hub.writes()                             # requests that were not GET or HEAD

Repositories are in memory: commits, branches, tags, pull requests. Large files come in one piece or, above `part`, in
several; each is hashed here, and a commit that names one which never came is refused. There is no Xet.
A client may use the server as a proxy: it answers for any host.
"""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from hub_repository import LARGE, Refusal, Reply, Repository, as_json, file_hash, refs_of, tree_entry, yaml_errors

TAG = "v1.0"  # of each repository that is made from a folder
TOKEN = "hf_made_up_for_these_tests"
READ_ONLY = "hf_may_only_read"
USERS = {TOKEN: "tester", READ_ONLY: "reader"}


class HubServer(ThreadingHTTPServer):
    """The state that the requests share; tests change it while the server runs.

    Attributes:
        repositories: name -> repository.
        root: folder of plain files, which are served at the paths that nothing else has.
        part: larger files are uploaded in parts of this many bytes.
        refusals: part of the path -> status, and the header by which the Hub tells its refusals apart.
        faults: (method, part of the path) -> statuses that are answered first.
        broken: name of a file -> "half" or "flipped", which happens to it on the way.
        xet: whether the server claims to support Xet.
        log: method, path with query, and bytes of the body of each request.
    """

    daemon_threads = True

    def __init__(self, root: Path | None, part: int) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.root, self.part, self.xet = root, part, False
        self.repositories: dict[str, Repository] = {}
        self.refusals: dict[str, tuple[int, str]] = {}
        self.faults: dict[tuple[str, str], list[int]] = {}
        self.broken: dict[str, str] = {}
        self.large: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.log: list[tuple[str, str, int]] = []
        self.agents: set[str] = set()
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        """http://127.0.0.1:PORT"""
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def asked(self) -> list[str]:
        """Return the paths of all requests."""
        return [urlsplit(path).path for _, path, _ in self.log]

    def head(self, name: str) -> str:
        """Return the commit of main."""
        return self.repositories[name].refs["refs/heads/main"]

    def writes(self) -> list[str]:
        """Return "METHOD path" of each request that could change something."""
        return [f"{method} {path.split('?')[0]}" for method, path, _ in self.log if method not in ("GET", "HEAD")]

    def sent(self, start: str) -> list[int]:
        """Return the body sizes of PUT requests whose path starts with `start`."""
        return [size for method, path, size in self.log if method == "PUT" and path.startswith(start)]

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


@contextmanager
def running_hub(folders: Mapping[str, Path] = {}, root: Path | None = None, part: int = 1 << 30) -> Iterator[HubServer]:
    """Run a Hub on a free port until the block ends; each folder is a repository with one commit, tagged TAG."""
    server = HubServer(root, part)
    for name, folder in folders.items():
        made = server.repositories[name] = Repository(private=False)
        made.refs[f"refs/tags/{TAG}"] = made.commit(
            "refs/heads/main", {file.name: file.read_bytes() for file in folder.iterdir()}
        )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Answer(BaseHTTPRequestHandler):
    """One request."""

    server: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Silent."""

    def do_GET(self) -> None:
        self._answer()

    do_HEAD = do_POST = do_PUT = do_GET

    def _answer(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            data = self._chunks()
        parts = urlsplit(self.path)
        path, query = parts.path, parse_qs(parts.query)
        with self.server.lock:
            self.server.log.append((self.command, self.path, len(data)))
            self.server.agents.add(self.headers.get("User-Agent") or "")
            try:
                self._inject(path)
                status, headers, body = self._route(path, query, data)
            except Refusal as refusal:
                status, body = refusal.status, json.dumps({"error": refusal.message}).encode()
                headers = {"X-Error-Code": refusal.code, "X-Error-Message": refusal.message}
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        broken = self.server.broken.get(path.rpartition("/")[2])
        if broken == "flipped":
            body = body[:-1] + bytes([body[-1] ^ 1])
        if broken == "half":
            body, self.close_connection = body[: len(body) // 2], True
        if self.command != "HEAD":
            self.wfile.write(body)

    def _chunks(self) -> bytes:
        data = b""
        while size := int(self.rfile.readline(), 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data

    def _inject(self, path: str) -> None:
        for part, (status, code) in self.server.refusals.items():
            if part in path:
                raise Refusal(status, code)
        for (method, part), statuses in self.server.faults.items():
            if method == self.command and part in path and statuses:
                raise Refusal(statuses.pop(0), message="made up by the test")

    # ---- who may do what

    def _user(self) -> str | None:
        return USERS.get((self.headers.get("Authorization") or "").removeprefix("Bearer "))

    def _writer(self) -> None:
        if self._user() is None:
            raise Refusal(401, message="Invalid username or password.")
        if self._user() == USERS[READ_ONLY]:
            raise Refusal(403, message="You don't have the rights to do this.")

    def _repository(self, name: str) -> Repository:
        found = self.server.repositories.get(name)
        if found is not None and found.private and self._user() is None and "Authorization" in self.headers:
            raise Refusal(401, message="Invalid credentials in Authorization header")
        if found is None or (found.private and self._user() is None):
            raise Refusal(401 if self._user() is None else 404, "RepoNotFound", "Repository not found")
        return found

    def _revision(self, repository: Repository, revision: str) -> str:
        oid = repository.find(unquote(revision))
        if oid is None:
            raise Refusal(404, "RevisionNotFound", f"Invalid rev id: {unquote(revision)}")
        return oid

    # ---- the endpoints

    def _route(self, path: str, query: dict[str, list[str]], data: bytes) -> Reply:
        steps = path.strip("/").split("/")
        if path == "/api/whoami-v2":
            if self._user() is None:
                raise Refusal(401, message="Invalid user token.")
            return as_json({"type": "user", "name": self._user(), "auth": {"type": "access_token"}})
        if path == "/api/validate-yaml":
            return as_json(yaml_errors(json.loads(data)["content"]))
        if path == "/api/repos/create":
            return self._create(json.loads(data))
        if steps[0] == "large":
            return self._large(steps, data)
        if path.endswith(".git/info/lfs/objects/batch"):
            self._writer()
            return as_json({"transfer": "basic", "objects": [self._object(one) for one in json.loads(data)["objects"]]})
        if steps[:2] == ["api", "models"] and len(steps) >= 4:
            name = "/".join(steps[2:4])
            return self._model(name, self._repository(name), steps[4:], query, data)
        if len(steps) >= 5 and steps[2] == "resolve":
            return self._resolve(self._repository("/".join(steps[:2])), steps[3], "/".join(steps[4:]))
        file = (self.server.root or Path("/nowhere")) / path.lstrip("/")
        if self.server.root is not None and file.is_file():
            return self._download(file.name, file.read_bytes())
        raise Refusal(404, message="Sorry, we can't find the page you are looking for.")

    def _create(self, wanted: dict[str, Any]) -> Reply:
        self._writer()
        name = f"{wanted['organization'] or self._user()}/{wanted['name']}"
        if name in self.server.repositories:
            raise Refusal(409, message="You already created this model repo")
        made = Repository(private=wanted.get("visibility") == "private" or bool(wanted.get("private")))
        made.commit("refs/heads/main", {".gitattributes": b"*.safetensors filter=lfs\n"})
        self.server.repositories[name] = made
        return as_json({"url": f"{self.server.url}/{name}", "name": name})

    def _model(
        self, name: str, repository: Repository, steps: list[str], query: dict[str, list[str]], data: bytes
    ) -> Reply:
        verb, revision = [*steps, "", ""][:2]
        if verb in ("", "revision"):
            oid = self._revision(repository, revision or "main")
            siblings = [{"rfilename": path} for path in repository.commits[oid]]
            return as_json({"id": name, "sha": oid, "private": repository.private, "siblings": siblings, "tags": []})
        if verb == "tree":
            oid = self._revision(repository, revision)
            return as_json([tree_entry(path, content) for path, content in repository.commits[oid].items()])
        if verb == "refs":
            return as_json(refs_of(repository))
        if verb == "discussions":
            wanted = {"author": query.get("author"), "status": query.get("status")}
            found = [
                one
                for one in repository.discussions
                if wanted["author"] in (None, [one["author"]["name"]]) and wanted["status"] in (None, [one["status"]])
            ]
            return as_json({"count": len(found), "start": 0, "discussions": found})
        if self.command == "POST":
            self._writer()
            if verb == "preupload":
                return self._preupload(repository, self._revision(repository, revision), json.loads(data))
            if verb == "commit":
                lines = [json.loads(line) for line in data.splitlines()]
                return self._commit(name, repository, unquote(revision), lines, "create_pr" in query)
            if verb == "tag":
                return self._tag(repository, self._revision(repository, revision), json.loads(data)["tag"])
        raise Refusal(404, message="Sorry, we can't find the page you are looking for.")

    def _preupload(self, repository: Repository, oid: str, wanted: Any) -> Reply:
        there = repository.commits[oid]
        files = []
        for path in (one["path"] for one in wanted["files"]):
            mode = "lfs" if path.endswith(LARGE) else "regular"
            known = {"oid": file_hash(path, there[path])} if path in there else {}
            files.append({"path": path, "uploadMode": mode, "shouldIgnore": False, **known})
        return as_json({"files": files})

    def _object(self, one: dict[str, Any]) -> dict[str, Any]:
        """Return the upload URL of a large file, or none if it exists."""
        answer = {"oid": one["oid"], "size": one["size"]}
        if one["oid"] in self.server.large:
            return answer
        place = f"{self.server.url}/large/{one['oid']}"
        upload: dict[str, Any] = {"href": place}
        if one["size"] > self.server.part:
            count = -(-one["size"] // self.server.part)
            header = {f"{number:05}": f"{place}/{number}" for number in range(1, count + 1)}
            upload["header"] = {"chunk_size": str(self.server.part), **header}
            self.server.parts[one["oid"]] = {}
        return answer | {"actions": {"upload": upload, "verify": {"href": f"{place}/verify"}}}

    def _large(self, steps: list[str], data: bytes) -> Reply:
        oid = steps[1]
        if self.command == "PUT" and len(steps) == 3:
            self.server.parts[oid][int(steps[2])] = data
            return 200, {"ETag": sha1(data).hexdigest()}, b""
        if self.command == "POST" and steps[-1] == "verify":
            if len(self.server.large.get(oid, b"")) != json.loads(data)["size"]:
                raise Refusal(422, message="the file did not arrive")
            return as_json({})
        if self.command == "POST":
            parts = self.server.parts.pop(oid)
            for part in json.loads(data)["parts"]:
                assert part["etag"] == sha1(parts[part["partNumber"]]).hexdigest()
            data = b"".join(parts[number] for number in sorted(parts))
        if sha256(data).hexdigest() != oid:
            raise Refusal(400, message="the content is not what was announced")
        self.server.large[oid] = data
        return as_json({})

    def _commit(
        self, name: str, repository: Repository, revision: str, lines: list[dict[str, Any]], create_pr: bool
    ) -> Reply:
        header = next(line["value"] for line in lines if line["key"] == "header")
        base = self._revision(repository, revision)
        if header.get("parentCommit") not in (None, base):
            raise Refusal(412, message="The expected parent commit is not the head of the branch")
        files = dict(repository.commits[base])
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                if value["oid"] not in self.server.large:
                    raise Refusal(400, message=f"{value['path']} was never uploaded")
                files[value["path"]] = self.server.large[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        ref = revision if revision.startswith("refs/") else f"refs/heads/{revision}"
        answer = {}
        if create_pr:
            number = repository.open_request(name, header["summary"], self._user())
            ref, answer = f"refs/pr/{number}", {"pullRequestUrl": f"{self.server.url}/{name}/discussions/{number}"}
        oid = repository.commit(ref, files)
        return as_json(
            {"success": True, "commitOid": oid, "commitUrl": f"{self.server.url}/{name}/commit/{oid}", **answer}
        )

    def _tag(self, repository: Repository, oid: str, tag: str) -> Reply:
        if f"refs/tags/{tag}" in repository.refs:
            raise Refusal(409, message="Tag reference exists already")
        repository.refs[f"refs/tags/{tag}"] = oid
        return as_json({})

    def _resolve(self, repository: Repository, revision: str, path: str) -> Reply:
        oid = self._revision(repository, revision)
        if path not in repository.commits[oid]:
            raise Refusal(404, "EntryNotFound", "Entry not found")
        return self._download(path, repository.commits[oid][path], {"X-Repo-Commit": oid})

    def _download(self, path: str, content: bytes, headers: Mapping[str, str] = {}) -> Reply:
        answer = {"ETag": f'"{file_hash(path, content)}"', **headers}
        if self.server.xet and path.endswith(".safetensors"):
            token = f"{self.server.url}/api/models/org/name/xet-read-token/main"
            answer |= {"X-Xet-Hash": "0" * 64, "X-Xet-Refresh-Route": token}
        return 200, answer, content
