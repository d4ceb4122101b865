"""Both stores say the same: a list of operations is done to each, step by step, and every answer is compared."""

import math
from dataclasses import asdict, is_dataclass
from typing import Any

import numpy as np
import pytest
from store.milvus_servers import SERVERS
from store.operations import DIM, FILTERS, INDEXED, ON_NAMES, Operation, on_items

from nnclr_hub.errors import NNCLRHubError
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item, VectorStore

pytest.importorskip("pymilvus", reason="pymilvus is not installed")

# ------------------------------------------------------------------------------ comparing


def outcome(operation: Operation, store: VectorStore, name: str) -> Any:
    """Return the result, or the error with its message."""
    try:
        return plain(operation(store))
    except NNCLRHubError as error:
        return ["refused", type(error).__name__, str(error).replace(name, "STORE")]


def plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        # vars, since asdict would copy arrays and mappings
        return [type(value).__name__, *(plain(one) for one in vars(value).values())]
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return {key: plain(one) for key, one in value.items()} if isinstance(value, dict) else value


def same(a: Any, b: Any) -> bool:
    """Equal, floats to 1e-4."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-4)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return a == b


def compare(steps: list[tuple[str, Operation]], embedded: VectorStore, milvus: Any) -> None:
    for step, operation in steps:
        want = outcome(operation, embedded, str(getattr(embedded, "folder", "")))
        got = outcome(operation, milvus, milvus.connection.name)
        assert same(want, got), f"{step}: embedded {want!r:.1500}\n      milvus {got!r:.1500}"


SPECS = [
    CollectionSpec(DIM, indexed=INDEXED),
    CollectionSpec(DIM, metric="dot", index="flat", indexed=INDEXED),
    CollectionSpec(DIM, metric="l2", index="ivf", fingerprint="f" * 64, model="nnclr_vit", indexed=INDEXED),
    CollectionSpec(DIM, index="hnsw", indexed=INDEXED),
]


@pytest.fixture
def embedded(tmp_path):
    with open_store(str(tmp_path / "embedded")) as store:
        yield store


@pytest.fixture(params=["file", *(pytest.param(name, marks=pytest.mark.scale) for name in SERVERS)])
def milvus(request, tmp_path):
    if request.param == "file":
        with open_store(str(tmp_path / "x.milvus.db")) as store:
            yield store
    else:
        with SERVERS[request.param](tmp_path) as server, open_store(server.uri) as store:
            yield store


def test_every_operation_returns_the_same_on_both(tmp_path, milvus):
    """Compare items, with each metric and kind of index; the filters are shared out among these."""
    for i, spec in enumerate(SPECS):
        with open_store(str(tmp_path / f"embedded{i}")) as embedded:
            compare(on_items(spec, FILTERS[i :: len(SPECS)]), embedded, milvus)
        milvus.drop("c")


def test_names_and_aliases_say_the_same_on_both(embedded, milvus):
    compare(ON_NAMES, embedded, milvus)


def test_a_reader_is_refused_alike(tmp_path):
    """Writes, by the same error; and a store that is not there."""
    reads = [open_store(str(tmp_path / name)) for name in ("embedded", "x.milvus.db")]
    for store in reads:
        store.create("c", CollectionSpec(2)).upsert([Item("a", np.ones(2))])
        store.close()
    writes: list[tuple[str, Operation]] = [
        ("upsert", lambda s: s.get("c").upsert([Item("b", np.ones(2))])),
        ("delete", lambda s: s.get("c").delete(["a"])),
        ("update", lambda s: s.get("c").update_metadata({"x": 1}, ids=["a"])),
        ("indexed", lambda s: s.get("c").change_indexed(["x"])),
        ("create", lambda s: s.create("d", CollectionSpec(2))),
        ("drop", lambda s: s.drop("c")),
        ("rename", lambda s: s.rename("c", "d")),
        ("alias", lambda s: s.alias("d", "c")),
        ("unalias", lambda s: s.unalias("d")),
        ("promote", lambda s: s.promote("c", "d")),
        ("snapshot", lambda s: s.get("c").snapshot()),
        ("compact", lambda s: s.get("c").compact()),
        ("repair", lambda s: s.get("c").repair()),
        (
            "and reads are answered",
            lambda s: [s.get("c").count(), s.get("c").search(np.ones(2)), s.get("c").get(["a"])],
        ),
    ]
    with (
        open_store(str(tmp_path / "embedded"), read_only=True) as embedded,
        open_store(str(tmp_path / "x.milvus.db"), read_only=True) as milvus,
    ):
        compare(writes, embedded, milvus)
    for closed in (embedded, milvus):
        with pytest.raises(NNCLRHubError):
            closed.list()
    sentences = []
    for name in ("absent", "absent.milvus.db"):
        with pytest.raises(NNCLRHubError) as refusal:
            open_store(str(tmp_path / name), read_only=True)
        sentences.append(str(refusal.value).replace(str(tmp_path / name), "STORE"))
    assert sentences[0] == sentences[1]


def test_the_specification_survives(tmp_path):
    """It is the same when the file is opened again."""
    for i, spec in enumerate(SPECS):
        with open_store(str(tmp_path / f"{i}.milvus.db")) as store:
            store.create("c", spec)
        with open_store(str(tmp_path / f"{i}.milvus.db")) as store:
            assert asdict(store.get("c").spec) == asdict(spec)
