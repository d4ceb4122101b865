"""Images to vectors over REST: our own route, and those of OpenAI and of Hugging Face."""

import base64
import io
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from rest_requests import as_text, upload

from nnclr_hub import model_info
from nnclr_hub.hub.registry import default_model, list_models


def test_embed_has_a_result_for_each_image(client, image_files, encoder):
    good = image_files[:2]
    files = [*upload(good), ("files", ("bad.jpg", b"garbage", "image/jpeg"))]
    texts = [*map(as_text, good), "***"]
    for request, code, name in (
        ({"files": files}, "unsupported_image", "bad.jpg"),
        ({"json": {"images": texts, "model": "default"}}, "undecodable_image", None),
    ):
        body = client.post("/api/v1/embed", **request).json()
        *rows, broken = body["data"]
        assert (body["model"], body["dim"]) == ("resnet18", 32)
        np.testing.assert_allclose([row["embedding"] for row in rows], encoder.embed(good), atol=1e-5)
        assert (broken["error"]["code"], broken.get("name")) == (code, name)


def forms(files: list) -> dict[str, tuple[str, dict, list[int]]]:
    """Return how clients send images: the path, the request, and which of the files its rows are."""
    data, texts = files[0].read_bytes(), [as_text(path) for path in files]
    objects = [{"image": text} for text in texts]
    own, openai = "/api/v1/embed", "/v1/embeddings"

    def marked(**body: Any) -> dict[str, Any]:
        """Return JSON after a byte order mark, as PowerShell and .NET write it."""
        headers = {"Content-Type": "application/json; charset=utf-8"}
        return {"content": json.dumps(body).encode("utf-8-sig"), "headers": headers}

    variants = [
        base64.encodebytes(data).decode(),
        base64.urlsafe_b64encode(data).decode(),
        base64.urlsafe_b64encode(data).decode().rstrip("="),
        f"data:image/jpeg;base64,{texts[0]}",
        f"DATA:image/JPEG;BASE64,{texts[0]}",
    ]
    return {
        "the body": (own, {"content": data, "headers": {"Content-Type": "image/jpeg"}}, [0]),
        "variants of base64": (own, {"json": {"images": variants}}, [0] * 5),
        "after a byte order mark": (own, marked(images=texts), [0, 1, 2]),
        "after another one": (openai, marked(model="default", input=texts), [0, 1, 2]),
        "objects, as of Jina and Voyage": (openai, {"json": {"model": "default", "input": objects}}, [0, 1, 2]),
        "objects and texts": (openai, {"json": {"model": "default", "input": [texts[0], *objects[1:]]}}, [0, 1, 2]),
        "one object": (openai, {"json": {"model": "default", "input": objects[1]}}, [1]),
    }


