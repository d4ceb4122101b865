"""RUN/log.jsonl: the metrics of a run while it learns, one line every few steps.

Only `nn_accuracy` needs labels. In a healthy run the loss falls, `z_std` is near 1 (0 is collapse), `rankme` is far
above 1, `nn_distinct` is near 1, `queue_fill` is 1 after the first steps, and `nn_similarity` stays below 1.
`training.verdict` explains in words what is wrong otherwise.
"""

from __future__ import annotations

import json
import math
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from nnclr_hub.errors import InvalidRequest, TrainingDiverged
from nnclr_hub.file_replacement import replace_file
from nnclr_hub.json_text import parse_json
from nnclr_hub.method import Step, SupportSet

from .distributed import Ranks

LOG, NEIGHBORS, EXAMPLES = "log.jsonl", "neighbors.jsonl", "examples.jsonl"

NOT_FINITE = "not_finite"  # of a log line: names of the metrics that are NaN or infinite, which it leaves out

Metrics = dict[str, tuple[Tensor | float, Tensor | float]]  # name -> (sum, count or seconds), scalars on the device
NOTHING = (0, 0)  # sum and count of what another rank has


@torch.no_grad()
def measure_step(step: Step, queue: SupportSet | None, labels: Tensor) -> Metrics:
    """Compute the metrics of one step. They stay on the device, because reading them would make it wait.

    Args:
        step: what the learner returned, before its enqueue.
        queue: its support set, if it has one.
        labels: (B,) int64, -1 where unknown.
    """
    z = F.normalize(step.online.float(), dim=1)  # (B, D)
    metrics: Metrics = {"loss": (step.loss.detach(), 1), "z_std": (z.std(dim=0).mean() * z.shape[1] ** 0.5, 1)}
    if step.forgetting is not None:  # without it, the loss compares with its value by chance
        forgetting = step.forgetting.detach()
        metrics |= {"loss": (step.loss.detach() - forgetting, 1), "forgetting": (forgetting, 1)}
    if step.neighbors is not None and queue is not None:
        neighbors = step.neighbors
        batch, index = len(neighbors.index), neighbors.index.sort().values
        theirs = queue.labels[neighbors.index]
        known = (labels >= 0) & (theirs >= 0)
        similarity: tuple[Tensor, Tensor | int] = (neighbors.similarity.sum(), batch)
        if queue.guided:  # some images have no neighbor
            found = neighbors.similarity.isfinite()
            known, similarity = known & found, (neighbors.similarity.nan_to_num(neginf=0.0).sum(), found.sum())
            metrics["nn_allowed"] = (found.sum(), batch)
        metrics |= {
            "nn_similarity": similarity,
            "nn_distinct": ((index[1:] != index[:-1]).sum() + 1, batch),
            "nn_age": (queue.age(neighbors.index).sum(), batch),
            "self_match_rate": (neighbors.own.sum(), batch),
            "queue_fill": (queue.fill(), 1),
            "neighbor_share": (step.neighbor_share, 1),
            "nn_accuracy": ((known & (labels == theirs)).sum(), known.sum()),
        }
    return metrics


@torch.no_grad()
def rankme(z: Tensor) -> float:
    """Compute the effective rank of the projections: exp of the entropy of their singular values, in [1, min(B, D)].

    The singular values come from the products of rows (or of columns, if those are fewer). Computing them directly
    takes a GPU longer than a training step.
    """
    z = F.normalize(z.float(), dim=1).double()
    products = z @ z.T if len(z) < z.shape[1] else z.T @ z
    values = torch.linalg.eigvalsh(products.cpu()).clamp(min=0).sqrt()
    share = values / values.sum()
    return float(torch.special.entr(share).sum().exp())


