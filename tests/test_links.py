"""Check that every relative link in the Markdown files leads to a file."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file(page):
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    links = re.findall(r"\]\(<?([^)>\s]+)", text) + re.findall(r"(?:src|href)=\"([^\"]+)\"", text)
    paths = (link.partition("#")[0] for link in links if not re.match(r"[a-z]+:", link))
    assert [path for path in paths if not (page.parent / path).exists()] == []
