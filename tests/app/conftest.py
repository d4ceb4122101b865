"""A browser for the tests of the page, one a module; and what each page that was opened must not have done."""

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from browsing import open_tab

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
]
DESKTOP = {"viewport": {"width": 1440, "height": 900}}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A module's own, for while it lives its thread has an event loop that other tests would stumble over."""
    if CHROMIUM is None:
        pytest.skip("there is no chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium, served) -> Iterator[Callable[..., Any]]:
    """opened(tab="Search", path="/ui/", allowed=(), **context) -> a page of the module's server, on a tab.

    Afterwards nothing may have failed in a console (but for lines with a word of `allowed`), nor gone to another host.
    """
    contexts: list[Any] = []
    wrong: list[str] = []

    def open_page(tab: str | None = None, path: str = "/ui/", allowed: tuple[str, ...] = (), **context: Any) -> Any:
        contexts.append(chromium.new_context(**(DESKTOP | context)))
        page = contexts[-1].new_page()
        page.set_default_timeout(60_000)

        def note(line: str) -> None:
            if not any(word in line for word in allowed):
                wrong.append(line)

        page.on("console", lambda message: note(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: note(str(error)))
        page.on("request", lambda r: note(r.url) if not r.url.startswith((served.url, "data:", "blob:")) else None)
        page.goto(served.url + path)
        if tab is not None:
            open_tab(page, tab)
        return page

    yield open_page
    for one in contexts:
        one.close()
    assert wrong == []
