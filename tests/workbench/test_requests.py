"""The types of the values in requests."""

import json

import numpy as np
import pytest

from nnclr_hub import Client, CollectionSpec
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.store import open_store
from nnclr_hub.workbench import Encoders, FolderRequest, NewCollection, SearchQuery, Workbench
from nnclr_hub.workbench.duplicates import DuplicatesRequest
from nnclr_hub.workbench.inspection.comparison import ComparisonRequest
from nnclr_hub.workbench.inspection.findings import InspectionRequest
from nnclr_hub.workbench.probes import ProbeFit
from nnclr_hub.workbench.reembedding import ReembedRequest


@pytest.mark.parametrize(
    "make",
    [
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
def test_a_value_of_another_type_is_refused(make):
    with pytest.raises(InvalidRequest):
        make()


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
