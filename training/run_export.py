"""`nnclr export RUN FOLDER`: write a run's encoder as a model folder, with its scores measured again.

    export(Path("runs/photos"), Path("models/photos"), data=["photos"])

The export measures 20-NN again on the images that the caller names, with the weights as written. A difference of more
than 0.1 point on the same images stops the export. Scores on other images, or on none, are recorded as not checked.
The encoder of a run that was stopped has no scores until then.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from nnclr_hub.encoder.loader import load_encoder
from nnclr_hub.errors import InvalidRequest, WeightsMismatch
from nnclr_hub.hub.layout import read_config
from nnclr_hub.publish.export import encoder_of, export_run, require_free
from nnclr_hub.terminal import PlainConsole

from .data.named_sets import find_data
from .evals.frozen import knn
from .evals.task import evaluation_sets
from .evaluation import LabeledSet, scores_of
from .recipes import Recipe
from .report import read_about
from .run import CHECKPOINT

TOLERANCE = 0.001  # for an accuracy in [0, 1]
FLIPS = 2  # images of a small set that rounding may assign to another class


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
    data: Sequence[str | Path] = (),
    dtype: str = "fp32",
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
        data: folders, or names of data sets, to measure on.
        provenance, force_license, graph: see `export_run`.
        force: export an encoder whose verdict is that it is worse than its parent.
        device: for the measurement; default the GPU if there is one.
        console: console for progress; default standard error.

    Raises:
        InvalidRequest: `folder` holds something else, or the encoder is worse than its parent.
        WeightsMismatch: the weights are incomplete, or score differently from the run on the same images.
    """
    console = console or PlainConsole(stderr=True)
    require_free(folder)
    source = encoder_of(Path(run))
    about = dict(read_config(source).nnclr)
    verdict = about.get("verdict") or {}
    if verdict.get("below_parent") and not force:
        raise InvalidRequest(
            f"The encoder is worse than the one that it started from. Its verdict is: {verdict['sentence']} Use "
            "--force to export it; its card will show this verdict."
        )
    if not verdict and about.get("parents") and (Path(run) / CHECKPOINT).exists():
        console.print("note: the run was stopped before its verdict, so it is not compared with its parent")
    about |= provenance or {}
    with tempfile.TemporaryDirectory() as folder_to_measure:
        to_measure = Path(folder_to_measure) / "encoder"
        written = export_run(
            source, to_measure, dtype=dtype, provenance=about, force_license=force_license, graph=False
        )
        most = int(read_about(Path(run)).get("eval_images", Recipe().eval_images))
        about |= _measured_again(about, *_measure(written, data, most, device, console), console)
        final = export_run(written, folder, dtype=dtype, provenance=about, graph=graph)
        return Exported(final, about["metrics"], about["rechecked"], verdict.get("sentence", ""))


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


def _measured_again(
    about: Mapping[str, Any], measured: Mapping[str, float], sets: Sequence[LabeledSet], console: Console
) -> dict[str, Any]:
    """Return the fields of the record about scores.

    Scores of the run stay, as not checked if their images are not known to be those that are measured now.
    """
    metrics, digests, splits = (dict(about.get(name) or {}) for name in ("metrics", "measured_on", "splits"))
    if not sets:
        return {"metrics": metrics, "rechecked": dict.fromkeys(metrics)}
    rechecked: dict[str, float | None] = dict.fromkeys(metrics)
    for (name, value), one in zip(measured.items(), sets, strict=True):
        scored = any(known.partition("/")[2] == one.name for known in metrics)
        if scored and digests.get(one.name) != one.images:
            console.print(
                f"note: by its record, the run did not score these images of {one.name}, so its scores stay and are "
                f"not checked; on these images {name} is {value}"
            )
            continue
        tolerance = max(TOLERANCE, FLIPS / one.tested) + 1e-4  # both values are rounded
        if abs(metrics.setdefault(name, value) - value) > tolerance:
            raise WeightsMismatch(
                f"The exported weights score {name} {value}, but the run scored {metrics[name]} on the same images, so "
                "nothing was written. The weights or the record of the run have changed since."
            )
        rechecked[name] = value
        digests[one.name], splits[one.name] = one.images, one.split
    return {"metrics": metrics, "rechecked": rechecked, "measured_on": digests, "splits": splits}
