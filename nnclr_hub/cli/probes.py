"""nnclr probe fit, eval, predict."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from nnclr_hub.cli.options import Place, ReadingOptions, on_store, reads_images, reads_labels
from nnclr_hub.cli.verbs import (
    Json,
    Model,
    bar,
    check_file,
    check_folder,
    err,
    list_broken,
    new_table,
    out,
    print_json,
)
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.plural import counted
from nnclr_hub.terminal import print_data

group = typer.Typer(no_args_is_help=True, help="Linear probes: predict labels from a few labeled images.")
Probe = Annotated[Path, typer.Option("--probe", help="Folder that `nnclr probe fit` wrote.")]


def register(app: typer.Typer) -> None:
    """Add the verb group."""
    app.add_typer(group, name="probe")


@group.command()
@reads_images
@reads_labels
def fit(
    data: Annotated[
        str, typer.Argument(help="Folder or archive with one folder per class, or CSV with path,label (or labels).")
    ],
    to: Annotated[Path, typer.Option("--out", help="Folder for the probe.")] = Path("probe"),
    model: Model = None,
    l2: Annotated[float | None, typer.Option(help="Penalty. Default: selected on held-out images.")] = None,
    balanced: Annotated[bool, typer.Option("--balanced", help="Give all classes the same weight.")] = False,
    threshold: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Lowest probability for which a class is predicted."),
    ] = None,
    reject_far: Annotated[
        float | None,
        typer.Option(
            "--reject-far",
            help="Predict none for images far from all labeled ones; the share of good ones to lose: 0.05.",
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1. Default: the GPU if there is one; fitting uses the CPU.")
    ] = None,
    as_json: Json = False,
    *,
    labels: Any,
    reading: ReadingOptions,
) -> None:
    """Fit a probe on labeled images.

    Example: nnclr probe fit labeled --out probe --threshold 0.5
    """
    from nnclr_hub.images.labels import first_names, read_labeled
    from nnclr_hub.progress import bars

    check_folder(to, "probe.safetensors", inputs=[Path(data)])
    read_labeled(data, labels)  # a wrong folder is reported before torch is imported
    from nnclr_hub.workbench import Encoders
    from nnclr_hub.workbench.probes import FitOptions, fit_on_folder

    encoder: Any = Encoders(reading.within(model), device=device).get()
    with bars(err) as new_bar:
        options = FitOptions(l2, balanced, threshold, reject_far, device)
        progress = {"progress": new_bar("embedding", "images"), "fitting": new_bar("fitting", "steps")}
        fitted = fit_on_folder(encoder, data, options, labels=labels, **progress)
    list_broken(fitted.broken)
    if fitted.without_images:
        absent = first_names(fitted.without_images)
        err.print(f"The probe lacks classes without a readable image to fit on: {absent}.", style="yellow")
    fitted.save(to)
    if as_json:
        return print_json({"probe": str(to), "l2": fitted.probe.l2, **fitted.kept("").about})
    classes = counted(len(fitted.probe.classes), "class", "classes")
    out.print(f"{to}: {classes} from {counted(fitted.rows, 'image')}, L2 {fitted.probe.l2:.2g}")
    if fitted.held_out is not None:
        scores = "  ".join(f"{name} {value:.3f}" for name, value in fitted.held_out.scores.items())
        interval = fitted.held_out.interval
        sure = "" if interval is None else f"  (95% interval of top1: {interval[0]:.3f} to {interval[1]:.3f})"
        images = counted(fitted.held_out.images, "image")
        out.print(f"a probe of four fifths of them, on the others: {scores}{sure}  ({images})")


@group.command(name="eval")
@reads_images
@reads_labels
def evaluate(
    data: Annotated[str, typer.Argument(help="Labeled images that the probe has not seen; uses test/ if it exists.")],
    probe: Probe = Path("probe"),
    model: Model = None,
    as_json: Json = False,
    *,
    labels: Any,
    reading: ReadingOptions,
) -> None:
    """Evaluate a probe on other labeled images.

    Example: nnclr probe eval others --probe probe
    """
    from nnclr_hub.images.labels import first_names
    from nnclr_hub.workbench.probes import evaluate_probe, images_of_fit

    loaded, encoder = _load(probe, model, reading)
    with bar("embedding") as advance:
        seen = images_of_fit(probe)
        result = evaluate_probe(loaded, encoder, data, labels=labels, fitted_on=seen, progress=advance)
    if result.fitted_on:
        note = f"The probe was fitted on {result.fitted_on} of {counted(result.images, 'image')}, so the scores are too"
        err.print(f"{note} high. Evaluate it on other images.", style="yellow", soft_wrap=True)
    if as_json:
        print_json(asdict(result))
        return
    for sentence in result.notes:
        err.print(f"left out: {sentence}", style="yellow", soft_wrap=True)
    if result.unknown:
        number, names = sum(result.unknown.values()), first_names(list(result.unknown))
        unknown = f"The probe lacks the classes of {counted(number, 'image')} ({names})"
        err.print(f"{unknown}; its answers for them count as wrong.", style="yellow", soft_wrap=True)
    out.print(
        "  ".join(f"{name} {value:.3f}" for name, value in result.scores.items())
        + f"  ({counted(result.images, 'image')})"
    )
    if result.none:
        out.print(f"no class predicted: {result.none:.1%}")
    rows = [(name, f"{value:.3f}") for name, value in result.per_class.items()]
    if rows:
        out.print(new_table("class", "average precision" if loaded.several else "accuracy", rows=rows))


@group.command()
@on_store
@reads_images
def predict(
    images: Annotated[list[str] | None, typer.Argument(help="Images, folders, or tar and zip files of images.")] = None,
    probe: Probe = Path("probe"),
    model: Model = None,
    to: Annotated[Path | None, typer.Option("--out", help="CSV file. Default: standard output.")] = None,
    collection: Annotated[
        str | None, typer.Option("--collection", help="Label the items of a collection, by their stored vectors.")
    ] = None,
    *,
    place: Place,
    reading: ReadingOptions,
) -> None:
    """Label images: CSV with id, path, label, probability, and a column for each class. The id of a file is its path.

    Example: nnclr probe predict photos --probe probe --out predicted.csv

    Example: nnclr probe predict --collection photos --probe probe --out predicted.csv
    """
    from nnclr_hub.images.listing import find_images
    from nnclr_hub.workbench.probes import predict_collection, predict_files

    if bool(images) == (collection is not None):
        raise InvalidRequest("Name images or --collection, and not both.")
    if collection is not None and model is not None:
        raise InvalidRequest("A collection already has its vectors; leave out --model.")
    if to is not None:
        check_file(to, b"id,path,label,probability", b"id,path,labels,probability")
    names: Sequence[tuple[Any, Any]]
    if collection is not None:
        from nnclr_hub.probe.linear_probe import LinearProbe

        loaded = LinearProbe.load(probe)
        with place.opened(read_only=True) as opened, bar("predicting", "items") as advance:
            names, prediction = predict_collection(loaded, opened.get(collection), progress=advance)
    else:
        paths = [one.plain for one in find_images(images or ())]
        loaded, encoder = _load(probe, model, reading)
        with bar("embedding") as advance:
            names, prediction, broken = predict_files(loaded, encoder, paths, progress=advance)
        list_broken(broken)
    first = "labels" if loaded.several else "label"
    rows: list[list[Any]] = [["id", "path", first, "probability", *map(str, loaded.classes)]]
    for (id, path), label, probabilities in zip(names, prediction.labels, prediction.probabilities, strict=True):
        shown = ";".join(map(str, label)) if isinstance(label, tuple) else ("" if label is None else label)
        rows.append([id, path, shown, f"{probabilities.max():.6g}", *(f"{p:.6g}" for p in probabilities)])
    if to is None:
        text = io.StringIO()
        csv.writer(text).writerows(rows)
        print_data(text.getvalue())
        return
    try:
        with to.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
            csv.writer(file).writerows(rows)
    except OSError as error:
        raise InvalidRequest(f"{to} cannot be written ({error.strerror}); use another file.") from error
    err.print(f"Wrote {to} ({counted(len(names), 'image')})")


def _load(folder: Path, model: str | None, reading: ReadingOptions) -> tuple[Any, Any]:
    """Return the probe and its encoder, unless another encoder is named."""
    from nnclr_hub.hub.sources import recorded_source
    from nnclr_hub.probe.linear_probe import LinearProbe
    from nnclr_hub.workbench import Encoders

    probe = LinearProbe.load(folder)
    source = model or recorded_source(probe.model, "this probe") or None
    return probe, Encoders(reading.within(source)).get()
