"""The other pages of the web app, keys, logins, calls and lost servers, in a real browser."""

import json
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from explore_actions import found
from fake_runs import write_run
from PIL import Image

from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec
from nnclr_hub.workbench.sources import read_original

pytestmark = pytest.mark.browser
# errors that are allowed below: 401 before a login, 404 for an image of a card whose collection is just gone
MINE = "Ferien 2024 ü"
KEY = "a-key-that-nobody-guesses-0123456789"
READER = "reader-0123456789abcdef"
ODD = 'the "so" $HOME `id` \\ & é, {x} #1; true.jpg'
LABEL = 'it\'s "true" $HOME'


@pytest.fixture(scope="module")
def served(model, filled, photos, tmp_path_factory, serve) -> Iterator:
    runs = tmp_path_factory.mktemp("runs")
    write_run(runs / "first", step=40)
    yield from serve(
        model,
        filled,
        page=True,
        write_keys=[KEY],
        api_keys=(f"phone:{READER}",),
        runs=runs,
        originals_bytes=10**8,
        source_folders=[photos],
    )


def log_in(page, key: str = KEY) -> None:
    page.locator("dialog[open] input").fill(key)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_selector("dialog[open]", state="detached")


def test_a_wrong_key_is_refused_and_the_right_one_goes_on(opened):
    page = opened(path="/#/explore/photos", allowed=("401",))
    page.locator("dialog[open] input").fill("wrong")
    page.get_by_role("button", name="Log in").click()
    page.wait_for_selector("dialog[open] [role=alert]:not(:empty)")
    log_in(page)
    page.wait_for_selector(".tile img")


def test_an_ended_session_asks_again_and_repeats_the_action(opened):
    page = opened(path="/#/explore/photos", allowed=("401",))
    log_in(page)
    page.wait_for_selector(".tile img")
    page.context.clear_cookies()
    # a request still in flight may have opened the dialog already, which the mouse could not pass
    page.evaluate("""() => document.querySelector('.sheet').dispatchEvent(
        new KeyboardEvent('keydown', {key: 's', bubbles: true}))""")
    log_in(page)
    found(page)


def test_a_lost_server_shows_itself_and_recovers_without_a_reload(opened):
    page = opened(path="/#/explore/photos", allowed=("401", "ERR_FAILED"))
    log_in(page)
    page.wait_for_selector(".tile img")
    page.route("**/*", lambda route: route.abort())
    page.locator(".sheet").focus()
    page.keyboard.press("s")
    page.wait_for_selector("#connection:not([hidden])")
    page.unroute("**/*")
    found(page)
    assert page.locator("#connection").is_hidden()


def test_a_collection_is_created_filled_and_deleted(opened, served, photos, tmp_path):
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no image")
    files = [*sorted((photos / "cat").iterdir())[:3], broken]
    page = opened(path="/#/collections", allowed=("401", "404"))
    log_in(page)
    page.get_by_role("button", name="New collection").click()
    for wrong, text in (("a/b", "slash"), ("photos", "photos")):  # the dialog stays open
        page.get_by_label("Name", exact=True).fill(wrong)
        page.get_by_role("button", name="Create", exact=True).click()
        page.wait_for_selector(f"dialog[open] [role=alert]:has-text('{text}')")
    page.get_by_label("Name", exact=True).fill(f" {MINE}")
    assert page.get_by_label("half-whitened").is_checked()
    page.get_by_role("button", name="Create", exact=True).click()
    card = page.locator("article", has_text=MINE)
    card.locator("input[type=file]").first.set_input_files(files)
    page.wait_for_function("() => document.body.innerText.includes('3 images added, 1 could not be read')")
    collection = served.bench.collection(MINE)
    assert collection.spec.vectors == "half_whiten"
    kept = {read_original(collection, item.id, [], served.bench.originals).data for item in collection.scroll().items}
    assert kept == {path.read_bytes() for path in files[:3]}
    card.get_by_role("link", name=MINE).click()
    page.wait_for_selector(".tile img[src]")
    page.get_by_role("button", name="Probe").click()
    page.wait_for_selector("dialog[open]")
    page.go_back()
    page.wait_for_selector("dialog[open]", state="detached")
    page.get_by_label(MINE).get_by_role("button", name="Delete").click()
    delete = page.get_by_role("button", name="Delete 3 images")
    assert delete.is_disabled()
    page.get_by_label("Name of the collection").fill(MINE)
    delete.click()
    page.wait_for_function("name => !document.querySelector(`article[aria-label='${name}']`)", arg=MINE)
    assert MINE not in [info.name for info in served.bench.store.list()]


