"""POST /api/v1/embed: one result per image."""

import base64
import io
import threading
import time

import httpx
import numpy as np
import pytest
from rest_requests import as_text, is_problem, upload


def test_embed_has_a_result_for_each_file(client, image_files, encoder):
    files = [*upload(image_files[:2]), ("files", ("bad.jpg", b"garbage", "image/jpeg"))]
    response = client.post("/api/v1/embed", files=files)
    assert response.status_code == 200
    body = response.json()
    assert (body["dim"], len(body["data"])) == (32, 3)
    np.testing.assert_allclose(
        [entry["embedding"] for entry in body["data"][:2]], encoder.embed(image_files[:2]), atol=1e-5
    )
    assert body["data"][2]["error"]["code"] == "unsupported_image"
    assert body["data"][2]["name"] == "bad.jpg"


def test_embed_returns_an_array_on_request(client, image_files, encoder):
    response = client.post("/api/v1/embed", files=upload(image_files[:5]), headers={"Accept": "application/x-npy"})
    np.testing.assert_allclose(np.load(io.BytesIO(response.content)), encoder.embed(image_files[:5]), atol=1e-5)
    mixed = [*upload(image_files[:1]), ("files", ("bad.jpg", b"garbage", "image/jpeg"))]
    is_problem(
        client.post("/api/v1/embed", files=mixed, headers={"Accept": "application/x-npy"}), 422, "undecodable_image"
    )


def test_a_batch_of_garbage_does_not_affect_other_requests(client, image_files, encoder):
    """Send 64 files of noise while another client keeps embedding a good image."""
    rng = np.random.default_rng(0)
    garbage = [("files", (f"{i}.jpg", rng.bytes(3000), "image/jpeg")) for i in range(64)]
    want = encoder.embed(image_files[:1])[0]
    good: list[float] = []
    stop = threading.Event()

    def ask():
        with httpx.Client(base_url=str(client.base_url), timeout=120) as other:
            while not stop.is_set():
                response = other.post("/api/v1/embed", files=upload(image_files[:1]))
                assert response.status_code == 200
                good.append(float(np.abs(np.array(response.json()["data"][0]["embedding"]) - want).max()))

    thread = threading.Thread(target=ask)
    thread.start()
    for _ in range(5):
        seen = len(good)
        response = client.post("/api/v1/embed", files=garbage)
        assert "64 of 64" in is_problem(response, 422, "undecodable_image")
        assert len(response.json()["errors"]) == 64
        while thread.is_alive() and len(good) == seen:  # the other client was answered
            time.sleep(0.01)
    stop.set()
    thread.join()
    assert good
    assert max(good) < 1e-5
    assert client.get("/readyz").status_code == 200


def test_too_many_images_and_too_large_a_body_are_refused(client):
    is_problem(
        client.post("/api/v1/embed", files=[("files", ("a.jpg", b"x", "image/jpeg"))] * 129), 413, "request_too_large"
    )
    big = {"files": ("big.jpg", bytes(21_000_000), "image/jpeg")}
    is_problem(client.post("/api/v1/embed", files=big), 413, "request_too_large")


def test_images_in_json_have_a_result_each(client, image_files, encoder):
    images = [as_text(image_files[0]), "***", f"data:image/jpeg;base64,{as_text(image_files[1])}"]
    body = client.post("/api/v1/embed", json={"images": images, "model": "default"}).json()
    assert body["model"] == "resnet18"
    assert body["data"][1]["error"]["code"] == "undecodable_image"
    assert "images[1]" in body["data"][1]["error"]["detail"]
    got = [body["data"][index]["embedding"] for index in (0, 2)]
    np.testing.assert_allclose(got, encoder.embed(image_files[:2]), atol=1e-5)
    is_problem(client.post("/api/v1/embed", json={"images": ["***"]}), 422, "undecodable_image")
    is_problem(client.post("/api/v1/embed", json={"images": []}), 422, "invalid_request")
    is_problem(client.post("/api/v1/embed", json={"images": images, "model": "other"}), 404, "unknown_model")
    is_problem(client.post("/api/v1/embed", json={"images": ["YQ=="] * 129}), 413, "request_too_large")


def test_common_variants_of_base64_are_accepted(client, image_files, encoder):
    """Base64 in lines, in the URL-safe alphabet, without padding, and in a data URI in upper case."""
    data = image_files[0].read_bytes()
    forms = [
        base64.encodebytes(data).decode(),
        base64.urlsafe_b64encode(data).decode(),
        base64.urlsafe_b64encode(data).decode().rstrip("="),
        f"DATA:image/JPEG;BASE64,{as_text(image_files[0])}",
    ]
    body = client.post("/api/v1/embed", json={"images": forms}).json()
    for one in body["data"]:
        np.testing.assert_allclose(one["embedding"], encoder.embed(image_files[:1])[0], atol=1e-5)


def test_a_body_may_be_one_image(client, image_files, encoder):
    headers = {"Content-Type": "image/jpeg"}
    body = client.post("/api/v1/embed", content=image_files[0].read_bytes(), headers=headers).json()
    np.testing.assert_allclose(body["data"][0]["embedding"], encoder.embed(image_files[:1])[0], atol=1e-5)


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
