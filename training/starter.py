"""RUN/starter.json: is the run's encoder better than a starter on labeled images of the user?

Both encoders predict the same images by linear probes that have not seen them (cross-validation), so their difference
is tested in pairs. The starter is the encoder that the run started from, or else the default one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from nnclr_hub.encoder.features import extract_features, unit_rows
from nnclr_hub.encoder.loader import load_encoder
from nnclr_hub.errors import ModelError
from nnclr_hub.file_replacement import replace_file
from nnclr_hub.hub.registry import default_model
from nnclr_hub.probe.cross_validation import out_of_fold
from nnclr_hub.probe.uncertainty import paired_difference
from nnclr_hub.progress import bar

from .data.datasets import EvaluationSet

NAME = "starter.json"
YES, NO, UNKNOWN = "yes", "no", "cannot tell"


def compare_with_starter(out: Path, images: EvaluationSet, init: str | None, console: Console) -> str | None:
    """Compare RUN/encoder with the starter, write RUN/starter.json, and return the sentence of the report.

    Args:
        images: labeled; both of its parts are used.
        init: source of the encoder that the run started from; None: the default encoder.

    Returns:
        None if the starter is unavailable, which the console says.
    """
    source = init or default_model()
    paths = [*images.train.paths, *images.test.paths]
    labels = np.concatenate([images.train.labels, images.test.labels])
    try:
        encoders = [load_encoder(out / "encoder"), load_encoder(source)]
    except ModelError as error:
        console.print(f"[yellow]note[/] The run is not compared with {source}: {error}", highlight=False)
        return None
    extracted = []
    for encoder, name in zip(encoders, ("the run", source), strict=True):
        with bar(console, f"embedding by {name}") as advance:
            extracted.append(extract_features(encoder, paths, progress=advance))
    readable = np.array([i for i in range(len(paths)) if not any(i in one.broken for one in extracted)])
    right = [out_of_fold(unit_rows(np.asarray(one.raw)[readable]), labels[readable]).right for one in extracted]
    found = paired_difference(*right)
    about = {
        "starter": source,
        "better": YES if found.low > 0 else NO if found.high < 0 else UNKNOWN,
        "labels": len(readable),
        "accuracy": float(right[0].mean()),
        "starter_accuracy": float(right[1].mean()),
        "difference": found.mean,
        "low": found.low,
        "high": found.high,
    }
    replace_file(out / NAME, json.dumps(about, indent=1) + "\n")
    return sentence(about)


def read_comparison(run: Path) -> dict[str, Any] | None:
    """Return the content of RUN/starter.json; None for a run without labels."""
    try:
        return json.loads((run / NAME).read_text("utf-8"))
    except (OSError, ValueError):
        return None


def sentence(about: Mapping[str, Any]) -> str:
    """Return the answer in words."""
    low, mean, high = (100 * about[name] for name in ("low", "difference", "high"))
    ours, theirs = (100 * about[name] for name in ("accuracy", "starter_accuracy"))
    return (
        f"Better than {about['starter']} on your images: {about['better']} with {about['labels']} labels. The accuracy "
        f"is {ours:.1f}% against {theirs:.1f}%, a difference of {mean:+.1f} points (95% interval {low:+.1f} to "
        f"{high:+.1f})."
    )
