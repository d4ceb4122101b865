"""The URL of the Search tab is a link to its results."""

import pytest
from page_actions import toast, wait_for
from search_actions import captions, upload

from nnclr_hub.store.base import Item

pytestmark = pytest.mark.browser


def test_a_link_reopens_the_search_in_another_browser(opened, image_files):
    """For an uploaded image, the link contains only the vector."""
    page = opened()
    upload(page, image_files[5])
    found, link = captions(page), page.url.partition("/ui/")[2]
    assert "more=v:" in link
    assert found[0].startswith("1.000 astronaut")
    other = opened(path=f"/ui/{link}")
    wait_for(other, "most similar")
    assert captions(other) == found


@pytest.mark.parametrize("link", ["collection=photos&more=v:!!!", "collection=gone", "collection=photos&more=gone"])
def test_a_dead_link_shows_a_message_and_the_collection(opened, image_files, link):
    """Whether it is opened or reached through the history; Back then works."""
    page = opened(path=f"/ui/#{link}")
    assert toast(page)
    wait_for(page, "24 of the 60 images in photos")
    assert page.locator("#collection input").input_value() == "photos"
    assert page.url.endswith("#collection=photos")
    upload(page, image_files[5])
    found = page.url
    page.evaluate("link => { location.hash = link }", link)
    wait_for(page, "24 of the 60 images in photos")
    page.go_back()
    wait_for(page, "most similar")
    assert page.url == found


def test_an_item_without_an_image_can_be_searched_by(opened, served):
    """It was stored only as a vector, so there is nothing to draw on."""
    collection = served.bench.collection("photos")
    collection.upsert([Item("bare", collection.scroll(limit=1).items[0].vector)])
    try:
        page = opened(path="/ui/#collection=photos&more=bare")
        wait_for(page, "24 most similar of 61")
        assert "bare" in page.inner_text("#samples .tile")
        assert not page.is_visible("#query-image")
        assert page.locator("#samples img").get_attribute("src").startswith("data:")
    finally:
        served.bench.delete("photos", ["bare"])
