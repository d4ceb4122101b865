"""Kinds of index. Everything that differs between them is in one object per kind.

| kind    | finds                                         | bytes per vector (f32; f16 halves the first term) |
|---------|-----------------------------------------------|---------------------------------------------------|
| flat    | everything, by comparing with every vector    | 4 D                                               |
| hnsw    | nearly everything, through a graph            | 4 D + 272 (f16: 2 D + 144)                        |
| ivf     | nearly everything, in the nearest lists       | 4 D + 16                                          |
| ivf_sq8 | the same by bytes; vectors are in the catalog | D + 16                                            |
| ivf_pq  | candidates; their vectors are in the catalog  | D / 8 + 24                                        |

To add a kind, subclass `IndexKind` and add one object to `INDEX_KINDS`. Its name then works in
`CollectionSpec(index=)`, REST and the command line. "auto" is not a kind: it follows `IndexKind.next` as a collection
grows. faiss is imported by the methods that need it, so that clients can read the names without it.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

import numpy as np

from nnclr_hub.store.settings import StoreSettings

AUTO = "auto"
EF_CONSTRUCTION = 100
CODES = 256  # entries of each code book of a product quantizer; fewer rows cannot train it
ROW_ID_BYTES = 16  # per vector in an inverted file: its row id in the list, and its position
COARSE_LISTS = 500  # enough for a few million rows, and few enough for a k-means of a second
OUTSIDE = 0.01  # share of the numbers of new vectors that may be outside of the range of an index by bytes
PQ_BYTES = 8  # further bytes of code per vector; short vectors get more codes than one per eight numbers


class VectorFormat(Protocol):
    """The attributes of a `CollectionSpec` that an index depends on."""

    @property
    def dim(self) -> int: ...
    @property
    def metric(self) -> str: ...
    @property
    def precision(self) -> str: ...


class IndexKind:
    """A kind of index. The defaults describe one that is built from the vectors alone and holds them."""

    name: ClassVar[str]  # as it is stored and as users write it
    next: ClassVar[str | None] = None  # what "auto" tries when this does not fit into memory; None: the last resort
    lossless: ClassVar[bool] = True  # whether it holds the vectors; otherwise exact scores need the catalog
    min_rows: ClassVar[int] = 0  # with fewer rows a flat index is used instead
    efforts: ClassVar[tuple[int, ...]] = ()  # values of efSearch or nprobe, ascending, for calibration; (): exact
    parameters: ClassVar[str] = "SearchParameters"  # faiss's class

    def bytes_per_vector(self, spec: VectorFormat) -> int:
        """Return the memory that the index uses per vector."""
        return vector_bytes(spec)

    def candidates(self, k: int) -> int:
        """Return how many rows to search for k matches, if their exact vectors are compared afterwards."""
        return k

    def outgrown(self, index: Any, rows: int, settings: StoreSettings) -> bool:
        """Return whether an index has too many rows for what it learned, and should be trained again."""
        return False

    def covers(self, index: Any, vectors: np.ndarray) -> bool:
        """Return whether an index can hold vectors (n, D) float32 with what it learned from others."""
        return True

    def create(self, spec: VectorFormat, rows: int, settings: StoreSettings) -> Any:
        """Return an empty faiss index, not yet trained, with space for `rows` vectors."""
        raise NotImplementedError

    def grow(self, index: Any, spec: VectorFormat, rows: int) -> Any:
        """Return a copy of a faiss index with space for `rows` vectors in all."""
        raise NotImplementedError

    def search_options(self, index: Any, k: int, effort: int) -> dict[str, int]:
        """Return faiss's search options for k neighbors at a given effort."""
        return {}

    def exhaustive(self, index: Any) -> tuple[Any, IndexKind, dict[str, int]]:
        """Return the faiss index, the kind and the options that search every row."""
        return index, self, {}


class Flat(IndexKind):
    """Compares with every vector."""

    name = "flat"
    next = "hnsw"

    def create(self, spec: VectorFormat, rows: int, settings: StoreSettings) -> Any:
        return _reserved(_factory(spec, _stored(spec)), rows)

    def grow(self, index: Any, spec: VectorFormat, rows: int) -> Any:
        return _with_vectors(_factory(spec, _stored(spec)), index, spec, rows)


