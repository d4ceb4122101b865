"""Public functions refuse arguments of a wrong type at once, before they do anything."""

import inspect
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_runs import FAST

import nnclr_hub
from nnclr_hub import AsyncClient, Client, CollectionSpec, LinearProbe, SearchQuery, open_bench, open_store
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.store.items import SearchOptions

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
