"""Requests to add images, to index a folder, and to create a collection."""

import hashlib
import json

import numpy as np
import pytest

from nnclr_hub import Client, CollectionSpec
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.images.tiles import Tiling
from nnclr_hub.store import open_store
from nnclr_hub.workbench import AddRequest, Encoders, FolderRequest, NewCollection, NewImage, SearchQuery, Workbench
from nnclr_hub.workbench.duplicates import DuplicatesRequest
from nnclr_hub.workbench.folder_index import IndexRequest
from nnclr_hub.workbench.inspection.comparison import ComparisonRequest
from nnclr_hub.workbench.inspection.findings import InspectionRequest
from nnclr_hub.workbench.maintenance import BackupRequest
from nnclr_hub.workbench.probes import ProbeFit
from nnclr_hub.workbench.reembedding import ReembedRequest

ITEMS = [{"label": "a", "vector": [1.0]}, {"label": "b", "vector": [2.0]}]


def test_an_image_without_an_id_gets_a_hash_of_its_bytes(image_files):
    data = image_files[0].read_bytes()
    assert NewImage(None, data).id == hashlib.sha256(data).hexdigest()[:32]
    assert len(AddRequest([NewImage(None, data), NewImage(None, data)]).images) == 2
    with pytest.raises(InvalidRequest):
        NewImage(None, image_files[0])


@pytest.mark.parametrize(
    "make",
    [
        lambda: AddRequest("a"),
        lambda: AddRequest([b"x"]),
        lambda: AddRequest([NewImage("a", b"x"), NewImage("a", b"y")]),
        lambda: NewImage("no!", b"x"),
        lambda: NewImage("a", b"x", []),
        lambda: NewImage("a", b"x", thumbnail=1),
        lambda: FolderRequest("photos", shrink=8),
        lambda: FolderRequest("photos", source="s", tiling=Tiling(512)),
        lambda: NewCollection("model", 4),
        lambda: NewCollection(dim=0),
        lambda: NewCollection(metric="x"),
        lambda: ProbeFit(name="p", collection="c", field="label", model="m"),
        lambda: ProbeFit(name="p", collection="c", field="label", reject_far=1.0),
        lambda: ProbeFit(name="p", collection="c", field="label", l2=float("nan")),
        lambda: ProbeFit(name="p", items=ITEMS, where={"must": []}),
        lambda: ProbeFit(name="p", items=ITEMS[:1]),
        lambda: IndexRequest("c", folder="x" * 5000),
        lambda: BackupRequest(keep=0),
        lambda: ComparisonRequest("c", ["pixels"] * 9),
        lambda: ComparisonRequest("c", field='a"b'),
        lambda: ComparisonRequest("c", [1]),
        lambda: DuplicatesRequest("v", "x"),
        lambda: DuplicatesRequest("v", limit=1.5),
        lambda: DuplicatesRequest(None),
        lambda: InspectionRequest("v", label_next="x"),
        lambda: ProbeFit(name="p", collection="c", field="label", l2="x"),
        lambda: ProbeFit(name="p", collection="c", field="label", where={"x": 1}),
        lambda: ReembedRequest("v", 5),
        lambda: NewCollection(dim=4, indexed=None),
        lambda: NewCollection(dim=4, indexed="label"),
        lambda: NewCollection(model=[]),
        lambda: FolderRequest("photos", shrink="x"),
        lambda: FolderRequest("photos", prune=1),
        lambda: FolderRequest("photos", tiling="x"),
    ],
)
def test_an_invalid_request_cannot_be_made(make):
    with pytest.raises(InvalidRequest):
        make()


def test_images_can_be_added_without_a_thumbnail(image_files, photos, model, tmp_path):
    with open_store(str(tmp_path / "store")) as store:
        bench = Workbench(Encoders(str(model), device="cpu"), store)
        bench.ensure_collection("photos")
        images = [NewImage("with", image_files[0]), NewImage("without", image_files[1], thumbnail=False)]
        assert bench.add_images("photos", AddRequest(images)) == [None, None]
        assert bench.collection("photos").thumbnail("with") is not None
        assert bench.collection("photos").thumbnail("without") is None
        bench.index_folder("indexed", FolderRequest(photos, thumbnails=False))
        [item] = bench.collection("indexed").scroll(limit=1).items
        assert bench.collection("indexed").thumbnail(item.id) is None


def test_whole_numbers_of_json_and_numpy_are_integers():
    assert json.dumps(DuplicatesRequest("c", 0.5, limit=2.0).as_json() | {"where": None}).count("2.0") == 0
    assert SearchQuery.of(id="a", k=np.int64(3)).to_json()["k"] == 3
    with pytest.raises(InvalidRequest):
        SearchQuery.of(id="a", k=2.5)


@pytest.mark.parametrize("request_of_another", [DuplicatesRequest("v"), {"collection": "v"}, None])
def test_a_task_takes_only_its_own_request(tmp_path, request_of_another):
    with open_store(str(tmp_path / "store")) as store:
        store.create("v", CollectionSpec(2))
        bench = Workbench(Encoders("random:resnet18", device="cpu"), store)
        for run in (bench.run, Client("http://localhost:1").run):
            with pytest.raises(InvalidRequest):
                run("verify", request_of_another)
