"""hubconf.py in a separate process: its entry points, what they load, and their dependencies."""

import json
import os
import runpy
import shutil
import subprocess
import sys

import pytest
import torch
from hub.conftest import FETCHED, ROOT
from hub_server import running_hub
from safetensors.torch import load_file, save_file

from nnclr_hub.errors import InvalidRequest, TamperedModel, UnknownModel, WeightsMismatch
from nnclr_hub.hub.layout import CONFIG, WEIGHTS, sha256_of
from nnclr_hub.hub.registry import ARCHITECTURES, list_models
from nnclr_hub.torch_hub import entry_points

STARTER = "nnclr_resnet18_free_starter"


@pytest.fixture
def load():
    return entry_points()[STARTER]


def run(code: str, *arguments: object, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=200, **options
    )


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
    done = run(code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["(2, 32) False", "64"]


@pytest.mark.slow
def test_torch_hub_itself_lists_helps_and_refuses_a_second_checkout(torch_home, tmp_path):
    """From the folder where it keeps what it has fetched; then the checkout of these tests, in the same process."""
    code = (
        "import json, sys, torch\n"
        f"of = {{'trust_repo': True, 'skip_validation': True, 'verbose': False}}\n"
        f"names = torch.hub.list({FETCHED!r}, **of)\n"
        f"torch.hub.load({FETCHED!r}, {STARTER!r}, **of)\n"
        f"print(json.dumps([names, torch.hub.help({FETCHED!r}, {STARTER!r}, trust_repo=True, skip_validation=True)]))\n"
        f"torch.hub.load({str(ROOT)!r}, {STARTER!r}, source='local')\n"
    )
    done = run(code, cwd=tmp_path, env=os.environ | {"TORCH_HOME": str(torch_home), "PYTHONPATH": ""})
    names, text = json.loads(done.stdout.splitlines()[-1])
    assert sorted(names) == sorted([*ARCHITECTURES, *list_models()])
    assert all(word in text for word in ("weights:", "Measured: knn20", "License of the weights", "Example:", STARTER))
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"RuntimeError: This process already runs the nnclr_hub of {torch_home}")
    assert last.endswith("load one of them, or start another process for it.")


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_without_published_weights_the_default_is_refused_and_not_random(name):
    with pytest.raises(UnknownModel):
        entry_points()[name]()
    with pytest.raises(UnknownModel):
        entry_points()[name](weights=name)


def test_a_fresh_network_is_had_by_asking_for_it_unless_weights_are_named(load, make_model):
    assert load(pretrained=False, num_classes=10)(torch.zeros(1, 3, 48, 48)).shape == (1, 10)
    assert load(pretrained=False)(torch.zeros(1, 3, 48, 48)).shape == (1, 512)
    folder = make_model("resnet50", {"channels": [4, 4, 4, 8]}, 64)
    load, x = entry_points()["nnclr_resnet50"], torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(load(pretrained=False, weights=folder)(x), load(weights=folder)(x))


def test_weights_come_from_a_name_folder_file_and_address(load, model, tmp_path):
    """A file may carry its hash in its name, and then has it."""
    name = f"encoder-{sha256_of(model / WEIGHTS)[:8]}.safetensors"
    shutil.copy(model / CONFIG, tmp_path)
    shutil.copy(model / WEIGHTS, tmp_path / name)
    file, x = tmp_path / name, torch.randn(2, 3, 48, 48)
    with torch.no_grad(), running_hub({}, root=tmp_path) as server:
        want = load(weights=model)(x)
        sources = [f"local-dir:{model}", model.as_uri(), model / WEIGHTS, file, file.as_uri(), f"{server.url}/{name}"]
        for source in sources:
            torch.testing.assert_close(load(weights=source, progress=False)(x), want, rtol=0, atol=0, msg=str(source))
        assert load(weights=file, num_classes=10)(x).shape == (2, 10)
        torch.testing.assert_close(load(weights=STARTER)(x), load()(x))
    wrong = file.rename(tmp_path / "encoder-00000000.safetensors")
    with pytest.raises(TamperedModel):
        load(weights=wrong)


def test_an_invalid_value_for_weights_is_refused(load, make_model):
    for source in ("random:resnet18", "timm:resnet18", f"random:{STARTER}"):
        with pytest.raises(InvalidRequest):
            load(weights=source)
    with pytest.raises(WeightsMismatch):
        load(weights=make_model("test_resnet", {}, 64))


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"num_legs": 4}, InvalidRequest),
        # layers that would stay random or get lost: with num_classes, timm passes over them with a log line at most
        ({"num_classes": 10, "layers": [2, 2, 2, 3]}, WeightsMismatch),
        ({"num_classes": 10, "layers": [2, 2, 2, 1]}, WeightsMismatch),
        ({"pretrained_strict": False, "layers": [2, 2, 2, 3]}, WeightsMismatch),
        # other weights
        *(
            ({"pretrained": pretrained, **other}, InvalidRequest)
            for pretrained in (True, False)
            for other in ({"checkpoint_path": "other.pth"}, {"pretrained_cfg": {}})
        ),
    ],
    ids=str,
)
def test_arguments_that_do_not_fit_the_weights_are_refused(load, model, arguments, kind):
    weights = model if arguments.get("pretrained", True) else None
    with pytest.raises(kind, match="num_legs" if "num_legs" in arguments else None):
        load(weights=weights, **arguments)


@pytest.mark.parametrize("arguments", [{}, {"num_classes": 10}, {"in_chans": 1}], ids=str)
def test_weights_that_are_not_whole_are_refused_however_they_are_adapted(load, model, tmp_path, arguments):
    """timm passes over missing keys when it adapts, and would leave them random."""
    config = json.loads((model / CONFIG).read_text())
    del config["nnclr"]["sha256"]
    (tmp_path / CONFIG).write_text(json.dumps(config))
    state = load_file(model / WEIGHTS)
    save_file({key: value for key, value in state.items() if key != "layer4.1.conv2.weight"}, tmp_path / WEIGHTS)
    with pytest.raises(WeightsMismatch):
        load(weights=tmp_path, **arguments)
    state["layer4.1.conv2.weight"][0, 0, 0, 0] = float("nan")
    save_file(state, tmp_path / WEIGHTS)
    with pytest.raises(WeightsMismatch):
        load(weights=tmp_path, **arguments)


def test_every_entry_point_is_listed_and_explains_itself():
    points = entry_points()
    # torch.hub.list's own rule, on the local file: it takes no local source
    shown = {name for name, value in runpy.run_path(str(ROOT / "hubconf.py")).items() if callable(value)}
    assert {name for name in shown if name[0] != "_"} == set(points) == {*ARCHITECTURES, *list_models()}
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
    done = run(code, cwd=ROOT)
    assert done.stderr.splitlines()[-1] == "RuntimeError: nnclr_hub needs Python 3.11 or later; this is 3.8."
