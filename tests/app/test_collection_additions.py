"""Images that are added on the tab Collections: by the browser and by the server's jobs; and what goes wrong."""

import shutil
import threading
import zipfile
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
from adding import choose, wait_for_jobs
from browsing import PHONE, toast, wait_for
from page_calls import call

from app.widgets import uploader
from nnclr_hub.store.base import CollectionSpec
from nnclr_hub.workbench import Workbench

pytestmark = pytest.mark.browser
# a file that has gone since it was taken up by the mouse
UNREADABLE_DROP = """() => {
  const entry = {isFile: true, name: 'gone.jpg', file: (yes, no) => no(new Error('NotFoundError'))};
  const event = new Event('drop', {bubbles: true, cancelable: true});
  event.dataTransfer = {items: [{webkitGetAsEntry: () => entry}]};
  document.querySelector('#uploader .uploader').dispatchEvent(event);
}"""
MOST_FILES = 62  # of a job


@pytest.fixture(scope="module")
def served(model, sources, tmp_path_factory, serve) -> Iterator:
    store = tmp_path_factory.mktemp("collections") / "store"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(uploader, "MAX_FILES", MOST_FILES)
        yield from serve(model, store, page=True, source_folders=[str(sources)], max_bytes=200_000)


def answer_with(status: int, route) -> None:
    route.fulfill(status=status, body="{}")


@pytest.mark.slow
def test_a_reload_finds_the_job_and_a_closed_tab_loses_nothing(album, opened, served, pictures, monkeypatch):
    """The job waits until the page that began it is gone; another tab of that browser sees it, no stranger does."""
    going = threading.Event()
    add = Workbench.add_images
    monkeypatch.setattr(Workbench, "add_images", lambda *given: (going.wait(30), add(*given))[1])
    page = opened("Collections", allowed=("AbortError", "errored out"))  # so Gradio calls what a reload breaks off
    wait_for(page, "album is empty", "#items-status")
    choose(page, pictures[:40])
    wait_for_jobs(page, 1, "running")
    page.reload()
    page.get_by_role("tab", name="Collections").click()
    wait_for_jobs(page, 1, "running")
    other = page.context.new_page()
    page.close()
    going.set()
    other.goto(served.url + "/ui/")
    other.get_by_role("tab", name="Collections").click()
    wait_for_jobs(other)
    wait_for(other, "of 40 in album", "#items-status")
    assert served.bench.collection(album).count() == 40
    other.get_by_role("button", name="Hide").click()
    wait_for_jobs(other, 0)
    stranger = opened("Collections")
    wait_for(stranger, "of 40 in album", "#items-status")
    assert stranger.locator("#jobs .job").count() == 0


@pytest.mark.slow
def test_many_files_go_in_batches_and_a_large_zip_in_parts(album, opened, served, pictures, tmp_path):
    """More files than a job takes become several jobs; the zip has more bytes than the server takes in a request."""
    copies = [shutil.copy(path, tmp_path / f"copy{i}.jpg") for i, path in enumerate(pictures[:10])]
    with zipfile.ZipFile(tmp_path / "all.zip", "w", zipfile.ZIP_STORED) as file:
        for path in pictures:
            file.write(path, f"photos/{path.parent.name}/{path.name}")
        file.writestr("photos/notes.txt", np.random.default_rng(0).bytes(300_000))
    assert (tmp_path / "all.zip").stat().st_size > served.app.state.settings.max_bytes
    page = opened("Collections", **PHONE)
    wait_for(page, "album is empty", "#items-status")
    choose(page, [*pictures, *copies, tmp_path / "all.zip"])
    wait_for_jobs(page, 3)
    totals = [job.total for job in served.app.state.jobs.list(3)[0]]
    assert totals == [60, 70 - MOST_FILES, MOST_FILES]
    assert served.bench.collection(album).count() == 60
    assert served.bench.collection(album).count({"must": [{"key": "label", "match": "coffee"}]}) == 20
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.slow
def test_what_cannot_be_added_is_told_in_a_sentence(album, opened, served, pictures, tmp_path):
    page = opened("Collections")
    wait_for(page, "album is empty", "#items-status")
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / "large.jpg").write_bytes(bytes(300_000))
    choose(page, [tmp_path / "notes.txt", tmp_path / "large.jpg"])
    said = page.locator("#uploader [role=alert]")
    said.wait_for()
    assert "too large, such as large.jpg" in said.inner_text()
    assert "no image to add" in said.inner_text()
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as file:
        file.writestr("../up.png", pictures[0].read_bytes())
    choose(page, [tmp_path / "bad.zip"])
    assert "bad.zip names a file outside of itself" in toast(page)
    assert page.locator("#jobs .job").count() == 0