def drop(page, paths, where: str) -> None:
    """Drop files or folders of the disk, as a person does."""
    box = page.locator(where).bounding_box()
    place = {"x": box["x"] + box["width"] / 2, "y": box["y"] + min(box["height"] - 2, 20)}
    session = page.context.new_cdp_session(page)
    for kind in ("dragEnter", "dragOver", "drop"):
        data = {"items": [], "files": list(map(str, paths)), "dragOperationsMask": 1}
        session.send("Input.dispatchDragEvent", {"type": kind, **place, "data": data})


def test_an_image_that_is_dropped_on_an_empty_collection_is_added(opened, served, photos):
    served.bench.store.create("empty", served.bench.collection("photos").spec)
    page = opened(path="/#/explore/empty", allowed=("401", "404"))
    log_in(page)
    page.locator(".empty:has-text('Drop images here')").wait_for()
    drop(page, sorted((photos / "cat").iterdir())[:1], ".scroller")
    page.wait_for_selector(".tile img[src]")
    assert served.bench.collection("empty").count() == 1
    page.locator(".sheet").focus()
    page.keyboard.press("s")
    page.locator(".verdict:has-text('no other image')").wait_for()
    assert "filters" not in page.locator("image-grid").inner_text()
    page.get_by_role("button", name="End the search").click()
    page.locator(".tile").first.wait_for()
    page.locator(".sheet").focus()
    page.keyboard.press("l")
    page.get_by_role("combobox", name="Label", exact=True).fill("x")
    page.keyboard.press("Enter")
    page.locator(".message:has-text('label x')").wait_for()
    served.bench.drop("empty")
    page.keyboard.press("Control+z")
    page.locator(".message.error").wait_for()
    page.keyboard.press("Control+z")
    page.locator(".message:has-text('nothing to undo')").wait_for()


def test_dropped_files_are_added_where_they_are_dropped(opened, served, photos, tmp_path):
    folder = tmp_path / "holidays"
    for label in ("cat", "dog"):
        (folder / label).mkdir(parents=True)
    images = [Image.open(path).convert("RGB") for path in sorted((photos / "cat").iterdir())[:4]]
    for number, image in enumerate(images):
        image.save(folder / ("cat", "dog")[number % 2] / f"{number}.ppm")  # a format that browsers cannot show
    (folder / "notes.txt").write_text("no image")
    page = opened(path="/#/collections", allowed=("401", "404"))
    log_in(page)
    page.wait_for_selector("article")
    drop(page, [folder], ".page > header")
    page.wait_for_url("**/#/explore/holidays", timeout=60_000)
    page.wait_for_selector(".tile img[src]")
    items = served.bench.collection("holidays").scroll().items
    assert sorted(item.metadata["path"] for item in items) == ["cat/0.ppm", "cat/2.ppm", "dog/1.ppm", "dog/3.ppm"]
    assert {item.metadata["label"] for item in items} == {"cat", "dog"}
    drop(page, sorted((photos / "cat").iterdir())[4:7], ".scroller")
    page.get_by_role("button", name="Add to holidays").click()
    page.wait_for_selector(".message:has-text('3 images added')")
    page.wait_for_function("() => document.querySelector('.verdict').textContent === '7 images'")
    page.goto(f"{served.url}/#/collections")
    drop(page, sorted((photos / "cat").iterdir())[7:8], "article[aria-label='holidays'] h2")
    page.wait_for_selector(".message:has-text('1 image added')")
    assert served.bench.collection("holidays").count() == 8
    page.goto(f"{served.url}/#/api")
    page.wait_for_selector("h1:has-text('API')")
    drop(page, [folder / "notes.txt"], "h1")
    assert page.locator("h1").inner_text() == "API", "the browser must not open the file"
    served.bench.drop("holidays")


