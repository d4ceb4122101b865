"""The page in a real browser, and what a mounted Gradio app must not give away."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from nnclr_hub.store import open_store
from nnclr_hub.workbench import Encoders, Workbench

CHROMIUM = shutil.which("chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]


@pytest.fixture(scope="module")
def served(model, photos, tmp_path_factory, serve):
    """A server with the page and the photos in a collection."""
    store = tmp_path_factory.mktemp("page") / "store"
    with open_store(str(store)) as opened:
        Workbench(Encoders(str(model), device="cpu"), opened).index_folder("photos", photos)
    yield from serve(model, store, page=True)


@pytest.fixture
def page(served) -> Iterator:
    """A page opened at /; afterwards nothing may have failed in the console or gone to another host."""
    if CHROMIUM is None:
        pytest.skip("there is no chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        wrong: list[str] = []
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on(
            "request", lambda r: wrong.append(r.url) if not r.url.startswith((served.url, "data:", "blob:")) else None
        )
        page.goto(served.url)
        page.wait_for_selector("#tiles .picture", timeout=60_000)
        yield page
        browser.close()
    assert wrong == []


def captions(page) -> list[str]:
    return page.locator("#tiles .caption").all_inner_texts()


def wait_for(page, words: str) -> None:
    page.wait_for_function("words => document.querySelector('#status').innerText.includes(words)", arg=words)


@pytest.mark.browser
def test_a_click_searches_and_another_click_searches_on(page):
    """Tiles come from the thumbnails; the clicked picture stands first with 1.000, and a hit becomes the next query."""
    assert page.url.endswith("/ui/")
    page.wait_for_function(
        "() => [...document.querySelectorAll('#tiles img')].slice(0, 8).every(i => i.naturalWidth > 0)"
    )
    page.locator("#tiles .picture").nth(2).click()
    wait_for(page, "you clicked")
    first = captions(page)
    assert len(first) == 13
    assert first[0].startswith("1.000")
    scores = [float(caption.split()[0]) for caption in first]
    assert scores == sorted(scores, reverse=True)
    chosen = page.locator("#tiles .picture").nth(3).get_attribute("data-id")
    page.locator("#tiles .picture").nth(3).click()
    page.wait_for_function("id => document.querySelector('#tiles .picture').dataset.id === id", arg=chosen)
    page.locator("#back").click()
    wait_for(page, "holds 60 pictures")


@pytest.mark.browser
def test_an_upload_finds_itself_and_another_k_repeats_the_search(page, pictures):
    page.set_input_files("#query input[type=file]", str(pictures[5]))
    wait_for(page, "your picture, in")
    best = captions(page)[0]
    assert best.startswith("1.000")
    assert pictures[5].parent.name in best
    page.locator("#k input[type=number]").fill("3")
    page.locator("#k input[type=number]").press("Tab")
    wait_for(page, "3 nearest")
    assert len(captions(page)) == 3


@pytest.mark.browser
def test_a_broken_upload_is_one_sentence_and_changes_nothing(page, tmp_path, capfd):
    before = captions(page)
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"nonsense")
    page.set_input_files("#query input[type=file]", str(broken))
    page.wait_for_selector(".toast-body")
    assert "not a picture in a format we read" in page.inner_text(".toast-body")
    assert str(tmp_path) not in page.inner_text(".toast-body")
    page.wait_for_timeout(500)
    assert captions(page) == before
    assert "Traceback" not in capfd.readouterr().err, "the server failed on what it sent"


@pytest.mark.browser
def test_it_fits_a_telephone_and_the_keyboard_reaches_the_tiles(page):
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.locator("#tiles .picture").first.focus()
    page.keyboard.press("Enter")
    wait_for(page, "you clicked")


# ---- the three holes


def call(url: str, name: str, data: list) -> str:
    """What an endpoint of the page answers, as a client that ignores the page would ask."""
    config = httpx.get(f"{url}/ui/config").json()
    function = next(f for f in config["dependencies"] if f["api_name"] == name)
    body = {"data": data, "fn_index": function["id"], "session_hash": "s"}
    return httpx.post(f"{url}/ui/gradio_api/run/predict", json=body, timeout=30).text


def test_server_files_are_not_given_away(served, tmp_path):
    """A path in place of an upload is refused by the event, and the file route gives nothing out."""
    secret = tmp_path / "secret.txt"
    secret.write_text("the secret")
    file = {"path": str(secret), "meta": {"_type": "gradio.FileData"}}
    answer = call(served.url, "search_picture", [file, "photos", 5])
    assert "the secret" not in answer
    assert "nearest" not in answer
    assert httpx.get(f"{served.url}/ui/gradio_api/file={secret}").status_code in (403, 404)


def test_addresses_are_not_fetched_for_clients(served):
    for path in (
        "file=http://127.0.0.1:9/x",
        "file=https://example.com/x",
        "proxy=http://127.0.0.1:9/x",
        "file%3Dhttp://x",
    ):
        assert httpx.get(f"{served.url}/ui/gradio_api/{path}").status_code in (403, 404), path
    file = {"path": f"{served.url}/favicon.ico", "meta": {"_type": "gradio.FileData"}}
    assert "nearest" not in call(served.url, "search_picture", [file, "photos", 5])


def test_the_page_has_no_event_that_writes(served, photos):
    names = {f["api_name"] for f in httpx.get(f"{served.url}/ui/config").json()["dependencies"]}
    allowed = {"start", "browse", "browse_1", "browse_2", "search_picture", "search_clicked", "search_again"}
    assert names <= allowed, names


def test_an_empty_store_says_what_to_do(model, tmp_path, serve):
    for served in serve(model, tmp_path / "store", page=True):
        assert "nnclr index" in call(served.url, "start", [])


def test_the_offline_gallery_is_made_of_photos_that_are_installed(tmp_path):
    from app.gallery import PHOTOS, offline_gallery

    folder = offline_gallery(tmp_path / "photos")
    assert sorted(path.name for path in folder.iterdir()) == sorted(PHOTOS)
    assert len(list(folder.rglob("*.jpg"))) == 25 * len(PHOTOS)
    assert offline_gallery(Path(folder)) == folder


def test_a_download_that_fails_falls_back_to_the_photos(tmp_path, monkeypatch):
    from app import gallery

    def cut_off(*_, **__):
        (tmp_path / "imagenette2-160" / "val").mkdir(parents=True)
        raise RuntimeError("the connection broke")

    monkeypatch.setattr(gallery, "_reachable", lambda: True)
    monkeypatch.setattr("torchvision.datasets.Imagenette", cut_off)
    folder, told = gallery.default_gallery(tmp_path)
    assert folder == tmp_path / "photos"
    assert "no network" in told
