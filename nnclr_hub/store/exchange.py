"""Export of a collection to a folder of Parquet files, and import into any store.

export_collection(store.get("photos"), Path("photos-export"))
import_collection(other_store, "photos", Path("photos-export"))

collection.json        format, name, specification; of every other file its items, size and SHA-256
items-00000.parquet    id, metadata (JSON text), thumbnail (JPEG bytes or null), vector (D numbers, float32 or float16),
                       in ascending order of the ids
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from nnclr_hub.arguments import checked
from nnclr_hub.errors import (
    CollectionExists,
    CollectionNotFound,
    FingerprintMismatch,
    InvalidRequest,
    MissingDependency,
    StoreError,
    StoreTooNew,
)
from nnclr_hub.file_replacement import replace_file
from nnclr_hub.json_text import MALFORMED, parse_json, what_is_wrong
from nnclr_hub.store.base import Collection, Item, Progress, VectorStore
from nnclr_hub.store.checks import metadata_json
from nnclr_hub.store.disk import fsync_folder, written_whole
from nnclr_hub.store.spec import CollectionSpec

MANIFEST, FORMAT, VERSION = "collection.json", "nnclr_hub collection", 4
FILE_ITEMS = 50_000
FILE_BYTES = 128 << 20  # most bytes of vectors in a file
BATCH = 1000
# vectors must be comparable; indexed keys and the kind of index may differ
MUST_AGREE = ("dim", "metric", "precision")


@dataclass(frozen=True)
class Manifest:
    """The contents of an export."""

    name: str
    spec: CollectionSpec
    items: int
    thumbnails: bool
    files: tuple[dict[str, Any], ...]  # for each the name as `file`, `items`, `size` in bytes and `sha256`

    @property
    def size(self) -> int:
        """Total bytes of the files."""
        return sum(file["size"] for file in self.files)


@dataclass(frozen=True)
class Imported:
    """The result of an import."""

    items: int  # in the export
    written: int
    created: bool  # whether the collection was created


def require_parquet() -> None:
    """Raise MissingDependency if pyarrow is not installed."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingDependency(
            "Arrow and Parquet files need pyarrow, which is not installed: pip install 'nnclr_hub[formats]'."
        ) from error


# ------------------------------------------------------------------------------ export


