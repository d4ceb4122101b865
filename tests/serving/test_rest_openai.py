"""/v1 with the official client, and its envelope of refusals."""

import asyncio
import base64
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openai
import pytest
from rest_requests import as_text

from nnclr_hub import model_info
from nnclr_hub.hub.registry import default_model, list_models


@pytest.fixture
def official(server):
    with openai.OpenAI(api_key="none", base_url=f"{server.url}/v1", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("name", ["default", "resnet18"])
@pytest.mark.parametrize("extra", [{}, {"encoding_format": "float"}, {"dimensions": 32}])
def test_the_official_client_gets_our_vectors(official, image_files, encoder, extra, name):
    """Its default asks for base64 and decodes it."""
    texts = [as_text(path) for path in image_files[:3]]
    texts[1] = f"data:image/jpeg;base64,{texts[1]}"
    answer = official.embeddings.create(model=name, input=texts, extra_body={"modality": "image"}, **extra)
    np.testing.assert_allclose([entry.embedding for entry in answer.data], encoder.embed(image_files[:3]), atol=1e-5)
    assert [entry.index for entry in answer.data] == [0, 1, 2]
    assert answer.usage.total_tokens == 3
    assert answer.model == "resnet18"


def test_the_official_asynchronous_client_too(server, image_files, encoder):
    async def ask():
        async with openai.AsyncOpenAI(api_key="none", base_url=f"{server.url}/v1") as client:
            answers = [client.embeddings.create(model="default", input=as_text(path)) for path in image_files[:8]]
            return [answer.data[0].embedding for answer in await asyncio.gather(*answers)]

    np.testing.assert_allclose(asyncio.run(ask()), encoder.embed(image_files[:8]), atol=1e-5)


def test_the_official_client_raises_its_own_errors(official, image_files):
    good = as_text(image_files[0])
    with pytest.raises(openai.NotFoundError) as unknown:
        official.embeddings.create(model="other", input=good)
    assert (unknown.value.code, unknown.value.param) == ("unknown_model", "model")
    with pytest.raises(openai.BadRequestError) as broken:
        official.embeddings.create(model="default", input=[good, base64.b64encode(b"garbage").decode()])
    assert (broken.value.code, broken.value.param) == ("unsupported_image", "input[1]")
    with pytest.raises(openai.NotFoundError):
        official.models.retrieve("other")


def test_models_are_listed_with_their_details(official, server, encoder):
    listed = {card.id: card for card in official.models.list()}
    assert list(listed) == ["resnet18", *list_models()]
    ours = listed["resnet18"].model_dump()
    assert (ours["dim"], ours["fingerprint"], ours["license"]) == (32, encoder.fingerprint, "apache-2.0")
    assert ours["preprocessing"] == {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in encoder.transform.preprocessing.steps.items()
    }
    published = listed[default_model()].model_dump()
    assert (published["loaded"], published["dim"]) == (False, model_info(default_model()).embed_dim)
    assert official.models.retrieve("default").model_dump()["dim"] == 32


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"input": [base64.b64encode(b"garbage").decode()]}, 400, "input[0]"),
        ({"input": ["***"]}, 400, "input[0]"),
        ({"input": "https://example.com/x.jpg"}, 400, "input[0]"),
        ({"input": []}, 400, "input"),
        ({"input": [[1, 2]]}, 400, "input[0]"),
        ({"input": [1, 2]}, 400, "input[0]"),
        ({"model": "other"}, 404, "model"),
        ({"dimensions": 7}, 400, "dimensions"),
        ({"modality": "audio"}, 400, "modality"),
        ({"input": [{"image": "***"}]}, 400, "input[0]"),
        ({"input": [{"text": "cat"}]}, 400, "input[0]"),
        ({"input": ["YQ=="] * 1025}, 413, None),
    ],
)
def test_errors_have_the_openai_envelope(client, image_files, change, status, param):
    response = client.post("/v1/embeddings", json={"model": "default", "input": as_text(image_files[0])} | change)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert {"message", "type", "param", "code"} == error.keys()
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert response.headers["X-Request-ID"]


def test_malformed_bodies_get_the_envelope_too(client):
    for body, kind in ((b"{", "application/json"), (b"x", "text/plain")):
        response = client.post("/v1/embeddings", content=body, headers={"Content-Type": kind})
        assert response.status_code == 400
        assert response.json()["error"]["message"]
    assert client.get("/v1/nothing").json()["error"]["code"] == "not_found"


def test_images_as_objects_like_those_of_jina_and_voyage(client, image_files, encoder):
    objects = [{"image": as_text(path)} for path in image_files[:3]]
    expected = encoder.embed(image_files[:3])
    mixed = [objects[0], objects[1]["image"], objects[2]]
    for given, rows in ((objects, expected), (mixed, expected), (objects[1], expected[1:2])):
        answer = client.post("/v1/embeddings", json={"model": "default", "input": given}).json()
        np.testing.assert_allclose([entry["embedding"] for entry in answer["data"]], rows, atol=1e-5)


def test_a_list_larger_than_the_queue_is_answered_in_order(client, image_files, encoder):
    """The server of these tests admits 100 images at once; another client sends single images at the same time."""
    texts, expected = [as_text(path) for path in image_files], encoder.embed(image_files)
    order = np.random.default_rng(0).integers(0, len(texts), 350)
    body = {"model": "default", "input": [texts[i] for i in order], "encoding_format": "base64"}
    with ThreadPoolExecutor(1) as threads:
        large = threads.submit(client.post, "/v1/embeddings", json=body)
        for _ in range(5):
            single = client.post("/v1/embeddings", json={"model": "default", "input": texts[0]})
            assert single.status_code in (200, 429)
        answer = large.result()
    assert answer.status_code == 200, answer.text
    vectors = [np.frombuffer(base64.b64decode(entry["embedding"]), "<f4") for entry in answer.json()["data"]]
    np.testing.assert_allclose(vectors, expected[order], atol=1e-5)


def test_the_broken_image_of_a_long_list_is_named(client, image_files):
    texts = [as_text(image_files[0])] * 150 + [base64.b64encode(b"garbage").decode()]
    answer = client.post("/v1/embeddings", json={"model": "default", "input": texts})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input[150]")
