"""What a run says about itself while it learns: RUN/log.jsonl, one line every few steps.

None of it but `nn_accuracy` needs a label. A healthy run has: a falling loss, `z_std` near 1 (0 is
collapse), `rankme` far above 1, `nn_distinct` near 1, `queue_fill` 1 after the first steps, and an
`nn_similarity` that stays below 1. `training.health` says it in words when one has not.
"""

from __future__ import annotations

import json
import math
import resource
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from nnclr_hub.errors import InvalidRequest, MissingDependency, TrainingDiverged
from nnclr_hub.method import Step, SupportSet

LOG = "log.jsonl"


Figures = dict[str, tuple[Tensor, Tensor | int]]  # name -> (sum, count), scalars on the device


@torch.no_grad()
def measure_step(step: Step, queue: SupportSet | None, labels: Tensor) -> Figures:
    """The figures of one step; reading them would make the device wait, so they stay there.

    Args:
        step: what the learner returned, before its enqueue.
        queue: its support set, if it has one.
        labels: (B,) int64, -1 where unknown.
    """
    z = F.normalize(step.z1.float(), dim=1)  # (B, D)
    figures: Figures = {"loss": (step.loss.detach(), 1), "z_std": (z.std(dim=0).mean() * z.shape[1] ** 0.5, 1)}
    if step.neighbors is not None and queue is not None:
        found = step.neighbors
        batch, index = len(found.index), found.index.sort().values
        theirs = queue.labels[found.index]
        known = (labels >= 0) & (theirs >= 0)
        figures |= {
            "nn_similarity": (found.similarity.sum(), batch),
            "nn_distinct": ((index[1:] != index[:-1]).sum() + 1, batch),
            "nn_age": (queue.age(found.index).sum(), batch),
            "self_match_rate": (found.own.sum(), batch),
            "queue_fill": (queue.fill(), 1),
            "neighbor_share": (step.took_neighbor, 1),
            "nn_accuracy": ((known & (labels == theirs)).sum(), known.sum()),
        }
    return figures


@torch.no_grad()
def rankme(z: Tensor) -> float:
    """Effective rank of the projections: exp of the entropy of their singular values, in [1, min(B, D)].

    From the products of rows (or columns, where they are fewer): a GPU takes longer for the singular values
    themselves than for a step, and a CPU a good part of one.
    """
    z = F.normalize(z.float(), dim=1).double()
    products = z @ z.T if len(z) < z.shape[1] else z.T @ z
    values = torch.linalg.eigvalsh(products.cpu()).clamp(min=0).sqrt()
    share = values / values.sum()
    return float(torch.special.entr(share).sum().exp())


