"""Examples of every operation, as curl and as Python; in this order each can be run after those before it.

    for operation, example in EXAMPLES:
        print(example.curl(), example.python())

They want an image called photo.jpg in the folder where they are run. A test runs them all.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

BASE = "http://127.0.0.1:8000"
PHOTO = "photo.jpg"
IMAGE = "BASE64_OF_PHOTO"  # stands in JSON for the image


@dataclass(frozen=True)
class Example:
    """A request.

    files: fields of a form that take the image.
    form: its other fields.
    save: file to write the answer to, where it is no JSON.
    program: Python to show instead of the plain request.
    """

    method: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    json: Any = None
    files: tuple[str, ...] = ()
    form: Mapping[str, str] = field(default_factory=dict)
    accept: str = ""
    save: str = ""
    program: str = ""

    @property
    def target(self) -> str:
        """Path and query."""
        return self.path + (f"?{urlencode(self.params)}" if self.params else "")

    def curl(self, base: str = BASE, *, key: bool = False) -> str:
        """A shell command; with `key` it sends the one in NNCLR_KEY."""
        parts = ["curl -sS --fail-with-body" + ("" if self.method == "GET" else f" -X {self.method}")]
        parts[0] += f" {shlex.quote(base + self.path)}"
        if self.params:
            parts.append("-G")
        parts += [f"--data-urlencode {shlex.quote(f'{name}={value}')}" for name, value in self.params.items()]
        if key:
            parts.append('-H "Authorization: Bearer $NNCLR_KEY"')
        if self.accept:
            parts.append(f"-H 'Accept: {self.accept}'")
        parts += [f"-F {name}=@{PHOTO}" for name in self.files]
        parts += [f"-F {shlex.quote(f'{name}={value}')}" for name, value in self.form.items()]
        if self.save:
            parts.append(f"-o {self.save}")
        if self.json is None:
            return " \\\n  ".join(parts)
        parts.append("-H 'Content-Type: application/json'")
        body = json.dumps(self.json)
        if IMAGE not in body:
            return " \\\n  ".join([*parts, f"-d {shlex.quote(body)}"])
        read = f"$(base64 < {PHOTO} | tr -d '\\n')"  # a here-document: an argument could not be so long
        return " \\\n  ".join([*parts, "-d @- <<END"]) + f"\n{body.replace(IMAGE, read)}\nEND"

    def python(self, base: str = BASE, *, key: bool = False) -> str:
        """A program; with `key` it sends the one in NNCLR_KEY."""
        if self.program:
            secret = 'os.environ["NNCLR_KEY"]' if key else '"none"'
            text = self.program.replace("BASE_URL", f"{base}/v1").replace("API_KEY", secret)
            return ("import os\n" if key else "") + text
        imports, lines = ["import httpx"], []
        body = json.dumps(self.json).replace("true", "True").replace("false", "False")
        if IMAGE in body:
            imports += ["import base64", "from pathlib import Path"]
            lines.append(f'photo = base64.b64encode(Path("{PHOTO}").read_bytes()).decode()')
            body = body.replace(f'"{IMAGE}"', "photo")
        given = [f'"{base}{self.path}"']
        given += [f"params={dict(self.params)!r}"] if self.params else []
        given += [f"json={body}"] if self.json is not None else []
        if self.files:
            imports.append("from pathlib import Path")
            files = ", ".join(f'"{name}": ("{PHOTO}", Path("{PHOTO}").read_bytes())' for name in self.files)
            given.append(f"files={{{files}}}")
        given += [f"data={dict(self.form)!r}"] if self.form else []
        headers = [f'"Accept": "{self.accept}"'] if self.accept else []
        if key:
            imports.append("import os")
            headers.append('"Authorization": f"Bearer {os.environ[\'NNCLR_KEY\']}"')
        given += [f"headers={{{', '.join(headers)}}}"] if headers else []
        joined = ", ".join(given)
        if len(joined) > 80:
            joined = "\n    " + ",\n    ".join(given) + ",\n"
        lines.append(f"answer = httpx.{self.method.lower()}({joined})")
        lines.append("answer.raise_for_status()")
        if self.save:
            imports.append("from pathlib import Path")
            lines.append(f'Path("{self.save}").write_bytes(answer.content)')
        else:
            lines.append("print(answer.text)")
        return "\n".join([*dict.fromkeys(imports), "", *lines])


_OPENAI = """import base64
from pathlib import Path

from openai import OpenAI