def test_an_empty_store_offers_a_sample_gallery_and_takes_folders(
    model, photos, chromium, serve, tmp_path, monkeypatch
):
    monkeypatch.setattr("app.web_app.SAMPLES", 3)
    open_store(str(tmp_path / "store")).close()
    for served in serve(model, tmp_path / "store", page=True, source_folders=[str(photos.parent), str(photos)]):
        page = chromium.new_page(viewport={"width": 1440, "height": 900})
        page.set_default_timeout(60_000)
        page.goto(served.url)
        page.route("**/session", lambda route: route.fulfill(json=route.fetch().json() | {"source_folders": []}))
        page.get_by_role("button", name="A folder of this computer").click()
        page.wait_for_selector("dialog[open]")
        assert page.locator("dialog[open] form button:visible").count() == 0, "nothing can be added"
        page.keyboard.press("Escape")
        page.unroute("**/session")
        page.get_by_role("button", name="Sample gallery").click()
        page.wait_for_url("**/#/explore/sample", timeout=120_000)
        page.wait_for_selector("item-map > .tools:not([hidden])", timeout=120_000)
        assert {item.metadata["label"] for item in served.bench.collection("sample").scroll(limit=200).items} > {"star"}
        served.bench.drop("sample")
        page.goto(f"{served.url}/#/collections")
        page.reload()
        page.get_by_role("button", name="A folder of this computer").click()
        page.locator("dialog[open] select").select_option(photos.name)
        page.get_by_label("Folder in the source folder").fill("cat")
        page.get_by_role("button", name="Add", exact=True).click()
        page.wait_for_url("**/#/explore/cat", timeout=120_000)
        assert served.bench.collection("cat").count() == 20
        served.bench.drop("cat")
        page.goto(f"{served.url}/#/collections")
        page.reload()
        page.wait_for_selector(".zone")
        page.evaluate("""() => {
            const send = window.fetch;  // a slow server
            window.fetch = async (url, init) => {
                if (init?.method === 'POST' && String(url).endsWith('/inspections'))
                    await new Promise(done => setTimeout(done, 2000));
                return send(url, init);
            };
        }""")
        drop(page, [photos / "coffee"], ".zone h2")
        page.wait_for_url("**/#/explore/coffee", timeout=120_000)
        page.wait_for_selector("item-map > .tools:not([hidden])")
        assert served.bench.collection("coffee").count() == 20
        page.close()


def test_a_table_in_a_folder_labels_its_images(opened, served, photos, tmp_path):
    folder = tmp_path / "trip"
    folder.mkdir()
    for number, path in enumerate(sorted((photos / "cat").iterdir())[:4]):
        (folder / f"{number}.jpg").write_bytes(path.read_bytes())
    (folder / "labels.csv").write_text("path,label,split\n" + "".join(f"{i}.jpg,kitten,test\n" for i in range(4)))
    page = opened(path="/#/collections", allowed=("401", "404"))
    log_in(page)
    page.wait_for_selector("article")
    drop(page, [folder], ".page > header")
    page.wait_for_selector(".message:has-text('4 images labeled, with split')", timeout=60_000)
    items = served.bench.collection("trip").scroll().items
    assert [(one.metadata["label"], one.metadata["split"]) for one in items] == [("kitten", "test")] * 4
    served.bench.drop("trip")  # while the page asks for its map


