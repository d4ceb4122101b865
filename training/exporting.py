"""`nnclr export RUN FOLDER`: a run's encoder as a model folder to give away, its figures measured again.

    export(Path("runs/photos"), Path("models/photos"), data=["photos"])     # the encoder that the run scored
    export(run, folder, encoder="momentum", data=["photos"])                # the other one of its two networks

What is measured again is 20-NN, on the images that the caller names, with the weights as they were written. A
figure that differs by more than 0.1 point on the same images stops the export; on others, or on none, it stands
as "not checked". A run that was stopped has the figures of its last checkpoint: what is measured takes their place.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import Tensor

from nnclr_hub.encoder.encoder import load_encoder
from nnclr_hub.errors import CheckpointError, InvalidRequest, WeightsMismatch
from nnclr_hub.hub.layout import read_config
from nnclr_hub.publish.export import encoder_of, export_run, require_free

from .checkpoint import NAME, load_checkpoint
from .data.named import find_data
from .evals.knn import knn
from .evaluation import labeled_sets
from .measuring import measuring
from .recipes import Recipe

TOLERANCE = 0.001  # of an accuracy in [0, 1]
FLIPS = 2  # images of a small set that rounding may move to another class
ONLINE, MOMENTUM = "online", "momentum"
PLACES = {ONLINE: ("backbone.", "projection."), MOMENTUM: ("momentum.encoder.0.", "momentum.encoder.1.")}


@dataclass(frozen=True)
class Exported:
    """What was written.

    folder: the model folder.
    metrics: the figures on its card, accuracies in [0, 1].
    rechecked: of each, what it was when measured again; None for those that were not checked.
    """

    folder: Path
    metrics: Mapping[str, float]
    rechecked: Mapping[str, float | None]


def export(
    run: Path,
    folder: Path,
    *,
    encoder: str | None = None,
    data: Sequence[str | Path] = (),
    dtype: str = "fp32",
    support_set: bool = False,
    provenance: Mapping[str, Any] | None = None,
    device: str | None = None,
    say: Console | None = None,
) -> Exported:
    """Writes the model folder of a run's encoder.

    Args:
        run: a run folder, or a model folder.
        folder: where to.
        encoder: "online" or "momentum"; default the one that the run scored and exported.
        data: folders, or names of data sets, to measure on again.
        dtype: "fp32" or "fp16".
        support_set: keep the run's support set beside it.
        provenance: see `export_run`.
        device: for the measurement; default the GPU if there is one.
        say: where progress is shown; default the terminal's standard error.

    Raises:
        InvalidRequest: the run has no such network or no support set, or `folder` holds something else.
        CheckpointError: the checkpoint that they would come from is missing or damaged.
        WeightsMismatch: the weights are not whole, or do not measure what the run measured on the same images.
    """
    console = say or Console(stderr=True)
    require_free(folder)
    source = encoder_of(Path(run))
    about, parts = _asked_for(Path(run), source, encoder, support_set=support_set)
    about |= provenance or {}
    with tempfile.TemporaryDirectory() as folder_to_measure:
        written = export_run(source, Path(folder_to_measure) / "encoder", dtype=dtype, provenance=about, **parts)
        pictures = int(_settings(Path(run)).get("eval_images", Recipe().eval_images))
        measured, seen, counts = _measure(written, data, pictures, device, console)
        metrics, checks = _compared(about, measured, seen, counts)
        about |= {"metrics": metrics, "rechecked": checks}
        if measured:
            about["measured_on"] = {**about.get("measured_on", {}), **seen}
            about |= {"measured_at_step": about["step"]} if "step" in about else {}
        bank = parts.get("support_set")
        final = export_run(written, folder, dtype=dtype, provenance=about, support_set=bank)
        return Exported(final, metrics, checks)


def _asked_for(
    run: Path, source: Path, encoder: str | None, *, support_set: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the model folder says of itself; and what `export_run` is to take from the checkpoint instead of it."""
    about = dict(read_config(source).nnclr)
    parts: dict[str, Any] = {}
    if encoder is not None and encoder != about.get("encoder", ONLINE):
        parts |= _other_network(run, encoder)
        about["metrics"] = {}  # they are the first network's
    if support_set:
        parts["support_set"] = _support_set(run)
    return about | ({"encoder": encoder} if encoder else {}), parts


