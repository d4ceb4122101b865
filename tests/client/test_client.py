"""Client and AsyncClient against a running server: the library's verbs, dataclasses and errors."""

import asyncio
import inspect
import io
import itertools
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

from nnclr_hub import AsyncClient, Client, ImageError, Item
from nnclr_hub.errors import (
    CollectionNotFound,
    InvalidRequest,
    UnknownModel,
    UnsupportedImage,
)
from nnclr_hub.images.decode import decode_image
from nnclr_hub.store.base import SearchOptions
from nnclr_hub.workbench import NewImage
from nnclr_hub.workbench.payload import image_file


@pytest.fixture(scope="module")
def server(model, tmp_path_factory, serve) -> Iterator:
    yield from serve(model, tmp_path_factory.mktemp("client") / "store", capacity=200)


def test_models_and_readiness(client, encoder):
    assert client.ready()
    served = client.model(client.list_models()[0].name)
    assert (served.embed_dim, served.fingerprint) == (32, encoder.fingerprint)
    with pytest.raises(UnknownModel):
        client.model("nothing")


def test_embed_gives_the_vectors_of_the_library(client, encoder, image_files):
    """Paths, bytes, PIL images and arrays, more than a request holds, in order."""
    many = [*image_files, *image_files[:10]]
    np.testing.assert_allclose(client.embed(many), encoder.embed(many), atol=1e-5)
    image = Image.open(image_files[0]).convert("RGB")
    forms = [str(image_files[0]), image_files[0].read_bytes(), image, np.asarray(image)]
    np.testing.assert_allclose(client.embed(forms), np.repeat(encoder.embed(image_files[:1]), 4, axis=0), atol=1e-5)
    assert client.embed([]).shape == (0, 32)


def test_a_bad_image_has_a_separate_error(client, encoder, image_files, tmp_path):
    answers = client.embed_each([image_files[0], b"garbage", tmp_path / "missing.jpg", image_files[1]])
    np.testing.assert_allclose([answers[0], answers[3]], encoder.embed(image_files[:2]), atol=1e-5)
    assert isinstance(answers[1], UnsupportedImage)
    assert isinstance(answers[2], ImageError)
    assert "cannot be opened" in str(answers[2])
    assert all(isinstance(answer, ImageError) for answer in client.embed_each([b"x", b"y"]))
    with pytest.raises(UnsupportedImage):
        client.embed([image_files[0], b"garbage"])
    for single in (str(image_files[0]), image_files[0], image_files[0].read_bytes(), [3]):
        with pytest.raises(InvalidRequest):
            client.embed(single)


def test_a_search_takes_a_vector_an_image_or_items(collection, encoder, image_files):
    collection.upsert([Item(f"p{i}", vector) for i, vector in enumerate(encoder.embed(image_files[:3]))])
    assert collection.search(image=image_files[1], k=1)[0].id == "p1"
    assert "p1" not in {match.id for match in collection.search(id="p1")}
    assert collection.search(image=image_files[1], box=(0, 0, 64, 64), k=1, with_vector=True)[0].vector.shape == (32,)
    assert collection.search(positive=[image_files[1]], negative=["p0"], k=1)[0].id == "p1"
    assert collection.info().recall_estimate == 1.0  # a flat index


def test_a_batch_of_searches_matches_the_store(server, collection, encoder, image_files):
    vectors = encoder.embed(image_files[:6])
    collection.upsert([Item(f"p{i}", vector, {"n": i}) for i, vector in enumerate(vectors)])
    own = server.bench.collection("photos")
    many = np.repeat(vectors, 25, axis=0)  # more than a request holds
    where = {"must": [{"key": "n", "range": {"gte": 2}}]}
    for mine, theirs in zip(
        collection.search_each(many, 2, SearchOptions(where)),
        own.search_each(many, 2, SearchOptions(where)),
        strict=True,
    ):
        assert [match.id for match in mine] == [match.id for match in theirs]
    assert collection.search_each(vectors[:1], 1, SearchOptions(with_vector=True))[0][0].vector.shape == (32,)
    assert collection.search_each(np.zeros((0, 32))) == []
    assert collection.search(vectors[0], with_percentile=True)[0].percentile is None  # of six items
    collection.upsert([Item(f"q{i}", vector) for i, vector in enumerate(encoder.embed(image_files[6:20]))])
    theirs = own.search(vectors[0], k=20, with_percentile=True)
    [batch] = collection.search_each(vectors[:1], 20, SearchOptions(with_percentile=True))
    for mine in (collection.search(vectors[0], k=20, with_percentile=True), batch):
        assert [match.percentile for match in mine] == [match.percentile for match in theirs]
    with pytest.raises(InvalidRequest):
        collection.search_each(np.ones((2, 7)))


