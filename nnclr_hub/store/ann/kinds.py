"""Which kind of index a collection gets, and how one is built, extended and judged.

Building never holds a second copy of the vectors: they come in batches from wherever they are.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from nnclr_hub.store.ann.main_index import REFINED, MainIndex
from nnclr_hub.store.spec import CollectionSpec

log = logging.getLogger(__name__)
FLAT_BELOW = 50_000  # exhaustive search is quick enough, and exact
CODES = 256  # words of each piece's code book, fewer rows than which teach none
# of a node in the graph's upper layers, twice as many in the lowest; who takes f16 wants room before anything, and
# with half the links a search that looks a little further finds as much
LINKS = {"f32": 32, "f16": 16}
MOST_GRAPH_BYTES = 272
EF_CONSTRUCTION = 100
LIST_BYTES = 16  # a row id in its list, and where it stands
POINTS_A_LIST = 64  # k-means looks at so many vectors a list
BATCH = 2_000  # rows between two looks at whether to stop
# an index is judged by the effort that finds this share of the ten nearest
WANTED_RECALL = 0.99
JUDGES = 200
NEIGHBORHOOD = 64
FURTHER = 1.25  # a new query may lie a little further off than the stored vectors from one another
TOLERANCE = 1e-4  # within which two scores are the same
_LISTS = (4, 8, 16, 32, 64, 128, 256, 512)
LADDERS = {"hnsw": (48, 64, 96, 128, 192, 256, 384, 512, 768, 1024), "ivf": _LISTS, "ivf_pq": _LISTS}

Rows = Iterator[np.ndarray]
Exact = Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]
Stop = Callable[[], bool]


class Stopped(Exception):
    """Building was given up because somebody asked for it."""


# ------------------------------------------------------------------------------ which kind


def choose_kind(spec: CollectionSpec, rows: int, budget: int) -> str:
    """The kind of index for so many rows.

    Args:
        spec: names a kind, or says "auto".
        rows: how many there are.
        budget: bytes that the index may take; building one takes twice its size for a while.
    """
    if rows < FLAT_BELOW or spec.index == "flat" or (spec.index == "ivf_pq" and rows < CODES):
        return "flat"
    if spec.index != "auto":
        return spec.index
    for kind, overhead in (("hnsw", graph_bytes(spec)), ("ivf", LIST_BYTES)):
        if 2 * (flat_bytes(spec, rows) + rows * overhead) <= budget:
            return kind
    return "ivf_pq"


def flat_bytes(spec: CollectionSpec, rows: int) -> int:
    """What so many vectors take."""
    return rows * spec.dim * (2 if spec.precision == "f16" else 4)


def graph_bytes(spec: CollectionSpec) -> int:
    """What a vector's links take: four bytes each in the lowest layer, and the sparse upper layers."""
    return LINKS[spec.precision] * 2 * 4 + 16