class Monitor:
    """Means over the steps between two log lines, appended to RUN/log.jsonl.

    Args:
        run: the run folder.
        resumed_at: lines of later steps, written after the checkpoint that a run resumes from, are dropped.
        begun: `unlogged` of the run that is resumed; its next line is then that of a run which never stopped.
        tensorboard: write RUN/tensorboard as well.
    """

    def __init__(
        self, run: Path, resumed_at: int, begun: Mapping[str, Any] | None = None, *, tensorboard: bool = False
    ) -> None:
        self._path = run / LOG
        self.lines = [line for line in read_log(run) if line["step"] <= resumed_at]
        replace_text(self._path, "".join(json.dumps(line) + "\n" for line in self.lines))
        begun = begun or {"sums": {}, "images": 0, "waited": 0.0, "trained": 0.0}
        self._sums: Figures = dict(begun["sums"])
        self._images = begun["images"]
        self._waited, self._trained = begun["waited"], begun["trained"]  # seconds since the last line
        self._since = time.perf_counter()
        self._writer = _tensorboard(run, resumed_at) if tensorboard else None

    @property
    def unlogged(self) -> dict[str, Any]:
        """What the steps since the last line came to; for a checkpoint, so while paused."""
        return {
            "sums": dict(self._sums),
            "images": self._images,
            "waited": self._waited,
            "trained": self._trained,
        }

    def add(self, figures: Figures, images: int, data_wait: float) -> None:
        """Counts one step: its figures, its images, and the seconds it waited for data."""
        for name, (total, count) in figures.items():
            before = self._sums.get(name, (0, 0))
            self._sums[name] = before[0] + total, before[1] + count
        self._images += images
        self._waited += data_wait

    def log(self, step: int, epoch: float, **extra: float) -> dict[str, float]:
        """Writes a line with the means since the last one and returns it."""
        seconds = self._trained + time.perf_counter() - self._since
        line: dict[str, float] = {"step": step, "epoch": round(epoch, 4)}
        for name, (total, count) in self._sums.items():
            if int(count):  # no label known: no accuracy
                line[name] = round(float(total) / int(count), 5)
        line |= {name: round(value, 8) for name, value in extra.items()}
        line |= {
            "images_per_s": round(self._images / seconds, 1),
            "data_wait": round(self._waited / seconds, 4),
            "peak_memory_mb": peak_memory_mb(),
        }
        self._append(line)
        self._sums, self._images, self._waited, self._trained = {}, 0, 0.0, 0.0
        self._since = time.perf_counter()
        return line

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What is done meanwhile does not count as training."""
        self._trained += time.perf_counter() - self._since
        try:
            yield
        finally:
            self._since = time.perf_counter()

    def record(self, step: int, epoch: float, scores: dict[str, float]) -> None:
        """Writes a line of evaluation scores."""
        self._append({"step": step, "epoch": round(epoch, 4), **scores})

    def last_scored(self, names: Iterable[str]) -> int | None:
        """The step of the last line with scores of these names; None: the log has none, or is not whole."""
        return next((line["step"] for line in reversed(self.lines) if line.keys() & set(names)), None)

    def _append(self, line: dict[str, Any]) -> None:
        self.lines.append(line)
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        if self._writer is not None:
            for name in line.keys() - {"step", "epoch"}:
                self._writer.add_scalar(name, line[name], line["step"])
            self._writer.flush()

    def close(self) -> None:
        """Ends the TensorBoard files."""
        if self._writer is not None:
            self._writer.close()


def _tensorboard(run: Path, resumed_at: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError as error:
        raise MissingDependency(
            "tensorboard=true needs the package tensorboard, which is not installed: pip install tensorboard."
        ) from error
    return SummaryWriter(str(run / "tensorboard"), purge_step=resumed_at + 1)


def read_log(run: Path) -> list[dict[str, Any]]:
    """The lines of RUN/log.jsonl; see `read_lines`."""
    return read_lines(run / LOG)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines, if it is there; a last one that was cut off by a kill is left out.

    Raises:
        InvalidRequest: a line that is none, with its number.
    """
    if not path.exists():
        return []
    found = []
    for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(keepends=True), 1):
        if line.endswith("\n"):
            try:
                found.append(json.loads(line))
            except ValueError as error:
                raise InvalidRequest(f"{path} is damaged at line {number}: take that line out.") from error
    return found


def replace_text(path: Path, text: str) -> None:
    """Writes a file whole: beside it first, then in its place."""
    half = path.with_name(path.name + ".part")
    try:
        half.write_text(text, "utf-8")
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)


def peak_memory_mb() -> float:
    """Peak memory of the device if it is a GPU, else of the process, in MiB."""
    if torch.cuda.is_available():
        return round(torch.cuda.max_memory_allocated() / 2**20, 1)
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss: bytes on macOS, KiB elsewhere
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20, 1)


def stop_if_diverged(learner: nn.Module, loss: float, step: int, out: Path, saved_at: int | None) -> None:
    """Raises TrainingDiverged if the loss or a weight is not finite, before that is saved over something better.

    Args:
        learner: its weights are looked at too: the loss was taken before the optimizer's step.
        loss: of the step.
        step: its number.
        out: the run folder.
        saved_at: the step of the last checkpoint, if any.
    """
    # all at once: a look at each weight for itself would be a thousand small programs for a GPU; and the largest of
    # them, for the sum of squares of finite weights need not be finite
    largest = get_total_norm([p.detach() for p in learner.parameters()], norm_type=math.inf)
    if math.isfinite(loss) and math.isfinite(largest.item()):
        return
    what = "A weight" if math.isfinite(loss) else "The loss"
    if saved_at is None:
        raise TrainingDiverged(f"{what} is no number at step {step}: begin anew with a lower base_lr, or with clip.")
    raise TrainingDiverged(
        f"{what} is no number at step {step}, and the checkpoint of step {saved_at} leads here again: begin another "
        f"run with a lower base_lr or with clip, anew or from this one's encoder by --init {out / 'encoder'}."
    )
