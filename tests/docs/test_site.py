"""Build the documentation site, and check that it is complete and needs no other host."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import nnclr_hub
import nnclr_hub.method

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
# what a page loads by itself; links that a reader follows may lead to other hosts
LOADED = re.compile(
    r"<(?:script|img|iframe|source)[^>]*\ssrc=[\"']?(https?:[^\"'\s>]+)|<link[^>]*\shref=[\"']?(https?:[^\"'\s>]+)"
)
PATH = re.compile(r"(?<![\w./-])(?:nnclr_hub|training|serving|app|tests|examples|benchmarks|weights)/[\w./-]*\w/?")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_builds_strictly_and_every_page_is_in_it(site):
    for page in DOCS.rglob("*.md"):
        assert (site / page.relative_to(DOCS)).with_suffix(".html").exists(), page


def test_pages_load_nothing_from_other_hosts(site):
    for page in site.rglob("*.html"):
        assert not LOADED.findall(page.read_text()), page
    for style in site.rglob("*.css"):
        assert not re.findall(r"url\(\s*[\"']?https?:|@import", style.read_text()), style


def test_every_page_is_reachable_by_links_from_the_index():
    seen, waiting = set(), [DOCS / "index.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        links = re.findall(r"\]\(([^)#\s]+)", page.read_text())
        waiting += [(page.parent / link).resolve() for link in links if ":" not in link]
    assert set(DOCS.rglob("*.md")) <= seen


def test_the_reference_lists_every_public_name(site):
    text = "\n".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    listed = set(re.findall(r"^::: nnclr_hub\.([\w.]+)", text, re.MULTILINE))
    listed |= set(re.findall(r"^::: training\.[\w.]+\.(\w+)", text, re.MULTILINE))
    assert listed >= set(nnclr_hub.__all__) - {"__version__", "ImageError", "NNCLRHubError"}
    assert listed >= {f"method.{name}" for name in nnclr_hub.method.__all__}
    errors = (site / "reference" / "errors.html").read_text()
    assert "ImageError" in errors
    assert "NNCLRHubError" in errors


def test_the_site_lists_every_rest_operation(site):
    page = (site / "reference" / "rest.html").read_text()
    for path, operations in json.loads((DOCS / "openapi.json").read_text())["paths"].items():
        for method in operations:
            assert f"{method.upper()} {path}" in page


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_that_a_page_names_exists(page):
    names = set(PATH.findall(page.read_text()))
    if page.parent.name == "results":  # records: a script that has served its purpose is in the history
        names = {name for name in names if not name.startswith("benchmarks/")}
    # the page about correctness names tests by their path below tests/
    assert [name for name in sorted(names) if not any((top / name).exists() for top in (ROOT, ROOT / "tests"))] == []


def test_every_test_that_the_page_about_correctness_names_exists():
    rows = [line.split("|")[3] for line in (DOCS / "correctness.md").read_text().splitlines() if line.startswith("| ")]
    cited = [row for row in rows if "`" in row]
    assert len(cited) > 10
    for row in cited:
        files = [ROOT / "tests" / file for file in re.findall(r"`([\w/]+\.py)`", row)]
        names = re.sub(r"`[^`]*`", " ", row).replace(",", " ").split()
        assert files, row
        assert all(file.exists() for file in files), row
        functions = {name for file in files for name in re.findall(r"^def test_(\w+)", file.read_text(), re.MULTILINE)}
        assert set(names) <= functions, row
