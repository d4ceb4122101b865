"""hubconf.py in a process of its own: what it lists, what it loads, and that it needs no more than it says."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nnclr_hub.errors import UnknownModel
from nnclr_hub.hub.registry import list_models
from nnclr_hub.torch_hub import entry_points

ROOT = Path(__file__).parents[2]


def test_it_loads_where_the_services_packages_are_absent(make_model, tmp_path):
    """From another folder, with faiss, FastAPI, Gradio and the rest made impossible to import."""
    folder = make_model("resnet50", {"channels": [4, 4, 4, 8]}, 64)
    code = (
        "import sys\n"
        "absent = ('faiss', 'fastapi', 'gradio', 'uvicorn', 'pydantic', 'typer', 'rich', 'matplotlib')\n"
        "for name in absent: sys.modules[name] = None\n"
        "import torch\n"
        f"backbone = torch.hub.load({str(ROOT)!r}, 'nnclr_resnet50', source='local', weights={str(folder)!r})\n"
        "print(tuple(backbone(torch.zeros(2, 3, 64, 64)).shape), backbone.training)\n"
        "print(backbone.nnclr_info['transform'].preprocessing.input_size)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["(2, 32) False", "64"]


@pytest.mark.parametrize("name", ["nnclr_resnet50", "nnclr_vit_small", "nnclr_vit_base"])
def test_without_published_weights_the_default_is_refused_and_not_random(name):
    with pytest.raises(UnknownModel, match=f"no published weights for {name} yet: give weights="):
        entry_points()[name]()


def test_named_weights_win_over_pretrained_false(make_model):
    folder = make_model("resnet50", {"channels": [4, 4, 4, 8]}, 64)
    load, x = entry_points()["nnclr_resnet50"], torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(load(pretrained=False, weights=folder)(x), load(weights=folder)(x))


def test_every_entry_point_explains_itself():
    points = entry_points()
    assert set(list_models()) <= set(points)
    for name, point in points.items():
        assert point.__name__ == name
        assert point.__doc__ is not None
        assert all(word in point.__doc__ for word in ("weights:", "Returns:", "Example:", name))


def test_an_old_python_reads_a_sentence():
    """The check stands before any syntax or import that an old Python lacks; it is run with an old version's number."""
    import ast

    source = (ROOT / "hubconf.py").read_text()
    ast.parse(source, feature_version=(3, 7))
    code = f"import sys; sys.version_info = (3, 8, 1); exec(compile({source!r}, 'hubconf.py', 'exec'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stderr.splitlines()[-1] == "RuntimeError: nnclr_hub needs Python 3.11 or later; this is 3.8."
