"""The metrics of a run while it learns, and its log, RUN/log.jsonl.

Only `nn_accuracy` needs labels. In a healthy run the loss falls, `z_std` is near 1 (0 is collapse), `rankme` is far
above 1, `nn_distinct` is near 1, `queue_fill` is 1 after the first steps, and `nn_similarity` stays below 1.
`training.verdict` explains in words what is wrong otherwise.
"""

from __future__ import annotations

import math
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from nnclr_hub.errors import InvalidRequest, TrainingDiverged
from nnclr_hub.json_text import parse_json
from nnclr_hub.method import Step, SupportSet

LOG, NEIGHBORS, EXAMPLES = "log.jsonl", "neighbors.jsonl", "examples.jsonl"

NOT_FINITE = "not_finite"  # of a log line: names of the metrics that are NaN or infinite, which it leaves out

Metrics = dict[str, tuple[Tensor | float, Tensor | float]]  # name -> (sum, count or seconds), scalars on the device


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


def read_log(run: Path) -> list[dict[str, Any]]:
    """Return the lines of RUN/log.jsonl; see `read_lines`. All numbers are finite, see NOT_FINITE."""
    return list(map(finite, read_lines(run / LOG)))


def finite(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line with only its finite numbers, and the names of the others under NOT_FINITE."""
    wrong = [
        name for name, value in line.items() if value is None or (isinstance(value, float) and not math.isfinite(value))
    ]
    rest = {name: value for name, value in line.items() if name not in wrong}
    return {**rest, NOT_FINITE: ", ".join(wrong)} if wrong else rest


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