client = OpenAI(base_url="BASE_URL", api_key=API_KEY)
photo = base64.b64encode(Path("photo.jpg").read_bytes()).decode()
answer = client.embeddings.create(model="default", input=[photo])
print(len(answer.data[0].embedding))"""
_LIKE = '{"must": [{"key": "label", "match": "cat"}]}'
_PHOTOS, _POINTS = "/api/v1/collections/photos", "/api/v1/collections/points"

EXAMPLES: tuple[tuple[str, Example], ...] = (
    ("health-healthz", Example("GET", "/healthz")),
    ("health-readyz", Example("GET", "/readyz")),
    ("health-metrics", Example("GET", "/metrics")),
    (
        "openai-embeddings",
        Example("POST", "/v1/embeddings", json={"model": "default", "input": [IMAGE]}, program=_OPENAI),
    ),
    ("openai-models", Example("GET", "/v1/models")),
    ("openai-model", Example("GET", "/v1/models/default")),
    ("embed-embed", Example("POST", "/api/v1/embed", files=("files",), accept="application/x-npy", save="vectors.npy")),
    ("embed-embed", Example("POST", "/api/v1/embed", json={"images": [IMAGE]})),
    (
        "attention-attention",
        Example(
            "POST",
            "/api/v1/attention",
            files=("image",),
            form={"query": '{"point": [20, 30]}'},
            accept="image/png",
            save="map.png",
        ),
    ),
    (
        "attention-attention",
        Example("POST", "/api/v1/attention", json={"image": IMAGE, "box": [8, 8, 40, 40], "target": [IMAGE]}),
    ),
    ("collections-create", Example("PUT", _PHOTOS, json={"indexed": ["label"]})),
    ("collections-list-collections", Example("GET", "/api/v1/collections")),
    ("collections-describe", Example("GET", _PHOTOS)),
    ("aliases-point", Example("PUT", "/api/v1/aliases/live", json={"collection": "photos"})),
    ("aliases-list-aliases", Example("GET", "/api/v1/aliases")),
    (
        "items-add-pictures",
        Example(
            "POST",
            f"{_PHOTOS}/items",
            files=("files",),
            form={"items": '[{"id": "tom", "metadata": {"label": "cat"}}]'},
        ),
    ),
    ("items-list-items", Example("GET", f"{_PHOTOS}/items", params={"limit": "10", "where": _LIKE})),
    ("items-get-item", Example("GET", f"{_PHOTOS}/items/tom")),
    ("items-thumbnail", Example("GET", f"{_PHOTOS}/items/tom/thumbnail", save="thumbnail.jpg")),
    ("items-original", Example("GET", f"{_PHOTOS}/items/tom/original", save="original.jpg")),
    ("collections-count", Example("GET", f"{_PHOTOS}/count", params={"where": _LIKE})),
    ("search-search", Example("POST", f"{_PHOTOS}/search", files=("image",), form={"query": '{"k": 5}'})),
    (
        "search-search-batch",
        Example("POST", f"{_PHOTOS}/search/batch", json={"queries": [{"id": "tom", "k": 5}, {"image": IMAGE, "k": 5}]}),
    ),
    ("collections-snapshot", Example("POST", f"{_PHOTOS}/snapshot")),
    ("collections-verify", Example("POST", f"{_PHOTOS}/verify")),
    ("jobs-look-after", Example("POST", "/api/v1/jobs", json={"kind": "compact", "collection": "photos"})),
    ("jobs-find-duplicates", Example("POST", f"{_PHOTOS}/duplicates", json={"threshold": 0.95})),
    ("jobs-get-job", Example("GET", "/api/v1/jobs/latest")),
    ("jobs-job-events", Example("GET", "/api/v1/jobs/latest/events")),
    ("jobs-list-jobs", Example("GET", "/api/v1/jobs", params={"state": "done", "limit": "10"})),
    ("jobs-index-folder", Example("POST", f"{_PHOTOS}/index", json={"folder": "summer", "prune": True})),
    ("jobs-start-reembed", Example("POST", f"{_PHOTOS}/reembed", json={"model": "default"})),
    ("jobs-cancel-job", Example("DELETE", "/api/v1/jobs/latest")),
    ("jobs-job-events", Example("GET", "/api/v1/jobs/latest/events")),
    ("jobs-abandon-reembed", Example("DELETE", f"{_PHOTOS}/reembed")),
    (
        "probes-fit",
        Example(
            "POST",
            "/api/v1/probes",
            json={
                "name": "axes",
                "items": [{"vector": [1, 0, 0], "label": "x"}, {"vector": [0, 1, 0], "label": "y"}],
                "l2": 0.01,
                "replace": True,
            },
        ),
    ),
    ("jobs-job-events", Example("GET", "/api/v1/jobs/latest/events")),
    ("probes-list-all", Example("GET", "/api/v1/probes")),
    ("probes-describe", Example("GET", "/api/v1/probes/axes")),
    ("probes-predict", Example("POST", "/api/v1/probes/axes/predict", json={"vectors": [[0.9, 0.1, 0]]})),
    ("probes-export", Example("GET", "/api/v1/probes/axes/export", params={"format": "zip"}, save="axes.zip")),
    ("probes-delete", Example("DELETE", "/api/v1/probes/axes")),
    ("runs-list-all", Example("GET", "/api/v1/runs")),
    ("runs-report", Example("GET", "/api/v1/runs/first/report", save="report.html")),
    ("items-delete-item", Example("DELETE", f"{_PHOTOS}/items/tom")),
    ("aliases-forget", Example("DELETE", "/api/v1/aliases/live")),
    ("collections-create", Example("PUT", _POINTS, json={"dim": 3, "metric": "l2"})),
    (
        "items-put-vectors",
        Example("PUT", f"{_POINTS}/items", json=[{"id": "a", "vector": [1, 2, 3], "metadata": {"label": "x"}}]),
    ),
    ("search-search", Example("POST", f"{_POINTS}/search", json={"vector": [1, 2, 3.5], "k": 1})),
    ("collections-drop", Example("DELETE", _POINTS)),
)