@pytest.mark.slow
def test_an_upload_stops_at_the_first_refusal(album, opened, served, pictures, tmp_path):
    """The first batch is refused, so the second is not sent; afterwards more can be given."""
    copies = [shutil.copy(path, tmp_path / f"copy{i}.jpg") for i, path in enumerate(pictures[:10])]
    page = opened("Collections")
    wait_for(page, "album is empty", "#items-status")
    served.bench.drop(album)
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url) if request.url.endswith("/upload") else None)
    choose(page, [*pictures, *copies])
    page.locator("#uploader [role=alert]:not([hidden])").wait_for()
    said = f"refused {MOST_FILES} files, and says why. 0 files were taken before, and {70 - MOST_FILES} files were not"
    assert said in page.inner_text("#uploader")
    assert "Uploaded" not in page.inner_text("#uploader")
    assert len(sent) == 1
    served.bench.store.create(album, CollectionSpec.of(served.bench.models.get()))
    choose(page, pictures[:1])
    wait_for(page, "Uploaded 1 file.", "#uploader")
    page.evaluate(UNREADABLE_DROP)
    wait_for(page, "gone.jpg cannot be read", "#uploader")
    wait_for_jobs(page)


@pytest.mark.slow
def test_a_folder_of_this_machine_is_added(album, opened, served, sources):
    page = opened("Collections")
    wait_for(page, "album is empty", "#items-status")
    page.locator("#server-folder button").first.click()
    page.fill("#source-folder input, #source-folder textarea", "../..")
    page.click("#source-add")
    assert "There is no folder '../..' below 'images'" in toast(page)
    page.fill("#source-folder input, #source-folder textarea", "coffee")
    page.click("#source-add")
    wait_for_jobs(page)
    assert served.bench.collection(album).count() == 20


@pytest.mark.slow
def test_a_server_that_goes_away_is_told_and_the_page_goes_on_when_it_is_back(album, opened, served, pictures):
    """The network to it breaks while a job runs, and comes back."""
    page = opened("Collections", allowed=("ERR_INTERNET_DISCONNECTED", "ERR_FAILED", "Failed to", "Error"))
    wait_for(page, "album is empty", "#items-status")
    page.route("**/api/v1/jobs/**", lambda route: route.abort())
    choose(page, pictures[:5])
    page.locator("#jobs .jobs-offline").wait_for()
    assert "Nothing is lost" in page.inner_text("#jobs .jobs-offline")
    for status, told in ((429, "more of this server than it allows"), (401, "Your login has ended")):
        page.unroute("**/api/v1/jobs/**")
        page.route("**/api/v1/jobs/**", partial(answer_with, status))
        wait_for(page, told, "#jobs .jobs-offline")
    page.unroute("**/api/v1/jobs/**")
    wait_for_jobs(page)
    page.locator("#jobs .jobs-offline").wait_for(state="hidden")
    page.route("**/gradio_api/upload", lambda route: route.abort())
    choose(page, pictures[:5])
    page.locator("#uploader [role=alert]").wait_for()
    assert "The server does not answer." in page.inner_text("#uploader [role=alert]")


@pytest.mark.parametrize(
    "files",
    [None, [], [{"name": "a.jpg"}], [{"name": "a.jpg", "parts": ["/etc/passwd"]}], [{"name": "../a", "parts": ["x"]}]],
)
def test_a_bare_endpoint_takes_nothing_but_uploads(served, album, files):
    """As a client sends it that ignores the page."""
    answer = call(served.url, "_add", [None], event_data={"to": album, "files": files})
    assert answer.status_code == 500
    assert "Traceback" not in answer.text
    assert "/etc/" not in answer.json().get("error", "")
    assert served.app.state.jobs.list(10, state="queued")[0] == []
