"""Run the examples of docs/extending.md, each section in a separate namespace and folder."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nnclr_hub.method import METHODS
from nnclr_hub.workbench.tasks import all_tasks
from training.evals.evaluate import ON_FEATURES, PROTOCOLS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))


def code_of(section: str) -> str:
    return "\n".join(re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE))


@pytest.fixture(autouse=True)
def restore_tables(monkeypatch):
    tables = [METHODS, ON_FEATURES, PROTOCOLS, all_tasks()]
    try:
        from nnclr_hub.store.index_kinds import INDEX_KINDS
    except ImportError:
        pass
    else:
        tables.append(INDEX_KINDS)
    before = [dict(table) for table in tables]
    yield
    for table, content in zip(tables, before, strict=True):
        table.clear()
        table.update(content)


@pytest.mark.parametrize("title", SECTIONS)
def test_the_example_runs(title, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = code_of(SECTIONS[title])
    assert code, "every section has an example"
    exec(compile(code, f"docs/extending.md: {title}", "exec"), {"__name__": "example"})


# calls the option and the task of the patches with a folder and with a server, and looks for them in OpenAPI
PATCHED = """
import json, sys
from pathlib import Path
import httpx, numpy as np
from commands import output_of
from contract.places import over_http
from nnclr_hub import Client, CollectionSpec, Item, open_bench
from nnclr_hub.workbench.maintenance import CollectionRequest
with over_http(Path("served")) as url:
    for place in (["--store", "s"], ["--server", url]):
        with open_bench(place[1]) as bench:
            collection = bench.store.create("c", CollectionSpec(2))
            collection.upsert([Item(id, np.array([1, n]), {"label": id} if n else {}) for n, id in enumerate("abc")])
        search = ["search", "--collection", "c", "--id", "a", "--json", *place]
        answers = [json.loads(output_of(*search, *more)) for more in ([], ["--reverse"])]
        ids, reverse = ([one["id"] for one in answer["matches"]] for answer in answers)
        assert (ids, reverse) == (["b", "c"], ["c", "b"]), (ids, reverse)
        assert json.loads(output_of("store", "labeled", "c", "--json", *place)) == {"items": 2}
    with Client(url) as client:
        found = client.collection("c").search(np.ones(2), k=2, reverse=True)
        assert found[0].score < found[1].score
        assert client.run("labeled", CollectionRequest("c")) == {"items": 2}
    document = httpx.get(f"{url}/openapi.json", timeout=120).json()
    properties = document["components"]["schemas"]["SearchRequest"]["properties"]
    assert properties["reverse"]["description"] == "return the worst match first"
    assert "post" in document["paths"]["/api/v1/collections/{name}/labeled"]
"""


def test_an_option_and_a_task_are_each_added_in_three_places(tmp_path):
    patches = re.findall(r"^```diff\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert [patch.count("\n+++ ") for patch in patches] == [3, 3]
    for folder in ("nnclr_hub", "serving", "docs", "app"):
        # with what is compiled of the files that stay as they are, because compiling all of them takes seconds
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.webp"))
    for patch in patches:
        for name, hunks in re.findall(r"^\+\+\+ b/(.*?)\n(.*?)(?=^--- |\Z)", patch, re.DOTALL | re.MULTILINE):
            text = (tmp_path / name).read_text()
            for hunk in hunks.split("@@\n")[1:]:
                lines = [line if line == "\n" else line[1:] for line in hunk.splitlines(True)]
                signs = [line[0] for line in hunk.splitlines(True)]
                old, new = (
                    "".join(line for line, sign in zip(lines, signs, strict=True) if sign != left) for left in "+-"
                )
                assert text.count(old) == 1, f"{name} does not have these lines once: {old}"
                text = text.replace(old, new)
            (tmp_path / name).write_text(text)
    (tmp_path / "run").mkdir()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT / "tests"), str(ROOT)])}
    command = [sys.executable, "-c", PATCHED]
    done = subprocess.run(command, cwd=tmp_path / "run", env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
