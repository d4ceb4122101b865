"""Detect from a run's log, without labels, whether the run is learning.

Each symptom has a sentence that states what it means and what to do. The program prints the sentence once, and the
report shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Line = dict[str, float]
EARLY = 0.05  # share of the run in which nothing is expected yet
LINES = 3  # consecutive log lines that must show a symptom


@dataclass(frozen=True)
class Symptom:
    """Something that a healthy run does not show.

    name: for programs.
    shows: whether a log line shows it.
    sentence: its meaning, and what to do.
    """

    name: str
    shows: Callable[[Line], bool]
    sentence: str


SYMPTOMS = (
    Symptom(
        "nothing learned",
        lambda line: line.get("loss", 0.0) >= line.get("chance", float("inf")) * 0.98,
        "The loss is {loss:.2f}, and random guessing gives {chance:.2f}: the encoder does not distinguish images. "
        "Check that the images differ, and lower base_lr.",
    ),
    Symptom(
        "collapse",
        lambda line: line.get("z_std", 1.0) < 0.1,
        "The projections of all images are nearly equal (z_std {z_std:.2f}; healthy is near 1): the encoder has "
        "collapsed. Lower base_lr, or raise warm_start.",
    ),
    Symptom(
        "few dimensions",
        lambda line: line.get("rankme", 9.0) < 2,
        "The projections use only {rankme:.1f} dimensions: the encoder is collapsing. Lower base_lr, or raise "
        "warm_start.",
    ),
    Symptom(
        "one neighbor for all",
        lambda line: line.get("nn_distinct", 1.0) < 0.1,
        "The distinct neighbors in a batch are {nn_distinct:.0%} of its images: the support set has collapsed. Raise "
        "queue_size or warm_start.",
    ),
    Symptom(
        "self-matches",
        lambda line: line.get("nn_similarity", 0.0) > 0.999 and line.get("nn_distinct", 0.0) > 0.5,
        "Neighbors nearly equal their queries (similarity {nn_similarity:.4f}): the support set returns the images "
        "themselves. Keep mask_own on, and look for duplicate images.",
    ),
    Symptom(
        "queue not filled",
        lambda line: line.get("queue_fill", 1.0) < 0.5 and line.get("neighbor_share", 0.0) > 0.5,
        "Only {queue_fill:.0%} of the support set is filled; the rest of its rows are random, and neighbors come from "
        "them. Lower queue_size, or raise warm_start.",
    ),
)


def symptoms(log: Sequence[Line], steps: int) -> dict[str, str] | None:
    """Return the symptoms in the last lines, as {name: sentence with values}, or None if it is too early to tell.

    Args:
        log: lines of RUN/log.jsonl.
    """
    lines = [line for line in log if "loss" in line and line["step"] > EARLY * steps][-LINES:]
    if len(lines) < LINES:
        return None
    return {one.name: one.sentence.format(**lines[-1]) for one in SYMPTOMS if all(one.shows(line) for line in lines)}
