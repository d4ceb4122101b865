"""The attention tab in a real browser: what is clicked is what the encoder is asked, and its map is what is shown."""

import base64
import io
from collections.abc import Iterator

import numpy as np
import pytest
from browsing import PHONE, drag, open_tab, wait_for, wait_for_images
from page_calls import call, get, post
from PIL import Image

from app.tabs.attention import SIDE, read_ways
from nnclr_hub import Box, Point, load_encoder
from nnclr_hub.encoder.attention import on_one_scale
from nnclr_hub.errors import InvalidRequest
from serving.models import Model


@pytest.fixture(scope="module")
def served(model, tmp_path_factory, serve) -> Iterator:
    yield from serve(model, tmp_path_factory.mktemp("attention") / "store", page=True)


@pytest.fixture
def asked(monkeypatch) -> list:
    """The queries that the encoder was asked."""
    queries = []
    look = Model.look

    def noting(self, settings, image, targets=()):
        queries.append(settings.query)
        return look(self, settings, image, targets)

    monkeypatch.setattr(Model, "look", noting)
    return queries


@pytest.fixture
def rotated(tmp_path, pictures):
    """A photo of 60 x 40 pixels that lies on its side in the file."""
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.open(pictures[5]).resize((60, 40)).save(tmp_path / "rotated.jpg", exif=exif, quality=95)
    return tmp_path / "rotated.jpg"


def given(opened, path, **context):
    page = opened("Attention", **context)
    page.set_input_files("#attention-picker input[type=file]", str(path))
    wait_for(page, "what counts most", "#attention-status")
    wait_for_images(page, "#maps img")
    return page


@pytest.mark.browser
@pytest.mark.parametrize("touch", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["mouse", "finger"])
def test_a_point_and_a_box_are_what_the_encoder_is_asked(opened, asked, rotated, touch):
    page = given(opened, rotated, **(PHONE if touch else {}))
    stage = page.locator("#attention-image .stage")
    box = stage.bounding_box()
    place = {"x": 0.25 * box["width"], "y": 0.75 * box["height"]}
    stage.tap(position=place) if touch else stage.click(position=place)
    wait_for(page, "the same as the point", "#attention-status")
    assert isinstance(asked[-1], Point)
    assert (asked[-1].x, asked[-1].y) == pytest.approx((10, 45), abs=0.3)
    if touch:
        page.locator("#attention-image .draw-switch").tap()
    drag(page, "#attention-image .stage", (0.25, 0.5), (1.0, 1.0), touch=touch)
    wait_for(page, "the same as the box", "#attention-status")
    assert isinstance(asked[-1], Box)
    assert tuple(vars(asked[-1]).values()) == pytest.approx((10, 30, 40, 60), abs=0.3)
    assert page.evaluate("document.documentElement.scrollWidth") <= (390 if touch else 1440)


@pytest.mark.browser
def test_the_map_is_the_encoders(opened, model, pictures):
    """And those of other images, equal values in equal colors, faded by a slider that asks nobody."""
    page = given(opened, pictures[5])
    page.set_input_files("#attention-targets input[type=file]", [str(path) for path in pictures[20:22]])
    page.wait_for_function("() => document.querySelectorAll('#maps figure').length === 3")
    wait_for_images(page, "#maps .overlay", 3)
    encoder = load_encoder(model, device="cpu")
    apart = [encoder.attention(pictures[5]), *encoder.attention(pictures[5], target=pictures[20:22])]
    expected = on_one_scale(apart)
    assert expected[0].limits != apart[0].limits
    for shown, there in zip(page.locator("#maps .overlay").all(), expected, strict=True):
        data = base64.b64decode(shown.get_attribute("src").partition(",")[2])
        with Image.open(io.BytesIO(data)) as image:
            difference = np.abs(np.asarray(image, float) - np.asarray(there.colored(), float))
        assert difference.mean() < 8  # it is a JPEG
    page.locator("#maps input[type=range]").fill("0.25")
    assert page.locator("#maps .overlay").first.evaluate("over => over.style.opacity") == "0.25"


@pytest.mark.browser
def test_a_seventh_other_image_is_refused_in_a_sentence(opened, pictures):
    """And a ResNet has no heads to choose from, which stands where they would."""
    page = given(opened, pictures[5])
    page.set_input_files("#attention-targets input[type=file]", [str(path) for path in pictures[20:27]])
    page.wait_for_selector(".toast-body")
    assert "7 images are too many to look in: give at most 6" in page.inner_text(".toast-body")
    assert page.locator("#maps figure").count() == 1
    assert page.locator("[data-testid=status-tracker] > .error:visible").count() == 0, "Gradio's badges lie over words"
    page.locator("#attention-options button").first.click()
    wait_for(page, "none to choose from", "#no-heads")
    assert page.locator("#head:visible, #threshold:visible").count() == 0
    open_tab(page, "Search")


def test_a_transformers_heads_are_there_to_choose_from(make_model, pictures, serve, tmp_path, monkeypatch):
    asked = []
    look = Model.look

    def noting(self, settings, image, targets=()):
        asked.append(settings)
        return look(self, settings, image, targets)

    monkeypatch.setattr(Model, "look", noting)
    model = make_model("test_vit", model_args={}, input_size=160)
    for there in serve(model, tmp_path / "store", page=True):
        parts = get(f"{there.url}/ui/config").json()["components"]
        parts = {part["props"].get("elem_id"): part["props"] for part in parts}
        heads = load_encoder(model, device="cpu").backbone.blocks[-1].attn.num_heads
        assert [value for _, value in parts["head"]["choices"]] == ["", *map(str, range(heads))]
        assert parts["head"]["visible"]
        assert parts["threshold"]["visible"]
        assert "no-heads" not in parts
        files = [("files", ("a.png", pictures[5].read_bytes()))]
        [path] = post(f"{there.url}/ui/gradio_api/upload", files=files).json()
        picture = {"path": path, "meta": {"_type": "gradio.FileData"}}
        assert call(there.url, "_upload", [picture, None, "dot", "1", ""]).status_code == 200
        assert (asked[-1].head, asked[-1].max_side) == (1, SIDE)


def test_the_rest_call_asks_for_maps_of_the_same_size():
    action = map_call(Selection(name="a.jpg"), Settings("dot", None, None))
    assert action.form["query"] == {"similarity": "dot", "max_side": SIDE}
    assert f"max_side={SIDE}" in action.call


def test_heads_and_shares_are_numbers():
    assert read_ways("dot", " 3", "0,5") == read_ways("dot", "3", "0.5")
    assert (read_ways("cosine", "", "").head, read_ways("cosine", "", "").threshold) == (None, None)
    for head, share in (("many", ""), ("", "half"), ("1.5", "")):
        with pytest.raises(InvalidRequest, match="A head is a number"):
            read_ways("dot", head, share)
