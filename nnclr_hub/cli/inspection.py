"""nnclr inspect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer
from rich.table import Table

from nnclr_hub.cli.place import Place
from nnclr_hub.cli.reading import ReadingOptions, reads_labels, reads_tiles
from nnclr_hub.cli.verbs import (
    DEFAULT_STORE,
    ApiKeyEnv,
    Json,
    Model,
    Server,
    chosen_model,
    err,
    out,
    print_json,
)
from nnclr_hub.errors import InvalidRequest, NNCLRHubError

if TYPE_CHECKING:
    from nnclr_hub.table_rows import LabelTable
    from nnclr_hub.workbench.inspection.comparison import EncoderComparison
    from nnclr_hub.workbench.inspection.subject import Subject
    from nnclr_hub.workbench.inspections import KeptInspection

HAND_CRAFTED = ("pixels", "hog", "shape", "color", "hog+color")
CACHE = ".cache"  # folder in --out
OF_IMAGES = ("reading", "embedding", "writing")  # steps of an inspection that count images
Report = Callable[[str], Callable[[int, int], None]]  # makes the progress of a step


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(name="inspect")(reads_tiles(reads_labels(inspect)))


def inspect(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WHAT",
            help="Folder of images, archive, or the name of a collection; after --compare also encoders.",
        ),
    ] = None,
    to: Annotated[Path, typer.Option("--out", help="Folder for the report.")] = Path("report"),
    model: Model = None,
    chosen_store: Annotated[
        str | None,
        typer.Option(
            "--store",
            help="Folder of the vector store, or milvus://HOST:PORT; WHAT is then a collection, even if a folder has "
            f"that name. Default: {DEFAULT_STORE}.",
        ),
    ] = None,
    parts: Annotated[
        str, typer.Option("--parts", help="Leaks between splits (train, val, test), or between all top folders.")
    ] = "splits",
    compare: Annotated[
        list[str],
        typer.Option("--compare", help="Compare encoders on the labels instead; repeatable. Also pixels, hog+color."),
    ] = [],  # noqa: B006
    field: Annotated[str, typer.Option("--field", help="Of a collection: metadata key of the label.")] = "label",
    write_fields: Annotated[
        bool,
        typer.Option("--write-fields", help="Of a collection: write the findings into the metadata, for filters."),
    ] = False,
    label_next: Annotated[
        int, typer.Option("--label-next", min=1, max=1000, help="Number of images to label next.")
    ] = 50,
    server: Server = None,
    api_key_env: ApiKeyEnv = "NNCLR_API_KEY",
    as_json: Json = False,
    *,
    labels: Any,
    reading: ReadingOptions,
    tiling: Any,
) -> None:
    """Report what is in a folder of images: duplicates, outliers, clusters, leaks, suspect labels, what to label next.

    Run it again to continue. The report is OUT/report.html, with findings.json and a table for each finding.

    Example: nnclr inspect photos --labels labels.csv --out report

    Example: nnclr inspect pets --server http://127.0.0.1:8000 --write-fields

    Example: nnclr inspect photos --labels labels.csv --compare nnclr_resnet18_starter pixels hog+color

    Example: nnclr inspect pets --server http://127.0.0.1:8000 --compare default --compare pixels
    """
    if parts not in ("splits", "folders"):
        raise InvalidRequest(f"--parts must be splits or folders, got {parts}.")
    if to.exists() and not to.is_dir():
        raise InvalidRequest(f"--out {to} is a file; use a folder for the report.")
    store = chosen_store or DEFAULT_STORE
    if server is not None and chosen_store is not None:
        raise InvalidRequest(f"Give --store {store} or --server {server}, not both.")
    place = Place(store, server, api_key_env)
    if compare:
        if server is not None and not given:
            raise InvalidRequest("Name the collection, for example: nnclr inspect pets --compare default --server URL.")
        if given and (server is not None or (_is_collection(given[0], chosen_store) and Path(store).is_dir())):
            _compare_collection([*compare, *given[1:]], place, given[0], field, reading, as_json)
        else:
            folder, others = _folder_and_encoders(given or [], labels)
            _compare([*compare, *others], folder, labels, reading, as_json)
        return
    if given is None or len(given) != 1:
        raise InvalidRequest("Name one folder of images or one collection, for example: nnclr inspect photos.")
    what = given[0]
    if server is not None and model is not None:
        raise InvalidRequest("A collection is inspected by its own vectors; leave out --model.")
    if server is not None and (labels is not None or parts != "splits"):
        raise InvalidRequest("--labels and --parts read files of this machine; leave them out with --server.")
    if server is not None and (reading.given or tiling is not None):
        raise InvalidRequest("A collection is inspected by its own vectors; leave out --channels, --page and --tile.")
    for source in [model] if model and model not in HAND_CRAFTED else []:
        chosen_model(source)
    with _bars() as report:
        if server is not None:
            found, paths = _remote(place, what, field, write_fields, label_next, report)
            page = f"{server.rstrip('/')}/#/insights/{quote(what)}"
        else:
            options = (labels, model, parts, field, write_fields, label_next, reading, tiling, report)
            kept, subject = _local(what, to, store, _is_collection(what, chosen_store), *options)
            from nnclr_hub.workbench.inspection.report import write_report

            found = dict(kept.findings)
            paths = dict(zip(subject.items, subject.paths or subject.items, strict=True))
            to.mkdir(parents=True, exist_ok=True)
            page = str(write_report(kept, subject, to))
    from nnclr_hub.workbench.inspection.findings import LEAST_LABELED, write_findings

    written = write_findings(found, to, paths)
    if as_json:
        print_json({"report": page, "files": [str(path) for path in written], **_counts(found)})
        return
    table = Table(box=None, show_header=False)
    for name, value in _counts(found).items():
        shown = ", ".join(f"{n} {suffix}" for suffix, n in value.items()) if isinstance(value, dict) else value
        if name == "suspect_labels" and found["accuracy"] is None:
            needed = f"{LEAST_LABELED} labels of 2 classes" if find_spec("torch") else "torch"
            shown = f"not checked: that needs {needed}"
        table.add_row(name.replace("_", " "), str(shown if shown != "" else "none"))
    out.print(table)
    out.print(f"The report is {page}; {len(written)} files with its data are next to it.")


def _remote(
    place: Place,
    name: str,
    field: str,
    write_fields: bool,
    label_next: int,
    report: Report,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Inspect a collection of a server; return the content of findings.json, and the path of each item."""
    from nnclr_hub.client import Client
    from nnclr_hub.store.pages import pages
    from nnclr_hub.workbench.inspection.findings import InspectionRequest
    from nnclr_hub.workbench.table_items import path_of

    with place.bench() as client:
        assert isinstance(client, Client)
        collection = client.collection(name)
        client.run("inspection", InspectionRequest(name, field, write_fields, label_next), report("inspecting"))
        paths = {item.id: path_of(item) for items in pages(collection, with_vector=False) for item in items}
        return dict(collection.inspection().findings), paths


