"""What is done to both stores, in steps: items with every kind of metadata, questions with every kind of filter."""

from collections.abc import Callable
from typing import Any

import numpy as np

from nnclr_hub.store.base import CollectionSpec, Item, VectorStore

N, DIM = 60, 8
rng = np.random.default_rng(0)
VECTORS = rng.normal(size=(N, DIM)).astype(np.float32)
QUERIES = rng.normal(size=(5, DIM)).astype(np.float32)
# of later items: no two are equal, because ties may be returned in any order
LATER = rng.normal(size=(4, DIM)).astype(np.float32)
LABELS = ["cat", "dog", 'qu"ote', "back\\slash", "it's", "50%", "under_score", "größe 猫 🐈", "", "x" * 300]
ODD = {"unicode é": "ü", "it's": 1, "dotted.key": True, "none": None, "nested": {"a": [1, {"b": None}]}, "list": [1]}
NUMBERS = [0, 1, 1.0, -2.5, True, "1", 2**53 + 1, 2**63, 10**30, 1e-7, None, False]
# Milvus filters by these only
INDEXED = ("n", "label", "mixed", "half", "absent", *ODD, "k7", "k2999")
BAD_NAMES = ["", "..", "a/b", "x" * 129, "a\u0308", 'a"b']


def metadata_of(i: int) -> dict[str, Any]:
    """Return every kind of value under the same keys, so that their types are compared."""
    made: dict[str, Any] = {"n": i, "label": LABELS[i % len(LABELS)], "mixed": NUMBERS[i % len(NUMBERS)]}
    return made | (ODD if i % 7 == 0 else {}) | ({"half": i / 2} if i % 2 else {})


def items(start: int = 0, stop: int = N) -> list[Item]:
    thumbnails = [None, b"", b"\xff\xd8jpeg\x00", bytes(32 * 1024)]
    ids = [f"{'Az9._~-'[i % 7]}{i}" for i in range(N)]
    return [Item(ids[i], VECTORS[i], metadata_of(i), thumbnails[i % 4]) for i in range(start, stop)]


IDS = [item.id for item in items()]
FILTERS: list[Any] = [
    {},
    *({"must": [{"key": "label", "match": label}]} for label in LABELS),
    *({"must_not": [{"key": "mixed", "match": number}]} for number in NUMBERS if number not in (2**63, 10**30)),
    *({"should": [{"key": "label", "prefix": label[:1]}, {"key": "n", "match": 3}]} for label in LABELS),
    *({"must": [{"key": key, "exists": there}]} for key in [*ODD, "half", "absent"] for there in (True, False)),
    *({"must": [{"key": "mixed", "range": {name: 1}}]} for name in ("gt", "gte", "lt", "lte")),
    *({"must_not": [{"key": "label", "range": {name: "dog"}}]} for name in ("gt", "gte", "lt", "lte")),
    {"must": [{"key": "mixed", "range": {"gt": 2**53 - 1}}]},
    {"must": [{"key": "label", "prefix": "x" * 120}], "must_not": [{"key": "label", "match": "x" * 299}]},
    {"must_not": [{"key": "label", "prefix": "x" * 90}, {"key": "half", "exists": True}]},
    {"must": [{"key": "mixed", "in": [1, "1", True, None, "größe"]}, {"key": "n", "range": {"gte": 5, "lt": 50}}]},
    {"must": [{"key": "label", "in": []}]},
    {"must": [{"key": "label", "in": [f"no{i}" for i in range(499)] + ["cat"]}]},
    {"should": [{"key": "absent", "match": 1}], "must": [{"key": "n", "range": {"lt": 9}}]},
    {"must": [{"key": 'a"b', "match": 1}]},
    {"must": [{"key": "n", "match": {"a": 1}}]},
    {"must": "n"},
    {"most": []},
    [],
]
REFUSED_ITEMS: list[list[Any]] = [
    [Item("bad id", VECTORS[0])],
    [Item("a", VECTORS[0][:3])],
    [Item("a", VECTORS[0] * np.nan)],
    [Item("a", np.zeros(DIM))],
    [Item("a", VECTORS[0], {"x": float("inf")})],
    [Item("a", VECTORS[0], {"x": "y" * 65_536})],
    [Item("a", VECTORS[0], {}, bytes(32 * 1024 + 1))],
    [Item("good", VECTORS[0]), Item("bad id", VECTORS[0])],
    [Item("twice", VECTORS[0] * np.nan), Item("twice", VECTORS[0])],
]

Operation = Callable[[VectorStore], Any]


def whole(store: VectorStore, name: str, limit: int, where: Any = None, with_vector: bool = True) -> list[Any]:
    """Return every page of a listing."""
    pages, cursor = [], None
    while True:
        pages.append(store.get(name).scroll(cursor, limit, where, with_vector=with_vector))
        cursor = pages[-1].cursor
        if cursor is None:
            return pages