def test_add_images_returns_an_error_per_image(collection, image_files):
    errors = collection.add_images(
        [NewImage("a", image_files[0], {"n": 1}), NewImage("b", b"garbage"), NewImage("c", image_files[1])]
    )
    assert [type(error) for error in errors] == [type(None), UnsupportedImage, type(None)]
    assert [item.id for item in collection.scroll().items] == ["a", "c"]
    assert collection.get(["a"])[0].metadata["n"] == 1
    assert collection.thumbnail("a").startswith(b"\xff\xd8")
    collection.upsert([Item("bare", collection.get(["a"])[0].vector)])
    one, none, missing, other = collection.thumbnails(["c", "bare", "nobody", "a"])
    assert (one, none, missing, other) == (collection.thumbnail("c"), None, None, collection.thumbnail("a"))
    many = collection.thumbnails(["a"] * 65 + ["c"])  # two requests
    assert many == [other] * 65 + [one]
    collection.delete(["bare"])
    assert all(collection.add_images([NewImage("d", b"x"), NewImage("e", b"y")]))


def test_every_method_is_awaited_in_the_async_client():
    one, other = Client("http://127.0.0.1:9"), AsyncClient("http://127.0.0.1:9")
    parts = ["store", "probes", "jobs"]
    pairs = [(one, other), (one.collection("x"), other.collection("x"))]
    for mine, theirs in pairs + [(getattr(one, part), getattr(other, part)) for part in parts]:
        verbs = [name for name, value in inspect.getmembers(type(mine), callable) if not name.startswith("_")]
        assert len(verbs) > 2
        for name in verbs:
            waits = getattr(mine, name)
            if inspect.isgeneratorfunction(waits):  # its requests would block the event loop
                assert not hasattr(theirs, name), name
                continue
            awaits = getattr(theirs, name)
            assert waits.__doc__ == awaits.__doc__ != "", name
            assert inspect.signature(waits).parameters == inspect.signature(awaits).parameters
            assert inspect.iscoroutinefunction(awaits) or name == "collection", name
    with pytest.raises(AttributeError):
        _ = other.collection("x").spec  # would make a request without waiting for it
    one.close()
    asyncio.run(other.close())


def test_the_async_client_gives_the_same_results(server, encoder, image_files):
    async def work() -> None:
        async with AsyncClient(server.url, timeout=120) as client:
            assert await client.ready()
            many = [*image_files, *image_files[:10]]
            np.testing.assert_allclose(await client.embed(many), encoder.embed(many), atol=1e-5)
            await client.create_collection("awaited")
            collection = client.collection("awaited")
            vectors = encoder.embed(image_files[:5])
            await asyncio.gather(*(collection.upsert([Item(f"p{i}", vector)]) for i, vector in enumerate(vectors)))
            assert await collection.count() == 5
            assert (await collection.search(image=image_files[3], k=1))[0].id == "p3"
            with pytest.raises(CollectionNotFound):
                await client.collection("nowhere").info()
            await client.store.drop("awaited")

    asyncio.run(work())


def test_an_open_image_is_sent_upright_in_every_mode():
    """The server reads the same pixels as the library reads locally."""
    exif = Image.Exif()
    plain = Image.effect_mandelbrot((60, 40), (-2, -1, 1, 1), 20).convert("RGB")
    for mode, orientation in itertools.product(("RGB", "L", "CMYK"), (1, 3, 6)):
        exif[0x0112] = orientation
        plain.convert(mode).save(file := io.BytesIO(), "JPEG", exif=exif)
        image = Image.open(file)
        _, sent = image_file(image)
        np.testing.assert_array_equal(np.asarray(decode_image(sent)), np.asarray(decode_image(image)))


def test_the_client_needs_neither_torch_nor_faiss():
    code = (
        "import sys; from nnclr_hub import Client; print(sorted({'torch', 'faiss', 'timm', 'PIL'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
