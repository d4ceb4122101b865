"""The search tab in a real browser, on real photos: with a mouse, with a finger, with keys alone."""

import re

import pytest
from browsing import PHONE, drag, open_tab, until_shown, wait_for, wait_for_images
from searching import captions, ids, scores, upload

pytestmark = pytest.mark.browser


def test_two_actions_from_an_empty_browser_to_a_search_and_on_and_back(opened):
    """Opening is the first, a click the second; each further click searches on, and the browser's Back goes back."""
    page = opened()
    wait_for(page, "24 of the 60 images in photos")
    assert "knows no words" in page.inner_text("#intro"), "nobody is told that pictures are asked for, not words"
    wait_for_images(page, "#tiles img")
    first = page.locator("#tiles .image").nth(2)
    chosen = first.get_attribute("data-id")
    first.click()
    wait_for(page, "24 most similar of 60")
    assert f"more={chosen}" in page.url
    assert chosen not in ids(page)
    assert scores(page) == sorted(scores(page), reverse=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= 1440
    again = page.locator("#tiles .image").nth(3).get_attribute("data-id")
    page.locator("#tiles .image").nth(3).click()
    page.wait_for_function("id => location.hash.includes(id)", arg=again)
    page.go_back()
    page.wait_for_function("id => !document.querySelector(`#tiles [data-id='${id}']`)", arg=chosen)
    assert again in ids(page)
    page.locator("#browse").click()
    wait_for(page, "24 of the 60")


def test_more_and_less_like_several_images(opened, served):
    """The same that the store finds by those examples."""
    from nnclr_hub.store.queries import search_like

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
def test_a_filter_and_a_least_score_leave_out(opened):
    page = opened()
    wait_for(page, "24 of the 60")
    page.locator("#options button").first.click()
    page.locator("#filter-key input").fill("label")
    page.locator("#filter-key input").press("Enter")
    page.locator("#filter-value textarea, #filter-value input").fill("cat")
    page.locator("#filter-add").click()
    wait_for(page, "All 20 that pass your filter, of 60 pictures in photos")
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


@pytest.mark.slow
def test_a_filter_that_is_no_json_is_a_sentence_and_changes_nothing(opened):
    page = opened()
    wait_for(page, "24 of the 60")
    page.locator("#options button").first.click()
    page.locator("#where textarea").fill('{"must": [')
    field = page.locator("#where textarea")
    until_shown(page, ".toast-body", lambda: (field.focus(), field.blur()))
    assert "The filter is no JSON" in page.inner_text(".toast-body")
    assert len(captions(page)) == 24


@pytest.mark.slow
def test_why_shows_where_on_the_hit_the_query_is_found(opened, pictures):
    page = opened()
    upload(page, pictures[5])
    drag(page, "#query-image .stage", (0.2, 0.2), (0.8, 0.9))
    wait_for(page, "most similar")
    page.locator("#tiles .why").nth(1).click()
    wait_for_images(page, "#viewer dialog[open] img", 2)
    words = page.inner_text("#viewer dialog")
    assert "your box" in words
    assert "It looked at the file that was indexed" in words
    page.keyboard.press("Escape")
    page.locator("#tiles .more").first.click()
    page.wait_for_selector("#samples .tile")
    page.locator("#tiles .why").first.click()
    wait_for(page, "your box (example 1 of 2)", "#viewer dialog")


def test_the_original_is_the_file_while_it_is_the_same(opened, served, photos, pictures):
    """Else it is the thumbnail, and says so."""
    page = opened()
    upload(page, pictures[5])
    best = ids(page)[0]
    page.locator("#tiles .view").first.click()
    wait_for_images(page, "#viewer dialog[open] img")
    assert "the file that was indexed" in page.inner_text("#viewer dialog")
    assert str(photos) not in page.content()
    page.keyboard.press("Escape")
    bytes_then = pictures[5].read_bytes()
    try:
        pictures[5].write_bytes(pictures[40].read_bytes())
        page.locator("#tiles .view").first.click()
        wait_for(page, "the thumbnail: its file has changed", "#viewer dialog")
        assert best in page.inner_text("#viewer dialog")
    finally:
        pictures[5].write_bytes(bytes_then)


def test_what_is_selected_is_exported_and_deleted(opened, served, pictures, tmp_path):
    from nnclr_hub.workbench import NewImage

    label = "=1+1"  # a spreadsheet would run it
    served.bench.add_images("photos", [NewImage("throwaway", pictures[0], {"label": label})])
    page = opened()
    upload(page, pictures[0])
    for id in ("throwaway", ids(page)[2]):
        page.locator(f"#tiles .tile[data-id='{id}'] .select input").check()
    with page.expect_download() as download:
        page.locator("#tiles .export").click()
    lines = download.value.path().read_text().splitlines()
    assert lines[0].startswith("id,score,label,")
    assert len(lines) == 3
    assert re.search(r"^throwaway,(1\.0000|0\.9999)\d\d,'=1\+1,", "\n".join(lines), re.MULTILINE)
    page.locator(f"#tiles .tile[data-id='{ids(page)[2]}'] .select input").uncheck()
    page.locator("#tiles .delete").click()
    assert page.locator("#tiles .delete").inner_text() == "Really delete 1?"
    assert served.bench.collection("photos").get(["throwaway"])
    page.locator("#tiles .delete").click()
    wait_for(page, "of 60 images")
    assert served.bench.collection("photos").get(["throwaway"]) == []


@pytest.mark.slow
def test_a_collection_that_is_made_on_its_tab_can_be_searched_without_a_reload(opened, served, pictures):
    """It is the one that is shown, there and where probes are fitted; the search that stood there is one step back."""
    from nnclr_hub.workbench import NewImage

    page = opened()
    upload(page, pictures[5])
    found, link = captions(page), page.url
    try:
        open_tab(page, "Collections")
        page.fill("#new-name input, #new-name textarea", "album")
        page.click("#create")
        wait_for(page, "album is empty", "#items-status")
        open_tab(page, "Probe")
        wait_for(page, "There is no image in this collection yet", "#labeler")
        assert page.locator("#probe-collection input").input_value() == "album"
        served.bench.add_images("album", [NewImage(name, pictures[0]) for name in "ab"])
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
def test_a_double_click_is_one(opened):
    """The second click falls upon what has taken the image's place meanwhile."""
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


@pytest.mark.slow
def test_more_than_the_most_at_a_time_is_the_most(opened):
    page = opened()
    wait_for(page, "24 of the 60")
    page.locator("#options button").first.click()
    number = page.locator("#k input[type=number]")
    for typed, shown in (("500", "All 60 images"), ("0", "1 of the 60")):
        number.fill(typed)
        number.press("Tab")
        wait_for(page, shown)
    assert page.locator(".toast-body").count() == 0


def test_labels_are_text_and_never_code(opened, served, pictures):
    """Gradio would run what stands in a template; and a title, an alternative text or a link must not either."""
    from nnclr_hub.workbench import NewImage

    labels = [
        "${window.hurt = 1}",
        "\\x3cimg src\\x3dx onerror\\x3dwindow.hurt\\x3d1\\x3e",
        "<img src=x onerror='hurt=1'>",
    ]
    images = [NewImage(f"evil{i}", pictures[i], {"label": label}) for i, label in enumerate(labels)]
    served.bench.add_images("photos", images)
    try:
        page = opened()
        upload(page, pictures[0])
        page.locator("#tiles .tile[data-id='evil0'] .view").click()
        wait_for(page, labels[0], "#viewer dialog")
        page.keyboard.press("Escape")
        page.locator("#tiles .tile[data-id='evil0'] .more").click()
        page.wait_for_selector("#samples .tile")
        assert any(labels[0] in caption for caption in captions(page) + page.locator("#samples").all_inner_texts())
        assert page.evaluate("window.hurt") is None
    finally:
        served.bench.delete("photos", [image.id for image in images])


def test_a_telephone_and_the_keyboard_find_everything(opened):
    """Nothing is wider than 390 pixels, and Tab and Enter do what a finger does."""
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
