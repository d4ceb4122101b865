"""An OpenAPI document as HTML."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from html import escape
from typing import Any

from nnclr_hub.client.call_examples import ApiCall

from ..examples import EXAMPLES

Schema = dict[str, Any]


def render(document: dict[str, Any], base: str, *, key: bool) -> str:
    """Return the page.

    Args:
        document: OpenAPI 3.1.
        base: address of the server, for the examples.
        key: whether the examples send an API key.
    """
    sections = {tag["name"]: (tag.get("description", ""), []) for tag in document["tags"]}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            sections[operation["tags"][0]][1].append(_operation(document, method.upper(), path, operation, base, key))
    about = document["info"]
    links = "".join(f'<a href="#{escape(name)}">{escape(name)}</a>' for name in sections)
    body = "".join(
        f'<section id="{escape(name)}"><h2>{escape(name)}</h2><p>{escape(text)}</p>{"".join(found)}</section>'
        for name, (text, found) in sections.items()
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(about['title'])} API</title>"
        '<link rel="stylesheet" href="docs/docs.css"><script src="docs/docs.js" defer></script></head>'
        f'<body data-base="{escape(base)}">'
        f"<nav><strong>{escape(about['title'])} {escape(about['version'])}</strong>{links}"
        '<a href="openapi.json">openapi.json</a></nav>'
        f"<main><h1>{escape(about['title'])} API</h1>{_text(about['description'])}"
        '<form id="settings"><label>API key, if the server has keys <input type="password" id="key" autocomplete="off">'
        '</label> <label>Image for the examples <input type="file" id="photo" accept="image/*"></label></form>'
        f"{body}</main></body></html>"
    )


def _operation(document: dict[str, Any], method: str, path: str, operation: Schema, base: str, key: bool) -> str:
    title = escape(operation.get("description", "").split("\n")[0].rstrip("."))
    parts = [_text(operation.get("description", "")), _parameters(operation), _body(document, operation)]
    parts += [_example(example, base, key) for name, example in EXAMPLES if name == operation["operationId"]]
    parts.append(_responses(document, operation))
    return (
        f'<details id="{operation["operationId"]}"><summary><b class="{method.lower()}">{method}</b> '
        f"<code>{escape(path)}</code> <span>{title}</span></summary>{''.join(parts)}</details>"
    )


def _parameters(operation: Schema) -> str:
    rows = [
        (one["name"], one["in"], _type(one["schema"]), one.get("description", ""))
        for one in operation.get("parameters", ())
    ]
    return _table("Parameters", ("name", "in", "type", ""), rows)


def _body(document: dict[str, Any], operation: Schema) -> str:
    parts = []
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        schema = _resolved(document, content["schema"])
        parts.append(_fields(f"Body: {kind}", document, schema))
    return "".join(parts)


def _fields(title: str, document: dict[str, Any], schema: Schema) -> str:
    schema = _resolved(document, schema.get("items", {})) if schema.get("type") == "array" else schema
    required = schema.get("required", ())
    rows = [
        (name, "required" if name in required else "", _type(one), one.get("description", ""))
        for name, one in schema.get("properties", {}).items()
    ]
    return _table(title, ("field", "", "type", ""), rows) if rows else f"<h4>{escape(title)}</h4>"


def _responses(document: dict[str, Any], operation: Schema) -> str:
    parts = []
    for status, answer in operation["responses"].items():
        kinds = ", ".join(answer.get("content", {}))
        parts.append(f"<dt>{status} <i>{escape(kinds)}</i></dt><dd>{_text(answer['description'])}")
        schema = answer.get("content", {}).get("application/json", {}).get("schema")
        if status.startswith("2") and schema:
            parts.append(_fields("", document, _resolved(document, schema)))
        parts.append("</dd>")
    return f"<h4>Responses</h4><dl>{''.join(parts)}</dl>"


def _example(example: ApiCall, base: str, key: bool) -> str:
    """Render an example as commands, and as a form that docs.js sends."""
    fields = "".join(f"<code>{escape(name)}: the image</code>" for name, _ in example.files)
    fields += "".join(
        f'<label>{escape(name)} <input name="{escape(name)}" value="{escape(value)}"></label>'
        for name, value in example.fields.items()
    )
    if example.json is not None:
        fields += f'<textarea rows="4" aria-label="body">{escape(json.dumps(example.json, indent=1))}</textarea>'
    return (
        f'<h4>Example</h4><pre class="curl">{escape(example.curl(base, key=key))}</pre>'
        f'<pre class="python">{escape(example.python(base, key=key))}</pre>'
        f'<form class="run" data-method="{example.method}" data-accept="{escape(example.accept)}" '
        f'data-files="{escape(",".join(name for name, _ in example.files))}">'
        f'<label>path <input class="path" value="{escape(example.target)}"></label>{fields}'
        "<button>Run</button><output></output></form>"
    )


def _resolved(document: dict[str, Any], schema: Schema) -> Schema:
    name = schema.get("$ref", "").rpartition("/")[2]
    return document["components"]["schemas"][name] if name else schema


def _type(schema: Schema) -> str:
    """Return a short description of a schema."""
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2]
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(_type(one) for one in schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return " | ".join(json.dumps(one) for one in schema.get("enum", [schema.get("const")]))
    kind = str(schema.get("type", "any"))
    if kind == "array" and "items" in schema:
        kind = f"list of {_type(schema['items'])}"
    return kind + (f" = {json.dumps(schema['default'])}" if schema.get("default") is not None else "")


def _table(title: str, head: Iterable[str], rows: Iterable[tuple[str, ...]]) -> str:
    filled = "".join("<tr>" + "".join(f"<td>{_inline(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    if not filled:
        return ""
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    heading = f"<h4>{escape(title)}</h4>" if title else ""
    return f"{heading}<table><tr>{names}</tr>{filled}</table>"


def _text(text: str) -> str:
    """Render paragraphs, lists and `code`."""
    parts = []
    for block in text.split("\n\n"):
        lines = block.strip().split("\n")
        if lines[0].startswith("- "):
            parts.append("<ul>" + "".join(f"<li>{_inline(line[2:])}</li>" for line in lines) + "</ul>")
        else:
            parts.append(f"<p>{_inline(' '.join(lines))}</p>")
    return "".join(parts)


def _inline(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
