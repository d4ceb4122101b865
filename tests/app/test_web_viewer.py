"""The viewer of the web app in a real browser: parts, attention, why an image was found, and own images."""

import json
from functools import partial
from typing import Any

import numpy as np
import pytest
from explore_actions import expected, found, ids, search
from phone import PHONE
from PIL import Image

pytestmark = pytest.mark.browser


def view(page, place: int = 0) -> None:
    page.locator(".sheet").focus()
    for _ in range(place):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("v")
    page.wait_for_function("() => document.querySelector('viewed-image img')?.naturalWidth > 0")
    page.wait_for_selector(".neighbors li")


def drag(page, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Drag over the image; start and end are shares of its width and height."""
    box = page.locator("viewed-image img").first.bounding_box()
    for step, (x, y) in ((page.mouse.down, start), (page.mouse.up, end)):
        page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"], steps=3)
        step()


def attention(page, act) -> tuple[dict, dict]:
    """Return the query and the answer of the request for a map that an action sends."""
    page.evaluate("""() => {
        const send = window.fetch;
        window.fetch = (url, init) => {
            if (init?.body instanceof FormData) window.asked ??= init.body.get('query');
            return send(url, init);
        };
        window.asked = null;
    }""")
    with page.expect_response("**/api/v1/attention") as waiting:
        act()
    page.wait_for_selector("viewed-image .attention:not([hidden])")
    return json.loads(page.evaluate("window.asked")), waiting.value.json()


def test_a_part_of_an_image_is_searched_for(explore):
    page = explore()
    view(page)
    page.get_by_role("button", name="Search for a part").click()
    drag(page, (0.05, 0.05), (0.5, 0.5))
    page.wait_for_selector(".example img")
    assert len(found(page)) > 5


def test_an_image_opens_next_to_the_grid_and_follows_the_focus(explore):
    page = explore()
    tile = page.locator(".tile[aria-posinset='3']")
    before = tile.bounding_box()
    tile.click()
    page.wait_for_selector("dialog.viewer[open]:not(:modal) .neighbors li")
    assert tile.bounding_box() == before, "the grid stays as it is"
    assert f"open={tile.get_attribute('data-id')}" in page.url
    page.keyboard.press("ArrowRight")
    page.wait_for_function("id => location.hash.includes(id)", arg=ids(page)[3])
    page.keyboard.press("Enter")
    page.keyboard.press("v")
    page.wait_for_selector("dialog.viewer:modal")
    page.get_by_role("button", name="Next to the grid").click()
    page.get_by_role("button", name="Find similar images").first.click()
    assert len(found(page)) > 5
    assert page.locator("dialog.viewer[open]").count() == 1
    page.locator(".sheet").focus()
    page.keyboard.press("Escape")
    assert page.locator("dialog.viewer[open]").count() == 0
    page.wait_for_function("() => !location.hash.includes('open=')")
    tile.click()
    page.set_viewport_size(PHONE["viewport"])  # as when a tablet is turned
    page.wait_for_selector("dialog.viewer:modal")


@pytest.mark.parametrize("context", [{}, PHONE], ids=["desktop", "phone"])
def test_an_image_keeps_its_size_when_a_hint_appears(explore, context):
    page = explore(**context)
    page.locator(".tile").first.click()
    page.wait_for_selector(".viewer .neighbors li")
    stage = page.locator("viewed-image")
    before = stage.bounding_box()
    assert before["height"] > 0.3 * page.viewport_size["height"]
    held: list[Any] = []
    page.route("**/api/v1/attention", lambda route: held.append(route))
    page.get_by_role("button", name="Where it looks").click()
    page.wait_for_selector(".viewer [role=status]:has-text('Computing the map')")
    held[0].continue_()
    page.wait_for_selector("viewed-image .attention:not([hidden])")
    page.wait_for_selector(".viewer [role=status]:has-text('Bright where')")
    assert stage.bounding_box() == before


def test_a_touch_opens_and_the_corner_selects(explore):
    page = explore(**PHONE)
    page.locator(".tile .box").nth(1).tap()
    page.wait_for_selector("selection-bar:not([hidden])")
    page.get_by_role("button", name="Select none").tap()
    page.locator(".tile").nth(2).tap()
    page.wait_for_selector("dialog.viewer:modal .neighbors li")
    page.get_by_role("button", name="Find similar images").first.tap()
    assert len(found(page)) > 5


def test_steps_add_one_entry_to_the_history_and_neighbors_keep_their_images(explore):
    page = explore()
    before = page.evaluate("history.length")
    view(page)
    for _ in range(8):
        page.keyboard.press("ArrowRight")
    assert page.evaluate("history.length") == before + 1
    page.wait_for_selector(".neighbors img")
    with page.expect_response("**/api/v1/attention"):
        page.get_by_role("button", name="Where it looks").click()
    box = page.locator("viewed-image img").first.bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector(".neighbors img[src^='data:']")
    page.get_by_role("button", name="Where it looks").click()
    assert page.locator(".neighbors img[src^='data:']").count() == 0
    page.go_back()
    page.wait_for_function("() => !document.querySelector('dialog.viewer[open]')")


def test_the_keyboard_chooses_a_part(explore):
    page = explore()
    view(page)
    page.get_by_role("button", name="Search for a part").click()
    page.locator("viewed-image .frame").focus()
    page.keyboard.press("Enter")
    for key in ("Shift+ArrowRight", "Shift+ArrowRight", "Shift+ArrowDown", "Shift+ArrowDown", "Enter"):
        page.keyboard.press(key)
    page.wait_for_selector(".example img")
    assert len(found(page)) > 5


def test_a_point_becomes_the_query_of_the_encoder(explore, served, photos):
    page = explore()
    [item] = served.bench.collection("photos").get(ids(page)[:1])
    path = photos / item.metadata["path"]
    with Image.open(path) as image:
        width, height = image.size
    view(page)
    whole, _ = attention(page, page.get_by_role("button", name="Where it looks").click)
    assert "point" not in whole
    query, answer = attention(page, lambda: drag(page, (0.25, 0.75), (0.25, 0.75)))
    assert query["point"] == pytest.approx([0.25 * width, 0.75 * height], abs=2)
    assert answer["maps"][0]["size"] == [width, height]
    page.wait_for_function("() => document.querySelectorAll('.neighbors img[src^=\"data:\"]').length === 4")


def test_it_shows_why_an_image_was_found(explore):
    page = explore()
    search(page)
    view(page, 2)
    query, answer = attention(page, page.get_by_role("button", name="Why was it found?").click)
    assert query["collection"] == "photos"
    assert len(answer["maps"]) == 1


def test_an_own_image_is_viewed_and_searched_by_a_part(explore, served, photos):
    path = sorted((photos / "cat").iterdir())[0]
    page = explore()
    page.set_input_files("query-bar input[type=file]", path)
    assert found(page)[0] == expected(served, positive=[path])[0]
    page.get_by_role("button", name=f"Show {path.name}").click()
    page.wait_for_selector(".neighbors li")
    attention(page, page.get_by_role("button", name="Where it looks").click)
    page.get_by_role("button", name="Search for a part").click()
    with page.expect_response("**/search"):
        drag(page, (0.2, 0.2), (0.9, 0.9))
    page.wait_for_selector(".example [aria-label*='part of']")


def test_an_image_is_labeled_and_deleted_in_the_viewer(explore, served):
    page = explore()
    view(page, 1)
    first = ids(page)[1]
    collection = served.bench.collection("photos")
    [item] = collection.get([first])
    other = page.locator("dialog.viewer label-keys button[aria-pressed=false]").first
    page.keyboard.press(other.locator("kbd").inner_text())
    page.wait_for_selector(".message")
    assert collection.get([first])[0].metadata["label"] not in (None, item.metadata["label"])
    page.wait_for_function("id => !location.hash.includes(id)", arg=first)  # the next image
    page.keyboard.press("Control+z")
    page.wait_for_selector(".message:has-text('Undone')")
    assert collection.get([first])[0].metadata == item.metadata
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Delete")
    page.get_by_role("button", name="Delete 1 image").click()
    page.wait_for_function("id => !location.hash.includes(id)", arg=first)
    assert collection.get([first]) == []
    collection.upsert([item])


def test_each_head_of_a_transformer_is_shown(chromium, make_model, photos, serve, tmp_path):
    from nnclr_hub import load_encoder
    from nnclr_hub.store import open_store
    from nnclr_hub.workbench import Encoders, Workbench

    vit = make_model("vit_tiny_patch16_224", {"depth": 1, "img_size": 32}, 32)
    with open_store(str(tmp_path / "store")) as store:
        Workbench(Encoders(str(vit), device="cpu"), store).index_folder("photos", photos / "cat")
    for served in serve(vit, tmp_path / "store", page=True, source_folders=[str(photos)]):
        page = chromium.new_page()
        page.goto(f"{served.url}/#/explore/photos")
        page.wait_for_selector(".tile img[src]")
        [item] = served.bench.collection("photos").get(ids(page)[:1])
        view(page)
        heads = page.get_by_label("Attention head")
        assert heads.is_hidden()
        attention(page, page.get_by_role("button", name="Where it looks").click)
        assert heads.locator("option").all_inner_texts() == ["All heads", "Head 1", "Head 2", "Head 3"]
        query, answer = attention(page, partial(heads.select_option, label="Head 2"))
        assert query["head"] == 1
        own = load_encoder(str(vit), device="cpu").attention(
            photos / "cat" / item.metadata["path"], head=1, max_side=512
        )
        np.testing.assert_allclose(answer["maps"][0]["values"], own.values, atol=1e-3)
        page.close()
