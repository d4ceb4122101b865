"""Run the examples of docs/extending.md, each section in a separate namespace and folder."""

import re
from pathlib import Path

import pytest

from nnclr_hub.method import METHODS
from nnclr_hub.workbench.tasks import all_tasks
from training.evals.evaluate import ON_FEATURES, PROTOCOLS

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
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
