"""Real clients of other projects on our server: Hugging Face's, LangChain's and LlamaIndex's."""

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


def test_langchain(server, image_files, encoder):
    """Only the check of the context length must be off: it counts tokens of text."""
    langchain = pytest.importorskip("langchain_openai")
    embeddings = langchain.OpenAIEmbeddings(
        model="default", base_url=f"{server.url}/v1", api_key="none", check_embedding_ctx_length=False
    )
    texts = [as_text(path) for path in image_files] * 2
    vectors = embeddings.embed_documents(texts)  # 120 in one request
    np.testing.assert_allclose(vectors, np.tile(encoder.embed(image_files), (2, 1)), atol=1e-5)
    np.testing.assert_allclose(embeddings.embed_query(texts[1]), vectors[1], atol=1e-6)


def test_llama_index(server, image_files, encoder):
    llama_index = pytest.importorskip("llama_index.embeddings.openai")
    embeddings = llama_index.OpenAIEmbedding(model_name="default", api_base=f"{server.url}/v1", api_key="none")
    vectors = embeddings.get_text_embedding_batch([as_text(path) for path in image_files] * 2)
    np.testing.assert_allclose(vectors, np.tile(encoder.embed(image_files), (2, 1)), atol=1e-5)
