"""`nnclr space` writes a folder that runs without an installed package."""

import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner
from waiting import free_port, until_served

from nnclr_hub.cli.app import app as cli
from nnclr_hub.hub.layout import read_config
from nnclr_hub.store import open_store
from nnclr_hub.workbench import Encoders, Workbench
from nnclr_hub.workbench.probes import list_probes

INSTALLED = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
# without site, Python reads no .pth file, so an editable install of the package is not found
ALONE = """
import runpy, sys
from pathlib import Path
space = Path(sys.argv[1])
sys.modules["skimage"] = None  # as in the Space, where it is not installed
sys.path += sys.argv[2:]
try:
    runpy.run_path(str(space / "app.py"), run_name="__main__")
finally:
    own = [one.__file__ for name, one in sys.modules.items() if name.partition(".")[0] == "nnclr_hub"]
    assert own and all(Path(file).is_relative_to(space) for file in own), own
"""


@pytest.fixture(scope="module")
def space(tmp_path_factory, indexed, model) -> Path:
    folder = tmp_path_factory.mktemp("hub") / "space"
    options = ["--collection", "photos", "--store", str(indexed), "--model", str(model)]
    done = CliRunner().invoke(cli, ["space", str(folder), *options])
    assert done.exit_code == 0, done.output
    return folder


def test_the_folder_contains_what_a_space_needs(space):
    _, front, text = (space / "README.md").read_text().split("---\n", 2)
    fields = dict(line.split(": ", 1) for line in front.splitlines())
    assert (fields["sdk"], fields["app_file"]) == ("gradio", "app.py")
    assert fields["license"] == read_config(space / "encoder").nnclr.get("license", "other")
    assert re.fullmatch(r"\d+\.\d+\.\d+", fields["sdk_version"])
    assert "read-only" in text
    pins = (space / "requirements.txt").read_text().splitlines()
    assert [line for line in pins if line.startswith("torch==")]
    assert all("==" in line and "+" not in line for line in pins)
    assert not [line for line in pins if line.startswith(("gradio", "nnclr", "scikit"))]
    for name in ("serving/api.py", "app/gradio_demo.py", "cli/app.py"):
        assert (space / "nnclr_hub" / name).is_file(), name
    assert (space / "encoder/model.safetensors").is_file()
    assert not list(space.rglob("*.pyc"))
    with open_store(str(space / "store"), read_only=True) as store:
        [info] = store.list()
        assert info.count == 60
        assert list_probes(store.records)


def test_a_space_of_my_own_collection_has_its_vectors_and_no_paths(tmp_path, model, photos):
    with open_store(str(tmp_path / "mine")) as store:
        Workbench(Encoders(str(model), device="cpu"), store).index_folder("photos", photos)
        before = {item.id: item.vector for items in store.get("photos").read_all() for item in items}
    options = ["--store", str(tmp_path / "mine"), "--collection", "photos", "--model", str(model)]
    done = CliRunner().invoke(cli, ["space", str(tmp_path / "space"), *options])
    assert done.exit_code == 0, done.output
    with open_store(str(tmp_path / "space" / "store"), read_only=True) as store:
        items = [item for items in store.get("photos").read_all() for item in items]
    assert {item.id for item in items} == set(before)
    for item in items:
        assert np.array_equal(item.vector, before[item.id])
        assert item.thumbnail is not None
        assert "root" not in item.metadata
    for path in (tmp_path / "space" / "store").rglob("*"):
        assert not path.is_file() or str(photos).encode() not in path.read_bytes()


@pytest.mark.parametrize(
    ("options", "code"),
    [(["--collection", "missing"], "collection"), (["--collection", "photos", "--model", "random:resnet18"], "model")],
)
def test_a_space_that_cannot_be_written_leaves_nothing(tmp_path, model, photos, options, code):
    with open_store(str(tmp_path / "mine")) as store:
        Workbench(Encoders(str(model), device="cpu"), store).index_folder("photos", photos)
    done = CliRunner().invoke(cli, ["space", str(tmp_path / "space"), "--store", str(tmp_path / "mine"), *options])
    assert done.exit_code != 0
    assert not (tmp_path / "space").exists()


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    done = CliRunner().invoke(cli, ["space", str(tmp_path), "--collection", "photos"])
    assert done.exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.slow
def test_the_space_runs_where_the_package_is_not_installed(space, tmp_path):
    """The demo responds, and its API listens only to it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("NNCLR_", "PYTHON"))}
    port = free_port()
    environment |= {"GRADIO_SERVER_PORT": str(port), "GRADIO_SERVER_NAME": "127.0.0.1"}
    log = tmp_path / "log"
    with log.open("w") as out:
        running = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", ALONE, str(space), *INSTALLED],
            cwd=tmp_path,
            env=environment,
            stdout=out,
            stderr=out,
        )
    try:
        until_served(f"http://127.0.0.1:{port}/config", running, log, patience_s=600)
        [collection] = httpx.get(f"http://127.0.0.1:{port + 1}/api/v1/collections", timeout=60).json()["collections"]
        assert collection["count"] == 60
        assert httpx.delete(f"http://127.0.0.1:{port + 1}/api/v1/collections/photos", timeout=60).status_code == 403
    finally:
        running.terminate()
        running.wait(60)
