"""The page with API keys in a real browser: login, the page under its Content-Security-Policy, logout."""

from collections.abc import Iterator

import pytest

from nnclr_hub.store import open_store
from nnclr_hub.workbench import Encoders, Workbench

READER = "reader-0123456789abcdef"


@pytest.fixture(scope="module")
def served(model, photos, tmp_path_factory, serve) -> Iterator:
    store = tmp_path_factory.mktemp("login") / "store"
    with open_store(str(store)) as opened:
        Workbench(Encoders(str(model), device="cpu"), opened).index_folder("photos", photos)
    yield from serve(model, store, page=True, api_keys=(f"phone:{READER}",))


@pytest.fixture
def page(opened):
    """Open the server's address; its policy must block nothing.

    Gradio reports the event stream that logging out closes as a connection error.
    """
    return opened(path="", allowed=("401", "403", "AbortError", "Connection errored out"))


@pytest.mark.slow
@pytest.mark.browser
def test_a_user_logs_in_searches_and_logs_out(page, served, image_files):
    """Thumbnails, events and uploads are authorized by a cookie that scripts cannot read."""
    assert "/login" in page.url
    page.locator("input[type=password]").fill("not-the-right-key-0123")
    page.get_by_role("button").click()
    page.get_by_role("alert").wait_for()
    page.locator("input[type=password]").fill(READER)
    page.get_by_role("button").click()
    page.wait_for_selector("#tiles .image", timeout=60_000)
    assert page.url.partition("#")[0] == f"{served.url}/ui/"
    page.wait_for_function(
        "() => [...document.querySelectorAll('#tiles img')].slice(0, 8).every(i => i.naturalWidth > 0)"
    )
    page.set_input_files("#query input[type=file]", str(image_files[5]))
    page.wait_for_function("() => document.querySelector('#status').innerText.includes('most similar')")
    assert page.locator("#tiles .score").first.inner_text() == "1.000"
    assert page.evaluate("document.cookie") == ""
    cookie = page.context.cookies()[0]
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    status = "async url => (await fetch(url, {method: 'PUT', body: '{}'})).status"
    assert page.evaluate(status, f"{served.url}/api/v1/collections/x") == 403
    page.goto(f"{served.url}/login")
    page.get_by_role("button", name="Log out").click()
    page.goto(f"{served.url}/ui/")
    assert "/login" in page.url


@pytest.mark.browser
def test_a_page_of_another_origin_can_neither_read_nor_use_the_login(page, served):
    """Another port of this machine is another origin, but it has the same cookies."""
    from http.server import BaseHTTPRequestHandler, HTTPServer
    from threading import Thread

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<title>elsewhere</title>")

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    page.locator("input[type=password]").fill(READER)
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
    assert page.url.partition("#")[0] == f"{served.url}/ui/", "the other page must not log the user out"
