"""nnclr inspect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer
from rich.table import Table

from nnclr_hub.cli.index import connected
from nnclr_hub.cli.verbs import (
    DEFAULT_STORE,
    ApiKeyEnv,
    Json,
    Model,
    Server,
    Store,
    chosen_model,
    err,
    out,
    print_json,
    refuse_server_with_local,
)
from nnclr_hub.errors import InvalidRequest

if TYPE_CHECKING:
    from nnclr_hub.workbench.inspection.findings import Findings

HAND_CRAFTED = ("pixels", "hog", "color", "hog+color")
CACHE = ".cache"  # folder in --out


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(name="inspect")(inspect)


def inspect(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WHAT", help="Folder of images, or the name of a collection; after --compare also encoders."
        ),
    ] = None,
    to: Annotated[Path, typer.Option("--out", help="Folder for the report.")] = Path("report"),
    labels: Annotated[
        Path | None, typer.Option("--labels", help="Table with path,label. Default: labels.csv, else folder names.")
    ] = None,
    root: Annotated[Path | None, typer.Option("--root", help="Folder to which the paths of --labels belong.")] = None,
    model: Model = None,
    store: Store = DEFAULT_STORE,
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
    label_next: Annotated[int, typer.Option("--label-next", help="Number of images to label next, 1 to 1000.")] = 50,
    server: Server = None,
    api_key_env: ApiKeyEnv = "NNCLR_API_KEY",
    as_json: Json = False,
) -> None:
    """Report what is in a folder of images: duplicates, outliers, clusters, leaks, suspect labels, what to label next.

    Run it again to continue. The report is OUT/report.html, with findings.json and a table for each finding.

    Example: nnclr inspect photos --labels labels.csv --out report

    Example: nnclr inspect pets --server http://127.0.0.1:8000 --write-fields

    Example: nnclr inspect photos --labels labels.csv --compare nnclr_resnet18_small_cpu_starter pixels hog+color
    """
    if parts not in ("splits", "folders"):
        raise InvalidRequest(f"--parts must be splits or folders, got {parts}.")
    if to.exists() and not to.is_dir():
        raise InvalidRequest(f"--out {to} is a file; use a folder for the report.")
    if compare:
        folder, others = _folder_and_encoders(given or [], labels)
        _compare([*compare, *others], folder, labels, root, as_json)
        return
    if given is None or len(given) != 1:
        raise InvalidRequest("Name one folder of images or one collection, for example: nnclr inspect photos.")
    what = given[0]
    refuse_server_with_local(server, store=store, model=model)
    if server is not None and (labels is not None or root is not None or parts != "splits"):
        raise InvalidRequest("--labels, --root and --parts read files of this machine; leave them out with --server.")
    for source in [model] if model and model not in HAND_CRAFTED else []:
        chosen_model(source)
    with ExitStack() as bars:
        report = _bars(bars)
        if server is not None:
            found = _remote(server, api_key_env, what, field, write_fields, label_next, report)
            page = f"{server.rstrip('/')}/#/insights/{quote(what)}"
        else:
            findings = _local(what, to, labels, root, model, store, parts, field, write_fields, label_next, report)
            from nnclr_hub.workbench.inspection.report import write_report

            found = findings.as_json()
            to.mkdir(parents=True, exist_ok=True)
            page = str(write_report(findings, to))
    from nnclr_hub.workbench.inspection.findings import write_findings

    written = write_findings(found, to)
    if as_json:
        print_json({"report": page, "files": [str(path) for path in written], **_counts(found)})
        return
    table = Table(box=None, show_header=False)
    for name, value in _counts(found).items():
        shown = ", ".join(f"{n} {suffix}" for suffix, n in value.items()) if isinstance(value, dict) else value
        table.add_row(name.replace("_", " "), str(shown if shown != "" else "none"))
    out.print(table)
    out.print(f"Wrote {len(written)} files to {to}; the report is {page}.", markup=False)


def _remote(
    server: str,
    api_key_env: str,
    name: str,
    field: str,
    write_fields: bool,
    label_next: int,
    report: Callable[[str], Callable[[int, int], None]],
) -> dict[str, Any]:
    """Inspect a collection of a server; return the content of findings.json."""
    with connected(server, api_key_env) as client:
        collection = client.collection(name)
        job = collection.inspect(field, write_fields=write_fields, label_next=label_next)
        client.jobs.wait(job.id, progress=report("inspecting"))
        return dict(collection.inspection().findings)


def _folder_and_encoders(given: list[str], labels: Path | None) -> tuple[Path, list[str]]:
    """Tell the folder of images, which has no config.json, from model folders and names; default: that of the table."""
    folders = [one for one in given if Path(one).is_dir() and not (Path(one) / "config.json").exists()]
    if len(folders) > 1 or (not folders and labels is None):
        raise InvalidRequest(f"--compare needs one folder of images, got {len(folders)}.")
    folder = Path(folders[0]) if folders else (labels or Path()).parent
    return folder, [one for one in given if one not in folders]


def _bars(stack: ExitStack) -> Callable[[str], Callable[[int, int], None]]:
    from nnclr_hub.progress import bar

    open_bar: list[ExitStack] = []

    def report(title: str) -> Callable[[int, int], None]:
        while open_bar:  # only one bar can be on the screen
            open_bar.pop().close()
        open_bar.append(stack.enter_context(ExitStack()))
        return open_bar[0].enter_context(bar(err, title))

    return report


def _local(
    what: str,
    to: Path,
    labels: Path | None,
    root: Path | None,
    model: str | None,
    store: str,
    parts: Any,
    field: str,
    write_fields: bool,
    label_next: int,
    report: Callable[[str], Callable[[int, int], None]],
) -> Findings:
    """Inspect a folder, or a collection of a local store."""
    if Path(what).is_dir():
        if write_fields:
            raise InvalidRequest("--write-fields needs a collection; a folder has no metadata.")
        from nnclr_hub.encoder.image_folder import list_images
        from nnclr_hub.workbench.inspection.subject import folder_subject

        list_images(Path(what))  # a folder without images is reported before the encoder is loaded
        cache = to / CACHE
        cache.mkdir(parents=True, exist_ok=True)
        options = {"labels": labels, "root": root, "parts": parts, "cache": cache}
        subject = folder_subject(Path(what), _source(model), **options, report=report)
        from nnclr_hub.workbench.inspection.findings import find

        return find(subject, label_next=label_next, report=report)
    if "/" in what or not ("://" in store or Path(store).exists()):
        raise InvalidRequest(f"{what} is neither a folder nor a collection of the store {store}.")
    if model is not None:
        raise InvalidRequest("A collection is inspected by its own vectors; leave out --model.")
    from nnclr_hub.store import open_store
    from nnclr_hub.workbench import inspection_fields
    from nnclr_hub.workbench.inspection.findings import find
    from nnclr_hub.workbench.inspection.subject import collection_subject, listed_labels
    from nnclr_hub.workbench.inspections import keep_inspection, kept_findings, state_of

    named = None if labels is None else listed_labels(labels)
    with open_store(store, read_only=not write_fields) as opened:
        collection = opened.get(what)
        state = state_of(collection)
        subject = collection_subject(collection, labels=named, field=field, parts=parts, report=report)
        findings = find(subject, label_next=label_next, report=report)
        if write_fields:
            kept = kept_findings(findings, collection.name, state, field)
            write = collection.update_each
            kept = inspection_fields.write_fields(collection, kept, write, progress=report("writing"))
            keep_inspection(opened.records, kept)
    return findings


def _source(model: str | None) -> Any:
    """Return an encoder, or hand-crafted features."""
    if model in HAND_CRAFTED:
        from nnclr_hub.encoder.hand_crafted import FLOORS

        return FLOORS[model]
    source = chosen_model(model)
    from nnclr_hub.workbench import Encoders

    return Encoders(source).get()


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


def _compare(sources: list[str], folder: Path, labels: Path | None, root: Path | None, as_json: bool) -> None:
    for source in sources:
        if source not in HAND_CRAFTED:
            chosen_model(source)
    from nnclr_hub.workbench.inspection.comparison import compare_sources

    with ExitStack() as bars:
        found = compare_sources(folder, [(one, _source(one)) for one in sources], labels, root, report=_bars(bars))
    if as_json:
        print_json(found.as_json())
        return
    out.print(found.table())
    out.print(found.conclusion, markup=False)
