"""The Search tab in a real browser, on real photos: with a mouse, by touch and with the keyboard."""

import re

import pytest
from page_actions import PHONE, drag, open_tab, toast, until_shown, wait_for, wait_for_images
from search_actions import captions, ids, scores, upload

from nnclr_hub.store.queries import search_like
from nnclr_hub.workbench import NewImage

pytestmark = pytest.mark.browser


def test_each_click_searches_and_back_goes_back(opened):
    page = opened()
    wait_for(page, "24 of the 60 images in photos")
    wait_for_images(page, "#tiles img")
    first = page.locator("#tiles .image").nth(2)
    chosen = first.get_attribute("data-id")
    first.click()
    wait_for(page, "24 most similar of 60")
    assert f"more={chosen}" in page.url
    assert chosen not in ids(page)
    assert scores(page) == sorted(scores(page), reverse=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= 1440
    second = page.locator("#tiles .image").nth(3).get_attribute("data-id")
    page.locator("#tiles .image").nth(3).click()
    page.wait_for_function("id => location.hash.includes(id)", arg=second)
    page.go_back()
    page.wait_for_function("id => !document.querySelector(`#tiles [data-id='${id}']`)", arg=chosen)
    assert second in ids(page)
    page.locator("#browse").click()
    wait_for(page, "24 of the 60")


def test_positive_and_negative_examples_have_the_results_of_the_store(opened, served):
    page = opened()
    wait_for(page, "24 of the 60")
    near, away = ids(page)[0], ids(page)[10]
    page.locator(f"#tiles .tile[data-id='{near}'] .more").click()
    wait_for(page, "most similar")
    page.locator("#next").click()
    wait_for(page, "48 most similar")
    page.locator(f"#tiles .tile[data-id='{away}'] .less").click()
    page.wait_for_selector("#samples .tile")
    page.wait_for_function("id => !document.querySelector(`#tiles [data-id='${id}']`)", arg=away)
    expected = search_like(served.bench.collection("photos"), [near], [away], 48)
    assert ids(page) == [match.id for match in expected]
    page.locator("#samples .remove").nth(1).click()
    page.wait_for_function("id => document.querySelector(`#tiles [data-id='${id}']`)", arg=away)


@pytest.mark.slow
def test_filters_and_limits_change_the_results(opened):
    page = opened()
    wait_for(page, "24 of the 60")
    page.locator("#options button").first.click()
    number = page.locator("#k input[type=number]")
    for typed, shown in (("500", "All 60 images"), ("0", "1 of the 60"), ("24", "24 of the 60")):
        number.fill(typed)
        number.press("Tab")
        wait_for(page, shown)
    assert page.locator(".toast-body").count() == 0, "a number outside of the range is clamped"
    page.locator("#filter-key input").fill("label")
    page.locator("#filter-key input").press("Enter")
    page.locator("#filter-value textarea, #filter-value input").fill("cat")
    page.locator("#filter-add").click()
    wait_for(page, "All 20 images that pass the filter")
    assert set(captions(page)) == {"cat"}
    assert '"match": "cat"' in page.locator("#where textarea").input_value()
    page.locator("#tiles .image").first.click()
    wait_for(page, "19 most similar")
    least = scores(page)[4]
    page.locator("#score-threshold textarea, #score-threshold input").fill(f"{least - 0.0006:.4f}")
    page.keyboard.press("Enter")
    wait_for(page, "5 most similar")
    page.locator("#filter-clear").click()
    page.wait_for_function("() => document.querySelector('#where textarea').value === ''")
    shown = captions(page)
    field = page.locator("#where textarea")
    field.fill('{"must": [')
    until_shown(page, ".toast-body", lambda: (field.focus(), field.blur()))
    assert "JSON" in toast(page)
    assert captions(page) == shown


@pytest.mark.slow
def test_an_explanation_names_the_box_and_the_example(opened, image_files):
    page = opened()
    upload(page, image_files[5])
    drag(page, "#query-image .stage", (0.2, 0.2), (0.8, 0.9))
    wait_for(page, "most similar")
    page.locator("#tiles .why").nth(1).click()
    wait_for_images(page, "#viewer dialog[open] img", 2)
    wait_for(page, "your box", "#viewer dialog")
    wait_for(page, "the indexed file", "#viewer dialog")
    page.keyboard.press("Escape")
    page.locator("#tiles .more").first.click()
    page.wait_for_selector("#samples .tile")
    page.locator("#tiles .why").first.click()
    wait_for(page, "your box (example 1 of 2)", "#viewer dialog")


def test_the_viewer_shows_the_original_only_while_it_is_unchanged(opened, photos, image_files):
    page = opened()
    upload(page, image_files[5])
    best = ids(page)[0]
    page.locator("#tiles .view").first.click()
    wait_for_images(page, "#viewer dialog[open] img")
    assert "the indexed file" in page.inner_text("#viewer dialog")
    assert str(photos) not in page.content()
    page.keyboard.press("Escape")
    original = image_files[5].read_bytes()
    try:
        image_files[5].write_bytes(image_files[40].read_bytes())
        page.locator("#tiles .view").first.click()
        wait_for(page, "the thumbnail: ", "#viewer dialog")
        assert best in page.inner_text("#viewer dialog")
    finally:
        image_files[5].write_bytes(original)


def test_selected_images_are_exported_and_deleted(opened, served, image_files):
    label = "=1+1"  # a spreadsheet would run it
    served.bench.add_images("photos", [NewImage("throwaway", image_files[0], {"label": label})])
    page = opened()
    upload(page, image_files[0])
    other = ids(page)[2]
    for id in ("throwaway", other):
        page.locator(f"#tiles .tile[data-id='{id}'] .select input").check()
    with page.expect_download() as download:
        page.locator("#tiles .export").click()
    lines = download.value.path().read_text().splitlines()
    assert lines[0].startswith("id,score,label,")
    assert len(lines) == 3
    assert re.search(r"^throwaway,(1\.0000|0\.9999)\d\d,'=1\+1,", "\n".join(lines), re.MULTILINE)
    page.locator(f"#tiles .tile[data-id='{other}'] .select input").uncheck()
    page.locator("#tiles .delete").click()
    assert served.bench.collection("photos").get(["throwaway"]), "the first click only asks"
    page.locator("#tiles .delete").click()
    wait_for(page, "of 60 images")
    assert served.bench.collection("photos").get(["throwaway"]) == []


@pytest.mark.slow
def test_a_new_collection_is_selected_on_every_tab(opened, served, image_files):
    """Without a reload; the previous search is one step back."""
    page = opened()
    upload(page, image_files[5])
    found, link = captions(page), page.url
    try:
        open_tab(page, "Collections")
        page.fill("#new-name input, #new-name textarea", "album")
        page.click("#create")
        wait_for(page, "album is empty", "#items-status")
        open_tab(page, "Probe")
        wait_for(page, "is empty", "#labeler")
        assert page.locator("#probe-collection input").input_value() == "album"
        served.bench.add_images("album", [NewImage(name, image_files[0]) for name in "ab"])
        open_tab(page, "Search")
        wait_for(page, "All 2 images in album")
        assert page.locator("#collection input").input_value() == "album"
        page.go_back()
        wait_for(page, "most similar")
        assert (captions(page), page.url) == (found, link)
        open_tab(page, "Collections")
        wait_for(page, "of 60 in photos", "#items-status")
    finally:
        served.bench.drop("album")


@pytest.mark.slow
def test_a_double_click_searches_once(opened):
    """At the second click, another image is in that place."""
    page = opened()
    wait_for(page, "24 of the 60")
    wait_for_images(page, "#tiles img")
    place = page.locator("#tiles .image").nth(2).bounding_box()
    page.mouse.click(place["x"] + 40, place["y"] + 40)
    wait_for(page, "most similar")
    found = page.url
    for count, expected in ((2, True), (1, False)):
        page.mouse.down(click_count=count)
        page.mouse.up(click_count=count)
        page.wait_for_timeout(1500)
        assert (page.url == found) is expected


def test_labels_are_never_run_as_code(opened, served, image_files):
    """Gradio would run a template in a value, and HTML could be in a title, an alternative text or a link."""
    labels = ["${window.hurt = 1}", "\\x3cimg src\\x3dx onerror\\x3dwindow.hurt\\x3d1\\x3e"]
    labels.append("<img src=x onerror='hurt=1'>")
    images = [NewImage(f"evil{i}", image_files[i], {"label": label}) for i, label in enumerate(labels)]
    served.bench.add_images("photos", images)
    try:
        page = opened()
        upload(page, image_files[0])
        page.locator("#tiles .tile[data-id='evil0'] .view").click()
        wait_for(page, labels[0], "#viewer dialog")
        page.keyboard.press("Escape")
        page.locator("#tiles .tile[data-id='evil0'] .more").click()
        page.wait_for_selector("#samples .tile")
        assert any(labels[0] in caption for caption in captions(page) + page.locator("#samples").all_inner_texts())
        assert page.evaluate("window.hurt") is None
    finally:
        served.bench.delete("photos", [image.id for image in images])


def test_the_page_works_on_a_phone_and_with_the_keyboard(opened):
    page = opened(**PHONE)
    wait_for(page, "24 of the 60")
    page.locator("#tiles .image").nth(1).tap()
    wait_for(page, "most similar")
    wait_for_images(page, "#query-image img")
    page.locator("#options button").first.tap()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.locator("#tiles .image").first.focus()
    for _ in range(4):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('.tile') !== null")
    page.locator("#tiles .image").nth(2).focus()
    before = page.url
    page.keyboard.press("Enter")
    page.wait_for_function("before => location.href !== before", arg=before)