class Hnsw(IndexKind):
    """A navigable graph over the vectors.

    `links` are those of a node in the upper layers, by precision; the lowest layer has twice as many. Users choose f16
    to save memory, and with half the links a search that looks a little further finds as much.
    """

    name = "hnsw"
    next = "ivf_sq8"
    efforts = (48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
    parameters = "SearchParametersHNSW"

    def __init__(self, links: dict[str, int] | None = None) -> None:
        self.links = links or {"f32": 32, "f16": 16}

    def bytes_per_vector(self, spec: VectorFormat) -> int:
        # four bytes per link of the lowest layer, and the sparse upper layers
        return vector_bytes(spec) + self.links[spec.precision] * 2 * 4 + 16

    def create(self, spec: VectorFormat, rows: int, settings: StoreSettings) -> Any:
        index, links = self._empty(spec), self.links[spec.precision]
        _reserved(_storage(index), rows)
        # one row of `links` is in the second layer, one of its square in the third, and so on
        index.hnsw.neighbors.resize(int(rows * (2 * links + links / (links - 1)) * 1.01))
        index.hnsw.neighbors.resize(0)  # keeps the capacity: an array that doubles leaves holes in the heap
        return index

    def grow(self, index: Any, spec: VectorFormat, rows: int) -> Any:
        import faiss

        graph, copy = index.hnsw, self._empty(spec)
        _with_vectors(_storage(copy), _storage(index), spec, rows)
        copy.ntotal, copy.is_trained = index.ntotal, True
        used = graph.neighbors.size()
        copy.hnsw.neighbors.resize(int(used / max(1, index.ntotal) * rows * 1.01))
        _memory_of(copy.hnsw.neighbors)[:used] = _memory_of(graph.neighbors)
        copy.hnsw.neighbors.resize(used)
        for name in ("levels", "offsets"):
            faiss.copy_array_to_vector(faiss.vector_to_array(getattr(graph, name)), getattr(copy.hnsw, name))
        copy.hnsw.entry_point, copy.hnsw.max_level = graph.entry_point, graph.max_level
        return copy

    def search_options(self, index: Any, k: int, effort: int) -> dict[str, int]:
        return {"efSearch": max(effort, 2 * k)}

    def exhaustive(self, index: Any) -> tuple[Any, IndexKind, dict[str, int]]:
        return _storage(index), FLAT, {}

    def _empty(self, spec: VectorFormat) -> Any:
        index = _factory(spec, f"HNSW{self.links[spec.precision]},{_stored(spec)}")
        index.hnsw.efConstruction = EF_CONSTRUCTION
        return index


class Ivf(IndexKind):
    """Lists of vectors around the centroids of a k-means; a search reads the nearest lists."""

    name = "ivf"
    efforts = (4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
    parameters = "SearchParametersIVF"
    more_lists = 2  # it is built again when a collection needs this many times its lists

    def bytes_per_vector(self, spec: VectorFormat) -> int:
        return vector_bytes(spec) + ROW_ID_BYTES

    def create(self, spec: VectorFormat, rows: int, settings: StoreSettings) -> Any:
        index = _factory(spec, f"IVF{self._lists(rows, settings)},{self._codes(spec)}")
        index.cp.min_points_per_centroid = 1  # a small collection may have few; faiss would print a warning
        index.cp.max_points_per_centroid = settings.points_per_list
        self._configure(index)
        index.make_direct_map(True)  # for reading vectors back by row
        return index

    def grow(self, index: Any, spec: VectorFormat, rows: int) -> Any:
        import faiss

        return faiss.clone_index(index)

    def outgrown(self, index: Any, rows: int, settings: StoreSettings) -> bool:
        return self._lists(rows, settings) > self.more_lists * index.nlist

    def search_options(self, index: Any, k: int, effort: int) -> dict[str, int]:
        return {"nprobe": min(max(effort, k // 50), index.nlist)}

    def exhaustive(self, index: Any) -> tuple[Any, IndexKind, dict[str, int]]:
        return index, self, {"nprobe": index.nlist}

    def _codes(self, spec: VectorFormat) -> str:
        return _stored(spec)

    def _configure(self, index: Any) -> None:
        index.by_residual = False  # encode f16 as the catalog does, not as the difference from a centroid

    @staticmethod
    def _lists(rows: int, settings: StoreSettings) -> int:
        return max(1, min(int(4 * np.sqrt(rows)), rows // settings.points_per_list or 1))


class IvfSq8(Ivf):
    """Lists of vectors with one byte per number: a quarter of the memory, and candidates that are nearly exact.

    The vectors of a few candidates are read from the catalog, so that scores are exact.
    """

    name = "ivf_sq8"
    next = "ivf_pq"
    lossless = False

    def bytes_per_vector(self, spec: VectorFormat) -> int:
        return spec.dim + ROW_ID_BYTES

    def candidates(self, k: int) -> int:
        return 2 * k + 8

    def covers(self, index: Any, vectors: np.ndarray) -> bool:
        import faiss

        # a byte has the range that the numbers of the first vectors had; others are cut off
        low, width = faiss.vector_to_array(index.sq.trained).reshape(2, -1)
        return not vectors.size or ((vectors < low) | (vectors > low + width)).mean() <= OUTSIDE

    def _codes(self, spec: VectorFormat) -> str:
        return "SQ8"


class Coarse(IvfSq8):
    """The same with fewer lists, which take a second to learn, for the time until a graph is complete.

    The rows of a bulk load are added to the lists of its first rows, as long as they are alike. Its vectors are read
    from the catalog when the graph is built, so that the graph has the memory for itself.
    """

    more_lists = 4

    def _configure(self, index: Any) -> None:
        super()._configure(index)
        index.cp.niter = 4  # the lists are temporary

    @staticmethod
    def _lists(rows: int, settings: StoreSettings) -> int:
        return max(1, min(max(COARSE_LISTS, int(np.sqrt(rows))), rows // settings.points_per_list))


class IvfPq(Ivf):
    """Lists of compressed vectors: the index proposes candidates, and the catalog has their exact vectors."""

    name = "ivf_pq"
    next = None
    lossless = False
    min_rows = CODES

    def candidates(self, k: int) -> int:
        return 10 * k

    def bytes_per_vector(self, spec: VectorFormat) -> int:
        return _pieces(spec.dim) + ROW_ID_BYTES + PQ_BYTES

    def _codes(self, spec: VectorFormat) -> str:
        return f"PQ{_pieces(spec.dim)}"

    def _configure(self, index: Any) -> None:
        index.pq.cp.min_points_per_centroid = 1
        index.do_polysemous_training = False  # takes minutes, and serves a search mode that is not used here


FLAT, HNSW, COARSE = Flat(), Hnsw(), Coarse()
INDEX_KINDS: dict[str, IndexKind] = {kind.name: kind for kind in (FLAT, HNSW, Ivf(), IvfSq8(), IvfPq())}


def choose_kind(index: str, spec: VectorFormat, rows: int, settings: StoreSettings) -> IndexKind:
    """Return the kind of index for this many rows; `index` is the name of a kind, or "auto"."""
    if rows < settings.flat_below:
        return FLAT
    if index != AUTO:
        return INDEX_KINDS[index] if rows >= INDEX_KINDS[index].min_rows else FLAT
    kind: IndexKind = HNSW
    while kind.next is not None and 2 * rows * kind.bytes_per_vector(spec) > settings.memory:  # twice, to build it
        kind = INDEX_KINDS[kind.next]
    return kind


def vector_bytes(spec: VectorFormat) -> int:
    """Return the size of one uncompressed vector."""
    return spec.dim * (2 if spec.precision == "f16" else 4)


# ------------------------------------------------------------------------------ faiss


def _factory(spec: VectorFormat, description: str) -> Any:
    import faiss

    return faiss.index_factory(
        spec.dim, description, faiss.METRIC_L2 if spec.metric == "l2" else faiss.METRIC_INNER_PRODUCT
    )


def _stored(spec: VectorFormat) -> str:
    return "Flat" if spec.precision == "f32" else "SQfp16"


def _pieces(dim: int) -> int:
    # one code per eight numbers, but enough to tell short vectors apart
    return next(n for n in range(min(dim, max(dim // 8, 16)), 0, -1) if dim % n == 0)


def _storage(graph: Any) -> Any:
    import faiss

    return faiss.downcast_index(graph.storage)


def _reserved(index: Any, rows: int) -> Any:
    # faiss doubles its arrays as they grow, and the old array exists while it is copied
    before = index.codes.size()
    index.codes.resize(rows * index.code_size)
    index.codes.resize(before)  # keeps the capacity
    return index


def _with_vectors(index: Any, old: Any, spec: VectorFormat, rows: int) -> Any:
    """Return an empty index with the vectors of an old one; faiss's clone reserves no space for further rows."""
    index.codes.resize(rows * index.code_size)
    _memory_of(index.codes)[: old.codes.size()] = _memory_of(old.codes)
    index.codes.resize(old.codes.size())
    if not index.is_trained:
        index.train(np.zeros((1, spec.dim), np.float32))  # f16 learns nothing
    index.ntotal, index.is_trained = old.ntotal, True
    return index


def _memory_of(vector: Any) -> np.ndarray:
    import faiss

    return faiss.rev_swig_ptr(vector.data(), vector.size())
