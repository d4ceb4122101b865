"""The web app with API keys in a real browser: the session's cookie, logout, and what other origins can do with it."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from nnclr_hub.store import open_store
from nnclr_hub.workbench import Encoders, Workbench

pytestmark = pytest.mark.browser
READER = "reader-0123456789abcdef"


@pytest.fixture(scope="module")
def served(model, photos, tmp_path_factory, serve) -> Iterator:
    store = tmp_path_factory.mktemp("login") / "store"
    with open_store(str(store)) as opened:
        Workbench(Encoders(str(model), device="cpu"), opened).index_folder("photos", photos)
    yield from serve(model, store, page=True, api_keys=(f"phone:{READER}",))


@pytest.fixture
def page(opened):
    """Open the app and log in; its policy must block nothing."""
    page = opened(allowed=("401", "403"))
    page.locator("dialog[open] input").fill(READER)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_selector(".tile img")
    return page


def test_a_reader_searches_and_logs_out(page, served, image_files):
    assert page.evaluate("document.cookie") == ""
    [cookie] = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    page.set_input_files("query-bar input[type=file]", str(image_files[5]))
    page.wait_for_selector(".tile .score:not(:empty)")
    assert page.locator(".tile[aria-posinset='1'] .score").inner_text() == "●●●"
    status = "async url => (await fetch(url, {method: 'PUT', body: '{}'})).status"
    assert page.evaluate(status, f"{served.url}/api/v1/collections/x") == 403
    page.get_by_role("button", name="Log out").click()
    page.wait_for_selector("dialog[open] input[type=password]")
    assert page.context.cookies() == []


def test_a_page_of_another_origin_can_neither_read_nor_use_the_login(page, served):
    """Another port of this machine is another origin, but it has the same cookies."""

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<title>elsewhere</title>")

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    id = page.locator(".tile").first.get_attribute("data-id")
    image = f"{served.url}/api/v1/collections/photos/items/{id}/thumbnail"
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
            assert elsewhere.evaluate(loads, image) is False
            frame = """url => new Promise(done => { const frame = document.createElement('iframe');
                       frame.onload = () => { try { done(frame.contentDocument === null) } catch (e) { done(true) } };
                       frame.src = url; document.body.append(frame) })"""
            assert elsewhere.evaluate(frame, f"{served.url}/") is True
    finally:
        other.shutdown()
        thread.join()
        other.server_close()
    page.reload()
    page.wait_for_selector(".tile img")  # the other page did not log the user out