def _other_network(run: Path, encoder: str) -> dict[str, Any]:
    """Weights and heads of the network that the run did not export."""
    if encoder not in PLACES:
        raise InvalidRequest(f"encoder={encoder!r} is none of {', '.join(PLACES)}.")
    learner = _learner(run, f"its {encoder} weights")
    backbone, projection = (_below(learner, place) for place in PLACES[encoder])
    if not backbone:
        raise InvalidRequest(f"The method of {run} has no {encoder} encoder: leave --encoder out.")
    heads = {f"projection.{key}": value for key, value in projection.items()}
    heads |= {f"prediction.{key}": value for key, value in _below(learner, "prediction.").items()}
    return {"weights": backbone, "heads": heads}


def _support_set(run: Path) -> Tensor:
    """(M, D) float32 unit rows that were enqueued; rows still random are left out."""
    found = _below(_learner(run, "its support set"), "support_set.")
    if not found:
        raise InvalidRequest(f"The method of {run} has no support set: leave --support-set out.")
    return found["queue"][found["enqueued_at"] >= 0]


def _learner(run: Path, what: str) -> dict[str, Tensor]:
    saved = load_checkpoint(run)
    if saved is None:
        raise CheckpointError(f"{run} has no {NAME}, which holds {what}: give the run folder itself, whole.")
    return saved["learner"]


def _below(learner: Mapping[str, Tensor], place: str) -> dict[str, Tensor]:
    return {key.removeprefix(place): value for key, value in learner.items() if key.startswith(place)}


def _settings(run: Path) -> dict[str, Any]:
    """The run's settings, of run.json; none for a model folder."""
    try:
        return json.loads((run / "run.json").read_text("utf-8"))
    except FileNotFoundError:
        return {}


def _measure(
    folder: Path, data: Sequence[str | Path], pictures: int, device: str | None, say: Console
) -> tuple[dict[str, float], dict[str, str], dict[str, int]]:
    """20-NN of each labeled set, {"knn20/NAME": accuracy}; which images each set is, {"NAME": digest}; and of how
    many that is the accuracy, {"NAME": images}."""
    if not data:
        return {}, {}, {}
    encoder = load_encoder(folder, device=device)
    sets, digests = labeled_sets(find_data(data, say), encoder.transform.preprocessing, pictures, say)
    if not sets:
        raise InvalidRequest(
            f"{', '.join(map(str, data))} cannot be measured on: give a folder with train/ and val/ or test/, in which "
            "each class has a folder."
        )
    with measuring():
        features = [one.embed(encoder) for one in sets]
    values = {name: round(value, 4) for one in features for name, value in knn(one)}
    return values, digests, {one.name: len(one.test.labels) for one in features}


def _compared(
    about: Mapping[str, Any], measured: Mapping[str, float], seen: Mapping[str, str], counts: Mapping[str, int]
) -> tuple[dict[str, float], dict[str, float | None]]:
    """The figures for the card, and what each was when measured again."""
    known, pictures = about.get("metrics") or {}, about.get("measured_on") or {}
    if measured and about.get("measured_at_step", about.get("step")) != about.get("step"):
        known = {}  # of a run that was stopped: they are an earlier step's
    checks: dict[str, float | None] = dict.fromkeys(known)
    for name, value in measured.items():
        data = name.partition("/")[2]
        same = pictures.get(data) == seen[data]
        near = max(TOLERANCE, FLIPS / counts[data]) + 1e-4  # both are rounded
        if name not in known:
            checks[name] = value  # a figure of its own, measured here
        elif abs(value - known[name]) <= near and (same or data not in pictures):
            checks[name] = value
        elif same:
            when = "" if "measured_at_step" in about else ", perhaps at an earlier step"
            raise WeightsMismatch(
                f"The exported weights measure {name} {value}, and the run measured {known[name]} on the same "
                f"images{when}: go on with --resume to the run's end and export it again."
            )
    return {**known, **{name: value for name, value in measured.items() if name not in known}}, checks
