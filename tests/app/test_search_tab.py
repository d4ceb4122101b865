"""The search tab in a real browser, on real photos: with a mouse, with a finger, with keys alone."""

import re
from collections.abc import Iterator

import numpy as np
import pytest
from browsing import PHONE, drag, open_tab, until_shown, wait_for, wait_for_pictures
from PIL import Image

from app.finding import Finder
from nnclr_hub.store import open_store
from nnclr_hub.store.base import Item
from nnclr_hub.workbench import Encoders, Workbench

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def served(model, photos, tmp_path_factory, serve) -> Iterator:
    """A server with the page, and the photos in a collection whose sources it may read."""
    store = tmp_path_factory.mktemp("search") / "store"
    with open_store(str(store)) as opened:
        Workbench(Encoders(str(model), device="cpu"), opened).index_folder("photos", photos)
    yield from serve(model, store, page=True, source_folders=[str(photos)])


@pytest.fixture
def boxes(monkeypatch) -> list:
    """The boxes that the server was asked for."""
    asked = []
    embedded = Finder.embedded

    def noting(self, collection, sample):
        asked.append(sample.box)
        return embedded(self, collection, sample)

    monkeypatch.setattr(Finder, "embedded", noting)
    return asked


def captions(page) -> list[str]:
    return [text.replace("\n", " ") for text in page.locator("#tiles .caption").all_inner_texts()]


def scores(page) -> list[float]:
    return [float(text) for text in page.locator("#tiles .score").all_inner_texts()]


def ids(page) -> list[str]:
    return page.eval_on_selector_all("#tiles .tile", "tiles => tiles.map(tile => tile.dataset.id)")


def upload(page, path) -> None:
    wait_for(page, "photos")  # a test is quicker than the page is there
    page.set_input_files("#query input[type=file]", str(path))
    wait_for(page, "most similar")


def rotated(path, size=(80, 40)):
    """A picture whose camera was held upright: 40 x 80 once it is turned as its EXIF says."""
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (size[1], size[0], 3), np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(path, exif=exif, quality=95)
    return path


