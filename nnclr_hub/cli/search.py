"""nnclr search."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from nnclr_hub.cli.index import Collection, place_of
from nnclr_hub.cli.place import Place, on_store
from nnclr_hub.cli.reading import ReadingOptions, reads_images
from nnclr_hub.cli.verbs import (
    Backend,
    Json,
    Model,
    chosen_model,
    err,
    fail,
    out,
    parse_numbers,
    parse_where,
    print_json,
)
from nnclr_hub.errors import ImageError, InvalidRequest, NNCLRHubError

if TYPE_CHECKING:
    from nnclr_hub.images.reading import ImageReading
    from nnclr_hub.workbench import SearchQuery
    from nnclr_hub.workbench.search_query import Answer


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(on_store(reads_images(search)))


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
    k: Annotated[int, typer.Option("-k", min=1, help="Matches per search, 1 to 1000.")] = 5,
    offset: Annotated[int, typer.Option(min=0, help="Number of best matches to skip.")] = 0,
    where: Annotated[str | None, typer.Option(help="Filter on metadata, as JSON.")] = None,
    threshold: Annotated[float | None, typer.Option(help="Leave out matches that score lower.")] = None,
    group_by: Annotated[
        str | None, typer.Option(help="Metadata key: show the best match of each of its values. Takes one example.")
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Compare with every item.")] = False,
    effort: Annotated[
        int | None, typer.Option(help="Search effort of an approximate index, 1 to 10,000. Default: the tuned value.")
    ] = None,
    with_vector: Annotated[bool, typer.Option("--with-vector", help="Include vectors in the JSON.")] = False,
    with_percentile: Annotated[
        bool, typer.Option("--percentile/--no-percentile", help="Show the share of random pairs that score lower.")
    ] = True,
    sheet: Annotated[
        Path | None, typer.Option("--out", help="Write the matches to a file: contact.html, contact.png, matches.csv.")
    ] = None,
    model: Model = None,
    backend: Backend = "auto",
    as_json: Json = False,
    *,
    place: Place,
    reading: ReadingOptions,
) -> None:
    """Find the nearest images of a collection. Works while a server uses the store.

    Example: nnclr search query.jpg --collection photos -k 5

    Example: nnclr search --positive cat.jpg --negative dog.jpg --collection photos --out contact.html
    """
    from nnclr_hub.client import Client
    from nnclr_hub.images.reading import ImageReading
    from nnclr_hub.workbench.contact_sheet import SheetRow, check_sheet, write_contact_sheet
    from nnclr_hub.workbench.search_query import Example, SearchQuery, attempt

    if place.server is not None and model is not None:
        raise InvalidRequest(f"Give --model {model} or --server {place.server}; the server selects the encoder.")
    if sheet is not None:
        check_sheet(sheet)
    region: Any = None if box is None else parse_numbers("--box", box, "X0,Y0,X1,Y1")
    _require_one_file([*(images or ())])
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
    queries = [
        SearchQuery(
            examples,
            [_example(one, None, reading) for one in negative or ()],
            k=k,
            offset=offset,
            where=parse_where(where),
            exact=exact,
            score_threshold=threshold,
            with_vector=with_vector,
            effort=effort,
            with_percentile=with_percentile,
            group_by=group_by,
        )
        for _, examples in searches
    ]
    with place.bench(model, backend, read_only=True) as bench:
        there = bench.store.get(collection)
        how = ImageReading.of_source(there.spec.model) if place.server is None else ImageReading()
        if model is not None:
            chosen_model(model, backend)
        # torch is imported only to embed images that can be read
        checked = [attempt(partial(_read_images, query, how)) for query in queries]
        refused: list[Answer] = [one for one in checked if isinstance(one, NNCLRHubError)]
        if len(refused) == len(queries):
            given = refused
        else:
            if model is not None and not isinstance(bench, Client):
                bench.embedder_of(there, model)
            given = bench.search_each(collection, queries)
        titles = [title for title, _ in searches]
        answers = [_named(answer, title) for title, answer in zip(titles, given, strict=True)]
        found = [
            (title, answer)
            for title, answer in zip(titles, answers, strict=True)
            if not isinstance(answer, NNCLRHubError)
        ]
        if sheet is not None and found:
            shown = {title: examples[0].image for title, examples in searches}
            rows = [SheetRow(title, answer, shown[title]) for title, answer in found]
            write_contact_sheet(sheet, rows, there.thumbnail, how)
            err.print(f"Wrote {sheet}.", soft_wrap=True)
    if as_json and found:
        bodies = [_in_json(answer) for answer in answers]
        print_json(bodies[0] if len(queries) == 1 else bodies)
    elif not as_json and sheet is None:
        _print_matches(found)
    failed = [answer for answer in answers if isinstance(answer, NNCLRHubError)]
    if failed:
        fail(*failed)


def _read_images(query: SearchQuery, reading: ImageReading) -> int:
    """Return the number of images of a query, after a check that each can be read and contains its box."""
    from nnclr_hub.images.decode import decode_any
    from nnclr_hub.workbench.search_query import crop_to_box

    images = [(example.image, example.box) for example in query.examples if example.image is not None]
    for given, box in images:
        image = decode_any(given, reading)  # type: ignore[arg-type]
        if box is not None:
            crop_to_box(image, box)
    return len(images)


def _require_one_file(images: Sequence[Path]) -> None:
    """Refuse a call without a single file: the arguments are probably words or folders."""
    if images and not any(image.is_file() for image in images):
        raise InvalidRequest(f"{images[0]} is not a file; queries are image files, not words or folders.")


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
    """Return the example of an image file, or else of an item id."""
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


def _named(answer: Answer, title: str) -> Answer:
    """Return the answer; an image error names its image."""
    return answer.for_image(title, 0) if isinstance(answer, ImageError) else answer


def _in_json(answer: Answer) -> dict[str, Any]:
    if isinstance(answer, NNCLRHubError):
        return {"error": {"code": answer.code, "detail": str(answer)}}
    matches = []
    for match in answer:
        one: dict[str, Any] = {"id": match.id, "score": match.score, "metadata": dict(match.metadata)}
        if match.percentile is not None:
            one["percentile"] = match.percentile
        matches.append(one if match.vector is None else {**one, "vector": match.vector.tolist()})
    return {"matches": matches}


def _print_matches(found: Sequence[tuple[str, Any]]) -> None:
    from nnclr_hub.store.items import percent_text

    for title, matches in found:
        if not matches:
            out.print(f"{title}: no matches. No item passes the filter, the threshold and the offset.")
            continue
        known = any(match.percentile is not None for match in matches)
        columns = ["score", *(["percentile"] if known else []), "id", "label", "path"]
        table = Table(*columns, box=None, header_style="bold", title=title, title_justify="left")
        for match in matches:
            path = str(Path(*place_of(match.id, match.metadata)))
            scores = [f"{match.score:.4f}", *([percent_text(match.percentile)] if known else [])]
            table.add_row(*scores, match.id, str(match.metadata.get("label", "")), path)
        out.print(table)