def _folder_and_encoders(given: list[str], labels: LabelTable | None) -> tuple[str, list[str]]:
    """Tell the images, whose folder has no config.json, from model folders and names; default: that of the table."""
    from nnclr_hub.images.listing import is_packed

    def is_model(one: str) -> bool:
        return one.endswith(".safetensors") or Path(one.removeprefix("file://"), "config.json").exists()

    folders = [one for one in given if not is_model(one) and (is_packed(one) or Path(one).is_dir())]
    if len(folders) > 1 or (not folders and labels is None):
        raise InvalidRequest(f"--compare needs one folder of images, got {len(folders)}.")
    folder = folders[0] if folders else str(labels.file.parent if labels else ".")
    return folder, [one for one in given if one not in folders]


@contextmanager
def _bars() -> Iterator[Report]:
    from nnclr_hub.progress import bars

    with bars(err) as new_bar:
        yield lambda title: new_bar(title, "images" if title in OF_IMAGES else "steps")


def _is_collection(what: str, store: str | None) -> bool:
    """Return whether a collection is inspected.

    Args:
        store: None: the default; a folder of the name is then preferred to a collection, with a note. If the store
            that the caller named has no such collection, a note says that the folder is inspected.
    """
    from nnclr_hub.images.listing import is_packed
    from nnclr_hub.store import open_store

    if not (Path(what).exists() or is_packed(what)):
        return True
    place = store or DEFAULT_STORE
    found = "/" not in what and ("://" in place or Path(place).exists())
    if found:
        try:
            with open_store(place, read_only=True) as opened:
                opened.get(what)
        except NNCLRHubError:  # no such collection; a store that cannot be read does not matter for a folder
            found = False
    if found and store is None:
        note = (
            f"{what} is a folder, and also a collection; this is the folder. For the collection, add --store {place}."
        )
        err.print(note, soft_wrap=True)
    elif store is not None and not found:
        note = f"No collection {what} was found in the store {place}; this is the folder or archive of that name."
        err.print(note, soft_wrap=True)
    return found and store is not None


