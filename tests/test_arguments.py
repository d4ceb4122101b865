"""Public functions refuse arguments of a wrong type at once, before they do anything."""

import inspect
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_runs import FAST

import nnclr_hub
from nnclr_hub import AsyncClient, Client, CollectionSpec, Item, LinearProbe, SearchQuery, open_bench, open_store
from nnclr_hub.bulk import embed_shards, open_shards
from nnclr_hub.errors import CollectionNotFound, InvalidRequest
from nnclr_hub.store.backup import back_up, list_backups, restore, verify_backups
from nnclr_hub.store.exchange import export_collection
from nnclr_hub.store.items import SearchOptions
from nnclr_hub.store.queries import search_like

VECTOR = np.ones(4, np.float32)


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path / "s") as opened:
        opened.create("c", CollectionSpec(4))
        yield opened


@pytest.mark.parametrize(
    "call",
    [
        lambda path: nnclr_hub.publish_model(3, "me/model"),
        lambda path: nnclr_hub.publish_model(path, "me/model", dry_run="no"),
        lambda path: nnclr_hub.evaluate(3, 4),
        lambda path: nnclr_hub.pretrain(3, path, path / "run"),
        lambda path: nnclr_hub.pretrain("auto", 3, path / "run"),
        lambda path: nnclr_hub.pretrain("auto", path, path / "run", resume="no"),
        lambda path: nnclr_hub.pretrain("auto", path, path / "run", device=[0]),
        lambda path: nnclr_hub.evaluate("knn", "hog", path, path / "out", device=[0]),
        lambda path: nnclr_hub.load_encoder(3),
        lambda path: nnclr_hub.load_encoder("nnclr_resnet18_free_starter", device=[0]),
        lambda path: nnclr_hub.wrap_encoder(3, transform=str, name="x", dim=2),
        lambda path: nnclr_hub.model_info(["x"]),
        lambda path: nnclr_hub.convert_checkpoint(3, path / "model"),
        lambda path: nnclr_hub.fit_linear_probe(np.eye(2), 3),
        lambda path: nnclr_hub.knn_classify(np.eye(2), [0, 1], 3),
        lambda path: LinearProbe.load(3),
        lambda path: open_store(3),
        lambda path: open_store(path / "s", memory="x"),
        lambda path: open_store(path / "s", read_only="no"),
        lambda path: open_bench(path / "s", model=3),
        lambda path: Client(timeout="x"),
        lambda path: Client(api_key=3),
        lambda path: AsyncClient(timeout="x"),
        lambda path: CollectionSpec(4, fingerprint=3),
        lambda path: CollectionSpec(4, model="m\udcfc"),
        lambda path: CollectionSpec(4, indexed=[["label"]]),
        lambda path: CollectionSpec.of(3),
        lambda path: CollectionSpec.of(None),
        lambda path: back_up(None, path / "backups"),
        lambda path: restore(path / "backups", None),
        lambda path: restore(path / "backups", 3),
        lambda path: list_backups(None),
        lambda path: verify_backups(3),
        lambda path: export_collection("photos", path / "export"),
        lambda path: open_shards(3),
        lambda path: embed_shards(None, [path], 3),
        lambda path: embed_shards(path / "shards", [None], 3),
        lambda path: search_like("photos", ["a"]),
    ],
    ids=lambda call: inspect.getsource(call).strip()[:60],
)
def test_an_argument_of_a_wrong_type_is_refused_and_nothing_is_made(call, tmp_path):
    with pytest.raises(InvalidRequest):
        call(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", [3, "no", None, [1], {"a": 1}, object()], ids=lambda wrong: type(wrong).__name__)
def test_collections_refuse_other_types(store, wrong):
    collection = store.get("c")
    calls = [
        lambda: store.create("d", wrong),
        lambda: collection.search(VECTOR, exact=wrong),
        lambda: collection.search(VECTOR, with_vector=wrong),
        lambda: collection.search_each([VECTOR], 3, SearchOptions(exact=wrong)),
        lambda: collection.search_each([VECTOR], 3, wrong),
        lambda: collection.scroll(with_vector=wrong),
        lambda: collection.update_metadata({"a": 1}, ids=[], replace=wrong),
        lambda: list(collection.read_all(thumbnails=wrong)),
        lambda: export_collection(collection, wrong) if wrong != "no" else store.create("d", wrong),
        lambda: back_up(store, wrong) if wrong != "no" else store.create("d", wrong),
        *([lambda: collection.get(wrong)] if not isinstance(wrong, dict) else []),
        *([lambda: store.get(wrong)] if wrong != "no" else []),
    ]
    for call in calls:
        with pytest.raises(InvalidRequest):
            call()
    assert [*store.names()] == ["c"]


def test_what_annotations_allow_is_accepted(store, tmp_path):
    collection = store.get("c")
    assert collection.search(VECTOR, np.int64(3), exact=np.True_, score_threshold=np.float32(0.5)) == []
    assert collection.get(iter(["a"])) == collection.get(np.array(["a"])) == []
    assert collection.scroll(cursor=None, limit=5).items == []
    with open_bench(Path(tmp_path / "s2")) as bench:
        assert bench.store.list() == []


def test_a_single_image_is_refused_with_what_to_write(tmp_path):
    with open_bench(tmp_path / "s") as bench, pytest.raises(InvalidRequest) as refused:
        bench.store.create("c", CollectionSpec(4)).get("cat")
    assert "['cat']" in str(refused.value)
    assert "a list or a list" not in str(refused.value)


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu")], ids=str)
def test_a_device_is_a_name_or_one_of_torch(device, data, tmp_path):
    assert str(nnclr_hub.load_encoder("random:test_resnet", device=device).device) == "cpu"
    (record,) = nnclr_hub.evaluate("knn", "random:test_resnet", data, tmp_path / "results", device=device)
    assert record.values
    options = {"settings": FAST, "device": device, "minutes": 0}
    assert nnclr_hub.pretrain("small_cpu", data, tmp_path / "run", **options).step == 1


def test_secrets_are_not_shown():
    with pytest.raises(InvalidRequest) as refused:
        Client(api_key=b"secret")  # type: ignore[arg-type]
    assert "secret" not in str(refused.value)


def test_signatures_stay_as_they_are_documented():
    assert "timeout" in inspect.signature(Client).parameters
    assert "resume" in inspect.signature(nnclr_hub.pretrain).parameters
    assert inspect.getdoc(LinearProbe.load)
    with pytest.raises(TypeError):
        SearchQuery()  # as Python reports a missing argument


def test_members_of_lists_are_checked(store):
    collection = store.get("c")
    calls = [
        lambda: collection.change_indexed([["label"]]),
        lambda: collection.update_metadata({"a": 1}, ids=["i0"], keep=[["a"]]),
        lambda: collection.delete_unchanged(["i0"]),
        lambda: collection.delete_unchanged({"id": "i0"}),
        lambda: collection.get(np.array("i0")),
        lambda: next(collection.read_all(-1)),
        lambda: next(collection.read_all(0)),
    ]
    for call in calls:
        with pytest.raises(InvalidRequest):
            call()
    with pytest.raises(InvalidRequest, match="must be a list of strings"):
        collection.update_metadata({"a": 1}, ids=["i0"], keep=[["a"]])


def test_numbers_of_numpy_are_numbers(store):
    collection = store.get("c")
    collection.upsert([Item(f"i{n}", VECTOR + n) for n in range(5)])
    three = np.int64(3)
    assert len(collection.search(VECTOR, three, offset=np.int32(1), score_threshold=np.float32(-1))) == 3
    assert len(collection.search_each(VECTOR[None], three)[0]) == 3
    assert len(collection.scroll(limit=three).items) == 3
    assert len(next(collection.read_all(three))) == 3
    assert len(collection.changes(three, limit=three).changes) == 2


def test_a_collection_whose_name_is_not_utf_8_does_not_exist(store):
    for call in (store.get, store.drop, lambda name: store.alias("a", name)):
        with pytest.raises(CollectionNotFound):
            call("c\udcfc")


@pytest.mark.parametrize(
    "wrong",
    [
        [[1.0, 2.0], [1.0]],
        [["x", "y"]],
        np.array([["x", "y"]]),
        np.full((2, 2), 1j),
        np.full((2, 2), 1e300),
        np.zeros((2, 0)),
        np.zeros(2),
        np.array(3.0),
        torch.ones(2, 2, requires_grad=True),
    ],
    ids=[
        "ragged",
        "strings",
        "array of strings",
        "complex",
        "too large",
        "no columns",
        "one row",
        "scalar",
        "gradient",
    ],
)
def test_vectors_that_are_no_matrix_of_numbers_are_refused(wrong, store):
    probe = nnclr_hub.fit_linear_probe(np.eye(2), ["a", "b"], l2=1.0)
    calls = [
        lambda: nnclr_hub.knn_classify(wrong, [0, 1], np.eye(2)),
        lambda: nnclr_hub.knn_classify(np.eye(2), [0, 1], wrong),
        lambda: nnclr_hub.fit_linear_probe(wrong, ["a", "b"]),
        lambda: probe.predict(wrong),
        lambda: nnclr_hub.inspect.project(wrong, "pca"),
        lambda: nnclr_hub.inspect.clusters(wrong, 2),
        lambda: nnclr_hub.inspect.outliers(wrong),
        lambda: nnclr_hub.inspect.near_duplicates(wrong),
        lambda: nnclr_hub.inspect.what_to_label_next(wrong, 1),
    ]
    # a collection takes the real parts of complex numbers, with a warning of NumPy
    if not str(getattr(wrong, "dtype", "")).startswith("complex"):
        calls.append(lambda: store.get("c").search_each(wrong))
    for call in calls:
        with pytest.raises(InvalidRequest):
            call()


def test_labels_are_names_numbers_or_tensors():
    vectors = np.eye(4)
    for labels in (["a", "b", "a", "b"], np.array(["a", "b", "a", "b"], object), torch.tensor([5, -1, 5, -1])):
        expected = labels.tolist() if hasattr(labels, "tolist") else labels
        assert nnclr_hub.knn_classify(vectors, labels, vectors, k=1).tolist() == expected
        assert nnclr_hub.fit_linear_probe(vectors, labels, l2=1e-6).predict(vectors).labels == expected


@pytest.mark.parametrize(
    "wrong", [[["a"], ["b", "c"]], [["a"], ["b"]], [None, "a"], [object(), "a"], np.array([["a"], ["b"]])]
)
def test_labels_of_other_types_are_refused(wrong):
    with pytest.raises(InvalidRequest):
        nnclr_hub.knn_classify(np.eye(2), wrong, np.eye(2))
    with pytest.raises(InvalidRequest):
        nnclr_hub.fit_linear_probe(np.eye(2), wrong)


def test_several_labels_per_row_are_zeros_and_ones():
    with pytest.raises(InvalidRequest):
        nnclr_hub.fit_linear_probe(np.eye(2), np.array([[1, 2], [0, 1]]))
