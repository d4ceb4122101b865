"""Snippets: an action as curl and as Python, which run as they stand.

    curl(action, "http://127.0.0.1:8000")
    python(action, "http://127.0.0.1:8000", key=True)

Files are named as they are at the person's side: the commands run where these lie. A key is taken from NNCLR_API_KEY.
"""

from __future__ import annotations

import json
import shlex
from textwrap import indent

from .actions import Action

KEY = "NNCLR_API_KEY"
BODY = "JSON"  # ends a body; JSON has no line that is this word


def curl(action: Action, base: str, *, key: bool = False) -> str:
    """The shell command.

    Args:
        base: where the server is.
        key: whether it asks for one.
    """
    proof = [f'-H "Authorization: Bearer ${KEY}"'] if key else []
    first = [
        " ".join(["curl -sS", *proof, "-o", _quoted(file), _quoted(base + path)]) + "\n"
        for file, path in action.fetched
    ]
    method = "" if action.method == "GET" else f" -X {action.method}"
    lines = [f"{''.join(first)}curl -sS{method} {_quoted(base + action.path)}", *proof]
    lines += [f"--form-string {_quoted(f'{name}={json.dumps(value)}')}" for name, value in action.form.items()]
    lines += [f"-F {_quoted(f'{name}=@{_file(file)}')}" for name, file in action.files]
    if action.json is None and not action.body:
        return " \\\n  ".join(lines)
    end, body = (BODY, action.body) if action.body else (f"'{BODY}'", json.dumps(action.json, indent=2))
    lines += ["-H 'Content-Type: application/json'", f"--data-binary @- <<{end}"]
    return " \\\n  ".join(lines) + f"\n{body}\n{BODY}"


def python(action: Action, base: str, *, key: bool = False) -> str:
    """The program: with our client where that has a verb for it, else with httpx."""
    if not action.call and not action.program:
        return _bare(action, base, key)
    imports = _imports(action, key)
    proof = ', headers={"Authorization": "Bearer " + os.environ["' + KEY + '"]}' if key else ""
    fetching = [
        f"Path({file!r}).write_bytes(httpx.get({base + path!r}{proof}).raise_for_status().content)"
        for file, path in action.fetched
    ]
    given = f'"{base}"' if not key else f'"{base}", os.environ["{KEY}"]'
    work = indent(action.program or f"print({action.call})", "    ")
    program = [*fetching, f"with Client({given}) as client:\n{work}"]
    return f"{imports}\n\n" + "\n".join(program)


def _imports(action: Action, key: bool) -> str:
    names = [name for name in ("Box", "Client", "Point") if f"{name}(" in action.call or name == "Client"]
    own = [*action.imports, *(["import os"] if key else []), *(["import httpx"] if action.fetched else [])]
    own += ["from pathlib import Path"] if "Path(" in action.call else []
    own += [f"from nnclr_hub import {', '.join(names)}"]
    others = [line for line in own if line.split()[1].partition(".")[0] in ("httpx", "nnclr_hub")]
    standard = [line for line in own if line not in others]
    groups = (sorted(group, key=lambda line: (line.startswith("from"), line)) for group in (standard, others))
    return "\n\n".join("\n".join(group) for group in groups if group)


def _bare(action: Action, base: str, key: bool) -> str:
    lines = ["import json", *(["import os"] if key else []), "", "import httpx", ""]
    options = [f'headers={{"Authorization": "Bearer " + os.environ["{KEY}"]}}'] if key else []
    if action.json is not None:
        lines += [f"body = json.loads({json.dumps(json.dumps(action.json))})"]
        options += ["json=body"]
    if action.files or action.form:
        parts = [f"({name!r}, (None, {json.dumps(value)!r}))" for name, value in action.form.items()]
        parts += [f"({name!r}, open({file!r}, 'rb'))" for name, file in action.files]
        options += [f"files=[{', '.join(parts)}]"]
    call = ", ".join([repr(action.method), repr(base + action.path), *options, "timeout=60"])
    lines += [
        f"answer = httpx.request({call})",
        "answer.raise_for_status()",
        "print(json.dumps(answer.json(), indent=2))",
    ]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return text if text == shlex.quote(text) else "'" + text.replace("'", "'\"'\"'") + "'"


def _file(name: str) -> str:
    """A file's name as curl's -F takes it: quoted, if it holds what would end it, or blanks that it would drop."""
    if not set(name) & set(';,"\\') and name == name.strip():
        return name
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
