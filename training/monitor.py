"""What a run says about itself while it learns: RUN/log.jsonl, one line every few steps.

None of it but `nn_accuracy` needs a label. A healthy run has: a falling loss, `z_std` near 1 (0 is
collapse), `rankme` far above 1, `nn_distinct` near 1, `queue_fill` 1 after the first steps, and an
`nn_similarity` that stays below 1.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nnclr_hub.errors import TrainingDiverged
from nnclr_hub.method import Step, SupportSet

LOG = "log.jsonl"


@torch.no_grad()
def measure_step(step: Step, queue: SupportSet | None, labels: Tensor) -> dict[str, Tensor]:
    """The figures of one step, as scalars on the device (reading them would make it wait).

    Args:
        step: what the learner returned, before its enqueue.
        queue: its support set, if it has one.
        labels: (B,) int64, -1 where unknown.
    """
    z = F.normalize(step.z1.float(), dim=1)  # (B, D)
    figures = {"loss": step.loss.detach(), "z_std": z.std(dim=0).mean() * z.shape[1] ** 0.5}
    if step.neighbours is not None and queue is not None:
        found = step.neighbours
        figures |= {
            "nn_similarity": found.similarity.mean(),
            "nn_distinct": torch.tensor(len(found.index.unique()) / len(found.index)),
            "nn_age": queue.age(found.index).float().mean(),
            "self_match_rate": found.own.float().mean(),
            "queue_fill": queue.fill(),
            "neighbour_share": step.took_neighbour,
        }
        known = (labels >= 0) & (queue.labels[found.index] >= 0)
        if known.any():
            right = labels[known] == queue.labels[found.index][known]
            figures["nn_accuracy"] = right.float().mean()
    return figures


@torch.no_grad()
def rankme(z: Tensor) -> float:
    """Effective rank of the projections: exp of the entropy of their singular values, in [1, min(B, D)]."""
    values = torch.linalg.svdvals(F.normalize(z.float(), dim=1))
    share = values / values.sum()
    return float(torch.special.entr(share).sum().exp())


class Monitor:
    """Means over the steps between two log lines, appended to RUN/log.jsonl.

    Args:
        run: the run folder.
        resumed_at: lines of later steps, written after the checkpoint that a run resumes from, are dropped.
    """

    def __init__(self, run: Path, resumed_at: int) -> None:
        self._path = run / LOG
        lines = [line for line in read_log(run) if line["step"] <= resumed_at]
        self._path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}
        self._images = 0
        self._waited = 0.0
        self._since = time.perf_counter()

    def add(self, figures: dict[str, Tensor], images: int, data_wait: float) -> None:
        """Counts one step: its figures, its pictures, and the seconds it waited for data."""
        for name, value in figures.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value
            self._counts[name] = self._counts.get(name, 0) + 1
        self._images += images
        self._waited += data_wait

    def log(self, step: int, epoch: float, **extra: float) -> dict[str, float]:
        """Writes a line with the means since the last one and returns it."""
        seconds = time.perf_counter() - self._since
        line: dict[str, float] = {"step": step, "epoch": round(epoch, 4)}
        line |= {name: round(float(value) / self._counts[name], 5) for name, value in self._sums.items()}
        line |= {name: round(value, 8) for name, value in extra.items()}
        line |= {
            "images_per_s": round(self._images / seconds, 1),
            "data_wait": round(self._waited / seconds, 4),
            "peak_memory_mb": peak_memory_mb(),
        }
        self._append(line)
        self._sums, self._counts, self._images, self._waited = {}, {}, 0, 0.0
        self._since = time.perf_counter()
        return line

    def record(self, step: int, epoch: float, scores: dict[str, float]) -> None:
        """Writes a line of evaluation scores; the time they took does not count as training."""
        self._append({"step": step, "epoch": round(epoch, 4), **scores})
        self._since = time.perf_counter()

    def _append(self, line: dict[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def read_log(run: Path) -> list[dict[str, Any]]:
    """The lines of RUN/log.jsonl; a last one that was cut off by a kill is left out."""
    path = run / LOG
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def peak_memory_mb() -> float:
    """Peak memory of the device if it is a GPU, else of the process, in MiB."""
    if torch.cuda.is_available():
        return round(torch.cuda.max_memory_allocated() / 2**20, 1)
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss: bytes on macOS, KiB elsewhere
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20, 1)


def stop_if_diverged(loss: float, step: int, out: Path) -> None:
    """Raises TrainingDiverged if the loss is not finite."""
    if not np.isfinite(loss):
        raise TrainingDiverged(
            f"The loss is {loss} at step {step}: lower base_lr; the last good checkpoint, if there is one, is in {out}."
        )
