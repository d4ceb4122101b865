"""Attention maps: from the models of a server, and over REST."""

import asyncio
import base64
import io
import json

import numpy as np
import pytest
from PIL import Image
from rest_requests import as_text, is_problem
from waiting import until

from nnclr_hub import Box, Point, load_encoder
from nnclr_hub.encoder.attention import AttentionSettings
from serving.models import Engines
from serving.settings import Settings


@pytest.mark.parametrize(("limit", "query", "size"), [(512, {}, (512, 336)), (1024, {"max_side": 448}, (448, 304))])
def test_the_server_limits_the_side_of_the_input(limit, query, size):
    vit, large = load_encoder("random:test_vit", device="cpu"), Image.new("RGB", (900, 600), "red")
    engines = Engines("one", Settings(attention_side=limit), load=lambda _: vit)
    question = AttentionSettings(center_prior=False, **query)  # with a prior, the short side is at most 256 anyway
    [found] = asyncio.run(engines.get().attention_maps_async(question, large))
    assert found.input_size == size
    engines.close()


PATH = "/api/v1/attention"
VIT = "random:test_vit"
NPY, PNG = {"Accept": "application/x-npy"}, {"Accept": "image/png"}


@pytest.fixture(scope="module")
def served_vit(server):
    """Serve a vision transformer in addition to the default ResNet."""
    server.engines.get(VIT)
    return load_encoder(VIT, device="cpu")


def form(image, targets=(), /, **query) -> dict:
    """A multipart request."""
    files = [("image", ("image", image.read_bytes())), *(("target", ("t", one.read_bytes())) for one in targets)]
    return {"files": files, "data": {"query": json.dumps(query)}}


def body(image, targets=(), /, **query) -> dict:
    """The same as JSON."""
    return {"json": {"image": as_text(image), "target": [as_text(one) for one in targets], **query}}


QUESTIONS = [
    ({}, AttentionSettings()),
    ({"center_prior": False}, AttentionSettings(center_prior=False)),
    ({"point": [20, 30.5], "similarity": "cosine"}, AttentionSettings(Point(20, 30.5), "cosine")),
    ({"box": [8, 8, 40, 64], "max_side": 320}, AttentionSettings(Box(8, 8, 40, 64), max_side=320)),
]


@pytest.mark.parametrize("send", [form, body])
@pytest.mark.parametrize(("query", "settings"), QUESTIONS)
def test_json_has_all_values_of_the_library(client, encoder, image_files, send, query, settings):
    [want] = encoder.attention_maps(settings, image_files[0])
    response = client.post(PATH, **send(image_files[0], **query))
    assert response.status_code == 200, response.text
    [found] = response.json()["maps"]
    np.testing.assert_allclose(found["values"], want.values, rtol=1e-4, atol=1e-5)
    entry = {**want.describe(), "shape": list(want.values.shape)}
    for name in ("kind", "shape", "size", "input_size", "first", "stride", "peak"):
        assert found[name] == entry[name], name
    assert found["limits"] == pytest.approx(want.limits, rel=1e-4)
    assert "png" not in found


def test_maps_come_as_an_array_or_an_image(client, encoder, image_files):
    [want] = encoder.attention_maps(AttentionSettings(Point(20, 30)), image_files[0])
    array = client.post(PATH, headers=NPY, **form(image_files[0], point=[20, 30]))
    assert array.headers["X-Shape"] == "7,7"
    np.testing.assert_allclose(np.load(io.BytesIO(array.content)), want.values, rtol=1e-4)
    for opacity in (0, 0.3):
        drawn = client.post(PATH, headers=PNG, **form(image_files[0], point=[20, 30], opacity=opacity))
        assert drawn.headers["content-type"] == "image/png"
        overlay = np.asarray(Image.open(io.BytesIO(drawn.content)), int)
        assert np.abs(overlay - np.asarray(want.overlay(opacity), int)).max() <= 1
    entry = client.post(PATH, **form(image_files[0], point=[20, 30], opacity=0.3, with_png=True)).json()["maps"][0]
    assert base64.b64decode(entry["png"]) == drawn.content


