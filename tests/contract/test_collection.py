"""What `store.base.Collection` promises, on every store, against dicts, numpy and a literal reading of filters."""

import json
import threading
import types
import uuid
from dataclasses import replace
from enum import Enum

import numpy as np
import pytest
import torch
from contract.places import (
    DIM,
    FILTERS,
    IDS,
    JPEG,
    LABELS,
    QUERIES,
    VECTORS,
    N,
    agree,
    items,
    listed,
    nearest,
    plain,
    refused,
    thumbnail,
)
from store.exhaustive import unit
from store.filter_oracle import counted, merged, passes, type_of

from nnclr_hub.errors import MetadataConflict
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item, SearchOptions

# ------------------------------------------------------------------------------ writing


def test_items_come_back_as_they_were_written(photos):
    found = photos.get(IDS)
    assert plain(found) == plain(items())
    np.testing.assert_allclose([item.vector for item in found], unit(VECTORS), atol=1e-6)
    assert [item.id for item in photos.get([IDS[3], "absent", IDS[1], IDS[3]])] == [IDS[3], IDS[1], IDS[3]]
    assert photos.get([]) == []
    assert [item.id for page in photos.read_all(7) for item in page] == sorted(IDS)
    assert plain([item for page in photos.read_all(13) for item in page]) == plain(sorted(items(), key=lambda i: i.id))
    for code, call in (
        ("item_not_found", lambda: photos.thumbnail("absent")),
        ("invalid_request", lambda: photos.get([IDS[0], 'x" or id != "'])),
        ("invalid_request", lambda: photos.get("ab")),
    ):
        with refused(code):
            call()


def test_thumbnails_come_back_as_they_were_written(photos):
    assert [photos.thumbnail(item.id) for item in items(0, 8)] == [item.thumbnail for item in items(0, 8)]


@pytest.mark.parametrize("count", [1, 49, 251, 503])
def test_a_request_of_any_size_is_stored_whole_also_when_it_replaces(collection, count):
    rows = np.random.default_rng(count).normal(size=(count, DIM)).astype(np.float32)
    for version in range(2):
        given = [
            Item(
                f"i{n:03}",
                row * (1 + version),
                {"v": version, f"only{version}": n},
                thumbnail(JPEG) if n % 3 else None,
            )
            for n, row in enumerate(rows)
        ]
        assert collection.upsert(given) > version
        assert plain(collection.get([item.id for item in given])) == plain(given)
    assert collection.count() == count
    assert collection.verify().ok


def test_the_last_item_of_an_id_wins(collection):
    collection.upsert(
        [
            Item("z", VECTORS[0], {"v": 1}, thumbnail(JPEG)),
            Item("y", VECTORS[1]),
            Item("z", VECTORS[2], {"v": 2}),
        ]
    )
    assert plain(listed(collection)) == [("y", {}, None), ("z", {"v": 2}, None)]
    assert collection.search(VECTORS[2], 1)[0].id == "z"
    collection.upsert([Item("z", VECTORS[3])])
    assert plain(collection.get(["z"])) == [("z", {}, None)]
    assert agree(collection.search(VECTORS[3], 1), [("z", 1.0)])


class Kind(Enum):
    CAT = "cat"
    NUL = "x\0y"


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        *(
            (metadata, json.loads(json.dumps(metadata)))
            for metadata in (
                {"n": [2**53 + 1, 2**64 - 1, -(2**63), True, None, 1e16, 5e-324, -0.0]},
                {"score": np.float64(0.1), "kind": type("Text", (str,), {})("x"), "none": None},
                {"null": "null", "text": 'ä\u2028\x7f"\\\n\r', "escaped": "\\u0000"},
                {"pair": ("a", 1), "of": types.SimpleNamespace(a=1).__dict__, "deep": {"a": [{"b": "}{]["}]}},
                {"long": "x" * 300, "deep": json.loads("[" * 99 + "]" * 99)},
                {"x": "é" * 32_763 + "b"},
                {},
            )
        ),
        (types.MappingProxyType({"b": 1, "a": None}), {"b": 1, "a": None}),
        ({"kind": Kind.CAT, "id": uuid.UUID(int=1)}, {"kind": "cat", "id": str(uuid.UUID(int=1))}),
    ],
)
def test_metadata_is_what_the_standard_library_makes_of_it(collection, given, stored):
    """Alone, and among others of a request."""
    plain_one = {"path": "a\nb", "n": 1}
    collection.upsert([Item("alone", VECTORS[0], given)])
    collection.upsert([Item(f"i{i}", VECTORS[i], one) for i, one in enumerate((plain_one, given, plain_one))])
    found = [dict(item.metadata) for item in collection.get(["alone", "i0", "i1", "i2"])]
    assert json.dumps(found) == json.dumps([stored, plain_one, stored, plain_one])


