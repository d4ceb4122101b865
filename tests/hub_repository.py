"""The repositories of the local Hub of hub_server.py: commits and refs, and the hashes that the Hub gives files."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import sha1, sha256
from typing import Any

import yaml

Reply = tuple[int, dict[str, str], bytes]  # status, headers, body
LARGE = (".safetensors", ".onnx", ".bin")  # files that the Hub keeps outside git


class Refusal(Exception):
    """Ends a request with a status and the header by which the Hub tells its refusals apart."""

    def __init__(self, status: int, code: str = "", message: str = "") -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


@dataclass
class Repository:
    """Commits by oid, each the whole {path: bytes}, and the refs that point at them."""

    private: bool
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)  # refs/heads/main, refs/tags/v1, refs/pr/1
    discussions: list[dict[str, Any]] = field(default_factory=list)

    def commit(self, ref: str, files: dict[str, bytes]) -> str:
        """Move the ref to a new commit and return its oid."""
        content = "".join(f"{path} {sha256(data).hexdigest()}\n" for path, data in sorted(files.items()))
        oid = sha1(f"{len(self.commits)} {self.refs.get(ref)}\n{content}".encode()).hexdigest()
        self.commits[oid] = dict(files)
        self.refs[ref] = oid
        return oid

    def open_request(self, name: str, title: str, author: str | None) -> int:
        """Open a pull request and return its number."""
        number = len(self.discussions) + 1
        self.discussions.append(
            {
                "num": number,
                "title": title,
                "author": {"name": author},
                "status": "open",
                "isPullRequest": True,
                "createdAt": "2026-01-01T00:00:00.000Z",
                "repo": {"name": name, "type": "model"},
            }
        )
        return number

    def find(self, revision: str) -> str | None:
        """Return the oid of a branch, tag, pull request or commit."""
        for name in (f"refs/heads/{revision}", f"refs/tags/{revision}", revision):
            if name in self.refs:
                return self.refs[name]
        return revision if revision in self.commits else None

    def files(self, revision: str = "main") -> dict[str, bytes]:
        """Return the files of a revision."""
        oid = self.find(revision)
        assert oid is not None, f"no revision {revision}"
        return self.commits[oid]


def file_hash(path: str, content: bytes) -> str:
    """Return the sha256 of a large file, and the git hash of other files."""
    if path.endswith(LARGE):
        return sha256(content).hexdigest()
    return sha1(b"blob %d\0" % len(content) + content).hexdigest()


def tree_entry(path: str, content: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": path, "size": len(content), "oid": file_hash(path, content)}
    if path.endswith(LARGE):
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{entry['oid']}\nsize {len(content)}\n"
        entry["lfs"] = {"oid": entry["oid"], "size": len(content), "pointerSize": len(pointer)}
        entry["oid"] = sha1(b"blob %d\0" % len(pointer) + pointer.encode()).hexdigest()
    return entry


def refs_of(repository: Repository) -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = {"branches": [], "converts": [], "tags": [], "pullRequests": []}
    kinds = {"heads": "branches", "tags": "tags", "pr": "pullRequests"}
    for ref, oid in repository.refs.items():
        _, kind, name = ref.split("/", 2)
        found[kinds[kind]].append({"name": name, "ref": ref, "targetCommit": oid})
    return found


def yaml_errors(card: str) -> dict[str, list[dict[str, str]]]:
    """Check the front matter of a card like the Hub: it must be a YAML mapping."""
    try:
        fields = yaml.safe_load(card.split("---")[1]) if card.startswith("---") else {}
    except yaml.YAMLError as error:
        return {"errors": [{"message": str(error)}], "warnings": []}
    bad = [] if isinstance(fields, dict) else [{"message": "no mapping"}]
    return {"errors": bad, "warnings": []}


def as_json(value: Any) -> Reply:
    """Return status, headers and body of a JSON answer."""
    return 200, {"Content-Type": "application/json"}, json.dumps(value).encode()
