"""hf-hub: against a server on this machine that answers as the Hub does: a download, and each refusal."""

import json
import os
import subprocess
import sys
import threading
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from nnclr_hub import load_encoder

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REFUSALS = {  # repository -> status and the header by which the Hub tells them apart
    "org/gone": (404, "RepoNotFound"),
    "org/private": (401, "RepoNotFound"),
    "org/gated": (403, "GatedRepo"),
    "org/name@v9": (404, "RevisionNotFound"),
    "org/ill": (418, ""),
}


class Hub(BaseHTTPRequestHandler):
    """One repository, org/name; the others are refused."""

    model: Path

    def log_message(self, *_: object) -> None:
        """Silent."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        path = self.path.split("?")[0]
        for source, (status, code) in REFUSALS.items():
            repository, _, revision = source.partition("@")
            if repository in path and revision in path:
                return self._send(status, b"", {"X-Error-Code": code} if code else {}, body)
        files = sorted(file.name for file in self.model.iterdir())
        if path.startswith("/api/models/org/name/tree/"):
            return self._send(200, json.dumps([self._entry(name) for name in files]).encode(), {}, body)
        if path.startswith("/api/models/org/name"):
            facts = {"id": "org/name", "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
            return self._send(200, json.dumps(facts).encode(), {}, body)
        data = (self.model / path.rpartition("/")[2]).read_bytes()
        return self._send(200, data, {"ETag": f'"{sha256(data).hexdigest()}"', "X-Repo-Commit": COMMIT}, body)

    def _entry(self, name: str) -> dict[str, object]:
        data = (self.model / name).read_bytes()
        return {"type": "file", "path": name, "size": len(data), "oid": sha256(data).hexdigest()[:40]}

    def _send(self, status: int, data: bytes, headers: dict[str, str], body: bool) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(data)


@pytest.fixture(scope="module")
def answers(model, tmp_path_factory) -> dict[str, str]:
    """source -> the fingerprint, or the error's class and sentence, from one process that talks to the server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("ThisHub", (Hub,), {"model": model}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    code = (
        "import json, sys; from nnclr_hub import load_encoder, NNCLRHubError\n"
        "answers = {}\n"
        "for source in sys.argv[1:]:\n"
        "    try: answers[source] = load_encoder(source, device='cpu').fingerprint\n"
        "    except NNCLRHubError as error: answers[source] = f'{type(error).__name__}: {error}'\n"
        "print(json.dumps(answers))"
    )
    environment = os.environ | {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HUB_CACHE": str(tmp_path_factory.mktemp("hf")),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_OFFLINE": "0",
    }
    sources = ["org/name", f"org/name@{COMMIT}", *REFUSALS, "org/..", "org/na--me"]
    command = [sys.executable, "-c", code, *(f"hf-hub:{source}" for source in sources)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    server.shutdown()
    server.server_close()
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("revision", ["", f"@{COMMIT}"])
def test_a_repository_is_downloaded(answers, model, revision):
    assert answers[f"hf-hub:org/name{revision}"] == load_encoder(model, device="cpu").fingerprint


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("org/gone", "UnknownModel: The Hub has no repository org/gone, or it is private"),
        ("org/private", "UnknownModel: The Hub has no repository org/private, or it is private"),
        ("org/gated", "UnknownModel: org/gated is gated: accept its terms"),
        ("org/name@v9", "UnknownModel: org/name has no revision 'v9'"),
        ("org/ill", "ModelFilesMissing: org/ill is not in the cache"),
        ("org/..", "InvalidRequest: hf-hub:org/.. is no repository"),
        ("org/na--me", "InvalidRequest: hf-hub:org/na--me is no repository"),
    ],
)
def test_each_refusal_is_one_sentence(answers, source, sentence):
    answer = answers[f"hf-hub:{source}"]
    assert answer.startswith(sentence)
    assert "\n" not in answer
