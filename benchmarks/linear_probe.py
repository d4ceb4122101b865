"""Speed and memory of the linear probe.

    python benchmarks/linear_probe.py                       # 45 penalties against one scikit-learn fit, 3,000 x 2048
    python benchmarks/linear_probe.py --data PHOTOS --source SOURCE       # on features against through images
    python benchmarks/linear_probe.py --rows 1000000 --classes 1000       # peak memory in addition to the features

The first baseline is scikit-learn's LogisticRegression at the best penalty, with its default tolerance and with the
one at which its loss is as close to the optimum as ours; both are printed. The second baseline is the paper's linear
evaluation.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from sklearn.linear_model import LogisticRegression

from nnclr_hub.encoder.loader import load_encoder
from nnclr_hub.probe.linear import fit_linear_probe
from nnclr_hub.probe.logistic import Rows, Solver, Stacked
from training.evals.features import task_features
from training.evals.frozen import linear
from training.evals.linear_images import linear_images
from training.evals.task import read_task
from training.evals.trainer import ClassifierTrainer

PENALTIES = np.logspace(-6, 5, 45)
EPOCHS, PAPER_EPOCHS = 2, 90
EQUAL_TOLERANCE = 1e-6


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--data", type=Path)
    arguments.add_argument("--source", default="nnclr_resnet18_small_cpu_starter")
    arguments.add_argument("--rows", type=int)
    arguments.add_argument("--classes", type=int, default=10)
    arguments.add_argument("--turns", type=int, default=5)
    chosen = arguments.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; python {' '.join(sys.argv)}")
    if chosen.data:
        against_images(chosen.data, chosen.source)
    elif chosen.rows:
        memory(chosen.rows, chosen.classes)
    else:
        against_scikit_learn(chosen.turns)


def against_scikit_learn(turns: int) -> None:
    x, y = clouds(3000, 2048, 10)
    sweep = (PENALTIES / len(x)).tolist()
    fit_linear_probe(x[:100, :20], y[:100], l2=1.0)  # torch loads parts of itself at the first fit
    ratios: dict[str, list[float]] = {"default": [], "equal": []}
    for _ in range(turns):
        probe, ours = timed(lambda: fit_linear_probe(x, y, sweep=sweep))
        C = 1 / (probe.l2 * len(x))
        loose, default = timed(lambda C=C: LogisticRegression(C=C, max_iter=10_000).fit(x, y))
        tight, equal = timed(lambda C=C: LogisticRegression(C=C, max_iter=10_000, tol=EQUAL_TOLERANCE).fit(x, y))
        ratios["default"].append(ours / default)
        ratios["equal"].append(ours / equal)
    gaps = [loss(x, y, probe.l2, one.coef_, one.intercept_) for one in (loose, tight)]
    own = loss(x, y, probe.l2, probe.weight, probe.bias)
    best = min(own, *gaps)
    print(
        f"45 penalties and the refit, over one scikit-learn fit at the best (l2 = {probe.l2:.2e}); median of {turns}:"
    )
    for name, ratio, gap in (("default", ratios["default"], gaps[0]), ("equal", ratios["equal"], gaps[1])):
        print(
            f"  tolerance {name}: {statistics.median(ratio):.2f} ({min(ratio):.2f} to {max(ratio):.2f}); "
            f"its loss is {gap - best:.1e} above the best, ours {own - best:.1e}"
        )


def against_images(data: Path, source: str) -> None:
    task, encoder = read_task(data), load_encoder(source, device="cpu")
    say = Console(stderr=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["NNCLR_CACHE"] = folder  # nothing is there yet
        _, fast = timed(lambda: dict(linear(task_features(task, encoder, lambda part: nullcontext(lambda *_: None)))))
        subject = ClassifierTrainer(encoder, task, Path(folder), torch.device("cpu"), say)
        _, slow = timed(lambda: dict(linear_images(subject, epochs=EPOCHS, workers=2)))
    whole = slow * PAPER_EPOCHS / EPOCHS
    print(
        f"{task.name}, {task.counts()}: on features, extraction included, {fast:.1f} s; through images {EPOCHS} epochs "
        f"take {slow:.1f} s, so {PAPER_EPOCHS} take {whole:.0f} s: {whole / fast:.0f} times as long"
    )


def memory(rows: int, classes: int) -> None:
    """Run three steps of the fit on float16 features on disk, and report the additional memory."""
    with tempfile.TemporaryDirectory() as folder:
        x = np.lib.format.open_memmap(Path(folder) / "x.npy", mode="w+", dtype=np.float16, shape=(rows, 2048))
        rng = np.random.default_rng(0)
        y = rng.integers(0, classes, rows)
        block = rng.normal(size=(8192, 2048)).astype(np.float16)
        for start in range(0, rows, 8192):
            part = block[: min(8192, rows - start)]
            x[start : start + len(part)] = part
        x.flush()
        del x
        before = own_memory()
        features = torch.from_numpy(np.load(Path(folder) / "x.npy", mmap_mode="c"))
        to_fit = Rows(Stacked((features, None)), torch.from_numpy(y), None, classes)
        with watched() as seen:
            _, seconds = timed(lambda: Solver(to_fit, torch.device("cpu")).minimize(1e-4, iterations=3))
    print(
        f"{rows:,} x 2048 float16 ({rows * 4096 / 1e9:.1f} GB), {classes} classes: 3 steps take {seconds:.0f} s and "
        f"{(max(seen) - before) / 1e9:.2f} GB of the process's own memory"
    )


def own_memory() -> float:
    """Return the bytes of the process that are not mapped files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


@contextmanager
def watched() -> Iterator[list[float]]:
    """Sample the process's memory while the context is active."""
    seen, over = [own_memory()], threading.Event()

    def watch() -> None:
        while not over.wait(0.1):
            seen.append(own_memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()


def clouds(rows: int, dim: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Unit rows around class centers that are hard to tell apart."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, classes, rows)
    x = rng.normal(size=(classes, dim))[y] * 0.05 + rng.normal(size=(rows, dim))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32), y


def loss(x: np.ndarray, y: np.ndarray, l2: float, weight: Any, bias: Any) -> float:
    """Return the penalized mean cross-entropy in double precision."""
    w, b = (torch.from_numpy(np.asarray(one, np.float64)) for one in (weight, bias))
    scores = torch.from_numpy(x.astype(np.float64)) @ w.T + b
    return float(F.cross_entropy(scores, torch.from_numpy(y)) + l2 / 2 * w.square().sum())


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    return work(), time.perf_counter() - began


if __name__ == "__main__":
    main()
