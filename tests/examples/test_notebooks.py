"""The notebooks run from the first cell to the last on a small folder, and are committed without outputs."""

import ast
import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import nnclr
from tiny_runs import FAST, weights

EXAMPLES = Path(__file__).parents[2] / "examples"
SETTINGS = " ".join(f"--set {one}" for one in FAST if "channels" not in one)  # those of the encoder


def run(name: str, **parameters: Any) -> tuple[dict[str, Any], list[Any]]:
    """Run the code cells as Jupyter does; return the variables, and the value that each cell shows.

    A line with ! runs a command; braces are variables. The cell with the tag "parameters" is followed by others.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for cell in json.loads((EXAMPLES / name).read_text("utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] != "code":
            continue
        if source.startswith("!"):
            for line in source.splitlines():
                command, *words = shlex.split(line[1:].format(**names))
                if command == "mkdir":
                    subprocess.run([command, *words], check=True)
                    continue
                assert command == "nnclr"
                code, out, err = nnclr(*words)
                assert code == 0, (source, err)
                shown.append(out)
            continue
        tree = ast.parse(source)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec"), names)
        value = None if last is None else eval(compile(ast.Expression(last.value), name, "eval"), names)
        for form in ("_repr_html_", "_repr_png_"):
            if hasattr(value, form):
                assert getattr(value, form)()
        shown.append(value)
        if "parameters" in cell["metadata"].get("tags", []):
            assert parameters.keys() <= names.keys()
            names |= parameters
    return names, shown


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_is_committed_without_outputs(path):
    book = json.loads(path.read_text("utf-8"))
    assert book["nbformat"] == 4
    code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])


def test_search_your_folder(photos, tmp_path):
    names, shown = run("search_your_folder.ipynb", folder=str(photos), store=str(tmp_path / "store"))
    query = names["query"].relative_to(photos)
    matches, others = (one for one in shown if isinstance(one, list))
    assert (matches[0].metadata["path"], matches[0].metadata["label"]) == (str(query), query.parent.name)
    assert matches[0].score > 0.99
    assert others
    assert names["label"] not in {match.metadata["label"] for match in others}


def test_train_on_your_folder(photos, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names, shown = run(
        "train_on_your_folder.ipynb",
        folder=str(photos),
        run="run",
        start=str(model),
        recipe="small_cpu",
        settings=f"{SETTINGS} --set epochs=1",
    )
    assert (tmp_path / "run" / "report.html").is_file()
    assert "pixels" in shown[-3]
    assert names["encoder"].embed_dim == 32


def test_label_with_a_probe(photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names, shown = run("label_with_a_probe.ipynb", folder=str(photos), store="store", examples=5)
    assert len(names["labeled"]) == 15
    assert names["right"] > 0.6  # by chance .33
    assert sum(count for _, count in shown[-3]["predicted"].values) == 45
    assert len((tmp_path / "predicted.csv").read_text().splitlines()) == 61


def test_change_the_support_set(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = dict(one.split("=") for one in FAST) | {"epochs": 1}
    names, _ = run("change_the_support_set.ipynb", folder=str(data), out="runs", settings=settings, seeds=(0,))
    assert names["scores"].keys() == {("nearest", 0), ("second", 0)}
    nearest, second = (weights(tmp_path / "runs" / f"{name}-0") for name in ("nearest", "second"))
    assert torch.equal(nearest["support_set.ids"], second["support_set.ids"]), "the same images"
    assert not torch.equal(nearest["backbone.conv1.weight"], second["backbone.conv1.weight"])
    assert (tmp_path / "runs" / "report.html").is_file()
