"""/docs: made of the server's own files alone, and in a real browser its examples run."""

import re
import shutil
from collections.abc import Iterator

import pytest

from serving.openapi import document, operations

CHROMIUM = shutil.which("chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]


def test_the_page_shows_every_operation_and_loads_nothing_from_elsewhere(client, server):
    page = client.get("/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    for name in operations(document()):
        assert f'<details id="{name}">' in page.text
    loaded = re.findall(r'(?:src|href)="([^#][^"]*)"', page.text)
    assert sorted(loaded) == ["docs/docs.css", "docs/docs.js", "openapi.json"]
    assert all(client.get(f"/{path}").status_code == 200 for path in loaded)
    assert not re.search(r"<script>|<style|style=| on\w+=", page.text)
    assert f"{server.url}/api/v1/embed" in page.text


def test_a_host_header_cannot_write_into_the_page(client):
    response = client.get("/docs", headers={"Host": 'localhost:1"><script>alert(1)</script>'})
    assert (response.status_code, response.headers["content-type"]) == (403, "application/problem+json")


@pytest.fixture
def page(server) -> Iterator:
    """The page in a browser; afterwards nothing may have failed, or been refused by its policy."""
    if CHROMIUM is None:
        pytest.skip("there is no chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        wrong: list[str] = []
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(f"{server.url}/docs#embed-embed")
        yield page
        browser.close()
    assert wrong == []


def run(page, operation: str, number: int = 0) -> str:
    """Runs an example of an operation and returns what the page shows."""
    page.evaluate("name => { document.getElementById(name).open = true }", operation)
    form = page.locator(f"#{operation} form.run").nth(number)
    form.locator("button").click()
    output = form.locator("output")
    page.wait_for_function("box => box.textContent.length > 3", arg=output.element_handle())
    return output.inner_text()


@pytest.mark.browser
def test_examples_run_in_a_browser(page, client, image_files):
    assert page.locator("#embed-embed").get_attribute("open") is not None
    assert run(page, "embed-embed") == "Choose an image at the top of the page first."
    page.locator("#photo").set_input_files(str(image_files[0]))
    for operation, part in (
        ("health-healthz", '"status": "ok"'),
        ("embed-embed", "application/x-npy"),
        ("openai-embeddings", '"object": "list"'),
        ("collections-create", '"name": "photos"'),
        ("items-add-images", '"id": "tom"'),
        ("search-search", '"matches"'),
    ):
        shown = run(page, operation)
        assert shown.startswith("20"), shown
        assert part in shown
        assert "total;dur=" in shown
    run(page, "items-thumbnail")
    page.wait_for_function("() => document.querySelector('#items-thumbnail output img').naturalWidth > 0")
    client.delete("/api/v1/collections/photos")
