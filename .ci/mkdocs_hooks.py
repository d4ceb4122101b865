"""Hooks of mkdocs.yml: include files from outside docs/, and render the routes of docs/openapi.json as tables."""

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
INCLUDED = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}
TITLES = {"openai": "OpenAI"}
OUTSIDE = re.compile(
    r"\[([^\]]+)\]\((?:\.\./)+(?:examples|tests|nnclr_hub|training|serving|app|benchmarks|weights)/[^)]*\)"
)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return the Markdown of a page, with its inclusions and without links to files that the site does not contain."""
    name = page.file.src_uri
    if name in INCLUDED:
        markdown = (ROOT / INCLUDED[name]).read_text().replace("](docs/", "](")
    if "<!-- routes -->" in markdown:
        markdown = markdown.replace("<!-- routes -->", routes())
    return OUTSIDE.sub(r"\1", markdown)


def routes() -> str:
    """Return a table of the operations of each tag in docs/openapi.json."""
    document = json.loads((ROOT / "docs" / "openapi.json").read_text())
    tables: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            text = operation.get("description") or operation.get("summary", "")
            summary = text.split("\n\n")[0].replace("\n", " ").replace("|", "\\|")
            tables.setdefault(operation["tags"][0], []).append(f"| `{method.upper()} {path}` | {summary} |")
    head = "| operation | what it does |\n|---|---|"
    titles = ((TITLES.get(tag, tag.capitalize()), rows) for tag, rows in tables.items())
    return "\n\n".join("\n".join([f"## {title}\n", head, *rows]) for title, rows in titles)
