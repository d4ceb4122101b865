"""nnclr index, search."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nnclr_hub.cli.options import (
    Options,
    Place,
    ReadingOptions,
    combined,
    on_store,
    reads_images,
    reads_labels,
    reads_tiles,
)
from nnclr_hub.cli.verbs import (
    Backend,
    Json,
    Model,
    bar,
    check_file,
    described,
    err,
    fail,
    list_broken,
    new_table,
    none_read,
    note_unknown_keys,
    out,
    parse_numbers,
    parse_where,
    place_of,
    print_json,
    show,
)
from nnclr_hub.errors import CollectionNotFound, ImageError, InvalidRequest, NNCLRHubError
from nnclr_hub.plural import counted

if TYPE_CHECKING:
    from nnclr_hub.images.reading import ImageReading
    from nnclr_hub.workbench import SearchQuery
    from nnclr_hub.workbench.bench import Bench
    from nnclr_hub.workbench.search_query import Answer

Collection = Annotated[str, typer.Option("--collection", help="Name of the collection.")]
# fields of `SearchQuery`
SEARCH: Options = {
    "k": (int, 5, {"flags": ["-k"], "min": 1, "help": "Matches per search, 1 to 1000."}),
    "where": (str | None, None, {"help": "Filter on metadata, as JSON."}),
    "score_threshold": (float | None, None, {"flags": ["--threshold"], "help": "Leave out matches that score lower."}),
    "group_by": (str | None, None, {"help": "Metadata key: the best match of each of its values. Takes one example."}),
    "exact": (bool, False, {"flags": ["--exact"], "help": "Compare with every item."}),
    "effort": (int | None, None, {"help": "Effort of an approximate index, 1 to 10,000. Default: the tuned value."}),
    "with_vector": (bool, False, {"flags": ["--with-vector"], "help": "Include vectors in the JSON."}),
}


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command()(on_store(reads_tiles(reads_labels(index))))
    app.command()(on_store(reads_images(combined("options", SEARCH, _search_options)(search))))


def index(
    photos: Annotated[
        str,
        typer.Argument(
            help="Folder of images, with its subfolders; or tar and zip files, also as a pattern "
            "('data-{000..009}.tar') or at an address (s3://BUCKET/DIR)."
        ),
    ],
    collection: Collection,
    model: Model = None,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            help="Delete items whose file was removed, except those of an empty folder. With --server, give --source.",
        ),
    ] = False,
    thumbnails: Annotated[
        bool, typer.Option("--thumbnails/--no-thumbnails", help="Store a thumbnail of each image.")
    ] = True,
    source: Annotated[
        str | None, typer.Option("--source", help="With --server: name of the folder there. Default: FOLDER-ID@HOST.")
    ] = None,
    shrink: Annotated[
        int | None, typer.Option("--shrink", help="With --server: send larger images with this longest side.")
    ] = None,
    backend: Backend = "auto",
    as_json: Json = False,
    *,
    place: Place,
    labels: Any,
    reading: ReadingOptions,
    tiling: Any,
) -> None:
    """Embed images into a collection. Run it again to update new and changed files.

    Example: nnclr index photos --collection photos

    Example: nnclr index photos.zip --collection photos

    Example: nnclr index photos --collection photos --labels labels.csv
    """
    from nnclr_hub.workbench.requests import FolderRequest

    with place.bench(backend=backend, create=True) as bench:
        if reading.given:
            existing = _source_of(bench, collection)
            if existing is not None:
                reading.check(existing, collection)
            if existing is None or model is not None:
                model = reading.within(model or bench.default_model)
        request = FolderRequest(photos, model, prune, thumbnails, tiling, labels, source, shrink)
        with bar("indexing") as advance:
            report = bench.index_folder(collection, request, progress=advance)
        total = 0 if _source_of(bench, collection) is None else bench.collection(collection).count()
    if not as_json:
        list_broken(report.broken)
        if report.empty:  # files of other formats are reported when the folder is listed
            err.print(f"left out: {counted(report.empty, 'empty tile')}")
    kept = f" {report.kept} kept (their files may exist)," if report.kept else ""
    failed = bool(report.broken) and not report.added + report.updated + report.unchanged
    error = none_read(len(report.broken)) if failed else None
    show(
        as_json,
        {"collection": collection, "items": total, **asdict(report), **({"error": described(error)} if error else {})},
        f"{collection}: {report.added} added, {report.updated} updated, {report.unchanged} unchanged, "
        f"{report.removed} removed,{kept} {len(report.broken)} broken; {counted(total, 'item')} in {place.name}",
    )
    if error:
        fail(error)


def _source_of(bench: Bench, name: str) -> str | None:
    try:
        return bench.store.get(name).spec.model
    except CollectionNotFound:
        return None


# ---- search


def _search_options(*values: Any) -> dict[str, Any]:
    options = dict(zip(SEARCH, values, strict=True))
    return options | {"where": parse_where(options["where"]), "with_percentile": True}


def search(
    collection: Collection,
    images: Annotated[list[Path] | None, typer.Argument(help="Query images; each is a separate search.")] = None,
    ids: Annotated[list[str] | None, typer.Option("--id", help="Search by an item of the collection.")] = None,
    vector_from: Annotated[
        Path | None, typer.Option(help="Search by the vectors of a .npy file, (D,) or (N, D).")
    ] = None,
    positive: Annotated[
        list[str] | None, typer.Option(help="One search by several examples: an image file or an item id. Repeatable.")
    ] = None,
    negative: Annotated[
        list[str] | None, typer.Option(help="Example to be away from: an image file or an item id. Repeatable.")
    ] = None,
    box: Annotated[str | None, typer.Option(help="Part of the query images: X0,Y0,X1,Y1 in pixels.")] = None,
    sheet: Annotated[
        Path | None, typer.Option("--out", help="Write the matches to a file: contact.html or matches.csv.")
    ] = None,
    model: Model = None,
    backend: Backend = "auto",
    as_json: Json = False,
    *,
    options: Any,
    place: Place,
    reading: ReadingOptions,
) -> None:
    """Find the nearest images of a collection. Works while a server uses the store.

    --model is only used if the encoder of the collection cannot be found.

    Example: nnclr search query.jpg --collection photos -k 5

    Example: nnclr search --positive cat.jpg --negative dog.jpg --collection photos --out contact.html
    """
    from nnclr_hub.images.reading import ImageReading
    from nnclr_hub.report_page import START
    from nnclr_hub.workbench.contact_sheet import SheetRow, check_sheet, write_contact_sheet
    from nnclr_hub.workbench.search_query import Example, SearchQuery, attempt

    if sheet is not None:
        check_sheet(sheet)
        check_file(sheet, b"query,rank,id,score", START.encode())
    region: Any = None if box is None else parse_numbers("--box", box, "X0,Y0,X1,Y1")
    if images and not any(image.is_file() for image in images):  # the arguments are probably words or folders
        raise InvalidRequest(f"{images[0]} is not a file; queries are image files, not words or folders.")
    searches = [(str(image), [Example(image=_image(image, reading), box=region)]) for image in images or ()]
    searches += [(f"item {id}", [Example(id=id)]) for id in ids or ()]
    searches += [(f"{vector_from}[{i}]", [Example(vector=row)]) for i, row in enumerate(_rows(vector_from))]
    if positive:
        if searches:
            raise InvalidRequest(
                "--positive cannot be combined with query images, --id or --vector-from; use one form."
            )
        searches = [(" + ".join(positive), [_example(one, region, reading) for one in positive])]
    if negative:
        searches = [(" - ".join([title, *negative]), examples) for title, examples in searches]
    if region is not None and not any(example.image is not None for _, one in searches for example in one):
        raise InvalidRequest("--box needs a query image.")
    if not searches:
        raise InvalidRequest("Nothing to search by; give a query image, --id, --vector-from or --positive.")
    away = [_example(one, None, reading) for one in negative or ()]
    queries = [SearchQuery(examples, away, **options) for _, examples in searches]
    with place.bench(model, backend, read_only=True) as bench:
        there = bench.store.get(collection)
        how = ImageReading.of_source(there.spec.model)
        # torch is imported only to embed images that can be read
        checks = [attempt(partial(_check_images, query, how)) for query in queries]
        fine = [query for query, check in zip(queries, checks, strict=True) if check is None]
        found = iter(bench.search_each(collection, fine) if fine else [])
        answers: list[Answer] = [next(found) if check is None else check for check in checks]
        titled = [
            (title, examples, answer.for_image(title, 0) if isinstance(answer, ImageError) else answer)
            for (title, examples), answer in zip(searches, answers, strict=True)
        ]
        rows = [
            SheetRow(title, answer, examples[0].image)
            for title, examples, answer in titled
            if not isinstance(answer, NNCLRHubError)
        ]
        is_empty = any(not row.matches for row in rows)
        note_unknown_keys(there, options["where"] if is_empty else None, options["group_by"])
        if sheet is not None and rows:
            write_contact_sheet(sheet, rows, there.thumbnail, how)
            err.print(f"Wrote {sheet}.", soft_wrap=True)
    if as_json:
        bodies = [_in_json(answer) for _, _, answer in titled]
        print_json(bodies[0] if len(queries) == 1 else bodies)
    for row in rows if not as_json and sheet is None else ():
        _print_matches(row.title, row.matches)
    if failed := [answer for _, _, answer in titled if isinstance(answer, NNCLRHubError)]:
        fail(*failed)


def _check_images(query: SearchQuery, reading: ImageReading) -> None:
    from nnclr_hub.images.decode import decode_any
    from nnclr_hub.workbench.search_query import crop_to_box

    for example in query.examples:
        if example.image is not None:
            image = decode_any(example.image, reading)  # type: ignore[arg-type]
            if example.box is not None:
                crop_to_box(image, example.box)


def _image(path: Path, reading: ReadingOptions) -> Any:
    """Return a query image: its path, which the encoder reads as the collection's images, or the part chosen here."""
    if not reading.given:
        return path
    from nnclr_hub.images.decode import decode_any
    from nnclr_hub.images.reading import PLAIN

    try:
        return decode_any(path, reading.over(PLAIN))
    except ImageError as error:
        raise error.for_image(path, 0) from error