def test_two_actions_from_an_empty_browser_to_a_search_and_on_and_back(opened):
    """Opening is the first, a click the second; each further click searches on, and the browser's Back goes back."""
    page = opened()
    wait_for(page, "24 of the 60 pictures in photos")
    wait_for_pictures(page, "#tiles img")
    first = page.locator("#tiles .picture").nth(2)
    chosen = first.get_attribute("data-id")
    first.click()
    wait_for(page, "24 most similar of 60")
    assert f"more={chosen}" in page.url
    assert chosen not in ids(page)
    assert scores(page) == sorted(scores(page), reverse=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= 1440
    again = page.locator("#tiles .picture").nth(3).get_attribute("data-id")
    page.locator("#tiles .picture").nth(3).click()
    page.wait_for_function("id => location.hash.includes(id)", arg=again)
    page.go_back()
    page.wait_for_function("id => !document.querySelector(`#tiles [data-id='${id}']`)", arg=chosen)
    assert again in ids(page)
    page.locator("#browse").click()
    wait_for(page, "24 of the 60")


def test_a_link_reopens_the_search_elsewhere(opened, pictures):
    """By an item, and by a picture of one's own, of which the link holds the vector alone."""
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
    wait_for(page, "24 of the 60 pictures in photos")
    assert page.locator("#collection input").input_value() == "photos"
    assert page.url.endswith("#collection=photos")
    upload(page, pictures[5])
    found = page.url
    page.evaluate("link => { location.hash = link }", link)
    wait_for(page, "24 of the 60 pictures in photos")
    page.go_back()
    wait_for(page, "most similar")
    assert page.url == found


def test_an_item_without_a_picture_is_searched_by(opened, served):
    """One that was stored by its vector alone: there is nothing to draw on, and its neighbours are found."""
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


@pytest.mark.slow
def test_an_example_picture_searches_and_another_can_be_given(opened):
    page = opened()
    wait_for(page, "24 of the 60")
    page.locator("#tries .picture", has_text="a cat").click()
    wait_for(page, "most similar")
    assert "cat" in captions(page)[0]
    page.locator("#another").click()
    page.wait_for_selector("#query input[type=file]", state="attached")
    wait_for(page, "24 of the 60")


@pytest.mark.parametrize("touch", [False, True], ids=["mouse", "finger"])
def test_a_box_is_what_the_server_searches_by(opened, boxes, tmp_path, touch):
    """Also backwards, past the edge, and on a picture that lies on its side in the file."""
    page = opened(**(PHONE if touch else {}))
    upload(page, rotated(tmp_path / "rotated.jpg"))
    wait_for_pictures(page, "#query-picture img")
    if touch:
        page.locator("#query-picture .draw-switch").tap()
    stage = "#query-picture .stage"
    for start, end, box in (
        ((0.25, 0.25), (0.75, 0.5), (10, 20, 30, 40)),
        ((0.75, 0.9), (0.5, 0.6), (20, 48, 30, 72)),
        ((0.5, 0.5), (1.0, 1.0), (20, 40, 40, 80)),
    ):
        count, before = len(boxes), page.url
        drag(page, stage, start, end, touch=touch)
        page.wait_for_function("before => location.href !== before", arg=before)
        assert len(boxes) == count + 1
        assert boxes[-1] == pytest.approx(box, abs=0.3)
    page.get_by_role("button", name="Whole picture").click()
    page.wait_for_function("() => document.querySelector('#query-picture .box-mark').hidden")
    wait_for(page, "most similar")


def test_a_box_can_be_typed(opened, boxes, pictures):
    page = opened()
    upload(page, pictures[5])
    page.locator("#query-picture summary").click()
    for name, value in {"x0": "8", "y0": "4", "x1": "60", "y1": "50"}.items():
        page.locator(f"#query-picture input[name={name}]").fill(value)
    before = page.url
    page.keyboard.press("Tab")
    page.wait_for_function("before => location.href !== before", arg=before)
    assert boxes[-1] == (8, 4, 60, 50)
    page.locator("#query-picture input[name=x1]").fill("2")
    page.keyboard.press("Tab")
    page.wait_for_selector(".toast-body")
    assert "does not lie on the picture" in page.inner_text(".toast-body")


def test_more_and_less_like_several_pictures(opened, served):
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


def test_a_filter_and_a_least_score_leave_out(opened):
    page = opened()
    wait_for(page, "24 of the 60")
    page.locator("#narrow button").first.click()
    page.locator("#filter-key input").fill("label")
    page.locator("#filter-key input").press("Enter")
    page.locator("#filter-value textarea, #filter-value input").fill("cat")
    page.locator("#filter-add").click()
    wait_for(page, "All 20 that pass your filter, of 60 pictures in photos")
    assert set(captions(page)) == {"cat"}
    assert '"match": "cat"' in page.locator("#where textarea").input_value()
    page.locator("#tiles .picture").first.click()
    wait_for(page, "19 most similar")
    least = scores(page)[4]
    page.locator("#above textarea, #above input").fill(f"{least - 0.0006:.4f}")
    page.keyboard.press("Enter")
    wait_for(page, "5 most similar")
    page.locator("#filter-clear").click()
    page.wait_for_function("() => document.querySelector('#where textarea').value === ''")


@pytest.mark.slow
def test_a_filter_that_is_no_json_is_a_sentence_and_changes_nothing(opened):
    page = opened()
    wait_for(page, "24 of the 60")
    page.locator("#narrow button").first.click()
    page.locator("#where textarea").fill('{"must": [')
    field = page.locator("#where textarea")
    until_shown(page, ".toast-body", lambda: (field.focus(), field.blur()))
    assert "The filter is no JSON" in page.inner_text(".toast-body")
    assert len(captions(page)) == 24


@pytest.mark.slow
def test_why_shows_where_on_the_hit_the_query_is_found(opened, pictures):
    page = opened()
    upload(page, pictures[5])
    drag(page, "#query-picture .stage", (0.2, 0.2), (0.8, 0.9))
    wait_for(page, "most similar")
    page.locator("#tiles .why").nth(1).click()
    wait_for_pictures(page, "#viewer dialog[open] img", 2)
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
    wait_for_pictures(page, "#viewer dialog[open] img")
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
        page.locator(f"#tiles .tile[data-id='{id}'] .choose input").check()
    with page.expect_download() as download:
        page.locator("#tiles .export").click()
    lines = download.value.path().read_text().splitlines()
    assert lines[0].startswith("id,score,label,")
    assert len(lines) == 3
    assert re.search(r"^throwaway,(1\.0000|0\.9999)\d\d,'=1\+1,", "\n".join(lines), re.MULTILINE)
    page.locator(f"#tiles .tile[data-id='{ids(page)[2]}'] .choose input").uncheck()
    page.locator("#tiles .delete").click()
    assert page.locator("#tiles .delete").inner_text() == "Really delete 1?"
    assert served.bench.collection("photos").get(["throwaway"])
    page.locator("#tiles .delete").click()
    wait_for(page, "of 60 pictures")
    assert served.bench.collection("photos").get(["throwaway"]) == []


def test_a_collection_that_is_made_on_its_tab_can_be_searched_without_a_reload(opened, served, pictures):
    """And a probe can be fitted on it; the search that was shown meanwhile stays."""
    from nnclr_hub.workbench import NewImage

    page = opened()
    upload(page, pictures[5])
    found, link = captions(page), page.url
    try:
        open_tab(page, "Collections")
        page.fill("#new-name input, #new-name textarea", "album")
        page.click("#create")
        wait_for(page, "album is empty", "#shelf-status")
        served.bench.add_images("album", [NewImage(name, pictures[0]) for name in "ab"])
        open_tab(page, "Search")
        wait_for_choice(page, "#collection", "album")
        assert (captions(page), page.url) == (found, link)
        page.locator("[role=option]", has_text="album").click()
        wait_for(page, "All 2 pictures in album")
        open_tab(page, "Probe")
        wait_for_choice(page, "#probe-collection", "album")
    finally:
        served.bench.drop("album")


def wait_for_choice(page, picker: str, name: str) -> None:
    """Until the picker offers it; leaves it open."""
    until_shown(
        page,
        f"[role=option]:has-text('{name}')",
        lambda: (page.locator(f"{picker} input").blur(), page.locator(f"{picker} input").click()),
    )


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


def test_a_broken_upload_is_one_sentence_and_changes_nothing(opened, tmp_path, capfd):
    page = opened()
    wait_for(page, "24 of the 60")
    before = ids(page)
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"nonsense")
    page.set_input_files("#query input[type=file]", str(broken))
    page.wait_for_selector(".toast-body")
    assert "not a picture in a format we read" in page.inner_text(".toast-body")
    assert str(tmp_path) not in page.inner_text(".toast-body")
    assert ids(page) == before
    assert "Traceback" not in capfd.readouterr().err, "the server failed on what it sent"


