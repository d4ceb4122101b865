"""Render one REST call as a curl command and as a Python program, both ready to run.

    call = ApiCall("POST", "/api/v1/collections/photos/search", form={"query": {"k": 5}}, files=(("image", "cat.jpg"),))
    print(call.curl("http://127.0.0.1:8000"))
    print(call.python("http://127.0.0.1:8000", key=True))

The API documentation shows its examples with this module. The commands read files from the current
folder, and the API key from the environment variable NNCLR_API_KEY.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

BASE = "http://127.0.0.1:8000"
KEY_VARIABLE = "NNCLR_API_KEY"
PHOTO = "photo.jpg"
IMAGE = "BASE64_OF_PHOTO"  # in `ApiCall.json`, represents the base64 of the file PHOTO
LONGEST_ARGUMENT = 2000  # characters of a body on the command line; a longer one is piped in
TIMEOUT_S = 60
_END = "JSON"  # ends a here-document; no line of JSON is this word
_OTHER_PACKAGES = ("httpx",)


@dataclass(frozen=True)
class ApiCall:
    """One REST call.

    method: GET, POST, PUT, PATCH or DELETE.
    path: below the server's address, percent-encoded.
    params: query parameters.
    media_type: of the body; one object is also a body of application/x-ndjson.
    json: the JSON body. The string IMAGE in it represents the base64 of photo.jpg.
    shell_body: replaces `json`: text in which the shell expands `$(...)`.
    form: text fields of a multipart form; values other than strings are sent as JSON.
    files: files of a multipart form: (field, file name).
    accept: the Accept header.
    save: file to write the response to, if it is not text.
    standalone: replaces the whole Python program; BASE_URL and API_KEY in it are filled in.
    """

    method: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    media_type: str = "application/json"
    json: Any = None
    shell_body: str = ""
    form: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[tuple[str, str], ...] = ()
    accept: str = ""
    save: str = ""
    standalone: str = ""

    @property
    def target(self) -> str:
        """Path and query."""
        return self.path + (f"?{urlencode(self.params)}" if self.params else "")

    @property
    def fields(self) -> dict[str, str]:
        """The text fields of the form, as they are sent."""
        return {name: value if isinstance(value, str) else json.dumps(value) for name, value in self.form.items()}

    def curl(self, base: str = BASE, *, key: bool = False) -> str:
        """Return a shell command."""
        header = [f'-H "Authorization: Bearer ${KEY_VARIABLE}"'] if key else []
        method = "" if self.method == "GET" else f" -X {self.method}"
        parts = [f"curl -sS --fail-with-body{method} {shlex.quote(base + self.path)}"]
        parts += ["-G"] if self.params else []
        parts += [f"--data-urlencode {shlex.quote(f'{name}={value}')}" for name, value in self.params.items()]
        parts += header
        parts += [f"-H 'Accept: {self.accept}'"] if self.accept else []
        parts += [f"-F {shlex.quote(f'{name}=@{_curl_file(file)}')}" for name, file in self.files]
        parts += [f"--form-string {shlex.quote(f'{name}={value}')}" for name, value in self.fields.items()]
        parts += [f"-o {shlex.quote(self.save)}"] if self.save else []
        rest = ""
        if self.json is not None or self.shell_body:
            option, rest = self._curl_body()
            parts += [f"-H 'Content-Type: {self.media_type}'", option]
        return " \\\n  ".join(parts) + rest

    def python(self, base: str = BASE, *, key: bool = False) -> str:
        """Return a Python program, which uses httpx."""
        if self.standalone:
            secret = f'os.environ["{KEY_VARIABLE}"]' if key else '"none"'
            text = self.standalone.replace("BASE_URL", base).replace("API_KEY", secret)
            return ("import os\n" if key else "") + text
        header = f'{{"Authorization": "Bearer " + os.environ["{KEY_VARIABLE}"]}}' if key else ""
        imports = ["import os"] if key else []
        lines = self._with_httpx(imports, base, header)
        return f"{_sorted_imports(imports)}\n\n" + "\n".join(lines)

    def _curl_body(self) -> tuple[str, str]:
        """Return the option for the JSON body, and what follows the command."""
        body = json.dumps(self.json)
        if not self.shell_body and IMAGE not in body and len(body) <= LONGEST_ARGUMENT:
            return f"-d {shlex.quote(body)}", ""
        # an argument can hold 128 KB and an image is longer, so the body is a here-document
        end = f"'{_END}'"
        if self.shell_body:
            body, end = self.shell_body, _END
        elif IMAGE in body:
            literal = body.replace("\\", r"\\").replace("$", r"\$").replace("`", r"\`")
            body, end = literal.replace(IMAGE, f"$(base64 < {PHOTO} | tr -d '\\n')"), _END
        return f"--data-binary @- <<{end}", f"\n{body}\n{_END}"

    def _with_httpx(self, imports: list[str], base: str, header: str) -> list[str]:
        imports.append("import httpx")
        lines: list[str] = []
        arguments = [json.dumps(base + self.path)]
        arguments += [f"params={dict(self.params)!r}"] if self.params else []
        if self.json is not None:
            body = repr(self.json)
            if IMAGE in body:
                imports += ["import base64", "from pathlib import Path"]
                lines.append(f'photo = base64.b64encode(Path("{PHOTO}").read_bytes()).decode()')
                body = body.replace(repr(IMAGE), "photo")
            arguments.append(f"json={body}")
        if self.shell_body:
            arguments.append(f"content={self.shell_body.encode()!r}")
        if self.files:
            imports.append("from pathlib import Path")
            parts = [f"({name!r}, ({file!r}, Path({file!r}).read_bytes()))" for name, file in self.files]
            arguments.append(f"files=[{', '.join(parts)}]")
        arguments += [f"data={self.fields!r}"] if self.form else []
        accept = f'{{"Accept": "{self.accept}"}}' if self.accept else ""
        other = (self.json is not None or self.shell_body) and self.media_type != "application/json"
        kind = f'{{"Content-Type": "{self.media_type}"}}' if other else ""
        headers = " | ".join(filter(None, (accept, kind, header)))
        arguments += [f"headers={headers}"] if headers else []
        arguments.append(f"timeout={TIMEOUT_S}")
        joined = ", ".join(arguments)
        if len(joined) > 80:
            joined = "\n    " + ",\n    ".join(arguments) + ",\n"
        lines += [f"response = httpx.{self.method.lower()}({joined})", "response.raise_for_status()"]
        if self.save:
            imports.append("from pathlib import Path")
            return [*lines, f"Path({self.save!r}).write_bytes(response.content)"]
        return [*lines, "print(response.text)"]


def _sorted_imports(imports: Iterable[str]) -> str:
    """Return the import lines without repetition, those of the standard library first."""
    lines = sorted(set(imports), key=lambda line: (line.startswith("from"), line))
    others = [line for line in lines if line.split()[1].partition(".")[0] in _OTHER_PACKAGES]
    standard = [line for line in lines if line not in others]
    return "\n\n".join("\n".join(group) for group in (standard, others) if group)


def _curl_file(name: str) -> str:
    """Return a file name as curl's -F takes it: quoted if curl would cut it short or strip its blanks."""
    if not set(name) & set(';,"\\') and name == name.strip():
        return name
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