def default_budget() -> int:
    """Half of the memory of the machine, or of the container if that has less, in bytes."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        container = int(Path("/sys/fs/cgroup/memory.max").read_text())
    except (OSError, ValueError):  # no such file, or "max"
        container = machine
    return min(machine, container) // 2


# ------------------------------------------------------------------------------ building


def build_main(
    spec: CollectionSpec, kind: str, rows: int, batches: Callable[[], Rows], stop: Stop = lambda: False
) -> MainIndex:
    """An index over vectors that come in batches.

    Args:
        spec: of the collection.
        kind: of the index.
        rows: how many vectors there are, at least 1.
        batches: called for an iterator over them, (n, D) float32 each; more than once where something is learned.
        stop: looked at between batches.

    Raises:
        Stopped: it said so.
    """
    index = _empty(spec, kind, rows, LINKS[spec.precision])
    if not index.is_trained:
        index.train(_sample(batches, rows, POINTS_A_LIST * getattr(index, "nlist", 1)))
    if kind in ("ivf", "ivf_pq"):
        index.make_direct_map(True)
    _reserve(index, kind, rows)
    _add(index, batches(), stop)
    return MainIndex(kind, index, spec.metric)


def _add(index: Any, batches: Rows, stop: Stop) -> None:
    for batch in batches:
        for start in range(0, len(batch), BATCH):
            if stop():
                raise Stopped
            index.add(np.ascontiguousarray(batch[start : start + BATCH]))


def extended(main: MainIndex, spec: CollectionSpec, batches: Rows, rows: int, stop: Stop = lambda: False) -> MainIndex:
    """A copy of an index with so many more rows, that come in batches (n, D) float32; the old one stays as it is.

    Raises:
        Stopped: `stop` said so.
    """
    total = len(main) + rows
    copy = faiss.clone_index(main.index) if main.kind in ("ivf", "ivf_pq") else _copied(main, spec, total)
    _add(copy, batches, stop)
    return replace(main, index=copy)


def judged(main: MainIndex, spec: CollectionSpec, exact: Exact) -> MainIndex:
    """The index with the effort that finds WANTED_RECALL of the ten nearest of made-up queries.

    A neighbor counts as found if another as near is found in its place: copies of an image are all alike.

    Args:
        exact: called with queries (n, D) and k for the scores and rows (n, k) that are truly nearest.
    """
    if main.kind == "flat":
        return main
    queries, k = _queries(main, spec, exact), min(10, len(main))
    scores, truth = exact(queries, k)
    worst = scores[:, -1:] - TOLERANCE * np.maximum(1, np.abs(scores[:, -1:]))
    effort, hits = 0, 0.0
    for effort in LADDERS[main.kind]:
        found, rows = main.search(queries, k if main.lossless else REFINED * k, effort=effort)
        if main.lossless:
            hits = ((found >= worst) & (rows >= 0)).mean()
        else:  # scores of compressed vectors are not the true ones
            hits = (truth[:, :, None] == rows[:, None, :]).any(axis=2).mean()
        if hits >= WANTED_RECALL:
            break
    else:
        log.warning("the %s index finds %.3f of the ten nearest, however far it looks", main.kind, hits)
    return replace(main, effort=effort, judged=len(main))


def _queries(main: MainIndex, spec: CollectionSpec, exact: Exact) -> np.ndarray:
    """(n, D) float32, about as far from the stored vectors as these from one another.

    A stored vector itself would be too easy, since the graph leads to it, and so would be one of its copies.
    """
    rng = np.random.default_rng(0)
    stored = main.vectors(rng.choice(len(main), min(JUDGES, len(main)), replace=False))
    rows = exact(stored, min(NEIGHBORHOOD, len(main)))[1]
    around = main.vectors(rows.ravel()).reshape(*rows.shape, spec.dim)
    gaps = np.linalg.norm(around - stored[:, None], axis=2)
    apart = gaps > TOLERANCE * np.linalg.norm(stored, axis=1, keepdims=True)
    nearest = np.where(apart.any(axis=1), gaps[np.arange(len(gaps)), apart.argmax(axis=1)], gaps.max())
    noise = rng.normal(size=stored.shape) / np.sqrt(spec.dim)
    queries = stored + FURTHER * noise * nearest[:, None]
    if spec.metric == "cosine":
        queries /= np.maximum(np.linalg.norm(queries, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return np.ascontiguousarray(queries, np.float32)


def _empty(spec: CollectionSpec, kind: str, rows: int, links: int) -> Any:
    metric = faiss.METRIC_L2 if spec.metric == "l2" else faiss.METRIC_INNER_PRODUCT
    stored = "Flat" if spec.precision == "f32" else "SQfp16"
    lists = max(1, min(int(4 * np.sqrt(rows)), rows // POINTS_A_LIST or 1))
    if kind == "ivf_pq":
        # a byte for eight numbers, but not so few bytes that short vectors all look alike
        pieces = next(n for n in range(min(spec.dim, max(spec.dim // 8, 16)), 0, -1) if spec.dim % n == 0)
        stored = f"PQ{pieces}"
    factory = {"flat": stored, "hnsw": f"HNSW{links},{stored}"}.get(kind, f"IVF{lists},{stored}")
    index: Any = faiss.index_factory(spec.dim, factory, metric)
    if kind == "hnsw":
        index.hnsw.efConstruction = EF_CONSTRUCTION
    if kind == "ivf":
        index.by_residual = False  # f16 as the catalog has it, not what is left of it beside a centroid
    if hasattr(index, "cp"):
        index.cp.min_points_per_centroid = 1  # a small collection may have few; faiss would print a warning
        index.cp.max_points_per_centroid = POINTS_A_LIST
    if hasattr(index, "pq"):
        index.pq.cp.min_points_per_centroid = 1
        index.do_polysemous_training = False  # minutes of annealing for a search that is not done here
    return index


def _sample(batches: Callable[[], Rows], rows: int, wanted: int) -> np.ndarray:
    """About so many of the vectors, evenly spread."""
    step = max(1, rows // max(wanted, 256))
    taken, place = [], 0
    for batch in batches():
        taken.append(batch[(-place) % step :: step])
        place += len(batch)
    return np.ascontiguousarray(np.concatenate(taken))


def _reserve(index: Any, kind: str, rows: int) -> None:
    """Room for all rows at once: faiss's arrays double as they grow, and the old half lives while it is copied."""
    if kind in ("ivf", "ivf_pq"):
        return
    store: Any = faiss.downcast_index(index.storage) if kind == "hnsw" else index
    before = store.codes.size()
    store.codes.resize(rows * store.code_size)
    store.codes.resize(before)  # the room stays


def _copied(main: MainIndex, spec: CollectionSpec, rows: int) -> Any:
    """A flat or graph index copied into one with room for `rows`; faiss's own clone has none to spare."""
    links = main.index.hnsw.nb_neighbors(1) if main.kind == "hnsw" else 0  # of a graph that may be an earlier release's
    copy = _empty(spec, main.kind, rows, links)
    new: Any = faiss.downcast_index(copy.storage) if main.kind == "hnsw" else copy
    old: Any = faiss.downcast_index(main.index.storage) if main.kind == "hnsw" else main.index
    new.codes.resize(rows * new.code_size)
    _view(new.codes)[: old.codes.size()] = _view(old.codes)
    new.codes.resize(old.codes.size())
    if not new.is_trained:
        new.train(np.zeros((1, spec.dim), np.float32))  # f16 learns nothing
    new.ntotal = copy.ntotal = old.ntotal
    copy.is_trained = True
    if main.kind == "hnsw":
        graph, source = copy.hnsw, main.index.hnsw
        links = source.neighbors.size()
        graph.neighbors.resize(int(links / max(1, len(main)) * rows * 1.01))
        _view(graph.neighbors)[:links] = _view(source.neighbors)
        graph.neighbors.resize(links)
        for name in ("levels", "offsets"):
            faiss.copy_array_to_vector(faiss.vector_to_array(getattr(source, name)), getattr(graph, name))
        graph.entry_point, graph.max_level = source.entry_point, source.max_level
    return copy


def _view(vector: Any) -> np.ndarray:
    """The memory of one of faiss's arrays."""
    return faiss.rev_swig_ptr(vector.data(), vector.size())
