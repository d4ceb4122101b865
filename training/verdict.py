"""The verdict of a run: use this run, a starter as it is, hand-crafted vectors, or none of them.

Starters, hand-crafted vectors, the parent or the untrained network, and the most common class are scored before the
first step, on the labeled images of the run. The run is scored on the same images in the end, so its differences are
tested in pairs. Without labels the verdict says what the log shows.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from PIL import Image
from rich.console import Console

from nnclr_hub.encoder.features import FeatureSource, extract_features
from nnclr_hub.encoder.hand_crafted import FLOORS
from nnclr_hub.encoder.loader import load_encoder
from nnclr_hub.encoder.preprocessing import unit_rows
from nnclr_hub.errors import ImageError, ModelError
from nnclr_hub.hub.layout import HELD_OUT
from nnclr_hub.hub.registry import MODELS, default_model
from nnclr_hub.images.channels import for_people
from nnclr_hub.images.decode import decode_scaled
from nnclr_hub.images.reading import PLAIN, ImageReading
from nnclr_hub.json_text import MALFORMED, parse_json
from nnclr_hub.plural import counted
from nnclr_hub.probe.cross_validation import FOLDS, K, out_of_fold
from nnclr_hub.probe.knn import knn_classify
from nnclr_hub.probe.uncertainty import Difference, paired_difference
from nnclr_hub.progress import bar
from nnclr_hub.store.settings import StoreSettings
from nnclr_hub.store.spec import CollectionSpec
from nnclr_hub.store.vector_transform import VectorTransform

from .evals.task import LEAST_LABELED, Task
from .monitor import NOT_FINITE
from .recipes import Recipe
from .recipes.auto import FREE_STARTER, HELPFUL_STEPS

RUN, STARTER, NOTHING, UNKNOWN = "run", "starter", "nothing", "unknown"
TRAINED = "trained"  # folder of a run with the trained encoder, if RUN/encoder keeps the weights of its parent
SAMPLED = 1000  # most labeled images that decide, of all sets together; each starter embeds them in seconds
HAND_CRAFTED = ("hog", "color", "hog+color")
MAJORITY, UNTRAINED = "the most common class", "the untrained network"
Correct = np.ndarray  # (N,) float, 1 where the prediction is the label
RAW = " raw"  # suffix of the name of a score
KEEP_COLOR = ("keep_color", "crop_only")
Line = Mapping[str, Any]
EXAMPLES, NEAREST, SIDE = 6, 6, 96  # images of which the report shows the nearest others; pixels of the longer side


@dataclass(frozen=True)
class Verdict:
    """What to use, and why.

    choice: "run", "starter" (an existing encoder, as it is), "hog", "color", "hog+color", "nothing", or "unknown"
        without labels.
    sentence: the verdict in words.
    use: the name of the chosen vectors, empty if there are none.
    learned: whether the run learned anything; None if that is unknown.
    below_parent: whether the run is worse than the encoder it started from, beyond chance.
    kept: source of the encoder that RUN/encoder still is, because the run refuses its own weights; else empty.
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
    kept: str = ""
    interval: tuple[float, float, float] | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    raw: Mapping[str, float] = field(default_factory=dict)
    labels: int = 0

    @classmethod
    def read(cls, run: Path) -> Self | None:
        """Return the verdict in RUN/run.json; None for a run that has none yet."""
        try:
            stored = parse_json((run / "run.json").read_bytes()).get("verdict")
            return None if stored is None else cls(**stored)
        except (OSError, *MALFORMED):
            return None

    @property
    def record(self) -> dict[str, Any]:
        """The fields as JSON values, rounded."""
        return json.loads(json.dumps(asdict(self)), parse_float=lambda text: round(float(text), 4))


# ------------------------------------------------------------------------------ what a run is compared with


