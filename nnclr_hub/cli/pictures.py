"""nnclr index, search."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from nnclr_hub.cli.verbs import DEFAULT_STORE, Backend, Json, Model, Store, chosen_model, err, fail, out, print_json
from nnclr_hub.errors import ImageError, InvalidFilter, InvalidRequest

if TYPE_CHECKING:
    from nnclr_hub.store.base import Match
    from nnclr_hub.workbench import Workbench
    from nnclr_hub.workbench.folder_changes import IndexReport

Collection = Annotated[str, typer.Option("--collection", help="Name of the collection.")]
SHOWN = 20  # broken files listed before the rest is only counted


def register(app: typer.Typer) -> None:
    """Adds the verbs."""
    app.command()(index)
    app.command()(search)


def index(
    photos: Annotated[Path, typer.Argument(help="Folder of images, searched with its subfolders.")],
    collection: Collection,
    store: Store = DEFAULT_STORE,
    model: Model = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Delete items whose file is gone, but none of an empty folder.")
    ] = False,
    server: Annotated[
        str | None, typer.Option("--server", help="Send the images to `nnclr serve` at this URL.")
    ] = None,
    api_key_env: Annotated[
        str, typer.Option("--api-key-env", help="With --server: the environment variable that holds the key.")
    ] = "NNCLR_API_KEY",
    source: Annotated[
        str | None, typer.Option("--source", help="With --server: what the folder is called there; FOLDER@HOST.")
    ] = None,
    workers: Annotated[int, typer.Option("--workers", help="With --server: requests on their way at once.")] = 4,
    shrink: Annotated[
        int | None, typer.Option("--shrink", help="With --server: send larger images with this longest side.")
    ] = None,
    backend: Backend = "auto",
    as_json: Json = False,
) -> None:
    """Embed a folder into a collection; again, to take up what is new or changed.

    Example: nnclr index photos --collection photos
    """
    if server is None and (source is not None or shrink is not None):
        raise InvalidRequest("--source and --shrink go with --server: a store of this machine reads the files itself.")
    if server is not None and store != DEFAULT_STORE:
        raise InvalidRequest(f"Give --store {store} or --server {server}, not both.")
    if server is not None:
        from nnclr_hub.cli.uploads import upload

        options = {"source": source, "workers": workers, "shrink": shrink, "prune": prune}
        report, total = upload(server, api_key_env, collection, photos, model=model, **options)
    else:
        report, total = _index(photos, collection, store, model, prune, backend)
    if as_json:
        print_json({"collection": collection, "items": total, **asdict(report)})
    else:
        list_broken(report.broken)
        kept = f" {report.kept} kept (their files may be there unseen)," if report.kept else ""
        out.print(
            f"{collection}: {report.added} added, {report.updated} updated, {report.unchanged} unchanged, "
            f"{report.removed} removed,{kept} {len(report.broken)} broken; {total} items in {server or store}",
            markup=False,
        )
    if report.broken and not report.added + report.updated + report.unchanged:
        raise none_read(len(report.broken))


def _index(
    photos: Path, collection: str, store: str, model: str | None, prune: bool, backend: str
) -> tuple[IndexReport, int]:
    """Into a store of this machine: what was done, and how many items there are."""
    from nnclr_hub.progress import bar
    from nnclr_hub.store import open_store
    from nnclr_hub.store.checks import check_name
    from nnclr_hub.workbench.folder_changes import listed

    # neither a wrong name nor folder nor model may leave an empty store behind, nor wait for torch to be told
    check_name(collection, "Collection name")
    is_there = "://" in store or Path(store).exists()
    listed(photos, prune=prune and is_there)
    by_name = model is not None or not is_there
    if by_name:
        chosen_model(model, backend)
    from nnclr_hub.workbench import Encoders, Workbench

    encoders = Encoders(model, backend=backend)
    if by_name:
        encoders.get()
    with open_store(store) as opened, bar(err, "indexing") as advance:
        bench = Workbench(encoders, opened)
        report = bench.index_folder(collection, photos, model=model, prune=prune, progress=advance)
        return report, bench.collection(collection).count()


def search(
    images: Annotated[list[Path], typer.Argument(help="Query images.")],
    collection: Collection,
    store: Store = DEFAULT_STORE,
    k: Annotated[int, typer.Option("-k", min=1, help="Neighbors an image.")] = 5,
    where: Annotated[str | None, typer.Option(help="Filter on metadata, as JSON.")] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Compare with every item.")] = False,
    effort: Annotated[
        int | None, typer.Option(help="How far an approximate index looks; as it was found to need if not given.")
    ] = None,
    model: Model = None,
    backend: Backend = "auto",
    as_json: Json = False,
) -> None:
    """Find the nearest images of a collection; works beside a running server.

    Example: nnclr search query.jpg --collection photos -k 5
    """
    from nnclr_hub.store import open_store
    from nnclr_hub.store.checks import check_search_size

    check_search_size(k, effort)
    question = {"k": k, "where": _filter(where), "exact": exact, "effort": effort}
    _require_one_file(images)
    with open_store(store, read_only=True) as opened:
        opened.get(collection)
        if model is not None:
            chosen_model(model, backend)
        from nnclr_hub.workbench import Encoders, Workbench  # with torch, which a wrong call need not wait for

        bench = Workbench(Encoders(model, backend=backend), opened)
        bench.embedder_of(bench.collection(collection), model)
        answers = [_answer(bench, collection, image, question) for image in images]
    failed = [answer for answer in answers if isinstance(answer, ImageError)]
    if as_json and len(failed) < len(images):
        told = [_in_json(answer) for answer in answers]
        print_json(told[0] if len(images) == 1 else told)
    elif not as_json:
        _print_matches(images, answers)
    if failed:
        fail(*failed)


def _require_one_file(images: Sequence[Path]) -> None:
    """Of several images one that is missing has an error of its own; that none is there may be a misunderstanding.

    Raises:
        InvalidRequest: there is none.
    """
    if not any(image.is_file() for image in images):
        raise InvalidRequest(
            f"{images[0]} is no file: name an image, for queries are images, not words and not folders."
        )


def _filter(where: str | None) -> dict[str, Any] | None:
    from nnclr_hub.store.where import to_sql

    try:
        condition = json.loads(where) if where else None
    except ValueError as error:
        raise InvalidFilter(
            f'--where is not JSON ({error}): write it like \'{{"must": [{{"key": "label", "match": "cat"}}]}}\'.'
        ) from error
    to_sql(condition)  # refuses what is no filter
    return condition


def _answer(bench: Workbench, collection: str, image: Path, question: dict[str, Any]) -> list[Match] | ImageError:
    """The nearest items of an image, or why it cannot be read; the others may be."""
    from nnclr_hub.workbench import SearchQuery

    try:
        return bench.search(collection, SearchQuery.of(image=image, **question))
    except ImageError as error:
        return error.for_image(image, 0)


def _in_json(answer: list[Match] | ImageError) -> dict[str, Any]:
    if isinstance(answer, ImageError):
        return {"error": {"code": answer.code, "detail": str(answer)}}
    return {"matches": [{"id": m.id, "score": m.score, "metadata": dict(m.metadata)} for m in answer]}


def _print_matches(images: Sequence[Path], answers: Sequence[list[Match] | ImageError]) -> None:
    for image, answer in zip(images, answers, strict=True):
        if isinstance(answer, ImageError):
            continue
        table = Table("score", "label", "path", box=None, header_style="bold", title=str(image), title_justify="left")
        for match in answer:
            path = str(Path(*place_of(match.id, match.metadata)))
            table.add_row(f"{match.score:.4f}", str(match.metadata.get("label", "")), path)
        out.print(table)


def place_of(id: str, metadata: Mapping[str, Any]) -> tuple[str, str]:
    """The folder that an item was indexed from and its path there; nothing and its id if it was not."""
    if "path" not in metadata:
        return "", id
    return str(metadata.get("root", "")), str(metadata["path"])


def none_read(count: int) -> ImageError:
    """The error of a call of whose images, which `list_broken` names, none could be read."""
    return ImageError(
        f"No image could be read, of {count} in all: see beside each name why, and repair the files or name others."
    )


def list_broken(broken: Sequence[tuple[str, str]]) -> None:
    """Names the files that could not be read, on standard error."""
    for path, reason in broken[:SHOWN]:
        err.print(f"skipped {path}: {reason}", style="yellow", markup=False, soft_wrap=True)
    if len(broken) > SHOWN:
        err.print(f"... and {len(broken) - SHOWN} more", style="yellow")
