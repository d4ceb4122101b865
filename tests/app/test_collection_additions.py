"""Adding images on the Collections tab: uploads by the browser, jobs of the server, and failures."""

import shutil
import threading
import zipfile
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
from page_actions import INTERRUPTED, PHONE, toast, wait_for
from page_calls import call
from upload_actions import choose, wait_for_jobs

from app.widgets import uploader
from nnclr_hub.store.base import CollectionSpec
from nnclr_hub.workbench import Workbench

pytestmark = pytest.mark.browser
# a dropped file that was deleted before it is read
UNREADABLE_DROP = """() => {
  const entry = {isFile: true, name: 'gone.jpg', file: (resolve, reject) => reject(new Error('NotFoundError'))};
  const event = new Event('drop', {bubbles: true, cancelable: true});
  event.dataTransfer = {items: [{webkitGetAsEntry: () => entry}]};
  document.querySelector('#uploader .uploader').dispatchEvent(event);
}"""
MAX_FILES = 62  # per job


@pytest.fixture(scope="module")
def served(model, sources, tmp_path_factory, serve) -> Iterator:
    store = tmp_path_factory.mktemp("collections") / "store"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(uploader, "MAX_FILES", MAX_FILES)
        yield from serve(model, store, page=True, source_folders=[str(sources)], max_bytes=200_000)


def open_album(opened, **context):
    page = opened("Collections", **context)
    wait_for(page, "album is empty", "#items-status")
    return page


@pytest.mark.slow
def test_a_job_survives_a_reload_and_a_closed_tab(album, opened, served, image_files, monkeypatch):
    """Another tab of the same browser shows the job, another browser does not."""
    going = threading.Event()
    add = Workbench.add_images
    monkeypatch.setattr(Workbench, "add_images", lambda *given: (going.wait(30), add(*given))[1])
    page = open_album(opened, allowed=INTERRUPTED)
    choose(page, image_files[:40])
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
    other.get_by_role("button", name="Hide").click()
    wait_for_jobs(other, 0)
    stranger = opened("Collections")
    wait_for(stranger, "of 40 in album", "#items-status")
    assert stranger.locator("#jobs .job").count() == 0


@pytest.mark.slow
def test_many_files_are_sent_in_batches_and_a_large_zip_in_parts(album, opened, served, image_files, tmp_path):
    """The zip is larger than a request may be."""
    copies = [shutil.copy(path, tmp_path / f"copy{i}.jpg") for i, path in enumerate(image_files[:10])]
    with zipfile.ZipFile(tmp_path / "all.zip", "w", zipfile.ZIP_STORED) as file:
        for path in image_files:
            file.write(path, f"photos/{path.parent.name}/{path.name}")
        file.writestr("photos/notes.txt", np.random.default_rng(0).bytes(300_000))
    assert (tmp_path / "all.zip").stat().st_size > served.app.state.settings.max_bytes
    page = open_album(opened, **PHONE)
    choose(page, [*image_files, *copies, tmp_path / "all.zip"])
    wait_for_jobs(page, 3)
    assert [job.total for job in served.app.state.jobs.list(3)[0]] == [60, 70 - MAX_FILES, MAX_FILES]
    assert served.bench.collection(album).count() == 60
    assert served.bench.collection(album).count({"must": [{"key": "label", "match": "coffee"}]}) == 20
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.slow
def test_rejected_files_are_reported(album, opened, served, image_files, tmp_path):
    """Files by the browser, a zip by the server; a rejected batch stops the upload."""
    page = open_album(opened)
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / "large.jpg").write_bytes(bytes(300_000))
    choose(page, [tmp_path / "notes.txt", tmp_path / "large.jpg"])
    wait_for(page, "large.jpg", "#uploader [role=alert]")
    wait_for(page, "no images to upload", "#uploader [role=alert]")
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as file:
        file.writestr("../up.png", image_files[0].read_bytes())
    choose(page, [tmp_path / "bad.zip"])
    assert "bad.zip" in toast(page)
    assert page.locator("#jobs .job").count() == 0
    copies = [shutil.copy(path, tmp_path / f"copy{i}.jpg") for i, path in enumerate(image_files[:10])]
    served.bench.drop(album)
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url) if request.url.endswith("/upload") else None)
    choose(page, [*image_files, *copies])
    outcome = f"rejected {MAX_FILES} files. 0 files were accepted before, and {70 - MAX_FILES} files were not sent"
    wait_for(page, outcome, "#uploader")
    assert len(sent) == 1
    served.bench.store.create(album, CollectionSpec.of(served.bench.models.get()))
    choose(page, image_files[:1])
    wait_for(page, "Uploaded 1 file.", "#uploader")
    page.evaluate(UNREADABLE_DROP)
    wait_for(page, "gone.jpg", "#uploader [role=alert]")
    wait_for_jobs(page)


@pytest.mark.slow
def test_a_folder_of_this_machine_is_added(album, opened, served, sources):
    page = open_album(opened)
    page.locator("#server-folder button").first.click()
    page.fill("#source-folder input, #source-folder textarea", "../..")
    page.click("#source-add")
    assert "../.." in toast(page)
    page.fill("#source-folder input, #source-folder textarea", "coffee")
    page.click("#source-add")
    wait_for_jobs(page)
    assert served.bench.collection(album).count() == 20


@pytest.mark.slow
def test_the_page_reports_a_lost_connection_and_continues(album, opened, served, image_files):
    page = open_album(opened, allowed=("ERR_INTERNET_DISCONNECTED", "ERR_FAILED", "Failed to", "Error"))
    page.route("**/api/v1/jobs/**", lambda route: route.abort())
    choose(page, image_files[:5])
    wait_for(page, "does not respond", "#jobs .jobs-offline")
    for status, message in ((429, "rate limit"), (401, "session has expired")):
        page.unroute("**/api/v1/jobs/**")
        page.route("**/api/v1/jobs/**", partial(lambda status, route: route.fulfill(status=status, body="{}"), status))
        wait_for(page, message, "#jobs .jobs-offline")
    page.unroute("**/api/v1/jobs/**")
    wait_for_jobs(page)
    page.locator("#jobs .jobs-offline").wait_for(state="hidden")
    page.route("**/gradio_api/upload", lambda route: route.abort())
    choose(page, image_files[:5])
    wait_for(page, "does not respond", "#uploader [role=alert]")


@pytest.mark.parametrize(
    "files",
    [None, [], [{"name": "a.jpg"}], [{"name": "a.jpg", "parts": ["/etc/passwd"]}], [{"name": "../a", "parts": ["x"]}]],
)
def test_the_endpoint_accepts_only_uploads(served, album, files):
    answer = call(served.url, "_add", [None], event_data={"to": album, "files": files})
    assert answer.status_code == 500
    assert "Traceback" not in answer.text
    assert "/etc/" not in answer.json().get("error", "")
    assert served.app.state.jobs.list(10, state="queued")[0] == []