BAD_ITEMS = [
    Item("", np.ones(DIM)),
    Item("bad id", np.ones(DIM)),
    Item("..", np.ones(DIM)),
    Item("a", np.ones(DIM + 1)),
    Item("a", np.full(DIM, np.nan)),
    Item("a", np.zeros(DIM)),
    Item("a", np.array(["x"] * DIM)),
    Item("a", [[1.0], [1.0, 2.0]]),  # type: ignore[arg-type]
    Item("a", torch.ones(DIM, requires_grad=True)),  # type: ignore[arg-type]
    Item("a", np.ones(DIM), ["x"]),
    Item("a", np.ones(DIM), {}, JPEG + bytes(32_766)),
    *(Item("a", np.ones(DIM), {}, other) for other in ("text", b"", b"\x89PNG\r\n", bytearray(JPEG))),
    {"id": "a"},
    *(
        Item("a", np.ones(DIM), {"x": [value]})
        for value in (
            *(float("nan"), float("inf"), "x\0y", Kind.NUL, {1, 2}, b"bytes", np.float32(1), object()),
            *("m\udcfcsli", "\ud83d", {"\udcff": 1}),
            *(json.loads("[" * 150 + "]" * 150), "y" * 65_536, 2**64, {"deep": -(10**400)}, {1: "x"}),
        )
    ),
]


def test_an_invalid_item_is_refused_with_the_whole_request(collection):
    """Even if a later item with the same id is valid."""
    for item in BAD_ITEMS:
        for given in ([Item("good", VECTORS[0]), item, Item("a", VECTORS[0])], item):
            with refused("invalid_request"):
                collection.upsert(given)
    assert collection.count() == 0


def test_deleted_items_are_gone_at_once(collection):
    collection.upsert(items())
    assert collection.delete([IDS[0], "absent", IDS[1], IDS[0]]) == 2
    assert collection.delete(IDS[:3]) == 1
    assert collection.delete(where={"must": [{"key": "n", "range": {"gte": 50}}]}) == 10
    assert collection.delete(where={"should": []}) == 0
    with refused("invalid_request"):
        collection.delete([IDS[5], "bad id"])
    left = items(3, 50)
    assert collection.count() == len(left) == collection.info().count
    assert [item.id for item in listed(collection)] == sorted(item.id for item in left)
    assert collection.get(IDS[:3] + IDS[50:]) == []
    assert agree(collection.search(VECTORS[2], N), nearest("cosine", left, VECTORS[2]))
    collection.upsert(items(0, 20)[::-1])  # and back again
    assert plain(collection.get(IDS[:50])) == plain(items(0, 50))
    assert collection.verify().ok


def test_items_that_were_edited_since_they_were_read_are_not_deleted(collection):
    collection.upsert(items(0, 8))
    read = collection.get(IDS[:8])
    assert collection.update_metadata({"new": "x"}, ids=IDS[1:3]) == 2
    collection.upsert([replace(items()[3], vector=VECTORS[30])])
    collection.delete([IDS[4]])
    left = sorted(collection.delete_unchanged([*read, Item("absent", VECTORS[0])]), key=lambda item: item.id)
    assert [item.id for item in left] == sorted(IDS[1:4])
    assert collection.count() == len(left)
    assert plain(left) == plain(collection.get([item.id for item in left]))
    assert collection.delete_unchanged(left) == []
    assert collection.count() == 0
    assert collection.delete_unchanged(left) == collection.delete_unchanged([]) == []


