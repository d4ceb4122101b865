"""LinearProbe: a fitted linear classifier, what it says of features, and how it is kept.

probe = LinearProbe.load("probe")
probe.predict(features).labels
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nnclr_hub.errors import FingerprintMismatch, InvalidRequest
from nnclr_hub.probe.finite import require_finite
from nnclr_hub.probe.labeling import Label
from nnclr_hub.probe.logistic import Stacked, logits_of

WEIGHTS, ABOUT = "probe.safetensors", "probe.json"
KEPT = ("l2", "temperature", "threshold", "fingerprint", "several", "model")


@dataclass(frozen=True)
class Prediction:
    """What a probe says of Q rows.

    labels: Q labels, as they were given to the fit; None where no class is as probable as the threshold. With
        several labels a row, tuples of all that are.
    probabilities: (Q, C) float32, in the order of the probe's classes.
    """

    labels: list[Label | None] | list[tuple[Label, ...]]
    probabilities: np.ndarray


@dataclass(frozen=True)
class LinearProbe:
    """A fitted probe.

    weight: (C, D) float32; bias: (C,) float32.
    classes: C labels, sorted.
    l2: what it was fitted with.
    temperature: what logits are divided by; fitted on held-out rows, so that probabilities are calibrated.
    threshold: least probability of a prediction; below it the answer is none of the classes.
    fingerprint: of the encoder whose features it takes; "" if unknown.
    several: whether a row may have more than one label.
    model: source of that encoder; "" if unknown.
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

    def require(self, fingerprint: str) -> None:
        """Raises FingerprintMismatch for another encoder than the probe's; "" is not asked."""
        if fingerprint and self.fingerprint and fingerprint != self.fingerprint:
            raise FingerprintMismatch(
                f"The probe was fitted on features of the encoder {self.fingerprint[:12]}, and these are of "
                f"{fingerprint[:12]}: embed with the former, or fit a new probe."
            )

    def scores(self, features: np.ndarray, *, fingerprint: str = "") -> np.ndarray:
        """(Q, C) float32 logits.

        Args:
            features: (Q, D) float.
            fingerprint: of the encoder that they come from; "" leaves it unchecked.

        Raises:
            InvalidRequest: rows of another length, or numbers that are not finite.
            FingerprintMismatch: features of another encoder.
        """
        self.require(fingerprint)
        x = feature_matrix(features)
        if x.shape[1] != self.weight.shape[1]:
            raise InvalidRequest(
                f"The probe takes vectors of {self.weight.shape[1]} numbers, got {x.shape[1]}: embed with the "
                "encoder that it was fitted on."
            )
        parameters = torch.from_numpy(np.concatenate([self.weight, self.bias[:, None]], axis=1))
        return (logits_of(Stacked((x, None)), parameters) / self.temperature).numpy()

    def predict(self, features: np.ndarray, *, fingerprint: str = "") -> Prediction:
        """The most probable class of each row; with several labels a row, all that are probable enough.

        Args and errors are those of `scores`.
        """
        logits = torch.from_numpy(self.scores(features, fingerprint=fingerprint))
        if self.several:
            probabilities = logits.sigmoid().numpy()
            there = probabilities >= self.threshold
            return Prediction([tuple(self.classes[i] for i in np.flatnonzero(row)) for row in there], probabilities)
        probabilities = logits.softmax(dim=1).numpy()
        best, sure = probabilities.argmax(axis=1), probabilities.max(axis=1, initial=0) >= self.threshold
        return Prediction([self.classes[i] if ok else None for i, ok in zip(best, sure, strict=True)], probabilities)

    def files(self, about: tuple[str, str] = ("format", "np")) -> dict[str, bytes]:
        """The contents of probe.safetensors and probe.json, by name; equal probes have equal bytes.

        Args:
            about: name and text of the safetensors' metadata; of several, the order would be a matter of chance.
        """
        from safetensors.numpy import save

        weights = {"weight": np.ascontiguousarray(self.weight), "bias": np.ascontiguousarray(self.bias)}
        told = {"classes": list(self.classes), **{name: getattr(self, name) for name in KEPT}}
        return {
            WEIGHTS: save(weights, metadata=dict([about])),
            ABOUT: (json.dumps(told, indent=2) + "\n").encode(),
        }

    @classmethod
    def from_files(cls, weights: bytes, about: str | bytes, named: str) -> LinearProbe:
        """What `files` gave.

        Args:
            weights, about: contents of probe.safetensors and probe.json.
            named: what to call the probe in an error.

        Raises:
            InvalidRequest: they are damaged.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            told, arrays = json.loads(about), load(weights)
            classes = tuple(told["classes"])
            if not len(classes) == len(arrays["weight"]) == len(arrays["bias"]):
                raise ValueError(f"{len(classes)} classes for {len(arrays['weight'])} rows of weights")
            return cls(arrays["weight"], arrays["bias"], classes, **{n: told[n] for n in KEPT})
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise InvalidRequest(f"The probe {named} is damaged ({error}): fit it again.") from error

    def save(self, folder: str | Path) -> Path:
        """Writes probe.safetensors and probe.json."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        half = folder / ".part"  # the description last: without it there is no probe
        (folder / ABOUT).unlink(missing_ok=True)
        for name, content in self.files().items():
            half.write_bytes(content)
            half.replace(folder / name)
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> LinearProbe:
        """What `save` wrote.

        Raises:
            InvalidRequest: the folder holds no probe, or a damaged one.
        """
        folder = Path(folder)
        try:
            about, weights = (folder / ABOUT).read_bytes(), (folder / WEIGHTS).read_bytes()
        except FileNotFoundError as error:
            raise InvalidRequest(f"{folder} holds no probe: give a folder that `nnclr probe fit` wrote.") from error
        return cls.from_files(weights, about, f"in {folder}")


def feature_matrix(features: np.ndarray) -> Tensor:
    """(N, D) as a tensor on the same memory.

    Raises:
        InvalidRequest: another shape, or numbers that are not finite, with the first such row.
    """
    x = np.asarray(features)
    if x.ndim != 2:
        raise InvalidRequest(f"Features are an (N, D) array; got shape {x.shape}.")
    x = x if x.dtype in (np.float32, np.float16) else x.astype(np.float32)
    require_finite(x)
    return torch.from_numpy(np.ascontiguousarray(x))
