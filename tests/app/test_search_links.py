"""The address of the tab Search is a link to what it shows."""

import pytest
from browsing import wait_for
from searching import captions, upload

from nnclr_hub.store.base import Item

pytestmark = pytest.mark.browser


def test_a_link_reopens_the_search_elsewhere(opened, pictures):
    """By an item, and by an image of one's own, of which the link holds the vector alone."""
    page = opened()
    upload(page, pictures[5])
    found, link = captions(page), page.url.partition("/ui/")[2]
    assert "more=v:" in link
    assert found[0].startswith("1.000 astronaut")
    other = opened(path=f"/ui/{link}")
    wait_for(other, "most similar")
    assert captions(other) == found


@pytest.mark.parametrize(
    ("link", "sentence"),
    [
        ("collection=photos&more=v:!!!", "link cannot be read"),
        ("collection=gone", "no collection"),
        ("collection=photos&more=gone", "gone"),
    ],
)
def test_a_dead_link_is_one_sentence_and_the_page_works(opened, pictures, link, sentence):
    """As if there were no link: whether it was opened, or is come upon later; and Back does not end at it."""
    page = opened(path=f"/ui/#{link}")
    page.wait_for_selector(".toast-body")
    assert sentence in page.inner_text(".toast-body")
    wait_for(page, "24 of the 60 images in photos")
    assert page.locator("#collection input").input_value() == "photos"
    assert page.url.endswith("#collection=photos")
    upload(page, pictures[5])
    found = page.url
    page.evaluate("link => { location.hash = link }", link)
    wait_for(page, "24 of the 60 images in photos")
    page.go_back()
    wait_for(page, "most similar")
    assert page.url == found


def test_an_item_without_a_image_is_searched_by(opened, served):
    """One that was stored by its vector alone: there is nothing to draw on, and its neighbors are found."""
    there = served.bench.collection("photos")
    there.upsert([Item("bare", there.scroll(limit=1).items[0].vector)])
    try:
        page = opened(path="/ui/#collection=photos&more=bare")
        wait_for(page, "24 most similar of 61")
        assert "bare" in page.inner_text("#samples .tile")
        assert not page.is_visible("#query-picture")
        assert page.locator("#samples img").get_attribute("src").startswith("data:")
    finally:
        served.bench.delete("photos", ["bare"])