# ------------------------------------------------------------------------------ editing metadata


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("keep", [(), ("label", "half")])
def test_edits_are_merge_patches_that_keep_what_shall_stay(collection, replaced, keep):
    collection.upsert(items())
    vectors = [item.vector.tobytes() for item in collection.get(IDS)]
    where = {"must": [{"key": "label", "match": "new"}]}
    assert collection.count(where) == len(collection.search(VECTORS[0], N, where)) == 0
    patch = {"label": "new", "half": None, "nested": {"a": None, "more": {"x": 1}}, "v": [1, None]}
    truth = {item.id: dict(item.metadata) for item in items()}
    for chosen, given in (
        (IDS[:5], {"ids": [*IDS[:5], "absent", IDS[0]]}),
        (IDS[30:], {"where": {"must": [{"key": "n", "range": {"gte": 30}}]}}),
    ):
        assert collection.update_metadata(patch, **given, replace=replaced, keep=keep) == len(chosen)
        for id in chosen:
            before = truth[id]
            kept = {key: before[key] for key in keep if key in before}
            truth[id] = (patch if replaced else merged(before, patch)) | kept
    found = collection.get(IDS)
    assert {item.id: dict(item.metadata) for item in found} == truth
    assert [item.vector.tobytes() for item in found] == vectors
    new = sum(one.get("label") == "new" for one in truth.values())
    assert collection.count(where) == len(collection.search(VECTORS[0], N, where)) == new


def test_each_item_has_its_own_patch_and_its_own_condition(collection):
    collection.upsert([Item(id, VECTORS[0], {"v": 2}) for id in "yz"])
    assert collection.update_each({"y": {"v": 2, "a": 1}, "absent": {"v": 4}, "z": {"v": 2}}) == 2
    assert plain(collection.get(["y", "z"])) == [("y", {"v": 2, "a": 1}, None), ("z", {"v": 2}, None)]
    for expected in ({"v": 1}, {"v": True}, {"a": 2}, {"v": 2, "a": None}, {"v": {}}):
        with pytest.raises(MetadataConflict) as conflict:
            collection.update_each({"y": {"m": 1}, "z": {"m": 1}}, expected={"y": expected})
        assert conflict.value.conflicts == {"y": {key: {"v": 2, "a": 1}.get(key) for key in expected}}
    for expected in ({"v": 2, "m": None}, {"m": 1, "o": {"p": None}}, {}):
        assert collection.update_each({"z": {"m": 1}}, expected={"z": expected}) == 1
    assert plain(collection.get(["y", "z"])) == [("y", {"v": 2, "a": 1}, None), ("z", {"v": 2, "m": 1}, None)]


def test_a_patch_of_each_item_keeps_what_shall_stay(collection):
    collection.upsert([Item(id, VECTORS[0], {"v": 2}) for id in "yz"])
    assert collection.update_each({"y": {"v": 3, "a": 1}, "z": {"v": 5}}, keep=["v"]) == 2
    assert plain(collection.get(["y", "z"])) == [("y", {"v": 2, "a": 1}, None), ("z", {"v": 2}, None)]


def test_edits_of_metadata_are_not_changes_of_items(collection):
    collection.upsert(items(0, 3))
    stored = collection.info()
    assert stored.vectors_seq == stored.durable_seq
    collection.update_metadata({"label": "new"}, ids=IDS[:2])
    assert collection.info().vectors_seq == stored.vectors_seq < collection.info().durable_seq
    collection.delete(IDS[:1])
    assert collection.info().vectors_seq == collection.info().durable_seq


def test_one_and_true_are_different_values(collection):
    collection.upsert([Item("a", VECTORS[0], {"n": 1})])
    assert collection.update_metadata({"n": True}, ids=["a"]) == 1
    assert collection.get(["a"])[0].metadata["n"] is True


