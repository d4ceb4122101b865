"""nnclr inspect."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nnclr_hub.cli.options import Place, ReadingOptions, on_store, reads_labels, reads_tiles
from nnclr_hub.cli.verbs import Json, Model, check_folder, err, new_table, note_unknown_keys, show
from nnclr_hub.errors import InvalidRequest, NNCLRHubError
from nnclr_hub.plural import counted

if TYPE_CHECKING:
    from nnclr_hub.table_rows import LabelTable
    from nnclr_hub.workbench.bench import Inspected, Report

HAND_CRAFTED = ("pixels", "hog", "shape", "color", "hog+color")
CACHE = ".cache"  # folder in --out
OF_IMAGES = ("reading", "embedding", "writing")  # steps of an inspection that count images
COUNTED = ("exact_duplicates", "near_duplicates", "leaks", "outliers", "clusters", "suspect_labels", "label_next")
OWN_VECTORS = "A collection is inspected by its own vectors; leave out --model, --channels, --page and --tile."


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(name="inspect")(on_store(reads_tiles(reads_labels(inspect))))


def inspect(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WHAT",
            help="Folder of images, archive, or the name of a collection; after --compare also encoders. With --store "
            "or --server a collection, even if a folder has that name.",
        ),
    ] = None,
    to: Annotated[Path, typer.Option("--out", help="Folder for the report.")] = Path("report"),
    model: Model = None,
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
    as_json: Json = False,
    *,
    place: Place,
    labels: Any,
    reading: ReadingOptions,
    tiling: Any,
) -> None:
    """Report what is in a folder of images: duplicates, outliers, clusters, leaks, suspect labels, what to label next.

    Run it again to continue. The report is OUT/report.html, or with --server a page of the web app, with findings.json
    and a table for each finding.

    Example: nnclr inspect photos --labels labels.csv --out report

    Example: nnclr inspect pets --server http://127.0.0.1:8000 --write-fields

    Example: nnclr inspect photos --labels labels.csv --compare nnclr_resnet18_starter pixels hog+color

    Example: nnclr inspect pets --server http://127.0.0.1:8000 --compare default --compare pixels
    """
    if compare:
        _compare(compare, given or [], place, field, labels, reading, as_json)
        return
    if given is None or len(given) != 1:
        raise InvalidRequest("Name one folder of images or one collection, for example: nnclr inspect photos.")
    what = given[0]
    from nnclr_hub.workbench.inspection.findings import JSON_FILE, LEAST_LABELED, InspectionRequest

    check_folder(to, JSON_FILE, inputs=[Path(what)])
    request = InspectionRequest(what, field, write_fields, label_next, labels, parts)  # type: ignore[arg-type]
    with _bars() as report:
        if _is_collection(what, place):
            if model is not None or reading.given or tiling is not None:
                raise InvalidRequest(OWN_VECTORS)
            with place.bench(read_only=not write_fields) as bench:
                if field != "label":
                    note_unknown_keys(bench.store.get(what), None, field)
                found = bench.inspect(request, to, report)
        elif write_fields:
            raise InvalidRequest("--write-fields needs a collection; a folder has no metadata.")
        else:
            found = _inspect_folder(what, to, request, model, reading, tiling, report)
    findings = found.findings
    counts = {"images": findings["images"], "left_out": findings["left_out"], "unreadable": len(findings["broken"])}
    counts |= {name: sum(one.get("flagged", True) for one in findings[name]) for name in COUNTED}
    table = new_table("", "", show_header=False)
    for name, value in counts.items():
        shown = ", ".join(f"{n} {suffix}" for suffix, n in value.items()) if isinstance(value, dict) else value
        if name == "suspect_labels" and findings["accuracy"] is None:
            needed = f"{LEAST_LABELED} labels of 2 classes" if find_spec("torch") else "torch"
            shown = f"not checked: that needs {needed}"
        table.add_row(name.replace("_", " "), str(shown if shown != "" else "none"))
    last = f"The report is {found.page}. Its data are in {counted(len(found.files), 'file')} in {to}."
    show(as_json, {"report": found.page, "files": [str(path) for path in found.files], **counts}, table, last)


def _inspect_folder(
    what: str, to: Path, request: Any, model: str | None, reading: ReadingOptions, tiling: Any, report: Report
) -> Inspected:
    from nnclr_hub.images.listing import find_images, is_packed
    from nnclr_hub.workbench.inspection.findings import inspect_subject
    from nnclr_hub.workbench.inspection.report import write_inspection
    from nnclr_hub.workbench.inspection.subject import folder_subject

    if not Path(what).is_dir() and not is_packed(what):
        raise InvalidRequest(f"{what} is a file; give the folder that contains it.")
    if Path(what).is_dir():
        find_images([what])  # a folder without images is reported before the encoder is loaded
    (to / CACHE).mkdir(parents=True, exist_ok=True)
    options = {"labels": request.labels, "parts": request.parts, "cache": to / CACHE, "tiling": tiling}
    subject = folder_subject(what, _source(model, reading, "auto"), **options, report=report)
    return write_inspection(inspect_subject(subject, request.label_next, report=report), subject, to)


def _is_collection(what: str, place: Place) -> bool:
    """Return whether a collection is inspected: with --store or --server, or if no folder has that name."""
    from nnclr_hub.images.listing import is_packed

    if place.given:
        return True
    if not (Path(what).exists() or is_packed(what)):
        if "/" in what or not place.exists:
            known = f"neither a folder nor a collection of the store {place.name}"
            raise InvalidRequest(f"{what} is {known}; give a folder of images, or the name of a collection.")
        return True
    with suppress(NNCLRHubError), place.opened(read_only=True) as store:
        store.get(what)
        note = f"{what} is a folder, and also a collection; this is the folder. For the collection, add --store "
        err.print(f"{note}{place.name}.", soft_wrap=True)
    return False


@contextmanager
def _bars() -> Iterator[Report]:
    from nnclr_hub.progress import bars

    with bars(err) as new_bar:
        yield lambda title: new_bar(title, "images" if title in OF_IMAGES else "steps")


def _source(model: str | None, reading: ReadingOptions, backend: str | None = None) -> Any:
    if model in HAND_CRAFTED:
        from nnclr_hub.encoder.hand_crafted import FLOORS
        from nnclr_hub.images.reading import PLAIN

        return replace(FLOORS[model], reading=reading.over(PLAIN))
    from nnclr_hub.workbench import Encoders

    return Encoders(reading.within(model), backend=backend).get()


def _compare(
    sources: list[str],
    given: list[str],
    place: Place,
    field: str,
    labels: LabelTable | None,
    reading: ReadingOptions,
    as_json: bool,
) -> None:
    """Compare encoders on a collection or a folder; further encoders may follow its name."""
    from nnclr_hub.workbench.inspection.comparison import ComparisonRequest, EncoderComparison, compare_sources

    if place.given and not given:
        raise InvalidRequest("Name the collection first, for example: nnclr inspect pets --compare default.")
    if given and (place.exists or place.given) and _is_collection(given[0], place):
        models = [one if one in HAND_CRAFTED else reading.within(one) or one for one in [*sources, *given[1:]]]
        with place.bench(read_only=True) as bench, _bars() as report:
            result = bench.run("comparison", ComparisonRequest(given[0], models, field), report("comparing"))
        found = EncoderComparison.of_json(result)
    else:
        from nnclr_hub.workbench.models import check_model

        folder, others = _folder_and_encoders(given, labels)
        names = [*sources, *others]
        for source in names:
            if source not in HAND_CRAFTED:
                check_model(source)  # all of them, before torch is imported
        with _bars() as report:
            found = compare_sources(folder, [(one, _source(one, reading)) for one in names], labels, report=report)
    show(as_json, found.as_json(), found.table(), found.conclusion)


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