def test_maps_of_several_targets_share_a_scale(client, encoder, image_files, photos, tmp_path):
    wide = tmp_path / "wide.png"
    Image.open(image_files[2]).resize((96, 64)).save(wide)
    question, query = AttentionSettings(Box(0, 0, 32, 32)), {"box": [0, 0, 32, 32]}
    for send in (form, body):
        targets = [image_files[1], wide]
        want = encoder.attention_maps(question, image_files[0], targets)
        found = client.post(PATH, **send(image_files[0], targets, **query)).json()["maps"]
        assert [one["size"] for one in found] == [[64, 64], [96, 64]]
        assert found[0]["limits"] == found[1]["limits"] == pytest.approx(want[0].limits, rel=1e-4)
        for one, other in zip(found, want, strict=True):
            np.testing.assert_allclose(one["values"], other.values, rtol=1e-4)
    stacked = client.post(PATH, headers=NPY, **form(image_files[0], image_files[1:4], **query))
    assert np.load(io.BytesIO(stacked.content)).shape == (3, 7, 7)
    one = client.post(PATH, headers=NPY, **form(image_files[0], image_files[1:2], **query))
    assert np.load(io.BytesIO(one.content)).shape == (1, 7, 7)
    assert client.post(PATH, headers=PNG, **form(image_files[0], [wide], **query)).status_code == 200
    several = client.post(PATH, headers=NPY, **form(image_files[0], [image_files[1], wide], **query))
    is_problem(several, 422, "invalid_request")


def test_the_encoder_is_the_named_one_or_that_of_the_collection(client, server, served_vit, image_files, encoder):
    row = served_vit.attention_maps(AttentionSettings(head=1, threshold=0.6), image_files[0])[0]
    answer = client.post(PATH, **form(image_files[0], model=VIT, head=1, threshold=0.6)).json()
    assert answer["model"] == VIT
    [found] = answer["maps"]
    assert found["kind"] == "class_token"
    np.testing.assert_allclose(found["values"], row.values, atol=1e-6)
    assert (np.array(found["values"]) == 0).sum() > 0

    assert client.put("/api/v1/collections/seen", json={"model": VIT}).status_code == 201
    try:
        by_collection = client.post(PATH, **form(image_files[0], collection="seen")).json()
        assert (by_collection["model"], by_collection["maps"][0]["kind"]) == (VIT, "class_token")
        default = client.get("/v1/models").json()["data"][0]["id"]
        other = client.post(PATH, **form(image_files[0], collection="seen", model=default))
        is_problem(other, 409, "fingerprint_mismatch")
    finally:
        client.delete("/api/v1/collections/seen")


def test_the_pngs_of_a_json_response_are_limited(client, image_files, monkeypatch):
    monkeypatch.setattr("serving.routes.attention.MAX_RENDERED_PIXELS", 2 * 64 * 64)
    for targets, status in ((2, 200), (3, 413)):
        response = client.post(PATH, **form(image_files[0], image_files[1 : 1 + targets], with_png=True))
        assert response.status_code == status, response.text
    is_problem(response, 413, "request_too_large")
    assert client.post(PATH, **form(image_files[0], image_files[1:4])).status_code == 200


def test_the_pixels_of_all_images_together_are_limited(client, image_files, monkeypatch):
    monkeypatch.setattr("serving.engine.MAX_TOTAL_PIXELS", 3 * 64 * 64)
    assert client.post(PATH, **form(image_files[0], image_files[1:3])).status_code == 200
    is_problem(client.post(PATH, **form(image_files[0], image_files[1:4])), 413, "request_too_large")


def test_stages_are_timed_and_images_counted(client, server, image_files):
    def mapped() -> float:
        lines = client.get("/metrics").text.splitlines()
        return sum(float(one.split()[-1]) for one in lines if 'outcome="mapped"' in one and "_total" in one)

    until(lambda: server.engines.in_work == 0)  # images of a refused request are counted when they leave
    before = mapped()
    response = client.post(PATH, headers=PNG, **form(image_files[0], image_files[1:2]))
    stages = [part.partition(";")[0] for part in response.headers["Server-Timing"].split(", ")]
    assert stages == ["body", "decode", "queue", "forward", "map", "render", "total"]
    assert mapped() == before + 2
