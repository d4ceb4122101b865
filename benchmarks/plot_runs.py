"""Plot loss and 20-NN of several runs together, from their logs.

    python benchmarks/plot_runs.py NNCLR=RUN/log.jsonl SimCLR=OTHER/log.jsonl --out docs/results/small_cpu

The command writes OUT_loss.png and OUT_knn.png. A name may occur several times, for several seeds: these lines
look the same. A second evaluation after the last step, with other settings, is drawn as a star.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

Log = list[dict[str, Any]]
STYLES = ("-", "--", ":", "-.")


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("runs", nargs="+", metavar="NAME=LOG")
    arguments.add_argument("--out", type=Path, required=True)
    chosen = arguments.parse_args()
    logs: dict[str, list[Log]] = {}
    for run in chosen.runs:
        name, _, path = run.partition("=")
        logs.setdefault(name, []).append([json.loads(line) for line in Path(path).read_text().splitlines()])

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for number, (name, seeds) in enumerate(logs.items()):
        for seed, log in enumerate(seeds):
            axes.plot(*points(log, "loss"), color=f"C{number}", label=name if seed == 0 else None, linewidth=1)
    finish(figure, f"{chosen.out}_loss.png", "loss")

    figure = Figure(figsize=(6, 4), layout="constrained")
    for number, (name, seeds) in enumerate(logs.items()):
        for seed, log in enumerate(seeds):
            draw_knn(figure.gca(), log, name if seed == 0 else None, STYLES[number % len(STYLES)])
    finish(figure, f"{chosen.out}_knn.png", "20-NN accuracy")


def draw_knn(axes: Axes, log: Log, name: str | None, style: str) -> None:
    """Draw a line for each evaluated set: a color per set, a style per run."""
    for number, key in enumerate(sorted({key for line in log for key in line if key.startswith("knn20/")})):
        epochs, values = points(log, key)
        color = f"C{number}"
        again = len(epochs) > 1 and epochs[-1] == epochs[-2]
        end = -1 if again else None
        label = name and f"{name}, {key[6:]}"
        axes.plot(epochs[:end], values[:end], style, color=color, marker="o", markersize=3, label=label)
        if again:
            axes.plot(epochs[-1:], values[-1:], "*", color=color, markersize=10)


def points(log: Log, key: str) -> tuple[list[float], list[float]]:
    """Return epochs and values of one logged name."""
    lines = [line for line in log if key in line]
    return [line["epoch"] for line in lines], [line[key] for line in lines]


def finish(figure: Figure, path: str, label: str) -> None:
    axes = figure.axes[0]
    axes.set_xlabel("epoch")
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)
    if len(axes.lines) > 1:
        figure.legend(loc="outside upper center", ncols=3, fontsize=8)
    figure.savefig(path, dpi=110)
    print(f"written: {path}")


if __name__ == "__main__":
    main()
