"""`nnclr export RUN FOLDER`: write a run's encoder as a model folder, with its scores measured again.

    export(Path("runs/photos"), Path("models/photos"), data=["photos"])     # the encoder that the run scored
    export(run, folder, encoder="momentum", data=["photos"])                # the run's other network

The export measures 20-NN again on the images that the caller names, with the weights as written. A difference of more
than 0.1 point on the same images stops the export. Scores on other images, or on none, are recorded as not checked.
A run that was stopped has the scores of its last checkpoint; newly measured scores replace them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import Tensor

from nnclr_hub.encoder.loader import load_encoder
from nnclr_hub.errors import CheckpointError, InvalidRequest, WeightsMismatch
from nnclr_hub.hub.layout import read_config
from nnclr_hub.publish.export import encoder_of, export_run, require_free
from nnclr_hub.terminal import PlainConsole

from .checkpoint import load_checkpoint
from .data.named_sets import find_data
from .evals.frozen import knn
from .evals.task import evaluation_sets
from .evaluation import LabeledSet, scores_of
from .recipes import Recipe
from .report import read_about
from .run import CHECKPOINT
from .verdict import TRAINED

TOLERANCE = 0.001  # for an accuracy in [0, 1]
FLIPS = 2  # images of a small set that rounding may assign to another class
ONLINE, MOMENTUM = "online", "momentum"
PLACES = {ONLINE: ("backbone.", "projection."), MOMENTUM: ("momentum.encoder.0.", "momentum.encoder.1.")}


@dataclass(frozen=True)
class Exported:
    """Result of an export.

    folder: the model folder.
    metrics: the scores on its card, accuracies in [0, 1].
    rechecked: for each score, the value measured again; None if it was not measured.
    verdict: verdict of the run, in words; empty if it has none.
    """

    folder: Path
    metrics: Mapping[str, float]
    rechecked: Mapping[str, float | None]
    verdict: str = ""


def export(
    run: Path,
    folder: Path,
    *,
    encoder: str | None = None,
    data: Sequence[str | Path] = (),
    dtype: str = "fp32",
    support_set: bool = False,
    provenance: Mapping[str, Any] | None = None,
    force_license: bool = False,
    force: bool = False,
    graph: bool | None = None,
    device: str | None = None,
    console: Console | None = None,
) -> Exported:
    """Write the model folder of a run's encoder.

    Args:
        run: a run folder, or a model folder.
        encoder: "online" or "momentum"; default the one that the run scored and exported.
        data: folders, or names of data sets, to measure on.
        provenance, force_license, graph: see `export_run`.
        force: export an encoder whose verdict is that it is worse than its parent.
        device: for the measurement; default the GPU if there is one.
        console: console for progress; default standard error.

    Raises:
        InvalidRequest: the run has no such network or support set, or kept its starter; `folder` holds something else,
            or the encoder is worse than its parent.
        CheckpointError: the checkpoint is missing or damaged.
        WeightsMismatch: the weights are incomplete, or score differently from the run on the same images.
    """
    console = console or PlainConsole(stderr=True)
    require_free(folder)
    source = encoder_of(Path(run))
    verdict = read_config(source).nnclr.get("verdict") or {}
    # other networks and the support set belong to the trained weights
    if verdict.get("kept") and source != Path(run) and (encoder or support_set):
        raise InvalidRequest(
            f"{source} is the starter, which the run did not improve; export {Path(run) / TRAINED} for the trained one."
        )
    about, parts = _select_parts(Path(run), source, encoder, support_set=support_set)
    if verdict.get("below_parent") and not force:
        raise InvalidRequest(
            f"The encoder is worse than the one that it started from. Its verdict is: {verdict['sentence']} Use "
            "--force to export it; its card will show this verdict."
        )
    if not verdict and about.get("parents") and (Path(run) / CHECKPOINT).exists():
        console.print("note: the run was stopped before its verdict, so it is not compared with its parent")
    about |= provenance or {}
    parts["force_license"] = force_license
    with tempfile.TemporaryDirectory() as folder_to_measure:
        written = export_run(
            source, Path(folder_to_measure) / "encoder", dtype=dtype, provenance=about, graph=False, **parts
        )
        most = int(read_about(Path(run)).get("eval_images", Recipe().eval_images))
        measured, sets = _measure(written, data, most, device, console)
        digests = {one.name: one.images for one in sets}
        metrics, checks = _compare(about, measured, digests, {one.name: one.tested for one in sets})
        about |= {"metrics": metrics, "rechecked": checks}
        if measured:
            before = about.get("measured_on") or {}
            unchecked = {name.partition("/")[2] for name, again in checks.items() if again is None}
            # other images must not be recorded for scores that were not measured on them
            new = {
                one: digest
                for one, digest in digests.items()
                if one not in unchecked or before.get(one, digest) == digest
            }
            about["measured_on"] = {**before, **new}
            splits = {one.name: one.split for one in sets if one.name in new}
            about["splits"] = {**(about.get("splits") or {}), **splits}
            about |= {"measured_at_step": about["step"]} if "step" in about else {}
        kept = parts.get("support_set")
        final = export_run(written, folder, dtype=dtype, provenance=about, support_set=kept, graph=graph)
        return Exported(final, metrics, checks, verdict.get("sentence", ""))


def _select_parts(
    run: Path, source: Path, encoder: str | None, *, support_set: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    about = dict(read_config(source).nnclr)
    parts: dict[str, Any] = {}
    if encoder is not None and encoder != about.get("encoder", ONLINE):
        parts |= _other_network(run, encoder)
        about["metrics"] = {}  # they belong to the other network, like the verdict
        about.pop("verdict", None)
    if support_set:
        parts["support_set"] = _support_set(run)
    return about | ({"encoder": encoder} if encoder else {}), parts


def _other_network(run: Path, encoder: str) -> dict[str, Any]:
    if encoder not in PLACES:
        raise InvalidRequest(f"encoder must be one of {', '.join(PLACES)}; got {encoder!r}.")
    learner = _learner(run, f"its {encoder} weights")
    backbone, projection = (_below(learner, place) for place in PLACES[encoder])
    if not backbone:
        raise InvalidRequest(f"The method of {run} has no {encoder} encoder; leave --encoder out.")
    heads = {f"projection.{key}": value for key, value in projection.items()}
    heads |= {f"prediction.{key}": value for key, value in _below(learner, "prediction.").items()}
    return {"weights": backbone, "heads": heads}


def _support_set(run: Path) -> Tensor:
    found = _below(_learner(run, "its support set"), "support_set.")
    if not found:
        raise InvalidRequest(f"The method of {run} has no support set; leave --support-set out.")
    return found["queue"][found["enqueued_at"] >= 0]


def _learner(run: Path, what: str) -> dict[str, Tensor]:
    saved = load_checkpoint(run)
    if saved is None:
        raise CheckpointError(f"{run} has no {CHECKPOINT}, which holds {what}; pass the complete run folder.")
    return saved["learner"]


def _below(learner: Mapping[str, Tensor], place: str) -> dict[str, Tensor]:
    return {key.removeprefix(place): value for key, value in learner.items() if key.startswith(place)}


def _measure(
    folder: Path, data: Sequence[str | Path], most: int, device: str | None, console: Console
) -> tuple[dict[str, float], list[LabeledSet]]:
    """Measure 20-NN on each labeled set; return {"knn20/NAME": accuracy} and the sets."""
    if not data:
        return {}, []
    encoder = load_encoder(folder, device=device, backend="torch")
    found = evaluation_sets(find_data(data, console))
    sets = [LabeledSet(one, encoder.transform.preprocessing, most, console) for one in found]
    if not sets:
        raise InvalidRequest(
            f"{', '.join(map(str, data))} has no labeled images to measure on; provide a folder with one folder per "
            "class, or with such folders in train/ and val/ or test/."
        )
    return {name: round(value, 4) for name, value in scores_of(sets, encoder, [knn]).items()}, sets


def _compare(
    about: Mapping[str, Any], measured: Mapping[str, float], digests: Mapping[str, str], counts: Mapping[str, int]
) -> tuple[dict[str, float], dict[str, float | None]]:
    """Return the scores for the card, and the value of each when measured again."""
    known, known_digests = about.get("metrics") or {}, about.get("measured_on") or {}
    if measured and about.get("measured_at_step", about.get("step")) != about.get("step"):
        known = {}  # the run was stopped: they belong to an earlier step
    checks: dict[str, float | None] = dict.fromkeys(known)
    for name, value in measured.items():
        data = name.partition("/")[2]
        same = known_digests.get(data) == digests[data]
        tolerance = max(TOLERANCE, FLIPS / counts[data]) + 1e-4  # both values are rounded
        if name not in known:
            checks[name] = value  # a new score
        elif abs(value - known[name]) <= tolerance and (same or data not in known_digests):
            checks[name] = value
        elif same:
            when = "" if "measured_at_step" in about else ", perhaps at an earlier step"
            raise WeightsMismatch(
                f"The exported weights score {name} {value}, but the run scored {known[name]} on the same "
                f"images{when}. Finish the run with --resume and export it again."
            )
    return {**known, **{name: value for name, value in measured.items() if name not in known}}, checks