def full_metadata(size: int) -> dict[str, str]:
    """Return metadata of a number of bytes as JSON."""
    rest = size - len('{"a":""}')
    return {"a": "é" * (rest // 2) + "b" * (rest % 2)}


# what edits of {"v": 2} expect, one after another
CONDITIONS = [{"v": 1}, {"v": True}, {"v": 2, "none": None}, {"m": None}, {"m": 1, "o": {"p": None}}, {"m": {}}]

# what is changed after the questions, and what is seen of it
CHANGES: list[tuple[str, Operation]] = [
    ("exact where", lambda s: s.get("c").search(QUERIES[0], 5, FILTERS[20], exact=True)),
    ("delete", lambda s: s.get("c").delete([IDS[0], "absent", IDS[1], IDS[0]])),
    ("delete again", lambda s: s.get("c").delete(IDS[:3])),
    ("delete bad", lambda s: s.get("c").delete([IDS[5], "bad id"])),
    ("seen at once", lambda s: [s.get("c").count(), s.get("c").get(IDS[:6]), s.get("c").search(VECTORS[2], N)]),
    (
        "last wins",
        lambda s: s.get("c").upsert([Item("z", LATER[0], {"v": 1}), Item("z", LATER[1], {"v": 2})]) > 0,
    ),
    ("replaced", lambda s: [s.get("c").get(["z"]), s.get("c").count(), s.get("c").search(LATER[1], 3)]),
    *(
        (f"conditional {i}", lambda s, one=one: s.get("c").update_each({"z": {"m": 1}}, expected={"z": one}))
        for i, one in enumerate(CONDITIONS)
    ),
    ("conditional seen", lambda s: s.get("c").get(["z"])),
    ("back again", lambda s: s.get("c").upsert(items(0, 20)[::-1]) > 0),
    ("all again", lambda s: whole(s, "c", 30)),
    ("full metadata", lambda s: s.get("c").upsert([Item("full", LATER[2], full_metadata(65_535))]) > 0),
    ("more is refused", lambda s: s.get("c").upsert([Item("fuller", VECTORS[0], full_metadata(65_537))]) > 0),
    ("many keys", lambda s: s.get("c").upsert([Item("keys", LATER[3], {f"k{i}": i for i in range(3000)})]) > 0),
    ("full ones read", lambda s: s.get("c").get(["full", "keys"])),
    ("many keys found", lambda s: s.get("c").search(VECTORS[5], 3, {"must": [{"key": "k2999", "match": 2999}]})),
    ("many keys counted", lambda s: s.get("c").count({"must": [{"key": "k7", "range": {"gte": 7}}]})),
    ("many keys left out", lambda s: s.get("c").count({"must_not": [{"key": "k7", "exists": True}]})),
    ("verify", lambda s: [s.get("c").verify().items, s.get("c").verify().ok]),
    ("snapshot", lambda s: s.get("c").snapshot()),
    ("after snapshot", lambda s: [s.get("c").count(), whole(s, "c", 30), s.get("c").search(QUERIES[3], 20)]),
    ("compact", lambda s: s.get("c").compact()),
    ("repair", lambda s: s.get("c").repair()),
    ("after repair", lambda s: [s.get("c").count(), whole(s, "c", 30), s.get("c").search(QUERIES[3], 20)]),
    ("info", lambda s: [(info.name, info.spec, info.count) for info in s.list()]),
]


def on_items(spec: CollectionSpec, filters: list[Any]) -> list[tuple[str, Operation]]:
    """Return the operations on a store, in this order."""
    steps: list[tuple[str, Operation]] = [
        ("nothing there", lambda s: s.get("c")),
        ("create", lambda s: s.create("c", spec).spec),
        ("create again", lambda s: s.create("c", spec)),
        *((f"create {name!r:.20}", lambda s, name=name: s.create(name, spec)) for name in BAD_NAMES),
        (
            "empty",
            lambda s: [s.get("c").count(), s.get("c").search(QUERIES[0]), s.get("c").scroll(), s.get("c").verify()],
        ),
        ("upsert", lambda s: s.get("c").upsert(items()) > 0),
        *((f"refused {i}", lambda s, bad=bad: s.get("c").upsert(bad) > 0) for i, bad in enumerate(REFUSED_ITEMS)),
        ("count", lambda s: s.get("c").count()),
        ("get", lambda s: s.get("c").get([IDS[3], "absent", IDS[1], IDS[3], *IDS])),
        ("get bad", lambda s: s.get("c").get([IDS[0], 'x" or id != "'])),
        ("get none", lambda s: s.get("c").get([])),
        ("thumbnails", lambda s: [s.get("c").thumbnail(id) for id in IDS[:8]]),
        ("thumbnail of none", lambda s: s.get("c").thumbnail("absent")),
        *((f"pages of {n}", lambda s, n=n: whole(s, "c", n)) for n in (1, 7, N - 1, N, N + 1)),
        ("pages without vectors", lambda s: whole(s, "c", 25, with_vector=False)),
        *((f"limit {n}", lambda s, n=n: s.get("c").scroll(limit=n)) for n in (0, 10_001, True)),
        ("a cursor between ids", lambda s: s.get("c").scroll("M", 5)),
        ("a bad cursor", lambda s: s.get("c").scroll('"', 5)),
        *((f"search {k}", lambda s, k=k: s.get("c").search(QUERIES[0], k)) for k in (0, 1, 10, N + 5, 10_001, True)),
        ("search exact", lambda s: s.get("c").search(QUERIES[1], 9, exact=True, with_vector=True)),
        ("search batch", lambda s: s.get("c").search_batch(QUERIES, 7, with_vector=True)),
        ("search none", lambda s: s.get("c").search_batch(QUERIES[:0], 7)),
        ("threshold", lambda s: s.get("c").search(QUERIES[2], 20, score_threshold=-0.2)),
        ("effort", lambda s: s.get("c").search(QUERIES[2], 5, effort=50)),
        ("bad query", lambda s: s.get("c").search(QUERIES[0][:2])),
        ("bad query of a batch", lambda s: s.get("c").search_batch(np.stack([QUERIES[0], QUERIES[0] * np.inf]))),
    ]
    for i, where in enumerate(filters):
        k, query = (3, N)[i % 2], QUERIES[i % 5]
        steps += [
            (f"count where {i}", lambda s, w=where: s.get("c").count(w)),
            (f"scroll where {i}", lambda s, w=where: whole(s, "c", 11, w, with_vector=False)),
            (f"search where {i}", lambda s, w=where, k=k, q=query: s.get("c").search(q, k, w)),
        ]
    return [*steps, *CHANGES]


ON_NAMES: list[tuple[str, Operation]] = [
    (
        "create",
        lambda s: [s.create(name, CollectionSpec(2)).name for name in ("a.1", "_b~", "-c", "x" * 128, "." * 128)],
    ),
    ("filled", lambda s: s.get("a.1").upsert([Item("one", np.ones(2))]) > 0),
    ("alias", lambda s: s.alias("best", "a.1")),
    ("by alias", lambda s: [s.get("best").name, s.get("best").count(), s.aliases()]),
    (
        "alias moves",
        lambda s: [s.alias("best", "_b~"), s.alias("2nd-best", "best"), s.aliases(), s.get("best").count()],
    ),
    ("alias taken", lambda s: s.alias("-c", "a.1")),
    ("alias of none", lambda s: s.alias("x", "absent")),
    ("bad alias", lambda s: s.alias("a/b", "a.1")),
    ("create as alias", lambda s: s.create("best", CollectionSpec(2))),
    (
        "rename",
        lambda s: [s.rename("_b~", "b.2"), s.get("best").name, s.get("b.2").upsert([Item("i", np.ones(2))]) > 0],
    ),
    ("seen under the new name", lambda s: [s.get("b.2").count(), s.get("best").get(["i"])]),
    ("old name", lambda s: s.get("_b~")),
    ("rename to taken", lambda s: s.rename("b.2", "a.1")),
    ("rename to alias", lambda s: s.rename("b.2", "best")),
    ("rename badly", lambda s: s.rename("b.2", "b/2")),
    ("rename none", lambda s: s.rename("absent", "there")),
    ("rename an alias", lambda s: s.rename("best", "there")),
    ("promote by alias", lambda s: [s.promote("a.1", "best"), s.aliases()]),
    ("promote over a collection", lambda s: [s.promote("a.1", "-c"), s.aliases(), [i.name for i in s.list()]]),
    ("promote itself", lambda s: s.promote("-c", "-c")),
    ("promote none", lambda s: s.promote("absent", "best")),
    (
        "and again",
        lambda s: [
            s.create("d", CollectionSpec(2)).name,
            s.create("d.old", CollectionSpec(2)).name,
            s.promote("-c", "d"),
            [i.name for i in s.list()],
        ],
    ),
    ("its old name", lambda s: s.get("-c")),
    ("promote to a new name", lambda s: [s.promote("d", "e"), s.aliases()]),
    ("unalias", lambda s: [s.unalias("e"), s.aliases()]),
    ("unalias none", lambda s: s.unalias("e")),
    ("drop an alias", lambda s: s.drop("best")),
    ("drop", lambda s: [s.drop("d"), s.aliases(), [i.name for i in s.list()]]),
    ("drop none", lambda s: s.drop("d")),
    ("gone", lambda s: s.get("best")),
    ("name free again", lambda s: s.create("a.1", CollectionSpec(3)).count()),
]