@checked
def export_collection(
    collection: Collection,
    folder: str | Path,
    *,
    thumbnails: bool = True,
    progress: Progress = lambda done, total: None,
) -> Manifest:
    """Export a collection to a folder, which is completely on disk when this returns, or does not exist.

    The export contains the items of one moment. On Milvus, items that are written during the export may be missing.

    Args:
        folder: must not exist.
        thumbnails: False: without them, which is much smaller.
        progress: called with (done, total), counted in items.
    """
    require_parquet()
    folder = Path(folder)
    if folder.exists() or folder.is_symlink():
        raise InvalidRequest(f"{folder} exists already; choose a new folder.")
    done, total, spec = 0, collection.count(), collection.spec
    most = min(FILE_ITEMS, max(BATCH, FILE_BYTES // (4 * spec.dim)))

    def read() -> Iterator[list[Item]]:
        nonlocal done
        for items in collection.read_all(BATCH, thumbnails=thumbnails):
            yield items
            done += len(items)
            progress(done, max(done, total))

    batches, files = read(), []
    with written_whole(folder) as partial:
        while (first := next(batches, None)) is not None:
            rest = islice(batches, most // BATCH - 1)
            files.append(_write(partial / _name(len(files)), chain([first], rest), spec))
        manifest = Manifest(collection.name, spec, done, thumbnails, tuple(files))
        content = {"format": FORMAT, "version": VERSION, **asdict(manifest)}
        replace_file(partial / MANIFEST, json.dumps(content, indent=1) + "\n", durable=True)
    return manifest


def _write(path: Path, batches: Iterable[list[Item]], spec: CollectionSpec) -> dict[str, Any]:
    """Write a file, and return its description."""
    import pyarrow
    from pyarrow.parquet import ParquetWriter

    number, count = (pyarrow.float32() if spec.precision == "f32" else pyarrow.float16()), 0
    vector = pyarrow.list_(number, spec.dim)
    types = {"id": pyarrow.string(), "metadata": pyarrow.string(), "thumbnail": pyarrow.binary(), "vector": vector}
    schema = pyarrow.schema(types)
    with path.open("wb") as file, ParquetWriter(file, schema, compression="zstd", use_dictionary=False) as writer:
        for items in batches:
            numbers = np.concatenate([item.vector for item in items]).astype(number.to_pandas_dtype())
            columns = [
                [item.id for item in items],
                [metadata_json(item) for item in items],
                [item.thumbnail for item in items],
                pyarrow.FixedSizeListArray.from_arrays(numbers, type=vector),
            ]
            writer.write_table(pyarrow.table(columns, schema=schema))
            count += len(items)
    fsync_folder(path)
    return {"file": path.name, "items": count, "size": path.stat().st_size, "sha256": _sha256(path)}


def _name(number: int) -> str:
    return f"items-{number:05}.parquet"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ------------------------------------------------------------------------------ import


@checked
def import_collection(
    store: VectorStore,
    name: str,
    folder: str | Path,
    *,
    into: bool = False,
    checking: Progress = lambda done, total: None,
    progress: Progress = lambda done, total: None,
) -> Imported:
    """Import an exported folder into a collection; the folder is completely checked before anything is written.

    The collection is created if it does not exist. After an interruption, the same call continues where it stopped. A
    server makes thumbnails itself, from images alone, so those of the export are left out there.

    Args:
        name: name or alias of the collection.
        into: add to a collection that has other items; items with the same id are replaced.
        checking: called with (done, total) in bytes, while the files are checked.
        progress: called with (done, total) in items, while they are stored.

    Raises:
        InvalidRequest: the folder is not an export.
        FingerprintMismatch: the collection has vectors of another encoder.
        CollectionExists: it has another specification, or other items and `into` is False.
        StoreTooNew, StoreError: the export has another format, is damaged or incomplete.
    """
    require_parquet()
    folder = Path(folder)
    manifest, checked = read_manifest(folder), 0
    for file in manifest.files:
        with _readable(folder / file["file"]) as path:
            if path.stat().st_size != file["size"] or _sha256(path) != file["sha256"]:
                raise ValueError(f"its size or SHA-256 differs from {MANIFEST}")
        checked += file["size"]
        checking(checked, manifest.size)
    try:
        collection, created = store.get(name), False
        _check_spec(name, collection.spec, manifest.spec)
    except CollectionNotFound:
        collection, created = store.create(name, manifest.spec), True
    # as long as the collection has items, they must be the first ones of the export: an interrupted import stored them
    is_compared = not (into or created or collection.count() == 0)
    cursor, done, written = None, 0, 0
    for items in chain.from_iterable(_read(folder / file["file"], manifest.spec.dim) for file in manifest.files):
        missing = items
        if is_compared:
            page = collection.scroll(cursor, len(items))
            if not all(same_item(*pair, collection.spec) for pair in zip(page.items, items, strict=False)):
                raise _other_items(collection)
            missing, cursor, is_compared = items[len(page.items) :], page.cursor, page.cursor is not None
        if missing:
            kept = missing if collection.takes_thumbnails else [replace(item, thumbnail=None) for item in missing]
            collection.upsert(kept)
        done, written = done + len(items), written + len(missing)
        progress(done, manifest.items)
    if is_compared and collection.count() > done:
        raise _other_items(collection)
    return Imported(done, written, created)


def read_manifest(folder: Path) -> Manifest:
    """Read collection.json, but not the other files."""
    path, hint = folder / MANIFEST, "export the collection again"
    try:
        content = parse_json(path.read_bytes())
    except OSError as error:
        raise InvalidRequest(
            f"{folder} is not an exported collection ({path.name}: {error.strerror}); give a folder that "
            "`nnclr store export` wrote, or use `nnclr index` for a folder of images."
        ) from error
    except ValueError as error:
        raise StoreError(f"{path} is damaged ({error}); {hint}.") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InvalidRequest(f"{path} is not the manifest of an export: it lacks the format {FORMAT!r}.")
    if (version := content.get("version")) != VERSION:
        raise StoreTooNew(
            f"{folder} is an export of format {version!r:.80}, and this version of nnclr_hub reads only format "
            f"{VERSION}; import it with the version that wrote it."
        )
    try:
        spec, files = CollectionSpec(**content["spec"]), tuple(content["files"])
        manifest = Manifest(str(content["name"]), spec, content["items"], bool(content["thumbnails"]), files)
        if [file["file"] for file in files] != list(map(_name, range(len(files)))):  # a path must not leave the folder
            raise ValueError("its files have unexpected names")
        if manifest.items != sum(file["items"] for file in files):
            raise ValueError("the number of items is not the sum of the files")
        return manifest
    except MALFORMED as error:
        raise StoreError(f"{path} is damaged ({what_is_wrong(error)}); {hint}.") from error


def _read(path: Path, dim: int) -> Iterator[list[Item]]:
    """Yield the items of a file in batches."""
    from pyarrow.parquet import ParquetFile

    with _readable(path), path.open("rb") as file, ParquetFile(file) as table:
        for rows in table.iter_batches(batch_size=BATCH):
            numbers = rows.column("vector").flatten().to_numpy(zero_copy_only=False)
            vectors = numbers.astype(np.float32).reshape(len(rows), dim)
            columns = (rows.column(name).to_pylist() for name in ("id", "metadata", "thumbnail"))
            yield [
                Item(id, vector, parse_json(text), thumbnail)
                for vector, id, text, thumbnail in zip(vectors, *columns, strict=True)
            ]


@contextmanager
def _readable(path: Path) -> Iterator[Path]:
    from pyarrow import ArrowException

    try:
        yield path
    except (ArrowException, OSError, *MALFORMED) as error:
        raise StoreError(
            f"{path} is not as it was exported ({what_is_wrong(error)}); copy the export again from its source."
        ) from error


def _check_spec(name: str, ours: CollectionSpec, theirs: CollectionSpec) -> None:
    if ours.fingerprint != theirs.fingerprint:
        raise FingerprintMismatch(
            f"Collection {name!r} has vectors of {ours.model or 'an unknown encoder'} ({ours.fingerprint[:8]}), the "
            f"export those of {theirs.model or 'an unknown encoder'} ({theirs.fingerprint[:8]}); import it under "
            "another name."
        )
    for field in MUST_AGREE:
        if getattr(ours, field) != getattr(theirs, field):
            raise CollectionExists(
                f"Collection {name!r} has {field} {getattr(ours, field)!r}, and the export {getattr(theirs, field)!r}; "
                "import it under another name."
            )


def same_item(stored: Item, given: Item, spec: CollectionSpec) -> bool:
    """Return whether a collection holds an item as it would store it."""
    return (
        stored.id == given.id
        and metadata_json(stored) == metadata_json(given)
        # normalizing a normalized vector again may change the last bit
        and np.allclose(stored.vector, given.vector, rtol=1e-3, atol=1e-6 if spec.precision == "f32" else 1e-3)
    )


def _other_items(collection: Collection) -> CollectionExists:
    return CollectionExists(
        f"Collection {collection.name!r} has other items than the export; import it under another name, or add it to "
        "this one with `--into` (into=True), which replaces items with the same id."
    )
