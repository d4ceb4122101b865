"""The page while its server is killed and restarted: jobs that were started continue."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from page_actions import INTERRUPTED, open_tab, wait_for
from PIL import Image
from running_server import free_port, wait

import nnclr_hub
from nnclr_hub.store import open_store

pytestmark = [pytest.mark.browser, pytest.mark.slow]
IMAGES = 480
# what a browser and Gradio report while the server is down
DOWN = ("ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_INCOMPLETE_CHUNKED", "ERR_EMPTY_RESPONSE")
DOWN += ("Failed to fetch", "network error", "TypeError", "Connection", *INTERRUPTED)


class Server:
    """`nnclr serve` in a process, always on the same port."""

    def __init__(self, model: Path, store: Path) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._command = [sys.executable, "-m", "nnclr_hub.cli", "serve", "--model", str(model), "--store", str(store)]
        self._command += ["--port", str(port)]
        self.start()

    def start(self) -> None:
        folder = Path(nnclr_hub.__file__).parents[1]
        self.process = subprocess.Popen(self._command, cwd=folder, stderr=subprocess.DEVNULL)
        wait(f"{self.url}/readyz")

    def end(self, how: signal.Signals) -> None:
        self.process.send_signal(how)
        self.process.wait(60)


@pytest.fixture
def served(model, tmp_path) -> Iterator[SimpleNamespace]:
    server = Server(model, tmp_path / "store")
    yield SimpleNamespace(url=server.url, server=server, store=tmp_path / "store")
    server.end(signal.SIGTERM)


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder of different images."""
    for i in range(IMAGES):
        path = tmp_path / "many" / "ab"[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((96, 96), 60 + i % 40).convert("RGB").save(path)
    return tmp_path / "many"


def test_a_job_and_the_page_continue_after_kill_9(opened, served, folder):
    page = opened("Collections", allowed=DOWN)
    wait_for(page, "no collection yet", "#items-status")
    page.fill("#new-name input, #new-name textarea", "many")
    page.click("#create")
    wait_for(page, "many is empty", "#items-status")
    page.set_input_files("#uploader .choose-folder", str(folder))
    page.wait_for_selector("#jobs .job.running")
    served.server.end(signal.SIGKILL)
    page.locator("#jobs .jobs-offline").wait_for()
    served.server.start()
    page.wait_for_selector("#jobs .job.done")
    assert f"Added {IMAGES} images to many." in page.inner_text("#jobs .job")
    assert "already" not in page.inner_text("#jobs .job")
    page.locator("#jobs .jobs-offline").wait_for(state="hidden")
    page.reload()
    open_tab(page, "Collections")
    wait_for(page, f"of {IMAGES} in many", "#items-status")
    served.server.end(signal.SIGTERM)
    with open_store(str(served.store)) as store:
        assert store.get("many").count() == IMAGES
        assert store.get("many").verify().ok
    served.server.start()