def _local(
    what: str,
    to: Path,
    store: str,
    collection: bool,
    labels: LabelTable | None,
    model: str | None,
    parts: Any,
    field: str,
    write_fields: bool,
    label_next: int,
    reading: ReadingOptions,
    tiling: Any,
    report: Report,
) -> tuple[KeptInspection, Subject]:
    """Inspect a folder, or a collection of a local store."""
    from nnclr_hub.images.listing import find_images, is_packed

    if not collection and (Path(what).is_dir() or is_packed(what)):
        if write_fields:
            raise InvalidRequest("--write-fields needs a collection; a folder has no metadata.")
        from nnclr_hub.workbench.inspection.subject import folder_subject

        count = None
        if Path(what).is_dir():
            count = len(find_images([what]))  # a folder without images is reported before the encoder is loaded
        cache = to / CACHE
        cache.mkdir(parents=True, exist_ok=True)
        options = {"labels": labels, "parts": parts, "cache": cache, "tiling": tiling}
        subject = folder_subject(what, _source(model, reading, "auto", count), **options, report=report)
        from nnclr_hub.workbench.inspection.findings import inspect_subject

        return inspect_subject(subject, label_next, report=report), subject
    if not collection:
        raise InvalidRequest(f"{what} is a file; give the folder that contains it.")
    if "/" in what or not ("://" in store or Path(store).exists()):
        known = f"neither a folder nor a collection of the store {store}"
        raise InvalidRequest(f"{what} is {known}; give a folder of images, or the name of a collection.")
    if reading.given or tiling is not None:
        raise InvalidRequest("A collection is inspected by its own vectors; leave out --channels, --page and --tile.")
    if model is not None:
        raise InvalidRequest("A collection is inspected by its own vectors; leave out --model.")
    from nnclr_hub.store import open_store
    from nnclr_hub.workbench.inspection.findings import inspect_subject
    from nnclr_hub.workbench.inspection.findings import write_fields as write
    from nnclr_hub.workbench.inspection.subject import collection_subject, one_label_each
    from nnclr_hub.workbench.inspections import keep_inspection

    named = None if labels is None else one_label_each(labels)
    with open_store(store, read_only=not write_fields) as opened:
        items = opened.get(what)
        subject = collection_subject(items, labels=named, field=field, parts=parts, report=report)
        kept = inspect_subject(subject, label_next, report=report)
        if write_fields:
            kept = write(items, kept, items.update_each, progress=report("writing"))
            keep_inspection(opened.records, kept)
    return kept, subject


def _source(model: str | None, reading: ReadingOptions, backend: str | None = None, images: int | None = None) -> Any:
    """Return an encoder, or hand-crafted features.

    Args:
        backend: of the encoder.
        images: number of images to expect; None: unknown.
    """
    if model in HAND_CRAFTED:
        from nnclr_hub.encoder.hand_crafted import FLOORS
        from nnclr_hub.images.reading import PLAIN

        return replace(FLOORS[model], reading=reading.over(PLAIN))
    source = chosen_model(reading.within(model))
    from nnclr_hub.workbench import Encoders

    return Encoders(source, backend=backend).get()


def _counts(found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "images": found["images"],
        "left_out": found["left_out"],
        "unreadable": len(found["broken"]),
        "exact_duplicates": len(found["exact_duplicates"]),
        "near_duplicates": len(found["near_duplicates"]),
        "leaks": len(found["leaks"]),
        "outliers": sum(one["flagged"] for one in found["outliers"]),
        "clusters": len(found["clusters"]),
        "suspect_labels": sum(one["flagged"] for one in found["suspect_labels"]),
        "label_next": len(found["label_next"]),
    }


def _compare_collection(
    sources: list[str], place: Place, name: str, field: str, reading: ReadingOptions, as_json: bool
) -> None:
    """Compare encoders on a collection."""
    from nnclr_hub.client import Client
    from nnclr_hub.workbench.inspection.comparison import (
        ComparisonRequest,
        EncoderComparison,
        compare_on_collection,
    )

    with place.bench(read_only=True) as bench, _bars() as report:
        if isinstance(bench, Client):
            found = EncoderComparison.of_json(
                bench.run("comparison", ComparisonRequest(name, sources, field), report("comparing"))
            )
        else:
            collection = bench.collection(name)
            pairs = [(one, _source(one, reading)) for one in sources]
            found = compare_on_collection(collection, pairs, field, progress=report("comparing"))
    _show_comparison(found, as_json)


def _compare(
    sources: list[str], folder: str, labels: LabelTable | None, reading: ReadingOptions, as_json: bool
) -> None:
    for source in sources:
        if source not in HAND_CRAFTED:
            chosen_model(source)
    from nnclr_hub.workbench.inspection.comparison import compare_sources

    with _bars() as report:
        pairs = [(one, _source(one, reading)) for one in sources]
        found = compare_sources(folder, pairs, labels, report=report)
    _show_comparison(found, as_json)


def _show_comparison(found: EncoderComparison, as_json: bool) -> None:
    if as_json:
        print_json(found.as_json())
        return
    out.print(found.table())
    out.print(found.conclusion)
