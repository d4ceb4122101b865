"""The encoder of a collection, and the pages and channels that it reads, which a collection keeps."""

import numpy as np
import pytest
import tifffile
from PIL import Image

from nnclr_hub.encoder.loader import load_encoder
from nnclr_hub.errors import CollectionNotFound, FingerprintMismatch, InvalidRequest
from nnclr_hub.images.reading import ImageReading
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.workbench import Encoders, FolderRequest, SearchQuery, Workbench
from nnclr_hub.workbench.reembedding import reembed
from nnclr_hub.workbench.sources import read_original

RNG = np.random.default_rng(0)
VALUES = [RNG.integers(0, 256, (40, 50, 5), dtype=np.uint8).repeat(4, 0).repeat(4, 1) for _ in range(3)]
READING = ImageReading((4, 0, 2))
VIT = "random:test_vit"


def test_a_collection_uses_the_encoder_of_its_vectors(bench, encoder, model):
    vit = bench.models.get(VIT)
    spec = CollectionSpec.of(vit)
    bench.store.create("moved", CollectionSpec(spec.dim, fingerprint=spec.fingerprint, model="local-dir:/gone"))
    assert bench.embedder().fingerprint == encoder.fingerprint
    assert bench.embedder(VIT).fingerprint == vit.fingerprint
    assert bench.embedder(collection="moved").fingerprint == vit.fingerprint
    assert bench.embedder(VIT, "moved").fingerprint == vit.fingerprint
    with pytest.raises(FingerprintMismatch):
        bench.embedder(str(model), "moved")
    with pytest.raises(CollectionNotFound):
        bench.embedder(collection="none")


@pytest.fixture
def cells(tmp_path):
    folder = tmp_path / "cells"
    folder.mkdir()
    for number, values in enumerate(VALUES):
        tifffile.imwrite(folder / f"{number}.tif", values, photometric="minisblack", planarconfig="contig")
    return folder


def rgb(values):
    return Image.fromarray(np.ascontiguousarray(values[..., [4, 0, 2]]))


def test_an_encoder_reads_the_chosen_channels(cells, model):
    encoder = load_encoder(model, reading=READING, device="cpu")
    assert encoder.name == f"{model}?channels=4,0,2"
    same = load_encoder(encoder.name, device="cpu")
    plain = load_encoder(model, device="cpu")
    assert same.fingerprint == encoder.fingerprint != plain.fingerprint
    path = cells / "1.tif"
    expected = plain.embed([rgb(VALUES[1])])
    for one in (encoder, same):
        np.testing.assert_allclose(one.embed([path]), expected, atol=1e-6)
        np.testing.assert_allclose(one.embed([path.read_bytes()]), expected, atol=1e-6)
    np.testing.assert_allclose(encoder.embed([path], crops=3), plain.embed([rgb(VALUES[1])], crops=3), atol=1e-6)
    np.testing.assert_array_equal(encoder.attention(path).values, plain.attention(rgb(VALUES[1])).values)
    with pytest.raises(InvalidRequest):  # before any image is read
        load_encoder(f"{model}?channels=4,0", device="cpu")


def test_a_collection_keeps_its_reading(cells, model, tmp_path):
    source = READING.within(str(model))
    with open_store(tmp_path / "store") as store:
        bench = Workbench(Encoders(source, device="cpu"), store)
        assert bench.index_folder("cells", cells).added == 3
    with open_store(tmp_path / "store") as store:  # the default of another process reads all channels
        bench = Workbench(Encoders(str(model), device="cpu"), store)
        collection = bench.collection("cells")
        assert collection.spec.model == source
        for number in range(3):
            path = cells / f"{number}.tif"
            [match] = bench.search("cells", SearchQuery.of(image=path, k=1))
            assert (match.metadata["path"], round(match.score, 4)) == (path.name, 1)
            [match] = bench.search("cells", SearchQuery.of(image=path, box=(0, 0, 200, 160), k=1))
            assert (match.metadata["path"], round(match.score, 4)) == (path.name, 1)
            shown = read_original(collection, match.id, None)
            assert (shown.of, shown.media_type) == ("source", "image/png")
        with pytest.raises(FingerprintMismatch):
            bench.index_folder("cells", FolderRequest(cells, model=str(model)))
        with pytest.raises(InvalidRequest):  # another reading is another set of images
            reembed(bench, "cells", str(model))
        assert bench.index_folder("cells", cells).unchanged == 3


def test_a_collection_that_never_got_an_image_takes_another_reading(cells, model, tmp_path):
    with open_store(tmp_path / "store") as store:
        bench = Workbench(Encoders(str(model), device="cpu"), store)
        assert bench.index_folder("cells", cells).added == 0  # 5 channels
        assert bench.index_folder("cells", FolderRequest(cells, model=READING.within(str(model)))).added == 3
        with pytest.raises(FingerprintMismatch, match="another collection"):
            bench.index_folder("cells", FolderRequest(cells, model=str(model)))
        assert bench.collection("cells").count() == 3


@pytest.mark.parametrize("address", ["store", "x.milvus.db"])
def test_a_collection_with_items_or_an_alias_is_never_bound_again(cells, model, tmp_path, address):
    with open_store(tmp_path / address) as store:
        bench = Workbench(Encoders(str(model), device="cpu"), store)
        for name in ("full", "named"):
            collection = store.create(name, CollectionSpec.of(bench.embedder()))
        store.alias("live", "named")
        store.get("full").upsert([Item("a", np.ones(collection.spec.dim, np.float32))])
    with open_store(tmp_path / address) as store:  # Milvus counts changes in each process
        bench = Workbench(Encoders(str(model), device="cpu"), store)
        for name in ("full", "named"):
            with pytest.raises(FingerprintMismatch):
                bench.index_folder(name, FolderRequest(cells, model=READING.within(str(model))))
        assert [item.id for item in store.get("full").get(["a"])] == ["a"]
        assert store.aliases() == {"live": "named"}