def test_a_collection_is_renamed_and_merged(opened, served, photos):
    collection = served.bench.collection("photos")
    items = collection.get([item.id for item in collection.scroll(limit=5).items])
    served.bench.store.create("few", collection.spec).upsert(items[:3])
    served.bench.store.create("more", collection.spec).upsert(items[2:])
    page = opened(path="/#/collections", allowed=("401", "404", "409"))
    log_in(page)
    page.get_by_label("few", exact=True).get_by_role("button", name="Manage").click()
    page.get_by_label("Name", exact=True).fill("photos")
    page.get_by_role("button", name="Rename").click()
    problem = page.locator(".message.error")
    problem.wait_for()
    assert problem.inner_text().count(".") == 1
    page.get_by_label("Name", exact=True).fill("Ferien ü")
    page.get_by_role("button", name="Rename").click()
    page.get_by_label("Ferien ü", exact=True).get_by_role("button", name="Manage").click()
    page.get_by_label("Merge into", exact=True).select_option("more")
    page.get_by_role("button", name="Merge into it").click()
    page.wait_for_selector(".message:has-text('part of more')")
    page.wait_for_selector("article[aria-label='Ferien ü']", state="detached")
    merged = served.bench.collection("more").get([item.id for item in items])
    assert [(a.id, a.metadata, a.thumbnail) for a in merged] == [(b.id, b.metadata, b.thumbnail) for b in items]
    served.bench.drop("more")


def test_an_archive_is_imported_and_its_errors_are_listed(opened, served, photos, tmp_path):
    served.bench.store.create("zipped", CollectionSpec.of(served.bench.models.get()))
    with zipfile.ZipFile(tmp_path / "pets.zip", "w") as archive:
        for path in sorted((photos / "cat").iterdir())[:3]:
            archive.write(path, f"pets/cat/{path.name}")
        archive.writestr("pets/cat/broken.jpg", b"no image")
        archive.writestr("pets/cat/notes.txt", b"no image either")
    page = opened(path="/#/collections", allowed=("401", "404"))
    log_in(page)
    page.get_by_label("zipped", exact=True).locator("input[type=file]").nth(2).set_input_files(tmp_path / "pets.zip")
    page.wait_for_selector(".upload:has-text('pets.zip: 3 added, 0 replaced, 1 refused, left out as no image: 1 .txt')")
    assert "broken.jpg" in page.locator(".broken").inner_text()
    items = served.bench.collection("zipped").scroll().items
    assert {item.metadata["label"] for item in items} == {"cat"}
    served.bench.drop("zipped")


def test_a_stopped_import_continues_after_a_reload_or_is_deleted(opened, tmp_path):
    (tmp_path / "items.ndjson").write_bytes(b" " * 20_000_000)  # three parts
    page = opened(path="/#/collections", allowed=("401", "404"))
    log_in(page)
    sent: list[str] = []

    def hold_later(route) -> None:
        sent.append(route.request.headers["upload-offset"])
        if sent[-1] == "0":
            route.continue_()

    def send_and_stop() -> None:
        card = page.get_by_label("photos", exact=True)
        with page.expect_request(lambda one: one.headers.get("upload-offset") == "8000000"):
            card.locator("input[type=file]").nth(2).set_input_files(tmp_path / "items.ndjson")
        page.get_by_role("button", name="Stop").click()
        page.wait_for_selector(".upload:has-text('The upload was stopped.')")
        page.wait_for_selector(".upload:has-text('items.ndjson: 8 of 20 MB arrived.')")

    page.route("**/imports", hold_later)
    send_and_stop()
    page.reload()
    page.wait_for_selector(".upload:has-text('items.ndjson: 8 of 20 MB arrived.')")
    send_and_stop()
    assert sent == ["0", "8000000", "8000000"]
    with page.expect_response(lambda one: one.request.method == "DELETE") as answer:
        page.get_by_role("button", name="Delete what arrived").click()
    page.wait_for_selector(".upload", state="detached")
    state = page.evaluate("async url => (await fetch(url)).json()", answer.value.url)
    assert state == {"received": 0, "job": None}


