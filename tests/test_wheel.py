"""Check the wheel: it installs one top-level package, and the server starts from it."""

import json
import os
import subprocess
import sys
import sysconfig
import urllib.request
import venv
import zipfile
from pathlib import Path

import pytest
from waiting import free_port, until_served

ROOT = Path(__file__).parents[1]
# larger networks are only in a checkout, because PyPI takes files of up to 100 MB; so is the narrow ResNet-18
INSIDE = {"nnclr_resnet18_starter", "nnclr_resnet18_free_starter"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


def test_the_wheel_contains_one_package_and_a_starter(wheel):
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"nnclr_hub"}
    assert {"nnclr_hub/training/pretrain.py", "nnclr_hub/py.typed"} <= set(names)
    assert {name.split("/")[2] for name in names if name.startswith("nnclr_hub/weights/")} == INSIDE
    assert wheel.stat().st_size < 70e6


def test_an_installed_wheel_serves(wheel, tmp_path):
    # The environment sees installed packages but not this checkout, and another package named `app` comes first.
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    site = next((tmp_path / "env" / "lib").glob("python*")) / "site-packages"
    with zipfile.ZipFile(wheel) as file:
        file.extractall(site)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "app.py").write_text("raise RuntimeError('the wrong app')")
    # An editable install of this checkout must not leak into the environment.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment["NNCLR_BACKEND"] = "onnx"  # the wheel contains the graph of a starter, so torch is not imported
    shared = (
        "import sys, site; sys.path[:] = [p for p in sys.path if p != {root!r}]; sys.path.append({packages!r}); "
        "import nnclr_hub; assert nnclr_hub.__file__.startswith({site!r}), nnclr_hub.__file__; "
        "from nnclr_hub.cli import main; main()"
    ).format(root=str(ROOT), packages=sysconfig.get_paths()["purelib"], site=str(site))
    port = free_port()
    arguments = ["serve", "--port", str(port), "--store", "store"]
    with subprocess.Popen(
        [python, "-c", shared, *arguments], cwd=tmp_path / "work", env=environment, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            until_served(f"http://127.0.0.1:{port}/readyz", server)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models") as answer:
                assert {one["id"] for one in json.load(answer)["data"]} == INSIDE
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as answer:
                assert b"nnclr_hub" in answer.read()
        finally:
            server.terminate()
            assert server.stderr is not None
            sys.stderr.write(server.stderr.read())  # shown if the test fails
        assert server.wait(120) == 0