def _example(text: str, box: Any, reading: ReadingOptions) -> Any:
    from nnclr_hub.workbench.search_query import Example

    if Path(text).is_file():
        return Example(image=_image(Path(text), reading), box=box)
    if "/" in text:  # no id has a slash
        raise InvalidRequest(f"{text!r} is not a file. Give an image file or the id of an item.")
    return Example(id=text)


def _rows(path: Path | None) -> Any:
    """Return the vectors of a .npy file as rows."""
    if path is None:
        return ()
    import numpy as np

    try:
        vectors = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{path} is not a .npy file of vectors ({error}).") from error
    return vectors[None] if vectors.ndim == 1 else vectors


def _in_json(answer: Answer) -> dict[str, Any]:
    if isinstance(answer, NNCLRHubError):
        return {"error": described(answer)}
    matches = []
    for match in answer:
        one: dict[str, Any] = {"id": match.id, "score": match.score, "metadata": dict(match.metadata)}
        one |= {} if match.percentile is None else {"percentile": match.percentile}
        matches.append(one if match.vector is None else {**one, "vector": match.vector.tolist()})
    return {"matches": matches}


def _print_matches(title: str, matches: Any) -> None:
    from nnclr_hub.store.items import percent_text

    if not matches:
        out.print(f"{title}: no matches. The collection has no other item that passes the filter and the threshold.")
        return
    known = any(match.percentile is not None for match in matches)
    places = [place_of(match.id, match.metadata) for match in matches]
    roots = sorted({root for root, _ in places} - {""})
    title = f"{title}, in {roots[0]}" if len(roots) == 1 else title  # paths are relative to it, as filters read them
    headings = ["score", *(["percentile"] if known else []), "id", "label", *(["folder"] if roots[1:] else []), "path"]
    table = new_table(*headings, title=title, title_justify="left")
    for match, (root, path) in zip(matches, places, strict=True):
        scores = [f"{match.score:.4f}", *([percent_text(match.percentile)] if known else [])]
        label = str(match.metadata.get("label", ""))
        table.add_row(*scores, match.id, label, *([root] if roots[1:] else []), path)
    out.print(table)
