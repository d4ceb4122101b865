"""The Collections tab in a real browser, on real photos: create, fill, browse and delete."""

from collections.abc import Iterator

import numpy as np
import pytest
from page_actions import INTERRUPTED, open_tab, toast, wait_for, wait_for_images
from page_calls import events
from PIL import Image
from upload_actions import choose, wait_for_jobs

from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def served(model, sources, tmp_path_factory, serve) -> Iterator:
    store = tmp_path_factory.mktemp("collections") / "store"
    yield from serve(model, store, page=True, source_folders=[str(sources)])


def test_a_collection_is_created_filled_browsed_and_deleted(opened, served, sources):
    """The folders become labels; deleting images or the collection requires a second click."""
    (sources / "cat" / "broken.jpg").write_bytes(b"no image")
    Image.new("RGB", (1, 1)).save(sources / "one.png")
    page = opened("Collections")
    wait_for(page, "no collection yet", "#items-status")
    open_tab(page, "Probe")
    wait_for(page, "no collection yet", "#labeler")
    open_tab(page, "Collections")
    page.fill("#new-name input, #new-name textarea", "pets")
    page.click("#create")
    wait_for(page, "pets is empty", "#items-status")
    choose(page, sources, folder=True)
    wait_for_jobs(page)
    assert "Added 61 images to pets. 1 file" in page.inner_text("#jobs .job")
    assert "cat/broken.jpg" in page.inner_text("#jobs .jobs-errors")
    wait_for(page, "Images 1 to 24 of 61", "#items-status")
    wait_for_images(page, "#items img")
    assert served.bench.collection("pets").count({"must": [{"key": "label", "match": "cat"}]}) == 20
    page.get_by_role("button", name="Search these").click()
    wait_for(page, "24 of the 61 images in pets")
    open_tab(page, "Collections")
    for shown in ("25 to 48", "49 to 61"):
        page.click("#items-next")
        wait_for(page, f"Images {shown} of 61", "#items-status")
    for box in page.locator("#items .select input").all():
        box.check(force=True)
    page.click("#items .delete")
    assert "13" in page.inner_text("#items .delete")
    assert served.bench.collection("pets").count() == 61
    page.click("#items .delete")
    wait_for(page, "Images 25 to 48 of 48", "#items-status")
    page.locator("#items .image").first.click()
    wait_for_images(page, "#items-viewer dialog[open] img", 1)
    page.keyboard.press("Escape")
    page.click("#drop-ask")
    wait_for(page, "48 images", "#drop-warning")
    page.wait_for_function("() => document.querySelector('#drop').getBoundingClientRect().bottom <= innerHeight")
    page.click("#drop-cancel")
    page.wait_for_selector("#drop", state="hidden")
    page.click("#drop-ask")
    page.click("#drop")
    wait_for(page, "no collection yet", "#items-status")
    assert served.bench.store.list() == []


def wait_after_reload(page, text: str) -> None:
    page.reload()
    page.get_by_role("tab", name="Collections").click()
    wait_for(page, text, "#items-status")


@pytest.mark.slow
def test_a_reload_keeps_the_chosen_or_created_collection(album, opened, served):
    """If it was deleted, the first one is shown, as in a new browser."""
    served.bench.store.create("zebras", CollectionSpec.of(served.bench.models.get()))
    page = opened("Collections", allowed=INTERRUPTED)
    wait_for(page, "album is empty", "#items-status")
    page.click("#items-collection input")
    page.click("#items-collection [role=option]:has-text('zebras')")
    wait_for(page, "zebras is empty", "#items-status")
    wait_after_reload(page, "zebras is empty")
    wait_for(opened("Collections"), "album is empty", "#items-status")
    page.fill("#new-name input, #new-name textarea", "yaks")
    page.click("#create")
    wait_for(page, "yaks is empty", "#items-status")
    wait_after_reload(page, "yaks is empty")
    served.bench.drop("yaks")
    served.bench.drop("zebras")
    wait_after_reload(page, "album is empty")


@pytest.mark.slow
def test_images_cannot_be_added_to_a_collection_of_another_encoder(opened, served):
    served.bench.store.create("other", CollectionSpec(3))
    try:
        served.bench.collection("other").upsert([Item("a", np.ones(3, np.float32))])
        page = opened("Collections", allowed=("404",))  # the item has no image
        wait_for(page, "of 1 in other", "#items-status")
        page.set_input_files("#uploader .choose-files", {"name": "a.jpg", "mimeType": "image/jpeg", "buffer": b"x"})
        toast(page)
        wait_for(page, "rejected 1 file. 0 files were accepted", "#uploader")
    finally:
        served.bench.drop("other")


@pytest.mark.slow
def test_a_read_only_server_builds_no_event_that_writes(model, tmp_path, serve):
    open_store(str(tmp_path / "store")).close()
    for one in serve(model, tmp_path / "store", page=True, read_only=True):
        names = {event["api_name"] for event in events(one.url)}
        assert {"choose", "upload", "_choose"} <= names
        assert not names & {"_create", "_add", "_add_folder", "_cancel", "_delete", "drop", "delete"}
