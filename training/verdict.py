"""The verdict of a run: use this run, a starter as it is, hand-crafted vectors, or none of them.

Starters, hand-crafted vectors, the parent or the untrained network, and the most common class are scored before the
first step, on the labeled images of the run. The run is scored on the same images in the end, so its differences are
tested in pairs. Without labels the verdict says what the log shows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from nnclr_hub.hub.registry import MODELS
from nnclr_hub.probe.uncertainty import Difference, paired_difference

from .data.datasets import LEAST_LABELED
from .recipes import Recipe
from .recipes.auto import FREE_STARTER, HELPFUL_STEPS
from .references import HAND_CRAFTED, MAJORITY, UNTRAINED, Correct, References

RUN, STARTER, NOTHING, UNKNOWN = "run", "starter", "nothing", "unknown"
KEEP_COLOR = ("keep_color", "crop_only")
Line = Mapping[str, float]


@dataclass(frozen=True)
class Verdict:
    """What to use, and why.

    choice: "run", "starter" (an existing encoder, as it is), "hog", "color", "hog+color", "nothing", or "unknown"
        without labels.
    sentence: the verdict in words.
    use: the name of the chosen vectors, empty if there are none.
    learned: whether the run learned anything; None if that is unknown.
    below_parent: whether the run is worse than the encoder it started from, beyond chance.
    interval: (low, mean, high) of the run's accuracy minus that of the best other vectors; None without labels.
    scores: name -> accuracy in [0, 1] by the nearest neighbors, as a collection compares them.
    raw: the same of the raw vectors of encoders.
    labels: number of images that are scored.
    """

    choice: str
    sentence: str
    use: str = ""
    learned: bool | None = None
    below_parent: bool = False
    interval: tuple[float, float, float] | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    raw: Mapping[str, float] = field(default_factory=dict)
    labels: int = 0

    @classmethod
    def read(cls, run: Path) -> Self | None:
        """Return the verdict in RUN/run.json; None for a run that has none yet."""
        try:
            stored = json.loads((run / "run.json").read_text("utf-8")).get("verdict")
            return None if stored is None else cls(**stored)
        except (OSError, ValueError, TypeError):
            return None

    @property
    def record(self) -> dict[str, Any]:
        """The fields as JSON values, rounded."""
        return json.loads(json.dumps(asdict(self)), parse_float=lambda text: round(float(text), 4))


# ------------------------------------------------------------------------------ the decision


def judge(
    references: References, parent: str | None, recipe: Recipe, log: Sequence[Line], steps: int, keep_color: str
) -> Verdict:
    """Return the verdict of a finished run, whose vectors are scored under the name RUN.

    Args:
        parent: source of the encoder that the run started from.
        log: lines of RUN/log.jsonl.
        keep_color: the setting that keeps the colors of these images.
    """
    shown = symptoms(log, steps, final=True)
    at_chance = "nothing learned" in shown or "collapse" in shown
    correct, scores = references.correct, references.accuracies()
    if RUN not in scores:
        return _without_labels(parent, shown, at_chance, log)
    # ---- what to use
    names = [name for name in scores if name not in (RUN, MAJORITY, UNTRAINED)]
    encoders = [name for name in names if name not in HAND_CRAFTED]
    hand_crafted = max((name for name in names if name in HAND_CRAFTED), key=scores.__getitem__)
    rival = max(encoders, key=scores.__getitem__, default=hand_crafted)
    if rival != hand_crafted and _minus(correct, hand_crafted, rival).low > 0:
        rival = hand_crafted
    gain = _minus(correct, RUN, rival)
    before = parent or UNTRAINED
    change = _minus(correct, RUN, before) if before in correct else None
    learned = not at_chance and (change is None or change.low > 0)
    use = RUN if gain.low > 0 and learned else rival
    choice = use if use == RUN or use in HAND_CRAFTED else STARTER
    if _minus(correct, use, MAJORITY).low <= 0:
        choice = NOTHING
    license = f" ({MODELS[use].license})" if use in MODELS else ""
    ours, theirs = (f"{scores[name]:.1%}" for name in (RUN, rival))
    number = references.labels
    advice = {
        RUN: f"use this run. It predicts {ours} of {number} labels, and {rival} {theirs}",
        STARTER: f"use {use} as it is{license}. It predicts {theirs} of {number} labels, and this run {ours}",
        NOTHING: f"use none of these vectors for these labels. {rival} predicts {theirs} of {number}, this run {ours}, "
        f"and {MAJORITY} {scores[MAJORITY]:.1%}",
    }.get(
        choice,
        f"use {use}, which needs no training. It predicts {theirs} of {number} labels, and this run {ours}",
    )
    parts = [f"{advice} ({_points(gain)})."]
    # ---- what the run learned
    below = parent is not None and change is not None and change.high < 0
    against = "" if change is None or before == rival else f" ({_points(change)})"
    if below:
        parts.append(f"The run is worse than its parent, {parent}{against}.")
    elif not learned:
        why = "its loss is no better than chance"
        if change is not None and change.low <= 0:
            why = f"beyond chance, it is no better than {before}{against}"
        parts.append(f"The run learned nothing: {why}.")
    elif choice != RUN:
        parts.append(f"It is better than {before}{against}.")
    if scores["color"] > scores[RUN] and recipe.augmentation not in KEEP_COLOR and not recipe.keep_color_of:
        parts.append(f"Colors alone predict {scores['color']:.1%}: keep them in the views with --set {keep_color}.")
    if parent is not None and steps < HELPFUL_STEPS:
        parts.append(
            f"It made {steps} step{'s' * (steps != 1)}, and fewer than {HELPFUL_STEPS} have not helped so far."
        )
    parts += shown.values()
    return Verdict(
        choice,
        " ".join(parts),
        "" if choice == NOTHING else use,
        learned,
        below,
        (gain.low, gain.mean, gain.high),
        scores,
        references.accuracies(raw=True),
        references.labels,
    )


def _minus(correct: Mapping[str, Correct], name: str, other: str) -> Difference:
    return paired_difference(correct[name], correct[other])


def _points(difference: Difference) -> str:
    low, mean, high = (100 * value for value in (difference.low, difference.mean, difference.high))
    return f"{mean:+.1f} points, 95% interval {low:+.1f} to {high:+.1f}"


def _without_labels(parent: str | None, shown: Mapping[str, str], at_chance: bool, log: Sequence[Line]) -> Verdict:
    last = next((line for line in reversed(log) if "loss" in line), {})
    other = parent or FREE_STARTER
    parts = [f"unknown, because there are no labels: nothing shows whether this run is better than {other}."]
    if at_chance:
        parts.append("The run learned nothing.")
    elif "chance" in last:
        parts.append(f"Its loss is {last['loss']:.2f}, and random guessing gives {last['chance']:.2f}.")
    if not at_chance and last.get("rankme"):
        parts.append(f"Its projections use {last['rankme']:.0f} dimensions.")
    parts += [*shown.values(), f"Until labels decide (--labels, {LEAST_LABELED} are enough to start), prefer {other}."]
    return Verdict(UNKNOWN, " ".join(parts), learned=False if at_chance else None)


# ------------------------------------------------------------------------------ symptoms in the log

EARLY = 0.05  # share of the run in which nothing is expected yet
LINES = 3  # consecutive log lines that must show a symptom during the run


@dataclass(frozen=True)
class Symptom:
    """Something that a healthy run does not show.

    name: for programs.
    shows: whether a log line shows it.
    sentence: its meaning, and what to do.
    after: share of the run in which it is not judged.
    """

    name: str
    shows: Callable[[Line], bool]
    sentence: str
    after: float = EARLY


SYMPTOMS = (
    Symptom(
        "nothing learned",
        lambda line: line.get("loss", 0.0) >= line.get("chance", float("inf")) * 0.98,
        "The loss is {loss:.2f}, and random guessing gives {chance:.2f}: the encoder does not distinguish images. "
        "Check that the images differ, train longer, or lower base_lr.",
        after=0.5,  # the loss of short runs starts to fall long after the warm-up
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


def symptoms(log: Sequence[Line], steps: int, *, warmup: float = 0.0, final: bool = False) -> dict[str, str]:
    """Return the symptoms in the last lines, as {name: sentence with values}.

    Args:
        log: lines of RUN/log.jsonl.
        steps: of the whole run.
        warmup: share of the steps with a rising learning rate, during which nothing is judged.
        final: whether the run is finished. Its last lines are judged, however few they are.
    """
    lines = [line for line in log if "loss" in line][-LINES:]
    if not lines or (len(lines) < LINES and not final):
        return {}
    judged = lines[-1:] if final else lines
    return {
        one.name: one.sentence.format(**lines[-1])
        for one in SYMPTOMS
        if all(one.shows(line) and (final or line["step"] > max(one.after, warmup) * steps) for line in judged)
    }