class References:
    """What a run is compared with: who predicts which label.

    Args:
        sets: labeled sets of the run. Without any, every method does nothing.
        recipe: for the page and the channels to read of each file; starters take three.
        saved: `state` of a checkpoint. It is used if the images are the same.
    """

    def __init__(self, sets: Sequence[Task], recipe: Recipe, saved: Mapping[str, Any] | None, console: Console) -> None:
        reading = recipe.preprocessing.reading
        self._sets = [_sample(one, SAMPLED // len(sets)) for one in sets]
        self._reading, self._channels, self._console = reading, recipe.in_chans, console
        digests = [f"{one.train.digest} {one.test.digest} {one.split}" for one in self._sets]
        labels = [(one.classes, part.labels.tolist()) for one in self._sets for part in (one.train, one.test)]
        self._digest = hashlib.sha256(f"{digests} {labels} {reading}".encode()).hexdigest()[:32]
        known = saved["correct"] if saved and saved["digest"] == self._digest else {}
        self.correct: dict[str, Correct] = {name: np.array(list(text), float) for name, text in known.items()}
        self.examples: dict[str, Any] = {}  # a few images and the nearest others, by the run

    @property
    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        digits = {name: "".join(map(str, correct.astype(int))) for name, correct in self.correct.items()}
        return {"digest": self._digest, "correct": digits}

    def measure(
        self, source: str, encoder: Callable[[], FeatureSource] | None, teacher: FeatureSource | None = None
    ) -> None:
        """Score what the run is compared with, and print it.

        Args:
            source: name of the encoder that the run starts from.
            encoder: returns it; None if it no longer exists.
            teacher: the encoder that gives the targets, if any.
        """
        if not self._sets:
            return
        if MAJORITY not in self.correct:
            self.correct[MAJORITY] = np.concatenate([_majority(one) for one in self._sets])
        starters = dict.fromkeys((FREE_STARTER, default_model())) if self._channels == 3 else {}
        reading = None if self._reading == PLAIN else self._reading
        sources: dict[str, Callable[[], FeatureSource] | None] = {
            **{name: partial(replace, FLOORS[name], reading=self._reading) for name in HAND_CRAFTED},
            **{name: partial(load_encoder, name, reading=reading) for name in starters},
        }
        sources.setdefault(source, encoder)
        if teacher is not None:
            sources.setdefault(teacher.name, lambda: teacher)
        for name, create in sources.items():
            if name not in self.correct and create is not None:
                try:
                    self.score(name, create())
                except ModelError as error:
                    self._console.print(f"note: {name} is not compared: {error}")
        raw = {name: f" ({value:.1%} raw)" for name, value in self.accuracies(raw=True).items()}
        shown = "; ".join(f"{name} {value:.1%}{raw.get(name, '')}" for name, value in self.accuracies().items())
        self._console.print(f"before the run, on {self.labels} labeled images: {shown}")

    def score(self, name: str, source: FeatureSource) -> None:
        """Score vectors by their nearest neighbors: raw, and as a collection compares them."""
        if not self._sets:
            return
        with bar(self._console, f"scoring {name}") as advance:
            scored = [_correct(one, source, advance) for one in self._sets]
        for kind in scored[0][0]:
            self.correct[name + kind] = np.concatenate([correct[kind] for correct, _ in scored])
        if name == RUN:
            self.examples = _examples(self._sets[0], scored[0][1], self._reading)

    def accuracies(self, *, raw: bool = False) -> dict[str, float]:
        """Return the accuracy by name, of the raw vectors or as a collection compares them."""
        means = {name: float(correct.mean()) for name, correct in self.correct.items()}
        return {name.removesuffix(RAW): value for name, value in means.items() if name.endswith(RAW) == raw}

    @property
    def labels(self) -> int:
        """Number of images that are scored."""
        return len(next(iter(self.correct.values()), ()))


def _sample(data: Task, most: int) -> Task:
    parts, random = [], np.random.default_rng(0)
    for part in (data.train, data.test):
        known = np.flatnonzero(part.labels >= 0)
        parts.append(part.keep(np.sort(random.permutation(known)[: max(2, most // 2)])))
    return replace(data, train=parts[0], test=parts[1])


def _correct(
    data: Task, source: FeatureSource, advance: Callable[[int, int], None]
) -> tuple[dict[str, Correct], np.ndarray]:
    """Return what the nearest neighbors predict correctly, by kind of vector; an unreadable image is wrong.

    A part that was held out from one pool of images predicts it by cross-validation: all of them are scored. The second
    result has the vectors (N, D), NaN for an unreadable image.
    """
    raw = np.asarray(extract_features(source, [*data.train.paths, *data.test.paths], progress=advance).raw)
    labels = np.concatenate([data.train.labels, data.test.labels])
    readable = np.asarray(np.isfinite(raw).all(axis=1))
    tested = np.arange(len(labels)) >= (0 if data.split == HELD_OUT else len(data.train.labels))
    if source.name in HAND_CRAFTED:
        kinds = {"": VectorTransform.fit(raw[readable], "center")(raw)}
    else:
        kinds = {"": _as_compared(source, raw, readable), RAW: unit_rows(raw)}
    correct_by_kind = {}
    for kind, rows in kinds.items():
        correct = np.zeros(len(labels))
        if data.split != HELD_OUT:
            known, asked = readable & ~tested, readable & tested
            correct[asked] = knn_classify(rows[known], labels[known], rows[asked], k=K) == labels[asked]
        elif readable.sum() >= FOLDS:
            correct[readable] = out_of_fold(rows[readable], labels[readable], classifier="knn").right
        correct_by_kind[kind] = correct[tested]
    return correct_by_kind, np.where(readable[:, None], kinds[""], np.nan)


def _examples(data: Task, rows: np.ndarray, reading: ImageReading) -> dict[str, Any]:
    """Return a few scored images and the nearest others, in the form of a line of RUN/neighbors.jsonl."""
    paths, usable = [*data.train.paths, *data.test.paths], np.isfinite(rows).all(axis=1)
    tested = np.arange(len(paths)) >= (0 if data.split == HELD_OUT else len(data.train.paths))
    asked, others = np.flatnonzero(usable & tested), np.flatnonzero(usable & ~tested if not tested.all() else usable)
    queries = asked[np.unique(np.linspace(0, len(asked) - 1, min(EXAMPLES, len(asked))).astype(int))]
    similarity = np.where(queries[:, None] == others, -np.inf, rows[queries] @ rows[others].T)
    nearest = np.argsort(-similarity, axis=1)[:, : min(NEAREST, len(others) - 1)]
    found, thumbnails = others[nearest], {}
    for number in np.unique([*queries, *found.ravel()]).tolist():
        try:
            image = for_people(decode_scaled(paths[number], SIDE, reading).image)
        except (ImageError, OSError):  # it was removed since
            continue
        image.thumbnail((SIDE, SIDE))
        thumbnails[str(number)] = as_jpeg(image)
    values = np.take_along_axis(similarity, nearest, 1).round(4)
    return {
        "queries": queries.tolist(),
        "neighbors": found.tolist(),
        "similarity": values.tolist(),
        "thumbnails": thumbnails,
    }


def as_jpeg(image: Image.Image) -> str:
    """Return an image as a JPEG in base64."""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=80)
    return base64.b64encode(file.getvalue()).decode()


def _as_compared(source: FeatureSource, raw: np.ndarray, readable: np.ndarray) -> np.ndarray:
    kind = CollectionSpec.of(source).decided(transforms=True).vectors
    few = readable.sum() < StoreSettings().fit_from
    return unit_rows(raw) if few or kind in ("raw", "auto") else VectorTransform.fit(raw[readable], kind)(raw)


def _majority(data: Task) -> Correct:
    pool = np.concatenate([data.train.labels, data.test.labels]) if data.split == HELD_OUT else data.test.labels
    return (pool == np.bincount(data.train.labels).argmax()).astype(float)


# ------------------------------------------------------------------------------ the decision


def judge(
    references: References,
    parent: str | None,
    recipe: Recipe,
    log: Sequence[Line],
    steps: int,
    *,
    same_input: bool = False,
) -> Verdict:
    """Return the verdict of a finished run, whose vectors are scored under the name RUN.

    Args:
        parent: source of the encoder that the run started from.
        log: lines of RUN/log.jsonl.
        same_input: whether the parent takes the input of the run, so that it can replace its encoder.
    """
    # vectors of other recipes have purposes that labels do not show: a smaller input, or a scanner that they forget
    replaceable = same_input and recipe.name == "auto" and not (recipe.same or recipe.not_same or recipe.teacher)
    shown = symptoms(log, steps, final=True)
    at_chance = bool({"nothing learned", "collapse", "diverged"} & shown.keys())
    correct, scores = references.correct, references.accuracies()
    if RUN not in scores:
        unchanged = replaceable and (at_chance or steps < HELPFUL_STEPS)
        return _without_labels(parent, shown, at_chance, log, steps, unchanged=unchanged)
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
    # to replace an encoder, both kinds of vectors must be better: gains of one alone were not there on other images,
    # docs/results/continued.md
    raw = _minus(correct, RUN + RAW, before + RAW) if replaceable and before + RAW in correct else None
    improved = learned and (raw is None or raw.low > 0)
    use = RUN if gain.low > 0 and improved else rival
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
    if recipe.teacher in scores:
        kept = scores[RUN] / max(scores[recipe.teacher], 1e-9)
        parts.append(
            f"It keeps {kept:.1%} of the accuracy of its teacher, {recipe.teacher} ({scores[recipe.teacher]:.1%})."
        )
    if scores["color"] > scores[RUN] and recipe.augmentation not in KEEP_COLOR:
        parts.append(
            f"Colors alone predict {scores['color']:.1%}: keep them in the views with --set augmentation=keep_color."
        )
    if parent is not None and not learned and steps < HELPFUL_STEPS:
        parts.append(f"It made {counted(steps, 'step')}, and fewer than {HELPFUL_STEPS} have not helped so far.")
    parts += shown.values()
    kept = parent if parent is not None and replaceable and not improved else ""
    if kept and learned and raw is not None:
        parts.append(f"Beyond chance, its raw vectors are not better ({_points(raw)}).")
    parts += [_kept(kept)] * bool(kept)
    return Verdict(
        choice,
        " ".join(parts),
        "" if choice == NOTHING else use,
        learned,
        below,
        kept,
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


def _kept(parent: str) -> str:
    return f"So the encoder of the run is {parent}, unchanged; the trained one is in the folder {TRAINED}/ of the run."


def _without_labels(
    parent: str | None, shown: Mapping[str, str], at_chance: bool, log: Sequence[Line], steps: int, *, unchanged: bool
) -> Verdict:
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
    if unchanged and steps < HELPFUL_STEPS:
        parts.append(f"It made {counted(steps, 'step')}, and fewer than {HELPFUL_STEPS} have not helped so far.")
    kept = parent if unchanged and parent is not None else ""
    parts += [_kept(kept)] * bool(kept)
    return Verdict(UNKNOWN, " ".join(parts), learned=False if at_chance else None, kept=kept)


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
        steps: number of steps of the whole run.
        warmup: share of the steps with a rising learning rate, during which nothing is judged.
        final: whether the run is finished. Its last lines are judged, however few they are.
    """
    if (line := next((line for line in log if NOT_FINITE in line), None)) is not None:
        what = f"At step {line['step']} these became NaN or infinite: {line[NOT_FINITE]}."
        return {"diverged": f"{what} Restart with a lower base_lr, or set clip."}
    lines = [line for line in log if "loss" in line][-LINES:]
    if not lines or (len(lines) < LINES and not final):
        return {}
    judged = lines[-1:] if final else lines
    return {
        one.name: one.sentence.format(**lines[-1])
        for one in SYMPTOMS
        if all(one.shows(line) and (final or line["step"] > max(one.after, warmup) * steps) for line in judged)
    }