def test_a_bad_edit_changes_nothing(collection):
    collection.upsert([Item("a", np.ones(DIM), {"x": "x" * 30_000}), Item("b", np.ones(DIM))])
    bad = [{}, {"ids": ["a"], "where": {}}, {"ids": "a"}, {"ids": ["a/b"]}, {"ids": ["a"], "metadata": ["x"]}]
    bad += [{"ids": ["a"], "metadata": {"y": one}} for one in ("y" * 65_536, "y" * 40_000, {"deep": 2**64}, {1})]
    for arguments in bad:
        with refused("invalid_request"):
            collection.update_metadata(**({"metadata": {"z": 1}} | arguments))
    for patches, expected in (
        ({"b": {"z": 1}, "a": {"y": "y" * 40_000}}, None),
        ({"b": {"z": 1}, "a": ["x"]}, None),
        (["a"], None),
        ({"b": {"z": 1}}, {"a": {"x": 1}}),
        ({"b": {"z": 1}}, {"b": 1}),
    ):
        with refused("invalid_request"):
            collection.update_each(patches, expected=expected)
    assert [dict(item.metadata) for item in collection.get(["a", "b"])] == [{"x": "x" * 30_000}, {}]


def test_threads_that_edit_the_same_item_lose_nothing(collection):
    collection.upsert([Item("a", VECTORS[0])])

    def edit(thread: int) -> None:
        for i in range(8):
            collection.update_metadata({f"k{thread}": i}, ids=["a"])
            collection.upsert([Item(f"t{thread}", VECTORS[thread], {"n": i})])

    threads = [threading.Thread(target=edit, args=[n]) for n in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert collection.get(["a"])[0].metadata == {f"k{thread}": 7 for thread in range(5)}
    assert collection.count({"must": [{"key": "n", "match": 7}]}) == 5


# ------------------------------------------------------------------------------ filters, listing, facets


def test_filters_agree_with_a_literal_reading_in_every_call(photos):
    for number, where in enumerate(FILTERS):
        want = [item for item in items() if passes(where, item.id, dict(item.metadata))]
        assert photos.count(where) == len(want), where
        found = listed(photos, 11, where, with_vector=False)
        assert [item.id for item in found] == sorted(item.id for item in want), where
        k, query = (3, N)[number % 2], QUERIES[number % 5]
        assert agree(photos.search(query, k, where), nearest("cosine", want, query)[:k]), where
        assert agree(photos.search(query, k, where, exact=True), nearest("cosine", want, query)[:k]), where
    assert photos.count() == photos.count(None) == N


def test_filters_may_name_many_ids(photos):
    named = [*(f"absent{i}" for i in range(40_000)), "A0", "z1"]
    for where, left in (
        ({"must": [{"ids": named}]}, {"A0", "z1"}),
        ({"must_not": [{"ids": named}]}, {*IDS} - {*named}),
    ):
        assert photos.count(where) == len(left)
        assert {item.id for item in listed(photos, 11, where)} == left
        assert {match.id for match in photos.search(QUERIES[0], N, where)} == left


def test_a_filter_that_is_too_long_for_an_address_is_refused(photos, kind):
    where = {"must": [{"ids": [f"i{n}" for n in range(40_000)]}]}
    for call in (photos.count, lambda where: photos.scroll(where=where)):
        if kind == "http":
            with refused("invalid_filter"):
                call(where)
    assert photos.search(QUERIES[0], where=where) == []
    longest = {"must": [{"ids": [f"i{n}" for n in range(4000)]}]}
    assert (photos.count(longest), photos.scroll(where=longest).items) == (0, [])


@pytest.mark.parametrize(
    "where",
    [
        *([], {"most": []}, {"must": {"key": "n", "match": 1}}, {"must": "n"}, {"must": ["x"]}),
        {"must": [{"should": [{"key": "n", "match": 1}] * 64}]},
        {"must": [{"key": "n", "match": 1}] * 65},
        *(
            {"must": [condition]}
            for condition in (
                *({"match": 1}, {"key": "n"}, {"key": "n", "match": 1, "in": [2]}, {"key": "n", "like": "x"}),
                *({"key": 'a"b', "match": 1}, {"key": "n", "match": {"x": 1}}, {"key": "n", "in": "abc"}),
                *({"key": "n", "range": {"above": 1}}, {"key": "n", "range": {"gt": None}}),
                *({"key": "n", "range": {"gt": 1, "lt": "b"}}, {"key": "n", "range": {"gte": "a", "lte": 2.5}}),
                *({"key": "n", "exists": 1}, {"key": "n", "prefix": 1}, {"should": [], "key": "n"}),
                *({"ids": "a"}, {"ids": ["a/b"]}, {"ids": ["a"], "key": "n"}, {"key": "n", "contains": ["x"]}),
                *({"key": "n", "length": "2"}, {"key": "n", "date": {"gte": "yesterday"}}),
                *({"key": "n", "date": {"gte": 5}}, {"key": "n", "geo": {"lat": 91, "lon": 0, "radius": 1}}),
                *({"key": "n", "geo": {"lat": 1, "lon": 0}}, {"key": "n", "match": 10**309}),
                {"key": "n", "match": "x\0y"},
            )
        ),
    ],
)
def test_a_bad_filter_is_refused_by_every_call(photos, where):
    for call in (
        photos.count,
        lambda where: photos.delete(where=where),
        lambda where: photos.update_metadata({"n": 0}, where=where),
        lambda where: photos.search(QUERIES[0], where=where),
        lambda where: photos.scroll(where=where),
        lambda where: photos.facets(["n"], where),
    ):
        with refused("invalid_filter"):
            call(where)


def test_filters_are_bounded_in_depth(photos):
    where: dict = {"must": [{"key": "n", "match": 1}]}
    for _ in range(7):
        where = {"must": [where]}
    assert photos.count(where) == 1
    with refused("invalid_filter"):
        photos.count({"must": [where]})


def test_large_numbers_are_compared_and_counted(collection):
    collection.upsert([Item("a", VECTORS[0], {"n": 1e308}), Item("b", VECTORS[1], {"n": 2**64 - 1})])
    assert collection.count({"must": [{"key": "n", "range": {"gt": 2**53 - 1}}]}) == 2


@pytest.mark.parametrize("limit", [1, 7, N - 1, N, N + 1])
def test_pages_cover_everything_once_in_the_order_of_ids(photos, limit):
    found = listed(photos, limit)
    assert [(item.id, item.metadata) for item in found] == sorted((item.id, item.metadata) for item in items())
    assert {item.thumbnail for item in found} == {None}
    assert {item.vector.shape for item in found} == {(DIM,)}
    assert {item.vector.shape for item in listed(photos, limit, with_vector=False)} == {(0,)}
    for wrong in ({"cursor": '"'}, {"cursor": "i\udcfc"}, {"limit": 0}, {"limit": 10_001}, {"limit": True}):
        with refused("invalid_request"):
            photos.scroll(**wrong)


def test_pages_start_after_any_id(photos):
    assert [item.id for item in photos.scroll("M", 5).items] == [id for id in sorted(IDS) if id > "M"][:5]


def test_pages_cover_everything_once_while_others_write(collection):
    collection.upsert([Item(f"k{i:03}", row) for i, row in enumerate(VECTORS)])
    seen, cursor = [], None
    while True:
        page = collection.scroll(cursor, 9)
        seen += [item.id for item in page.items]
        collection.upsert([Item(seen[-1], VECTORS[0])])  # replaced behind the cursor
        cursor = page.cursor
        if cursor is None:
            break
    assert seen == [f"k{i:03}" for i in range(N)]


def test_a_filter_without_a_condition_changes_nothing(collection):
    collection.upsert(items()[:3])
    for where in ({}, {"must": []}, {"must_not": []}, {"must": [{"must": []}]}, {"should": [{"must_not": []}]}):
        for call in (collection.delete, lambda where: collection.update_metadata({"label": "x"}, where=where)):
            with refused("invalid_filter"):
                call(where=where)
    for where in (
        {"should": []},
        {"must": [{"should": []}]},
        {"must_not": [{"must": []}]},
    ):  # such as an empty selection
        assert collection.delete(where=where) == 0
    assert collection.update_metadata({"label": "x"}, where={"must_not": [{"ids": []}]}) == 3
    assert collection.delete(where={"must_not": [{"ids": []}]}) == 3


def test_choosing_no_items_changes_nothing(collection):
    collection.upsert(items()[:3])
    assert (collection.delete([]), collection.update_metadata({"label": "x"}, ids=[])) == (0, 0)
    assert (collection.get([]), collection.count()) == ([], 3)


def test_facets_count_the_values_of_keys(kind, photos):
    if kind not in ("folder", "http"):
        with refused("invalid_request"):
            photos.facets(["n"])
        return
    keys = ["label", "mixed", "half", "list", "none", "absent"]
    for where in (None, {"must": [{"key": "n", "range": {"lt": 30}}]}, {"should": []}):
        chosen = [dict(item.metadata) for item in items() if passes(where or {}, item.id, dict(item.metadata))]
        for key, found in photos.facets(keys, where, 1000).items():
            having, counts = counted(chosen, key)
            assert (found.items, found.distinct) == (having, len(counts))
            assert {(type_of(value), value): number for value, number in found.values} == counts
            numbers = sum(number for (name, _), number in counts.items() if name == "number")
            assert sum(found.histogram.counts if found.histogram else []) == numbers
    few = photos.facets(["label", "n"], limit=3, bins=4)
    assert [number for _, number in few["label"].values] == [N / len(LABELS)] * 3
    assert (few["label"].distinct, few["n"].histogram.counts) == (len(LABELS), [15, 15, 15, 15])
    photos.update_metadata({"label": "edited"}, ids=[items()[0].id, items()[1].id])
    [(_, most), *_] = photos.facets(["label"], {"must": [{"key": "label", "match": "edited"}]})["label"].values
    assert (most, photos.facets(["label"])["label"].distinct) == (2, len(LABELS) + 1)
    for wrong in ({"limit": 0}, {"limit": 1001}, {"bins": 0}, {"bins": 101}, {"keys": []}, {"keys": ["n"] * 17}):
        with refused("invalid_request"):
            photos.facets(**{"keys": ["n"], **wrong})


def test_other_keys_can_be_indexed(kind, collection):
    collection.upsert(items())
    if kind not in ("folder", "http"):
        with refused("invalid_request"):
            collection.change_indexed(["half"])
        return
    where = {"must": [{"key": "n", "range": {"lt": 9}}]}
    for keys in (["half", "n"], ["label"], ["n"]):
        collection.change_indexed(keys)
        assert collection.spec.indexed == tuple(keys)
        if "n" in keys:
            assert collection.count(where) == 9
    for keys in (["k"] * 33, 'a"b'):
        with pytest.raises(ValueError):  # InvalidRequest or InvalidFilter
            collection.change_indexed([f"{key}{i}" for i, key in enumerate(keys)] if isinstance(keys, list) else [keys])
    assert collection.count(where) == 9


# ------------------------------------------------------------------------------ searching


@pytest.mark.parametrize(
    ("metric", "index"), [("cosine", "auto"), ("cosine", "hnsw"), ("dot", "flat"), ("l2", "ivf"), ("l2", "auto")]
)
def test_searches_return_the_nearest(store, kind, metric, index):
    collection = store.create("c", CollectionSpec(DIM, metric, index=index, indexed=("n",)))
    assert (collection.search(QUERIES[0]), collection.search_each(QUERIES, 3)) == ([], [[]] * 5)
    assert collection.verify().ok
    collection.upsert(items())
    for query in QUERIES:
        wanted = nearest(metric, items(), query)
        limit = (wanted[20][1] + wanted[21][1]) / 2
        for options, expected in (
            ({}, wanted[:10]),
            ({"k": 1}, wanted[:1]),
            ({"k": N + 5}, wanted),
            ({"k": 4, "offset": 7}, wanted[7:11]),
            ({"k": 9, "offset": N - 2}, wanted[-2:]),
            ({"k": 4, "offset": N}, []),
            ({"k": 5, "effort": 50}, wanted[:5]),
            ({"k": 5, "exact": kind != "standalone" or index == "flat"}, wanted[:5]),  # which refuses it
            ({"k": N, "score_threshold": limit}, wanted[:21]),
            ({"k": 9, "score_threshold": limit, "offset": 15}, wanted[15:21]),
        ):
            assert agree(collection.search(query, **options), expected), options
    found = collection.search_each(QUERIES, 7, SearchOptions(with_vector=True))
    assert all(agree(got, nearest(metric, items(), q)[:7]) for got, q in zip(found, QUERIES, strict=True))
    by_id = {item.id: item for item in items()}
    for match in (match for matches in found for match in matches):
        kept = by_id[match.id].vector
        np.testing.assert_allclose(match.vector, unit(kept) if metric == "cosine" else kept, atol=1e-6)
        assert match.metadata == by_id[match.id].metadata
    assert collection.search(QUERIES[0], 1)[0].vector is None
    assert collection.search_each(list(QUERIES), 2) == [matches[:2] for matches in collection.search_each(QUERIES, 3)]
    assert collection.search_each(QUERIES[:0]) == []


def test_equally_near_items_come_in_the_order_of_their_ids(collection, kind):
    """Also where k cuts through them, in several commits and after an index was built; on Milvus, up to 8 of them."""
    count = 80 if kind == "folder" else 7
    ids = [f"i{i:03}" for i in np.random.default_rng(0).permutation(count)]
    for part in range(4):
        collection.upsert([Item(id, np.ones(DIM)) for id in ids[part::4]])
    collection.upsert([Item("nearest", np.arange(DIM)), Item("other", -np.ones(DIM))])
    collection.compact()
    collection.upsert([Item("i000", np.ones(DIM)), Item("i0005", np.ones(DIM))])
    equal = sorted([*ids, "i0005"])
    for k in (1, 10, 27):
        pages = [[match.id for match in collection.search(np.ones(DIM), k, offset=n)] for n in range(0, count + 1, k)]
        assert [id for page in pages for id in page][: count + 1] == equal
    assert [match.id for match in collection.search(np.arange(DIM), 6)] == ["nearest", *equal[:5]]


@pytest.mark.parametrize(
    "arguments",
    [
        *({"k": k} for k in (0, 10_001, True, 1.5)),
        *({"effort": 0}, {"score_threshold": "high"}, {"score_threshold": float("nan")}),
        *({"offset": offset} for offset in (-1, True, 0.5, 9_999)),
        *({"vector": vector} for vector in (np.ones(DIM - 1), np.full(DIM, np.inf), np.zeros(DIM), ["x"] * DIM, None)),
    ],
)
def test_an_invalid_search_is_refused(photos, arguments):
    with refused("invalid_request"):
        photos.search(**{"vector": QUERIES[0], **arguments})
    with refused("invalid_request"):
        photos.search_each([QUERIES[0], QUERIES[1][:2]])


# ------------------------------------------------------------------------------ state and maintenance


def test_maintenance_changes_no_answer(collection, kind):
    collection.upsert(items())
    collection.delete(IDS[:9])

    def answers():
        seen = [collection.count(), plain(collection.get(IDS)), [item.id for item in listed(collection)]]
        return [*seen, [(match.id, round(match.score, 4)) for match in collection.search(QUERIES[3], 20)]]

    before, calls = answers(), []
    collection.snapshot()
    collection.compact()
    report = collection.verify(lambda done, total: calls.append((done, total)))
    assert (report.items, report.ok, report.damaged, report.missing) == (N - 9, True, (), ())
    if kind != "http":  # which has the disk of the server
        repaired = collection.repair()
        assert (repaired.items, repaired.removed, repaired.kept_in) == (N - 9, (), None)
    assert answers() == before
    assert all(done <= total for done, total in calls)
    info, statistics = collection.info(), collection.statistics()
    assert (info.name, info.count, info.state, info.spec) == ("c", N - 9, "ready", collection.spec)
    assert info.durable_seq == info.indexed_seq == statistics.durable_seq
    assert (statistics.items, statistics.state, statistics.index) == (N - 9, "ready", info.index)
    assert "'c'" in repr(collection)
    assert all(f"<td>{part}</td>" in collection._repr_html_() for part in ("c", N - 9, DIM, "unknown", info.index))


def test_vectors_of_another_encoder_are_refused(store):
    embedder = types.SimpleNamespace(name="mine", embed_dim=DIM, fingerprint="f" * 32)
    collection = store.create("c", CollectionSpec.of(embedder))
    collection.check(embedder)
    with refused("fingerprint_mismatch"):
        collection.check(types.SimpleNamespace(name="mine", embed_dim=DIM, fingerprint="e" * 32))


def test_a_closed_or_dropped_collection_refuses_every_use(place):
    with open_store(place) as store:
        gone, closed = (store.create(name, CollectionSpec(2)) for name in ("gone", "closed"))
        for one in (gone, closed):
            one.upsert([Item("a", np.ones(2))])
        store.drop("gone")
        uses = [
            lambda c: c.count(),
            lambda c: c.upsert([Item("b", np.ones(2))]),
            lambda c: c.search(np.ones(2)),
            lambda c: c.get(["a"]),
            lambda c: c.delete(["a"]),
            lambda c: c.info(),
        ]
        for use in uses:
            with refused("collection_not_found"):
                use(gone)
    for use in uses:
        with refused("store_closed"):
            use(closed)
    assert repr(store).startswith("<")
    assert "closed" in closed._repr_html_()


# ------------------------------------------------------------------------------ the log of changes, in a folder


@pytest.mark.parametrize("limit", [1, 7, 10_000])
def test_a_follower_that_applies_the_changes_has_the_items_of_the_collection(folder, limit):
    rng, held, since = np.random.default_rng(0), {}, 0
    collection = folder.create("c", CollectionSpec(DIM))
    for step in range(40):
        ids = [f"i{n}" for n in rng.choice(30, rng.choice((1, 3, 12)), replace=False)]
        if rng.random() < 0.3:
            collection.delete(ids)
        elif rng.random() < 0.2:
            collection.update_metadata({"edited": step}, ids=ids)
        else:
            collection.upsert([Item(id, rng.normal(size=DIM), {"n": step}) for id in ids])
        if rng.random() < 0.1:
            collection.compact()
        if rng.random() < 0.5 or step == 39:
            while (page := collection.changes(since, limit)).changes or page.next > since:
                assert since < page.next <= page.last == collection.info().durable_seq
                for change in page.changes:
                    assert change.seq <= change.commit
                    held[change.id] = plain(collection.get([change.id])) if change.op == "upsert" else []
                assert limit < 24 or page.next == page.changes[-1].commit  # whole commits only
                since = page.next
            assert {id: one for id, one in held.items() if one} == {i.id: plain([i]) for i in listed(collection)}
    times = [change.at for change in collection.changes(0, 10_000).changes]
    assert times == sorted(times)
    for wrong in ({"since": -1}, {"since": True}, {"limit": 0}, {"limit": 10_001}):
        with refused("invalid_request"):
            collection.changes(**wrong)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_follower_waits_for_the_next_change(folder, tmp_path, read_only):
    collection = folder.create("c", CollectionSpec(DIM))
    seq = collection.upsert([Item("a", VECTORS[0])])
    with open_store(str(tmp_path / "only"), read_only=True) as reader:
        follower = (reader if read_only else folder).get("c")
        assert follower.changes(seq, wait=0.05).changes == []
        writer = threading.Timer(0.1, collection.upsert, [[Item("b", VECTORS[0])]])
        writer.start()
        (change,) = follower.changes(seq, wait=60).changes
        writer.join()
    assert (change.op, change.id, change.seq) == ("upsert", "b", seq + 1)


def test_a_follower_notices_that_the_collection_was_created_again(folder):
    for n in range(2):
        collection = folder.create("c", CollectionSpec(DIM))
        for m in range(n + 1):
            collection.upsert([Item(f"{n}-{m}", VECTORS[0])])
        if n == 0:
            page = collection.changes()
            assert collection.changes(page.next, log=page.log) == replace(page, changes=[])
            folder.drop("c")
    for since, log in ((page.next, page.log), (10**9, None)):
        with refused("changes_unavailable"):
            collection.changes(since, log=log)
    assert [one.id for one in collection.changes(0, log=collection.changes().log).changes] == ["1-0", "1-1"]


def test_only_a_folder_keeps_a_log(photos, kind):
    if kind in ("folder", "http"):
        assert {change.id for change in photos.changes().changes} == set(IDS)
    else:
        with refused("invalid_request"):
            photos.changes()