def test_images_that_arrived_before_a_reload_are_not_sent_again(opened, served, tmp_path):
    served.bench.store.create("many", CollectionSpec.of(served.bench.models.get()))
    files = [tmp_path / f"{i:02d}.png" for i in range(20)]  # two requests
    for i, path in enumerate(files):
        Image.new("RGB", (8, 8), (10 * i, 0, 0)).save(path)
    page = opened(path="/#/collections", allowed=("401", "404", "507"))
    log_in(page)
    card = page.get_by_label("many", exact=True)
    posts: list[str] = []

    def refuse_second(route) -> None:
        posts.append(route.request.method)
        if len(posts) == 2:
            route.fulfill(status=507, json={"code": "disk_full", "detail": "The disk is full."})
        else:
            route.continue_()

    page.route("**/items", refuse_second)
    card.locator("input[type=file]").first.set_input_files(files)
    page.wait_for_selector(".upload:has-text('20 images: 16 of 20 files arrived.')")
    page.reload()
    card.locator("input[type=file]").first.evaluate("input => { input.onclick = () => { window.chosen = true; }; }")
    page.get_by_role("button", name="Choose these files again").click()
    assert page.evaluate("window.chosen")
    card.locator("input[type=file]").first.set_input_files(files)
    page.wait_for_selector(".upload:has-text('4 images added to the 16 that had arrived.')")
    assert (len(posts), served.bench.collection("many").count()) == (3, 20)
    page.reload()
    page.wait_for_selector("article")
    assert page.locator(".upload").count() == 0
    served.bench.drop("many")


def test_a_file_that_changes_during_its_upload_ends_it(opened, tmp_path):
    path = tmp_path / "items.ndjson"
    path.write_bytes(b" " * 20_000_000)
    page = opened(path="/#/collections", allowed=("401", "404", "ERR_UPLOAD_FILE_CHANGED"))
    log_in(page)

    sent: list[str] = []

    def change(route) -> None:
        sent.append(route.request.method)
        path.write_bytes(b"other")
        route.continue_()

    page.route("**/imports", change)
    page.get_by_label("photos", exact=True).locator("input[type=file]").nth(2).set_input_files(path)
    page.wait_for_selector(".upload .problem")
    assert sent == ["POST"]  # a request that can never succeed is not repeated


def test_a_collection_is_looked_after(opened, served, photos):
    page = opened(path="/#/collections", allowed=("401", "404"))
    log_in(page)
    card = page.get_by_label("photos", exact=True)
    card.get_by_role("button", name="Add a folder of the server").click()
    page.get_by_label("Folder in the source folder").fill("dog" if (photos / "dog").is_dir() else "cat")
    page.get_by_role("button", name="Add", exact=True).click()
    card.get_by_role("button", name="Manage").click()
    page.get_by_label("New alias").fill("current")
    page.get_by_role("button", name="Point this alias here").click()
    page.wait_for_selector(".alias:has-text('current')")
    assert served.bench.store.aliases() == {"current": "photos"}
    card.get_by_role("button", name="Manage").click()
    page.get_by_role("button", name="Verify every vector").click()
    page.get_by_role("button", name="Close", exact=True).first.click()
    page.wait_for_selector(".jobs li.done:has-text('verify')")
    page.wait_for_selector(".jobs li.done:has-text('index')")

    def cut(route) -> None:
        answer = route.fetch()
        errors = {"errors": [{"name": "a.png", "detail": "The file is empty."}]}
        shown = {"truncated": "9 of the 10 entries are left out.", "result": answer.json()["result"] | errors}
        route.fulfill(response=answer, json=answer.json() | shown)

    page.route("**/jobs/*", cut)
    page.locator(".jobs li", has_text="verify").get_by_role("button", name="Details").click()
    page.wait_for_selector(".result:has-text('recall')")
    page.wait_for_selector(".result:has-text('9 of the 10 entries are left out.')")
    page.wait_for_selector(".result dd:text-is('a.png: The file is empty.')")
    sent = []
    for redraw in range(3):
        if redraw == 1:
            page.on("request", lambda request: sent.append(request.url))
        with page.expect_response("**/aliases"):
            page.evaluate("dispatchEvent(new Event('uploads'))")
        page.wait_for_timeout(200)
    assert card.locator(".sample img[src]").count() == 4
    assert time.strftime(" %Y, ", time.localtime()) in card.locator("time").inner_text()
    size = served.bench.collection("photos").info().bytes / 1e6
    shown = re.search(r"\(([\d.]+) MB\)", card.inner_text())
    assert shown
    assert float(shown[1]) == pytest.approx(size, abs=0.1)
    assert not [url for url in sent if "/items?" in url], "the images of an unchanged collection are known"
    served.bench.store.unalias("current")


