"""The page behind keys, in a real browser: the login, the page under its Content-Security-Policy, the way out."""

import shutil
from collections.abc import Iterator

import pytest

from nnclr_hub.store import open_store
from nnclr_hub.workbench import Encoders, Workbench

CHROMIUM = shutil.which("chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
READER = "reader-0123456789abcdef"


@pytest.fixture(scope="module")
def served(model, photos, tmp_path_factory, serve) -> Iterator:
    store = tmp_path_factory.mktemp("login") / "store"
    with open_store(str(store)) as opened:
        Workbench(Encoders(str(model), device="cpu"), opened).index_folder("photos", photos)
    yield from serve(model, store, page=True, api_keys=(f"phone:{READER}",))


@pytest.fixture
def page(served) -> Iterator:
    """A browser at /; afterwards nothing may have been blocked by the policy, nor gone to another host."""
    if CHROMIUM is None:
        pytest.skip("there is no chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_context().new_page()
        wrong: list[str] = []
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on(
            "request", lambda r: wrong.append(r.url) if not r.url.startswith((served.url, "data:", "blob:")) else None
        )
        page.goto(served.url)
        yield page
        browser.close()
    # logging out leaves the page while it listens for events, which its script calls an error of its connection
    left = ("401", "AbortError", "Connection errored out")
    assert [line for line in wrong if not any(words in line for words in left)] == []


@pytest.mark.slow
@pytest.mark.browser
def test_a_person_logs_in_uses_the_page_and_logs_out(page, served, pictures):
    """Thumbnails, the page's events and an upload all work by the cookie, which scripts cannot read."""
    assert "/login" in page.url
    page.get_by_label("Your key for this server").fill("not-the-right-key-0123")
    page.get_by_role("button").click()
    assert "not one of this server" in page.get_by_role("alert").inner_text()
    page.get_by_label("Your key for this server").fill(READER)
    page.get_by_role("button").click()
    page.wait_for_selector("#tiles .image", timeout=60_000)
    assert page.url.partition("#")[0] == f"{served.url}/ui/"
    page.wait_for_function(
        "() => [...document.querySelectorAll('#tiles img')].slice(0, 8).every(i => i.naturalWidth > 0)"
    )
    page.set_input_files("#query input[type=file]", str(pictures[5]))
    page.wait_for_function("() => document.querySelector('#status').innerText.includes('most similar')")
    assert page.locator("#tiles .score").first.inner_text() == "1.000"
    assert page.evaluate("document.cookie") == ""
    cookie = page.context.cookies()[0]
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    status = "async url => (await fetch(url, {method: 'PUT', body: '{}'})).status"
    assert page.evaluate(status, f"{served.url}/api/v1/collections/x") == 401
    page.goto(f"{served.url}/login")
    page.get_by_role("button", name="Log out").click()
    page.goto(f"{served.url}/ui/")
    assert "/login" in page.url


@pytest.mark.browser
def test_a_page_elsewhere_can_neither_read_nor_use_the_login(page, served):
    """Another port of this machine is another origin, though its cookies are the same."""
    from http.server import BaseHTTPRequestHandler, HTTPServer
    from threading import Thread

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<title>elsewhere</title>")

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    page.get_by_label("Your key for this server").fill(READER)
    page.get_by_role("button").click()
    page.wait_for_selector("#tiles .image", timeout=60_000)
    image = page.locator("#tiles img").first.get_attribute("src")
    other = HTTPServer(("127.0.0.1", 0), Elsewhere)
    thread = Thread(target=other.serve_forever, args=(0.05,))
    thread.start()
    try:
        with page.context.new_page() as elsewhere:
            elsewhere.goto(f"http://127.0.0.1:{other.server_address[1]}/")
            read = """async url => { try { return await (await fetch(url, {credentials: 'include'})).text() }
                      catch (error) { return 'blocked' } }"""
            send = read.replace("{credentials", "{method: 'POST', mode: 'no-cors', credentials")
            assert elsewhere.evaluate(read, f"{served.url}/v1/models") == "blocked"
            assert elsewhere.evaluate(send, f"{served.url}/logout") == "blocked"
            loads = """url => new Promise(done => { const image = new Image(); image.onload = () => done(true);
                       image.onerror = () => done(false); image.src = url })"""
            assert elsewhere.evaluate(loads, served.url + image) is False
            frame = """url => new Promise(done => { const frame = document.createElement('iframe');
                       frame.onload = () => { try { done(frame.contentDocument === null) } catch (e) { done(true) } };
                       frame.src = url; document.body.append(frame) })"""
            assert elsewhere.evaluate(frame, f"{served.url}/ui/") is True
    finally:
        other.shutdown()
        thread.join()
        other.server_close()
    page.reload()
    page.wait_for_selector("#tiles .image", timeout=60_000)
    assert page.url.partition("#")[0] == f"{served.url}/ui/", "the page elsewhere could not log the person out"