class Monitor:
    """Average metrics over the steps between two log lines and append them to RUN/log.jsonl.

    sums: of each metric since the last line. A checkpoint keeps them after `collect`, so that the next line equals that
        of a run that never stopped.

    Args:
        resumed_at: step of the checkpoint that the run resumes from; lines of later steps are dropped.
        sums: from that checkpoint.
        ranks: this process and the run's other processes. Each has a monitor, and the first one writes.
    """

    def __init__(self, run: Path, resumed_at: int, sums: Metrics | None = None, *, ranks: Ranks) -> None:
        self._path, self._ranks = run / LOG, ranks
        self.lines: list[dict[str, Any]] = []
        if ranks.first:
            self.lines = [line for line in read_log(run) if line["step"] <= resumed_at]
            replace_file(self._path, "".join(json.dumps(line) + "\n" for line in self.lines))
        self.sums: Metrics = dict(sums or {}) if ranks.first else dict.fromkeys(sums or {}, NOTHING)
        self._since = time.perf_counter()  # the last step, without pauses

    def add(self, metrics: Metrics, images: int, data_wait: float) -> None:
        """Count one step: its metrics, its images over all ranks, and the seconds it waited for data."""
        now = time.perf_counter()
        seconds, self._since = now - self._since, now
        rates: Metrics = {"images_per_s": (images, seconds), "data_wait": (data_wait, seconds)}
        for name, (total, count) in {**metrics, **rates}.items():
            before = self.sums.get(name, NOTHING)
            self.sums[name] = before[0] + total, before[1] + count

    def collect(self) -> None:
        """Move the sums of all ranks to the first. All ranks call this, before a line and before a checkpoint."""
        if self._ranks.world == 1 or not self.sums:  # all ranks have the same names
            return
        names, where = sorted(self.sums), self._ranks.where
        local_sums = [value for name in names for value in self.sums[name]]
        row = torch.stack([torch.as_tensor(one, dtype=torch.float64, device=where) for one in local_sums])
        sums = self._ranks.gather(row[None]).sum(dim=0).unbind()
        pairs = zip(sums[::2], sums[1::2], strict=True)
        self.sums = dict(zip(names, pairs, strict=True)) if self._ranks.first else dict.fromkeys(names, NOTHING)

    def log(self, step: int, epoch: float, **extra: float) -> dict[str, float]:
        """Return the line with the means since the last one, after `collect`; the first rank writes it."""
        line: dict[str, float] = {"step": step, "epoch": round(epoch, 4)}
        for name, (total, count) in self.sums.items():
            if float(count):  # without known labels there is no accuracy
                line[name] = round(float(total) / float(count), 5)
        line |= {name: round(value, 8) for name, value in extra.items()}
        if self._ranks.first:
            self._append(line)
        self.sums = {}
        return line

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the enclosed work from the training time."""
        seconds = time.perf_counter() - self._since
        try:
            yield
        finally:
            self._since = time.perf_counter() - seconds

    def record(self, step: int, epoch: float, scores: Mapping[str, float]) -> dict[str, float]:
        """Write a line of evaluation scores, and return it."""
        line = {"step": step, "epoch": round(epoch, 4), **scores}
        self._append(line)
        return line

    def _append(self, line: dict[str, Any]) -> None:
        line = _finite(line)
        self.lines.append(line)
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def read_log(run: Path) -> list[dict[str, Any]]:
    """Return the lines of RUN/log.jsonl; see `read_lines`. All numbers are finite, see NOT_FINITE."""
    return list(map(_finite, read_lines(run / LOG)))


def _finite(line: Mapping[str, Any]) -> dict[str, Any]:
    wrong = [
        name for name, value in line.items() if value is None or (isinstance(value, float) and not math.isfinite(value))
    ]
    finite = {name: value for name, value in line.items() if name not in wrong}
    return {**finite, NOT_FINITE: ", ".join(wrong)} if wrong else finite


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON-lines file; empty without the file. An incomplete last line is ignored."""
    if not path.exists():
        return []
    found = []
    for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(keepends=True), 1):
        if line.endswith("\n"):
            try:
                found.append(dict(parse_json(line)))
            except (ValueError, TypeError) as error:
                raise InvalidRequest(f"{path} is damaged at line {number}; delete that line.") from error
    return found


def peak_memory_mb(where: torch.device) -> float:
    """Return the peak memory of the device if it is a GPU, else of the process, in MiB."""
    if where.type == "cuda":
        return round(torch.cuda.max_memory_allocated(where) / 2**20, 1)
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss: bytes on macOS, KiB elsewhere
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20, 1)


def stop_if_diverged(learner: nn.Module, loss: float, step: int, out: Path, saved_at: int | None) -> None:
    """Raise TrainingDiverged if the loss or a weight is not finite, before it overwrites a good checkpoint.

    Args:
        learner: its weights are checked too, because the loss was computed before the optimizer's step.
        saved_at: step of the last checkpoint, if any.
    """
    # one operation for all weights: checking each of them would start a thousand small GPU kernels. The maximum norm,
    # because the sum of squares of finite weights can overflow
    largest = get_total_norm([p.detach() for p in learner.parameters()], norm_type=math.inf)
    if math.isfinite(loss) and math.isfinite(largest.item()):
        return
    what = "A weight" if math.isfinite(loss) else "The loss"
    if saved_at is None:
        raise TrainingDiverged(
            f"{what} became NaN or infinite at step {step}. Restart with a lower base_lr, or set clip."
        )
    raise TrainingDiverged(
        f"{what} became NaN or infinite at step {step}; resuming from the checkpoint of step {saved_at} would repeat "
        f"this. Start a new run with a lower base_lr or with clip; --init {out / 'encoder'} reuses this run's encoder."
    )
