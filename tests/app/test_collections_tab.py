"""The collections tab in a real browser, on real photos: made, filled, looked through, deleted."""

from collections.abc import Iterator

import numpy as np
import pytest
from adding import choose, wait_for_jobs
from browsing import open_tab, toast, wait_for, wait_for_images
from page_calls import events
from PIL import Image

from nnclr_hub.store.base import CollectionSpec, Item

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def served(model, sources, tmp_path_factory, serve) -> Iterator:
    store = tmp_path_factory.mktemp("collections") / "store"
    yield from serve(model, store, page=True, source_folders=[str(sources)])


def test_a_collection_is_made_filled_looked_through_and_deleted(opened, served, sources):
    """A folder with its labels, page by page; some images go, then all of it, but not by one click."""
    (sources / "cat" / "broken.jpg").write_bytes(b"no image")
    Image.new("RGB", (1, 1)).save(sources / "one.png")
    page = opened("Collections")
    wait_for(page, "There is no collection yet", "#items-status")
    open_tab(page, "Probe")
    wait_for(page, "There is no collection whose images could be labeled", "#labeler")
    open_tab(page, "Collections")
    page.fill("#new-name input, #new-name textarea", "pets")
    page.click("#create")
    wait_for(page, "pets is empty", "#items-status")
    choose(page, sources, folder=True)
    wait_for_jobs(page)
    assert "Added 61 images to pets. 1 file could not be read" in page.inner_text("#jobs .job")
    assert "cat/broken.jpg" in page.inner_text("#jobs .jobs-errors")
    wait_for(page, "Images 1 to 24 of 61", "#items-status")
    wait_for_images(page, "#items img")
    assert served.bench.collection("pets").count({"must": [{"key": "label", "match": "cat"}]}) == 20
    page.get_by_role("button", name="Search these").click()
    wait_for(page, "24 of the 61 images in pets")
    open_tab(page, "Collections")
    page.click("#items-next")
    wait_for(page, "Images 25 to 48 of 61", "#items-status")
    page.click("#items-next")
    wait_for(page, "Images 49 to 61 of 61", "#items-status")
    for box in page.locator("#items .select input").all():
        box.check(force=True)
    page.click("#items .delete")
    assert page.inner_text("#items .delete") == "Really delete 13?"
    assert served.bench.collection("pets").count() == 61
    page.click("#items .delete")
    wait_for(page, "Images 25 to 48 of 48", "#items-status")
    page.locator("#items .image").first.click()
    wait_for_images(page, "#items-viewer dialog[open] img", 1)
    page.keyboard.press("Escape")
    page.click("#drop-ask")
    wait_for(page, "48 images will be gone", "#drop-warning")
    page.wait_for_function("() => document.querySelector('#drop').getBoundingClientRect().bottom <= innerHeight")
    page.click("#drop-cancel")
    page.wait_for_selector("#drop", state="hidden")
    page.click("#drop-ask")
    page.click("#drop")
    wait_for(page, "There is no collection yet", "#items-status")
    assert served.bench.store.list() == []


def shown_again(page, words: str) -> None:
    page.reload()
    page.get_by_role("tab", name="Collections").click()
    wait_for(page, words, "#items-status")


@pytest.mark.slow
def test_a_reload_stays_with_the_collection_that_was_chosen(album, opened, served):
    """Or made; and goes to the first one when that is gone. A stranger begins with the first."""
    served.bench.store.create("zebras", CollectionSpec.of(served.bench.models.get()))
    page = opened("Collections", allowed=("AbortError", "errored out"))  # so Gradio calls what a reload breaks off
    wait_for(page, "album is empty", "#items-status")
    page.click("#items-collection input")
    page.click("#items-collection [role=option]:has-text('zebras')")
    wait_for(page, "zebras is empty", "#items-status")
    shown_again(page, "zebras is empty")
    wait_for(opened("Collections"), "album is empty", "#items-status")
    page.fill("#new-name input, #new-name textarea", "yaks")
    page.click("#create")
    wait_for(page, "yaks is empty", "#items-status")
    shown_again(page, "yaks is empty")
    served.bench.drop("yaks")
    served.bench.drop("zebras")
    shown_again(page, "album is empty")


@pytest.mark.slow
def test_a_collection_of_another_encoder_is_refused(opened, served):
    served.bench.store.create("other", CollectionSpec(3))
    try:
        served.bench.collection("other").upsert([Item("a", np.ones(3, np.float32))])
        page = opened("Collections", allowed=("404",))  # the item has no image
        wait_for(page, "of 1 in other", "#items-status")
        page.set_input_files("#uploader .choose-files", {"name": "a.jpg", "mimeType": "image/jpeg", "buffer": b"x"})
        assert "vectors of 3 numbers that were made elsewhere" in toast(page)
        page.locator("#uploader [role=alert]:not([hidden])").wait_for()
        assert "The server refused 1 file, and says why. 0 files were taken before" in page.inner_text("#uploader")
    finally:
        served.bench.drop("other")


@pytest.mark.slow
def test_a_read_only_server_builds_nothing_that_writes(model, served, tmp_path, serve):
    from nnclr_hub.store import open_store

    open_store(str(tmp_path / "store")).close()
    for one in serve(model, tmp_path / "store", page=True, read_only=True):
        names = {event["api_name"] for event in events(one.url)}
        assert "choose" in names
        assert not names & {"_create", "_add", "_add_folder", "_cancel", "_delete", "drop"}
