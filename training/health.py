"""Whether a run is learning anything, told without a label from what it logs.

Each sign has a sentence that says what it means and what to do; the program prints it once, the report
shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Line = dict[str, float]
EARLY = 0.05  # share of the run in which nothing is expected yet
LINES = 3  # log lines that must all show a sign


@dataclass(frozen=True)
class Sign:
    """Something that a healthy run does not show.

    name: for programs.
    shows: whether a log line has it.
    sentence: what it means, and what to do.
    """

    name: str
    shows: Callable[[Line], bool]
    sentence: str


SIGNS = (
    Sign(
        "nothing learned",
        lambda line: line.get("loss", 0.0) >= line.get("chance", float("inf")) * 0.98,
        "The loss is {loss:.2f}, and a guess has {chance:.2f}: the encoder tells no image from another. Look whether "
        "the images differ at all, and lower base_lr.",
    ),
    Sign(
        "collapse",
        lambda line: line.get("z_std", 1.0) < 0.1,
        "The projections of all images are nearly the same (z_std {z_std:.2f}; healthy is near 1): the encoder has "
        "collapsed. Lower base_lr, or train longer with the view as positive (warm_start).",
    ),
    Sign(
        "few dimensions",
        lambda line: line.get("rankme", 9.0) < 2,
        "The projections use {rankme:.1f} dimensions: the encoder is collapsing. Lower base_lr, or train longer with "
        "the view as positive (warm_start).",
    ),
    Sign(
        "one neighbor for all",
        lambda line: line.get("nn_distinct", 1.0) < 0.1,
        "The images of a batch share {nn_distinct:.0%} as many neighbors as there are images: the support set has "
        "collapsed. Raise queue_size or warm_start.",
    ),
    Sign(
        "self-matches",
        lambda line: line.get("nn_similarity", 0.0) > 0.999 and line.get("nn_distinct", 0.0) > 0.5,
        "Neighbors are as good as equal to their queries (similarity {nn_similarity:.4f}): the support set gives "
        "images back to themselves. Leave mask_own on, and look for duplicates among the images.",
    ),
    Sign(
        "queue not filled",
        lambda line: line.get("queue_fill", 1.0) < 0.5 and line.get("neighbor_share", 0.0) > 0.5,
        "Most of the support set ({queue_fill:.0%} filled) is still its random start, and the neighbors come from "
        "it. Lower queue_size, or raise warm_start.",
    ),
)


def symptoms(log: Sequence[Line], steps: int) -> dict[str, str] | None:
    """The signs that the last lines show, by name, as sentences with their figures; None: too early to tell.

    Args:
        log: lines of RUN/log.jsonl.
        steps: of the whole run.
    """
    lines = [line for line in log if "loss" in line and line["step"] > EARLY * steps][-LINES:]
    if len(lines) < LINES:
        return None
    return {sign.name: sign.sentence.format(**lines[-1]) for sign in SIGNS if all(sign.shows(line) for line in lines)}