@pytest.mark.slow
def test_a_picture_of_one_pixel_searches(opened, tmp_path):
    page = opened()
    Image.new("RGB", (1, 1), (200, 30, 30)).save(tmp_path / "dot.png")
    upload(page, tmp_path / "dot.png")
    assert len(ids(page)) == 24


@pytest.mark.slow
def test_a_picture_can_be_pasted_and_taken_with_the_camera(opened):
    # of a picture from the camera Gradio asks how far an upload without a name is
    page = opened(permissions=["camera"], allowed=("404", "Response"))
    wait_for(page, "24 of the 60")
    page.evaluate("""async () => {
      const canvas = Object.assign(document.createElement('canvas'), {width: 40, height: 30});
      canvas.getContext('2d').fillRect(5, 5, 10, 10);
      const blob = await new Promise(done => canvas.toBlob(done, 'image/png'));
      const carried = new DataTransfer();
      carried.items.add(new File([blob], 'pasted.png', {type: 'image/png'}));
      document.body.dispatchEvent(new ClipboardEvent('paste', {clipboardData: carried, bubbles: true}));
    }""")
    wait_for(page, "most similar")
    pasted = page.url
    page.locator("#another").click()
    page.locator("#query [aria-label='Capture from camera']").click()
    page.locator("#query button", has_text="Click to Access Webcam").click()
    page.wait_for_function("() => (document.querySelector('#query video')?.videoWidth ?? 0) > 0")
    page.locator("#query [aria-label='capture photo']").click()
    wait_for(page, "most similar")
    assert page.url != pasted


def test_a_telephone_and_the_keyboard_find_everything(opened):
    """Nothing is wider than 390 pixels, and Tab and Enter do what a finger does."""
    page = opened(**PHONE)
    wait_for(page, "24 of the 60")
    page.locator("#tiles .picture").nth(1).tap()
    wait_for(page, "most similar")
    wait_for_pictures(page, "#query-picture img")
    page.locator("#narrow button").first.tap()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.locator("#tiles .picture").first.focus()
    for _ in range(4):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('.tile') !== null")
    page.locator("#tiles .picture").nth(2).focus()
    before = page.url
    page.keyboard.press("Enter")
    page.wait_for_function("before => location.href !== before", arg=before)
