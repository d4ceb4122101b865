"""Attention beside embedding: two threads on one network, and nothing of either is seen in the other."""

import threading

import numpy as np
import pytest
import torch
from conftest import randomized

from nnclr_hub import Encoder, Point, load_encoder
from nnclr_hub.encoder.backbones import create_backbone
from nnclr_hub.encoder.preprocess import Preprocessing


def hooks(encoder):
    return sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in encoder.backbone.modules())


@pytest.fixture(params=["resnet", "vit"])
def encoder(request, model):
    if request.param == "resnet":
        return load_encoder(model, device="cpu")
    torch.manual_seed(0)
    backbone = randomized(create_backbone("test_vit", model_args={"dynamic_img_size": False}))
    return Encoder(backbone, Preprocessing(160), device="cpu")


def test_attention_and_embeddings_at_once_are_what_they_are_alone(encoder, pictures):
    vectors = encoder.embed(pictures[:4])
    maps = [encoder.attention(path).values for path in pictures[:4]]
    points = [encoder.attention(path, Point(20, 30)).values for path in pictures[:4]]
    failures: list[object] = []
    start = threading.Barrier(3)

    def embed():
        start.wait()
        for _ in range(6):
            if not np.array_equal(encoder.embed(pictures[:4]), vectors):
                failures.append("embed")

    def look():
        start.wait()
        for number in range(12):
            index = number % 4
            if not np.array_equal(encoder.attention(pictures[index]).values, maps[index]):
                failures.append("attention")
            if not np.array_equal(encoder.attention(pictures[index], Point(20, 30)).values, points[index]):
                failures.append("attention to a point")

    threads = [threading.Thread(target=work) for work in (embed, look, look)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert hooks(encoder) == 0
    np.testing.assert_array_equal(encoder.embed(pictures[:4]), vectors)


def test_attention_stays_with_torch_in_float32_whatever_the_backend(model, pictures):
    plain, other = load_encoder(model, device="cpu"), load_encoder(model, device="cpu", backend="torch-bf16")
    np.testing.assert_array_equal(other.attention(pictures[0]).values, plain.attention(pictures[0]).values)
    assert np.abs(other.embed(pictures[:1]) - plain.embed(pictures[:1])).max() > 0


def test_the_tokens_of_a_image_at_its_own_size_are_the_features_of_its_map(model):
    """Two ways to the same F: an image that the transform leaves as it is."""
    encoder = load_encoder(model, device="cpu")
    x = torch.randint(0, 255, (1, 3, 224, 256), dtype=torch.uint8)
    array = x[0].permute(1, 2, 0).numpy()
    tokens = encoder.tokens(encoder.transform.normalise(x))[0]
    np.testing.assert_allclose(encoder.attention(array).values, tokens @ tokens.mean((0, 1)), rtol=1e-4)