def test_images_are_accepted_in_every_form(client, image_files, encoder):
    for name, (path, request, rows) in forms(image_files[:3]).items():
        data = client.post(path, **request).json()["data"]
        expected = encoder.embed([image_files[row] for row in rows])
        np.testing.assert_allclose([one["embedding"] for one in data], expected, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float16", 1e-3)])
def test_vectors_come_as_raw_numbers_and_in_half_precision(client, image_files, encoder, dtype, tolerance):
    want, files = encoder.embed(image_files[:3]), upload(image_files[:3])
    asked = {"params": {"dtype": dtype}, "files": files}
    bare = client.post("/api/v1/embed", headers={"Accept": "application/octet-stream"}, **asked)
    shape = tuple(map(int, bare.headers["X-Shape"].split(",")))
    np.testing.assert_allclose(np.frombuffer(bare.content, dtype).reshape(shape), want, atol=tolerance)
    npy = np.load(io.BytesIO(client.post("/api/v1/embed", headers={"Accept": "application/x-npy"}, **asked).content))
    assert npy.dtype == dtype
    np.testing.assert_allclose(npy, want, atol=tolerance)


def test_vectors_in_json_have_the_digits_of_float32_or_are_base64(client, image_files):
    files = upload(image_files[:1])
    plain = client.post("/api/v1/embed", files=files)
    numbers = plain.text.partition('"embedding":[')[2].partition("]")[0].split(",")
    assert max(len(number.lstrip("-").replace(".", "").lstrip("0").partition("e")[0]) for number in numbers) <= 9
    packed = client.post("/api/v1/embed", files=files, params={"encoding_format": "base64"}).json()["data"][0]
    vector = np.frombuffer(base64.b64decode(packed["embedding"]), "<f4")
    assert np.array_equal(vector, np.float32(plain.json()["data"][0]["embedding"]))


def test_the_official_client_gets_our_vectors_and_raises_its_own_errors(server, image_files, encoder):
    """Its default asks for base64 and decodes it. See test_client_programs.py, too."""
    import openai  # takes a second in every process that collects tests

    texts = [as_text(path) for path in image_files[:3]]
    with openai.OpenAI(api_key="none", base_url=f"{server.url}/v1", max_retries=0) as official:
        for extra in ({}, {"encoding_format": "float"}, {"dimensions": 32, "extra_body": {"modality": "image"}}):
            answer = official.embeddings.create(model="resnet18", input=texts, **extra)
            vectors = [entry.embedding for entry in answer.data]
            np.testing.assert_allclose(vectors, encoder.embed(image_files[:3]), atol=1e-5)
            assert [entry.index for entry in answer.data] == [0, 1, 2]
            assert (answer.usage.total_tokens, answer.model) == (3, "resnet18")
        assert official.models.retrieve("default").model_dump()["dim"] == 32
        with pytest.raises(openai.NotFoundError) as unknown:
            official.embeddings.create(model="other", input=texts)
        assert (unknown.value.code, unknown.value.param) == ("unknown_model", "model")


def test_models_are_listed_with_their_details(client, encoder):
    listed = {card["id"]: card for card in client.get("/v1/models").json()["data"]}
    assert [name for name in listed if name in ("resnet18", *list_models())] == ["resnet18", *list_models()]
    ours, published = listed["resnet18"], listed[default_model()]
    assert (ours["dim"], ours["fingerprint"], ours["license"]) == (32, encoder.fingerprint, "apache-2.0")
    assert ours["preprocessing"] == json.loads(json.dumps(encoder.transform.preprocessing.steps))
    assert (published["loaded"], published["dim"]) == (False, model_info(default_model()).embed_dim)


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


@pytest.mark.parametrize("path", ["", "/embed"])
def test_the_inference_client_of_hugging_face(server, image_files, encoder, path):
    official = InferenceClient(f"{server.url}{path}")
    for file, expected in zip(image_files[:2], encoder.embed(image_files[:2]), strict=True):
        for options in ({}, {"normalize": True, "truncate": True}):
            np.testing.assert_allclose(official.feature_extraction(as_text(file), **options)[0], expected, atol=1e-5)
    with pytest.raises(HfHubHTTPError) as refused:
        official.feature_extraction(as_text(image_files[0]), normalize=False)
    assert refused.value.response.status_code == 422


def test_the_routes_of_tei(client, image_files, encoder):
    texts = [as_text(path) for path in image_files[:3]]
    rows = client.post("/embed", json={"inputs": texts, "truncate": False}).json()
    np.testing.assert_allclose(rows, encoder.embed(image_files[:3]), atol=1e-5)
    info, health = client.get("/info").json(), client.get("/health")
    assert (info["model_id"], info["model_sha"]) == ("resnet18", encoder.fingerprint)
    assert (health.status_code, health.content) == (200, b"")


NPY, BYTES, JSON = "application/x-npy", "application/octet-stream", "application/json"


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        (f"{JSON};q=0.5, {NPY};q=0.9", NPY),
        (f"{NPY};q=0.5, {JSON}", JSON),
        (f"{NPY};q=0", JSON),
        (f"text/html, {NPY}", NPY),
        (f"{BYTES}, {NPY}", BYTES),
        (f"{NPY};q=high", NPY),
        (f"{NPY};q=0.1, */*", JSON),
        *((accept, JSON) for accept in (f"{JSON}, */*", "text/html", "")),
    ],
)
def test_the_preferred_media_type_is_chosen(client, image_files, accept, kind):
    answer = client.post("/api/v1/embed", files=upload(image_files[:1]), headers={"Accept": accept})
    assert (answer.status_code, answer.headers["content-type"]) == (200, kind)
