"""LinearProbe: a fitted linear classifier, its predictions, and its files.

probe = LinearProbe.load("probe")
probe.predict(features).labels
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from nnclr_hub.arguments import checked
from nnclr_hub.errors import FingerprintMismatch, InvalidRequest
from nnclr_hub.file_replacement import replace_file
from nnclr_hub.html_table import html_table
from nnclr_hub.json_text import MALFORMED, parse_json, what_is_wrong
from nnclr_hub.missing_values import is_missing
from nnclr_hub.probe.metrics import Label, require_finite

HELD_OUT = 0.2  # share of the rows on which the limit is measured
SEED = 0


@dataclass(frozen=True)
class Region:
    """Where the fitted rows are, so that images of classes that the probe never saw can be rejected by their distance.

    The distance is that of Mahalanobis to the nearest class, with a covariance that all classes share (Lee et al.,
    NeurIPS 2018). The covariance is shrunk towards a sphere, the more the fewer rows there are.

    means: (C, D) float32.
    factor: (D, D) float32; times its transpose, it is the inverse covariance.
    limit: the largest distance inside.
    """

    means: np.ndarray
    factor: np.ndarray
    limit: float

    @classmethod
    def of(cls, rows: np.ndarray, labels: np.ndarray, share: float) -> Region:
        """Return the region that leaves out about this share of further rows of the same classes.

        Args:
            rows: (N, D) float.
            labels: (N,) int64.
            share: above 0, below 1.
        """
        rows = np.asarray(rows, np.float64)
        held = np.random.default_rng(SEED).random(len(rows)) < HELD_OUT
        held[np.unique(labels, return_index=True)[1]] = False  # each class keeps a row, or its others would be far
        part = cls._fit(rows[~held], labels[~held]) if held.any() and not held.all() else cls._fit(rows, labels)
        measured = part.distances(rows[held] if held.any() else rows)
        whole = cls._fit(rows, labels)
        return cls(whole.means, whole.factor, float(np.quantile(measured, 1 - share)))

    @classmethod
    def _fit(cls, rows: np.ndarray, labels: np.ndarray) -> Region:
        classes, places = np.unique(labels, return_inverse=True)
        means = np.zeros((len(classes), rows.shape[1]))
        np.add.at(means, places, rows)
        means /= np.bincount(places)[:, None]
        left = rows - means[places]
        covariance = left.T @ left / len(rows)
        dim = rows.shape[1]
        weight = dim / (len(rows) + dim)
        sphere = np.eye(dim) * max(np.trace(covariance) / dim, 1e-12)
        factor = np.linalg.cholesky(np.linalg.inv((1 - weight) * covariance + weight * sphere))
        return cls(means.astype(np.float32), factor.astype(np.float32), np.inf)

    def contains(self, rows: np.ndarray) -> np.ndarray:
        """Return (Q,) bool: whether each row is inside."""
        return self.distances(rows) <= self.limit

    def distances(self, rows: np.ndarray) -> np.ndarray:
        """Return the squared distance (Q,) float32 of each row to its nearest class."""
        x, centers = np.asarray(rows, np.float32) @ self.factor, self.means @ self.factor
        cross = x @ centers.T
        squares = (x * x).sum(axis=1)[:, None] - 2 * cross + (centers * centers).sum(axis=1)
        return squares.min(axis=1).clip(min=0)


WEIGHTS, ABOUT = "probe.safetensors", "probe.json"
SHOWN = 5  # classes in a __repr__
PIECE = 1 << 22  # numbers of features converted to float32 at a time
SAVED = ("l2", "temperature", "threshold", "fingerprint", "several", "model")


@dataclass(frozen=True)
class Prediction:
    """The predictions for Q rows.

    labels: Q labels, as they were given to the fit; None where no class reaches the threshold, or the row is far from
        all rows of the fit. For a multi-label probe, tuples of all labels that reach it, () far from the rows.
    probabilities: (Q, C) float32, in the order of the probe's classes.
    """

    labels: list[Label | None] | list[tuple[Label, ...]]
    probabilities: np.ndarray


@dataclass(frozen=True, repr=False)
class LinearProbe:
    """A fitted probe.

    weight: (C, D) float32; bias: (C,) float32.
    classes: C labels, sorted.
    l2: penalty of the fit.
    temperature: divides the logits; fitted on held-out rows, so that probabilities are calibrated.
    threshold: minimum probability of a prediction.
    fingerprint: fingerprint of the encoder whose features it takes; "" if unknown.
    several: whether a row may have more than one label.
    model: source of that encoder; "" if unknown.
    region: where the rows of the fit are; rows outside belong to none of the classes. None: all rows belong to one.
    """

    weight: np.ndarray
    bias: np.ndarray
    classes: tuple[Label, ...]
    l2: float
    temperature: float = 1.0
    threshold: float = 0.0
    fingerprint: str = ""
    several: bool = False
    model: str = ""
    region: Region | None = None

    def __repr__(self) -> str:
        names = ", ".join(map(str, self.classes[:SHOWN])) + ", ..." * (len(self.classes) > SHOWN)
        model = self.model or (self.fingerprint[:12] if self.fingerprint else "unknown")
        several = ", several labels per row" * self.several
        return (
            f"<LinearProbe: {len(self.classes)} classes ({names}), dim {self.weight.shape[1]}, model {model}{several}>"
        )

    def _repr_html_(self) -> str:
        names = ", ".join(map(str, self.classes[:SHOWN])) + ", ..." * (len(self.classes) > SHOWN)
        about = {"linear probe": f"{len(self.classes)} classes: {names}", "dim": self.weight.shape[1]}
        return html_table(about | {"model": self.model or "unknown", "l2": self.l2, "threshold": self.threshold})

    def require(self, fingerprint: str) -> None:
        """Raise FingerprintMismatch for features of another encoder; "" is not checked."""
        if fingerprint and self.fingerprint and fingerprint != self.fingerprint:
            raise FingerprintMismatch(
                f"The probe was fitted on features of encoder {self.fingerprint[:12]}, and these are of encoder "
                f"{fingerprint[:12]}; embed with the former, or fit a new probe."
            )

    def scores(self, features: np.ndarray, *, fingerprint: str = "") -> np.ndarray:
        """Return logits (Q, C) float32.

        Args:
            features: (Q, D) float.
            fingerprint: fingerprint of the encoder that they come from; "" is not checked.

        Raises:
            InvalidRequest: rows of another length, or NaN or infinity.
            FingerprintMismatch: features of another encoder.
        """
        self.require(fingerprint)
        x = feature_matrix(features)
        if x.shape[1] != self.weight.shape[1]:
            raise InvalidRequest(
                f"The probe takes vectors of {self.weight.shape[1]} numbers, got {x.shape[1]}; embed with the encoder "
                "that it was fitted on."
            )
        rows, matrix = max(1, PIECE // x.shape[1]), self.weight.T.astype(np.float32)
        found = np.empty((len(x), len(self.classes)), np.float32)
        for start in range(0, len(x), rows):
            part = x[start : start + rows].astype(np.float32, copy=False)
            found[start : start + rows] = (part @ matrix + self.bias) / self.temperature
        return found

    def predict(self, features: np.ndarray, *, fingerprint: str = "") -> Prediction:
        """Return the most probable class of each row; for a multi-label probe, all that reach the threshold.

        Args and errors are those of `scores`.
        """
        logits = self.scores(features, fingerprint=fingerprint)
        inside = np.ones(len(logits), bool) if self.region is None else self.region.contains(features)
        if self.several:
            probabilities = 0.5 * (1 + np.tanh(0.5 * logits))  # the sigmoid, without an overflow
            chosen = (probabilities >= self.threshold) & inside[:, None]
            return Prediction([tuple(self.classes[i] for i in np.flatnonzero(row)) for row in chosen], probabilities)
        odds = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-np.inf))
        probabilities = odds / odds.sum(axis=1, keepdims=True)
        best, sure = probabilities.argmax(axis=1), probabilities.max(axis=1, initial=0) >= self.threshold
        sure &= inside
        return Prediction([self.classes[i] if ok else None for i, ok in zip(best, sure, strict=True)], probabilities)

    def files(self, about: tuple[str, str] = ("format", "np")) -> dict[str, bytes]:
        """Return the contents of probe.safetensors and probe.json, by name; equal probes have equal bytes.

        Args:
            about: key and text of the safetensors metadata; with several keys, their order would be random.
        """
        from safetensors.numpy import save

        weights = {"weight": np.ascontiguousarray(self.weight), "bias": np.ascontiguousarray(self.bias)}
        description = {"classes": list(self.classes), **{name: getattr(self, name) for name in SAVED}}
        if self.region is not None:
            weights |= {"region_means": self.region.means, "region_factor": self.region.factor}
            description["region_limit"] = self.region.limit
        return {
            WEIGHTS: save(weights, metadata=dict([about])),
            ABOUT: (json.dumps(description, indent=2) + "\n").encode(),
        }

    @classmethod
    def from_files(cls, weights: bytes, about: str | bytes, named: str) -> LinearProbe:
        """Read what `files` returned.

        Args:
            weights, about: contents of probe.safetensors and probe.json.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            description, arrays = parse_json(about), load(weights)
            classes = tuple(description["classes"])
            if not len(classes) == len(arrays["weight"]) == len(arrays["bias"]):
                raise ValueError(f"{len(classes)} classes for {len(arrays['weight'])} rows of weights")
            region = None
            if "region_limit" in description:
                parts = arrays["region_means"], arrays["region_factor"]
                region = Region(*parts, float(description["region_limit"]))
            known = {name: description[name] for name in SAVED}
            return cls(arrays["weight"], arrays["bias"], classes, **known, region=region)
        except (SafetensorError, *MALFORMED) as error:
            raise InvalidRequest(f"The probe {named} is damaged ({what_is_wrong(error)}); fit it again.") from error

    @checked
    def save(self, folder: str | Path) -> Path:
        """Write probe.safetensors and probe.json to a folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ABOUT).unlink(missing_ok=True)
        for name, content in self.files().items():  # the description is last, because it makes the probe valid
            replace_file(folder / name, content)
        return folder

    @classmethod
    @checked
    def load(cls, folder: str | Path) -> LinearProbe:
        """Read what `save` wrote.

        Raises:
            InvalidRequest: the folder has no probe, or a damaged one.
        """
        folder = Path(folder)
        try:
            about, weights = (folder / ABOUT).read_bytes(), (folder / WEIGHTS).read_bytes()
        except FileNotFoundError as error:
            raise InvalidRequest(f"{folder} has no probe; give a folder that `nnclr probe fit` wrote.") from error
        return cls.from_files(weights, about, f"in {folder}")


def feature_matrix(features: np.ndarray) -> np.ndarray:
    """Return (N, D) float32 or float16, contiguous; not a copy if it already is."""
    try:
        x = np.asarray(features)
        if np.iscomplexobj(x):
            raise ValueError("they are complex")
        with np.errstate(over="ignore"):  # numbers above float32 become infinite, and are refused below
            x = x if x.dtype in (np.float32, np.float16) else x.astype(np.float32)
    except (TypeError, ValueError, RuntimeError) as error:  # the last one by torch
        raise InvalidRequest(f"Vectors must be an (N, D) array of numbers ({error}).") from error
    if x.ndim != 2 or not x.shape[1]:
        raise InvalidRequest(f"Vectors must be an (N, D) array, got shape {x.shape}.")
    require_finite(x)
    return np.ascontiguousarray(x)


def label_list(labels: Iterable[Label]) -> list[Label]:
    """Return the labels of N rows as Python's texts and numbers.

    Raises:
        InvalidRequest: a label is missing, or is neither a name nor a number.
    """
    given: Iterable[Any] = getattr(labels, "tolist", lambda: labels)()
    names = [one.item() if getattr(one, "ndim", None) == 0 else one for one in given]  # a list may have np.bool_
    if number := sum(map(is_missing, names)):
        raise InvalidRequest(f"{number} of {len(names)} labels are missing (None, NaN or blank); leave out these rows.")
    for name in names:
        if not isinstance(name, str | Real):
            raise InvalidRequest(f"A label must be a name or a number, got {name!r:.80}.")
    return names


def label_array(labels: Iterable[Label]) -> np.ndarray:
    """Return the labels of N rows as an array (N,) of numbers or texts, with the dtype of a given array."""
    names = label_list(labels)
    texts = [name for name in names if isinstance(name, str)]
    if 0 < len(texts) < len(names):  # NumPy would make texts of the numbers
        raise InvalidRequest(f"Labels must be all names or all numbers, got {names!r:.80}.")
    found = np.asarray(labels)
    return found if found.dtype.kind in "biufU" else np.asarray(names)  # others, such as a column of pandas
