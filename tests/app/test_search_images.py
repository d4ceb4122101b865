"""The image to search by on the Search tab: uploaded, pasted, an example or an item, whole or a box on it."""

import numpy as np
import pytest
from page_actions import PHONE, drag, toast, wait_for, wait_for_images
from PIL import Image
from search_actions import captions, ids, upload

from app.finder import Finder

pytestmark = pytest.mark.browser


@pytest.fixture
def boxes(monkeypatch) -> list:
    """The boxes of the requests to the server."""
    seen = []
    embed = Finder.embed

    def recording(self, collection, sample):
        seen.append(sample.box)
        return embed(self, collection, sample)

    monkeypatch.setattr(Finder, "embed", recording)
    return seen


def rotated(path, size=(80, 40)):
    """Write an image with an EXIF rotation: 40 x 80 when it is upright."""
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (size[1], size[0], 3), np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(path, exif=exif, quality=95)
    return path


@pytest.mark.slow
def test_an_example_photo_and_an_image_of_one_pixel_can_be_searched_by(opened, tmp_path):
    page = opened()
    wait_for(page, "24 of the 60")
    page.locator("#tries .image", has_text="a cat").click()
    wait_for(page, "most similar")
    assert "cat" in captions(page)[0]
    page.locator("#another").click()
    page.wait_for_selector("#query input[type=file]", state="attached")
    wait_for(page, "24 of the 60")
    Image.new("RGB", (1, 1), (200, 30, 30)).save(tmp_path / "dot.png")
    upload(page, tmp_path / "dot.png")
    assert len(ids(page)) == 24


@pytest.mark.parametrize("touch", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["mouse", "finger"])
def test_the_server_searches_by_the_drawn_box(opened, boxes, tmp_path, touch):
    """Also a box that is drawn backwards, past the edge, or on a rotated image."""
    page = opened(**(PHONE if touch else {}))
    upload(page, rotated(tmp_path / "rotated.jpg"))
    wait_for_images(page, "#query-image img")
    if touch:
        page.locator("#query-image .draw-switch").tap()
    for start, end, box in (
        ((0.25, 0.25), (0.75, 0.5), (10, 20, 30, 40)),
        ((0.75, 0.9), (0.5, 0.6), (20, 48, 30, 72)),
        ((0.5, 0.5), (1.0, 1.0), (20, 40, 40, 80)),
    ):
        count, before = len(boxes), page.url
        drag(page, "#query-image .stage", start, end, touch=touch)
        page.wait_for_function("before => location.href !== before", arg=before)
        assert len(boxes) == count + 1
        assert boxes[-1] == pytest.approx(box, abs=0.3)
    page.get_by_role("button", name="Whole image").click()
    page.wait_for_function("() => document.querySelector('#query-image .box-mark').hidden")
    wait_for(page, "most similar")


def test_a_box_can_be_typed(opened, boxes, image_files):
    page = opened()
    upload(page, image_files[5])
    page.locator("#query-image summary").click()
    for name, value in {"x0": "8", "y0": "4", "x1": "60", "y1": "50"}.items():
        page.locator(f"#query-image input[name={name}]").fill(value)
    before = page.url
    page.keyboard.press("Tab")
    page.wait_for_function("before => location.href !== before", arg=before)
    assert boxes[-1] == (8, 4, 60, 50)
    page.locator("#query-image input[name=x1]").fill("2")
    page.keyboard.press("Tab")
    assert "box" in toast(page)


def test_a_broken_upload_shows_a_message_and_changes_nothing(opened, tmp_path, capfd):
    page = opened()
    wait_for(page, "24 of the 60")
    before = ids(page)
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"nonsense")
    page.set_input_files("#query input[type=file]", str(broken))
    assert str(tmp_path) not in toast(page)
    assert ids(page) == before
    wait_for(page, "Drop Image Here", "#query")  # the broken image is not shown as the query
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.slow
def test_an_image_can_be_pasted_and_taken_with_the_camera(opened):
    # Gradio polls the progress of a camera image under an empty name
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
