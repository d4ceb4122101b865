"""`nnclr space` writes a folder that runs without an installed package."""

import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from running_server import free_port, wait
from typer.testing import CliRunner

from app import gallery
from nnclr_hub.cli.app import app as cli

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
def space(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("hub") / "space"
    done = CliRunner().invoke(cli, ["space", str(folder)])
    assert done.exit_code == 0, done.output
    return folder


def test_the_folder_contains_what_a_space_needs(space):
    _, front, text = (space / "README.md").read_text().split("---\n", 2)
    fields = dict(line.split(": ", 1) for line in front.splitlines())
    assert (fields["sdk"], fields["app_file"]) == ("gradio", "app.py")
    assert re.fullmatch(r"\d+\.\d+\.\d+", fields["sdk_version"])
    assert "read-only" in text
    pins = (space / "requirements.txt").read_text().splitlines()
    assert [line for line in pins if line.startswith("torch==")]
    assert all("==" in line and "+" not in line for line in pins)
    assert not [line for line in pins if line.startswith(("gradio", "nnclr"))]
    for name in ("serving/api.py", "app/mount.py", "app/widgets/dom.js", "app/style/page.css", "cli/app.py"):
        assert (space / "nnclr_hub" / name).is_file(), name
    assert (space / "nnclr_hub/weights/nnclr_resnet18_free_starter/model.safetensors").stat().st_size > 10**7
    assert len(list((space / "images").rglob("*.jpg"))) == 300
    assert not list(space.rglob("*.pyc"))


def test_the_example_photos_are_included(space, monkeypatch):
    """Elsewhere they come from scikit-image, which a Space does not install."""
    assert not [line for line in (space / "requirements.txt").read_text().splitlines() if "scikit" in line]
    originals = gallery.examples()
    monkeypatch.setattr(gallery, "BUNDLED", space / "nnclr_hub/app/examples")
    copies = gallery.examples()
    assert list(copies) == list(originals) == ["a cat", "a person", "a rocket", "coffee"]
    for name, path in copies.items():
        assert path.is_relative_to(space)
        assert path.read_bytes() == originals[name].read_bytes()


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    done = CliRunner().invoke(cli, ["space", str(tmp_path)])
    assert done.exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.slow
def test_the_space_runs_where_the_package_is_not_installed(space, tmp_path):
    """The page responds, only the Hub can frame it, and nothing can be written."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("NNCLR_", "PYTHON"))}
    port = free_port()
    environment |= {"GRADIO_SERVER_PORT": str(port), "GRADIO_SERVER_NAME": "127.0.0.1", "SPACE_HOST": "me-it.hf.space"}
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
        url = f"http://127.0.0.1:{port}"
        wait_long(f"{url}/readyz", running, log)
        forwarded = {"Host": "me-it.hf.space", "X-Forwarded-Proto": "https"}
        page = httpx.get(f"{url}/ui/", headers=forwarded, timeout=60)
        assert page.status_code == 200
        assert "frame-ancestors https://huggingface.co;" in page.headers["Content-Security-Policy"]
        assert httpx.get(f"{url}/ui/", headers={"Host": "other.example"}).status_code == 403
        parts = httpx.get(f"{url}/ui/config", headers=forwarded, timeout=60).json()["components"]
        [tries] = [part["props"]["value"] for part in parts if part["props"].get("elem_id") == "tries"]
        assert len(tries) == 4
        [collection] = httpx.get(f"{url}/api/v1/collections").json()["collections"]
        assert collection["count"] == 300
        assert httpx.delete(f"{url}/api/v1/collections/{collection['name']}").status_code == 403
    finally:
        running.terminate()
        assert running.wait(60) == 0, log.read_text()


def wait_long(url: str, running: subprocess.Popen, log: Path) -> None:
    """Wait longer than usual: the Space indexes its images before it listens."""
    for _ in range(10):
        try:
            return wait(url)
        except pytest.fail.Exception:
            assert running.poll() is None, log.read_text()
    pytest.fail(log.read_text())
