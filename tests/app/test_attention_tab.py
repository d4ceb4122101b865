"""The Attention tab: a point or a box becomes the encoder's query, and the maps are those of the encoder."""

import base64
import io
from collections.abc import Iterator

import numpy as np
import pytest
from page_actions import PHONE, drag, toast, wait_for, wait_for_images
from page_calls import call, get, post
from PIL import Image

from app.tabs import attention
from app.tabs.attention import SIDE, Selection, Settings, map_call, parse_settings
from nnclr_hub import Box, Point, load_encoder
from nnclr_hub.encoder.attention import on_one_scale
from nnclr_hub.errors import InvalidRequest


@pytest.fixture(scope="module")
def served(model, tmp_path_factory, serve) -> Iterator:
    yield from serve(model, tmp_path_factory.mktemp("attention") / "store", page=True)


@pytest.fixture
def requests(monkeypatch) -> list:
    """The settings of each request to the encoder."""
    seen = []
    maps = attention.comparable_maps

    def recording(embedder, settings, image, targets):
        seen.append(settings)
        return maps(embedder, settings, image, targets)

    monkeypatch.setattr(attention, "comparable_maps", recording)
    return seen


@pytest.fixture
def rotated(tmp_path, image_files):
    """A photo of 60 x 40 pixels with an EXIF rotation."""
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.open(image_files[5]).resize((60, 40)).save(tmp_path / "rotated.jpg", exif=exif, quality=95)
    return tmp_path / "rotated.jpg"


def with_image(opened, path, **context):
    page = opened("Attention", **context)
    page.set_input_files("#attention-picker input[type=file]", str(path))
    wait_for_images(page, "#maps img")
    return page


@pytest.mark.browser
@pytest.mark.parametrize("touch", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["mouse", "finger"])
def test_a_point_and_a_box_become_the_query(opened, requests, rotated, touch):
    page = with_image(opened, rotated, **(PHONE if touch else {}))
    stage = page.locator("#attention-image .stage")
    box = stage.bounding_box()
    place = {"x": 0.25 * box["width"], "y": 0.75 * box["height"]}
    stage.tap(position=place) if touch else stage.click(position=place)
    wait_for(page, "similar to the point", "#attention-status")
    assert isinstance(requests[-1].query, Point)
    assert tuple(vars(requests[-1].query).values()) == pytest.approx((10, 45), abs=0.3)
    if touch:
        page.locator("#attention-image .draw-switch").tap()
    drag(page, "#attention-image .stage", (0.25, 0.5), (1.0, 1.0), touch=touch)
    wait_for(page, "similar to the box", "#attention-status")
    assert isinstance(requests[-1].query, Box)
    assert tuple(vars(requests[-1].query).values()) == pytest.approx((10, 30, 40, 60), abs=0.3)
    assert page.evaluate("document.documentElement.scrollWidth") <= (390 if touch else 1440)


@pytest.mark.browser
def test_the_maps_are_those_of_the_encoder(opened, model, image_files):
    """Equal values have equal colors, the slider sends no request, and at most six other images are accepted."""
    page = with_image(opened, image_files[5])
    page.set_input_files("#attention-targets input[type=file]", [str(path) for path in image_files[20:22]])
    page.wait_for_function("() => document.querySelectorAll('#maps figure').length === 3")
    wait_for_images(page, "#maps .overlay", 3)
    encoder = load_encoder(model, device="cpu")
    separate = [encoder.attention(image_files[5]), *encoder.attention(image_files[5], target=image_files[20:22])]
    expected = on_one_scale(separate)
    assert expected[0].limits != separate[0].limits
    for overlay, wanted in zip(page.locator("#maps .overlay").all(), expected, strict=True):
        data = base64.b64decode(overlay.get_attribute("src").partition(",")[2])
        with Image.open(io.BytesIO(data)) as image:
            difference = np.abs(np.asarray(image, float) - np.asarray(wanted.colored(), float))
        assert difference.mean() < 8  # the page shows a JPEG
    page.locator("#maps input[type=range]").fill("0.25")
    assert page.locator("#maps .overlay").first.evaluate("overlay => overlay.style.opacity") == "0.25"
    page.set_input_files("#attention-targets input[type=file]", [str(path) for path in image_files[20:27]])
    assert "at most 6" in toast(page).lower()
    assert page.locator("[data-testid=status-tracker] > .error:visible").count() == 0, "Gradio's badges hide text"
    page.locator("#attention-options button").first.click()
    page.locator("#no-heads").wait_for()
    assert page.locator("#head:visible, #threshold:visible").count() == 0, "a ResNet has no heads"


def test_a_transformer_offers_its_heads(make_model, image_files, serve, tmp_path, requests):
    model = make_model("test_vit", model_args={}, input_size=160)
    for server in serve(model, tmp_path / "store", page=True):
        parts = get(f"{server.url}/ui/config").json()["components"]
        parts = {part["props"].get("elem_id"): part["props"] for part in parts}
        heads = load_encoder(model, device="cpu").backbone.blocks[-1].attn.num_heads
        assert [value for _, value in parts["head"]["choices"]] == ["", *map(str, range(heads))]
        assert parts["head"]["visible"]
        assert parts["threshold"]["visible"]
        assert "no-heads" not in parts
        files = [("files", ("a.png", image_files[5].read_bytes()))]
        [path] = post(f"{server.url}/ui/gradio_api/upload", files=files).json()
        image = {"path": path, "meta": {"_type": "gradio.FileData"}}
        assert call(server.url, "_upload", [image, None, "dot", "1", ""]).status_code == 200
        wanted = requests[-1]
        assert (wanted.head, wanted.max_side) == (1, SIDE)


def test_the_rest_call_has_the_settings_of_the_map():
    rest = map_call(Selection(name="a.jpg"), Settings("dot", None, None))
    assert rest.form["query"] == {"similarity": "dot", "max_side": SIDE}
    assert f"max_side={SIDE}" in rest.call
    assert parse_settings("dot", " 3", "0,5") == parse_settings("dot", "3", "0.5") == Settings("dot", 3, 0.5)
    assert parse_settings("cosine", "", "") == Settings("cosine", None, None)
    for head, share in (("many", ""), ("", "half"), ("1.5", "")):
        with pytest.raises(InvalidRequest):
            parse_settings("dot", head, share)