def test_runs_and_their_reports_are_shown(opened):
    page = opened(path="/#/training", allowed=("401",))
    log_in(page)
    assert "first" in page.locator(".jobs li").inner_text()
    page.get_by_role("button", name="Report").click()
    page.wait_for_selector("iframe:not([hidden])")


@pytest.fixture
def reader(opened):
    """Open the app and log in; its policy must block nothing."""
    page = opened(allowed=("401", "403"))
    log_in(page, READER)
    page.wait_for_selector(".tile img")
    return page


def test_a_reader_searches_and_logs_out(reader, served, image_files):
    page = reader
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


def test_a_page_of_another_origin_can_neither_read_nor_use_the_login(reader, served):
    """Another port of this machine is another origin, but it has the same cookies."""
    page = reader

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


def test_each_call_runs_as_curl_and_as_python(opened, served, photos, tmp_path):
    own = tmp_path / ODD
    own.write_bytes(sorted((photos / "cat").iterdir())[0].read_bytes())
    page = opened(path="/#/explore/photos", allowed=("401",))
    log_in(page)
    page.wait_for_selector(".tile img")
    page.set_input_files("query-bar input[type=file]", own)  # embed, and search by a vector
    ids = found(page)
    page.locator(".sheet").focus()
    page.keyboard.press("l")
    page.get_by_role("combobox", name="Label", exact=True).fill(LABEL)
    page.get_by_role("button", name="Label", exact=True).last.click()  # PATCH
    page.wait_for_selector(".message")
    page.locator(".sheet").focus()
    page.keyboard.press("v")
    page.wait_for_selector(".neighbors li")
    with page.expect_response("**/attention"):
        page.get_by_role("button", name="Where it looks").click()  # a form with a downloaded image
    page.keyboard.press("Escape")
    page.get_by_role("link", name="API").click()
    page.wait_for_selector("pre")
    titles = page.locator("article h3").all_inner_texts()
    assert [title.split("/")[-1] for title in titles] == ["attention", "items", "search", "embed"]
    environment = {"NNCLR_API_KEY": KEY, "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    for text in page.get_by_label("curl").all_inner_texts():
        done = subprocess.run(["sh", "-c", text], cwd=tmp_path, env=environment, capture_output=True, text=True)
        answer = json.loads(done.stdout)
        assert "code" not in answer, (text, answer)
        if "matches" in answer:
            assert [one["id"] for one in answer["matches"]][: len(ids)] == ids
    programs = "\n".join(page.get_by_label("Python").all_inner_texts())
    done = subprocess.run(
        [sys.executable, "-c", programs], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 4), done.stderr
    assert served.bench.collection("photos").get(ids[:1])[0].metadata["label"] == LABEL


def test_a_read_only_server_offers_no_change(model, filled, chromium, serve, tmp_path):
    for server in serve(model, shutil.copytree(filled, tmp_path / "copy"), page=True, read_only=True):
        page = chromium.new_page()
        page.goto(f"{server.url}/#/collections")
        page.wait_for_selector("article")
        assert set(page.get_by_role("button").all_inner_texts()) <= {"Details"}
        page.goto(f"{server.url}/#/explore/photos")
        page.locator(".tile .box").first.click(force=True)
        assert page.get_by_role("button", name="Delete").count() == 0
        page.close()
