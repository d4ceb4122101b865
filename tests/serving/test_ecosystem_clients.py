"""The client of Hugging Face on our server, and the routes that it uses."""

import numpy as np
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from rest_requests import as_text


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
    info = client.get("/info").json()
    assert (info["model_id"], info["model_sha"]) == ("resnet18", encoder.fingerprint)
    assert info["max_client_batch_size"] == 1024
    health = client.get("/health")
    assert (health.status_code, health.content) == (200, b"")
    broken = client.post("/embed", json={"inputs": [texts[0], "Z2FyYmFnZQ=="]})
    assert (broken.status_code, broken.json()["code"]) == (415, "unsupported_image")
    assert "inputs[1]" in broken.text
