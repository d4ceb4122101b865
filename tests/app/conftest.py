"""A browser for the tests of the web app, one per module, and checks of each page that a test opens."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nnclr_hub.store import open_store
from nnclr_hub.workbench import Encoders, Workbench

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--no-sandbox",
    "--use-angle=swiftshader",  # WebGL without a graphics card
    "--enable-unsafe-swiftshader",
    "--disable-gpu-compositing",  # its pages would be drawn through WebGL, too, which takes most of a test's time
    "--disable-background-networking",
    "--no-first-run",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
]
DESKTOP = {"viewport": {"width": 1440, "height": 900}}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Start one browser per module: while it runs, its thread has an event loop, which would disturb other tests."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def indexed(model, photos, tmp_path_factory) -> Path:
    """Return a store with the photos in a collection; see `filled`."""
    store = tmp_path_factory.mktemp("indexed") / "store"
    with open_store(str(store)) as opened:
        Workbench(Encoders(str(model), device="cpu"), opened).index_folder("photos", photos)
    return store


@pytest.fixture(scope="module")
def filled(indexed, tmp_path_factory) -> Path:
    """Return a copy of the store that the tests of a module may change."""
    return shutil.copytree(indexed, tmp_path_factory.mktemp("filled") / "store")


@pytest.fixture(scope="module")
def served(model, photos, filled, serve) -> Iterator:
    """Serve the web app, and the photos in a collection whose source files it may read."""
    yield from serve(model, filled, page=True, source_folders=[str(photos)])


@pytest.fixture(scope="module")
def desktop(chromium) -> Iterator[Any]:
    """Return a context for most tests of a module, which keeps the files of the app; see `opened`."""
    context = chromium.new_context(**DESKTOP)
    yield context
    context.close()


@pytest.fixture
def opened(desktop, chromium, served) -> Iterator[Callable[..., Any]]:
    """Return opened(path="/", allowed=(), **context), which opens a page of the module's server as on a first visit.

    Afterwards, the console must have no errors (except lines with a word of `allowed`), and no request may have gone to
    another host. The first page of each test is the same one, because the process of a page takes longer to start than
    most tests; options of a context give a new one, which a test needs that changes more than the page shows.
    """
    main = desktop.pages[0] if desktop.pages else desktop.new_page()
    contexts: list[Any] = []
    pages: list[Any] = []
    expected: list[str] = []
    problems: list[str] = []

    def note(line: str) -> None:
        if not any(word in line for word in expected):
            problems.append(line)

    listeners: dict[str, Callable[[Any], None]] = {
        "console": lambda message: note(message.text) if message.type == "error" else None,
        "pageerror": lambda error: note(str(error)),
        "request": lambda r: note(r.url) if not r.url.startswith((served.url, "data:", "blob:")) else None,
    }

    def accept(dialog: Any) -> None:
        dialog.accept()

    def open_page(path: str = "/", allowed: tuple[str, ...] = (), **context: Any) -> Any:
        expected.extend(allowed)
        if context:
            contexts.append(chromium.new_context(**(DESKTOP | context)))
        page = contexts[-1].new_page() if context else desktop.new_page() if main in pages else main
        pages.append(page)
        page.set_default_timeout(60_000)
        for event, listener in listeners.items():
            page.on(event, listener)
        page.goto(served.url + path)
        return page

    yield open_page
    for one in [*pages, *contexts]:
        if one is not main:
            one.close()
    if main in pages and not main.is_closed():
        for event, listener in listeners.items():
            main.remove_listener(event, listener)
        main.unroute_all(behavior="ignoreErrors")
        main.on("dialog", accept)  # an upload asks before its page is left
        main.goto(f"{served.url}/app/icon.svg")
        main.remove_listener("dialog", accept)
        main.evaluate("localStorage.clear(), sessionStorage.clear()")
        main.set_viewport_size(DESKTOP["viewport"])
        main.mouse.move(0, 0)
    desktop.clear_cookies()
    assert problems == []


@pytest.fixture
def explore(opened: Callable[..., Any]) -> Callable[..., Any]:
    """Return explore(address="", **context), which opens the collection `photos` and waits for its first images."""

    def open_explore(address: str = "", **context: Any) -> Any:
        page = opened(path=f"/#/explore/photos{address}", **context)
        page.wait_for_selector(".tile img")
        page.wait_for_function("() => document.querySelector('.verdict').textContent.length > 0")
        return page

    return open_explore


@pytest.fixture(scope="module")
def axe(tmp_path_factory) -> str:
    """Return the script of axe-core: the file that NNCLR_AXE names, or the package from npm."""
    path = os.environ.get("NNCLR_AXE")
    if path is None:
        if shutil.which("npm") is None:
            pytest.skip("axe-core is missing: set NNCLR_AXE to axe.min.js, or install npm")
        folder = tmp_path_factory.mktemp("axe")
        done = subprocess.run(["npm", "install", "--silent", "axe-core@4"], cwd=folder, timeout=120)
        if done.returncode:
            pytest.skip("npm could not download axe-core")
        path = folder / "node_modules/axe-core/axe.min.js"
    return Path(path).read_text()
