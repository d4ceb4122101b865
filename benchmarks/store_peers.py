"""Recall against queries per second, compared with other embedded stores and bare indexes on one core.

    pip install -e '.[bench]'
    python benchmarks/store_peers.py                              # 100,000 x 256 and all installed peers
    python benchmarks/store_peers.py --items 20000 --only nnclr_hub,USearch --plot peers.png --json peers.json

Each peer runs in a separate process on one core, so that threads give no advantage. It adds the rows in requests of
1000, builds, and answers queries one by one and, if possible, in batches of 64, over a range of efforts.
`store_peer_kinds.py` defines the peers and their settings. Peers that are not installed are reported and skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
if "--run" in sys.argv:  # before any library starts its threads
    os.environ["OMP_NUM_THREADS"] = "1"
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import numpy as np
from store_data import Clusters, exact
from store_peer_kinds import PEERS, Hits, Peer
from store_report import Report, seconds, versions

K = 10
REQUEST = 1000
BATCH = 64
TURNS = 3
# time limit of a turn for slow peers, in seconds
PATIENCE = 5.0
TARGET = 0.98
# where a plot that is logarithmic in what was missed puts those that missed nothing
ALL_FOUND = 5e-4


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--items", type=int, default=100_000)
    arguments.add_argument("--dim", type=int, default=256)
    arguments.add_argument("--queries", type=int, default=512)
    arguments.add_argument("--only", default=",".join(PEERS), help="comma-separated peers")
    arguments.add_argument("--plot", type=Path, help="write the curves to this PNG")
    arguments.add_argument("--json", type=Path, help="write all figures to this file")
    arguments.add_argument("--run", help=argparse.SUPPRESS)
    arguments.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    if chosen.run:
        print(json.dumps(measure(PEERS[chosen.run], chosen.data)))
        return
    names = chosen.only.split(",")
    if unknown := set(names) - set(PEERS):
        arguments.error(f"--only takes some of {', '.join(PEERS)}; got {', '.join(sorted(unknown))}")
    report = Report(chosen.json)
    report.begin(items=chosen.items, dim=chosen.dim, queries=chosen.queries)
    installed = versions(sorted({PEERS[name].package for name in names}))
    print(f"peers: {installed}")
    with tempfile.TemporaryDirectory() as place:
        write_data(Path(place), Clusters(chosen.items, chosen.dim), chosen.queries)
        for name in names:
            if installed[PEERS[name].package] == "not installed":
                report.say(name, None, f"{name}: skipped, {PEERS[name].package} is not installed")
            else:
                compare(report, name, Path(place))
                if chosen.plot:
                    plot(report.figures, chosen.plot, f"{chosen.items:,} x {chosen.dim}")
    print("\n" + table(report.figures))


def write_data(folder: Path, data: Clusters, queries: int) -> None:
    """Write vectors, labels, queries and exact results for all peers."""
    asked = data.queries(queries)
    np.save(folder / "vectors.npy", np.concatenate([rows.vectors for rows in data.chunks()]))
    np.save(folder / "labels.npy", np.concatenate([rows.labels() for rows in data.chunks()]))
    np.save(folder / "queries.npy", asked)
    np.save(folder / "truth.npy", exact(data, asked, K)[""])


def compare(report: Report, name: str, data: Path) -> None:
    """Measure one peer in a separate process."""
    command = [sys.executable, str(Path(__file__).resolve()), "--run", name, "--data", str(data)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        report.say(name, None, f"{name}: skipped, it failed: {reason:.300}")
        return
    found = json.loads(done.stdout.splitlines()[-1])
    best = max(point["recall"] for point in found["curve"])
    fast = at(found["curve"], TARGET)
    rate = "" if fast is None else f"; {fast['one']:.0f} queries/s one by one where recall reaches {TARGET}"
    report.say(name, found, f"{name}: built in {found['seconds']:.0f} s, recall up to {best:.4f}{rate}")


def measure(kind: type[Peer], data: Path) -> dict[str, Any]:
    """Fill, build and query; everything here runs on one core."""
    vectors, queries = np.load(data / "vectors.npy", mmap_mode="r"), np.load(data / "queries.npy")
    labels, truth = np.load(data / "labels.npy").tolist(), np.load(data / "truth.npy")
    with tempfile.TemporaryDirectory(dir=data, ignore_cleanup_errors=True) as folder:
        peer = kind(Path(folder), vectors.shape[1])
        adding = 0.0
        for start in range(0, len(vectors), REQUEST):
            ids = [str(row) for row in range(start, min(start + REQUEST, len(vectors)))]
            chunk = np.array(vectors[start : start + REQUEST])
            some = labels[start : start + REQUEST]
            adding += seconds(lambda ids=ids, some=some, chunk=chunk: peer.add(ids, some, chunk))
        finishing = seconds(peer.finish)
        curve = [_point(peer, queries, truth, effort) for effort in kind.efforts]
    return {"kind": kind.kind, "durable": kind.durable, "adding": adding, "seconds": adding + finishing, "curve": curve}


def _point(peer: Peer, queries: np.ndarray, truth: np.ndarray, effort: int | None) -> dict[str, Any]:
    """Recall of all queries, and queries/s as the median of some turns."""
    found = [peer.search(query[None], K, effort)[0] for query in queries]
    one = statistics.median(_rate(peer, queries, 1, effort) for _ in range(TURNS))
    point = {"effort": effort, "recall": _recall(found, truth), "one": one}
    if peer.batches:
        point["batch"] = statistics.median(_rate(peer, queries, BATCH, effort) for _ in range(TURNS))
    return point


def _rate(peer: Peer, queries: np.ndarray, size: int, effort: int | None) -> float:
    began, asked = time.perf_counter(), 0
    while asked + size <= len(queries) and time.perf_counter() - began < PATIENCE:
        peer.search(queries[asked : asked + size], K, effort)
        asked += size
    return asked / (time.perf_counter() - began)


def _recall(found: Hits, truth: np.ndarray) -> float:
    rows = [[int(hit[0] if isinstance(hit, tuple) else hit) for hit in hits] for hits in found]
    hits = sum(len(set(true).intersection(one)) for true, one in zip(truth.tolist(), rows, strict=True))
    return hits / truth.size


def at(curve: list[dict[str, Any]], recall: float) -> dict[str, Any] | None:
    """Return the fastest point with single queries that reaches this recall."""
    return max((point for point in curve if point["recall"] >= recall), key=lambda point: point["one"], default=None)


def table(figures: dict[str, Any]) -> str:
    """Return Markdown: each peer where it reaches the target."""
    lines = [
        f"| | is | queries/s at recall >= {TARGET}, one by one | in batches of {BATCH} | effort | recall | "
        "rows added/s | made durable by | build s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, found in figures.items():
        if name not in PEERS or found is None:
            continue
        point = at(found["curve"], TARGET)
        if point is None:
            best = max(point["recall"] for point in found["curve"])
            cells = ["never", "", "", f"{best:.4f}"]
        else:
            batch = f"{point['batch']:.0f}" if "batch" in point else "none"
            cells = [f"{point['one']:.0f}", batch, str(point["effort"] or "default"), f"{point['recall']:.4f}"]
        added = f"{figures['settings']['items'] / found['adding']:.0f}"
        row = [name, found["kind"], *cells, added, found["durable"], f"{found['seconds']:.0f}"]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def plot(figures: dict[str, Any], path: Path, title: str) -> None:
    """Plot recall, on a scale of what is missed, and queries/s; bare indexes as dashed lines."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 5.5), layout="constrained")
    colors = plt.get_cmap("tab10")
    for i, name in enumerate(PEERS):
        if not figures.get(name):
            continue
        curve = _frontier(figures[name]["curve"])
        store = figures[name]["kind"] == "store"
        axes.plot(
            [max(1 - point["recall"], ALL_FOUND) for point in curve],
            [point["one"] for point in curve],
            "o-" if store else "^--",
            color=colors(i),
            linewidth=2.6 if name == "nnclr_hub" else 1.4,
            markersize=5,
            label=f"{name} ({figures[name]['kind']})",
        )
    ticks = [0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001, ALL_FOUND]
    axes.set(xscale="log", yscale="log", xlim=(0.5, ALL_FOUND * 0.8), ylabel="queries/s, one by one on one core")
    axes.set_xticks(ticks, [*(f"{1 - tick:g}" for tick in ticks[:-1]), "all"], minor=False)
    axes.set_xticks([], minor=True)
    axes.set_xlabel(f"recall@{K}")
    axes.axvline(1 - TARGET, color="gray", linewidth=0.8)
    axes.set_title(f"Recall against speed, {title}, clustered vectors")
    axes.grid(which="major", alpha=0.4)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.savefig(path, dpi=130)


def _frontier(curve: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the points that no other point beats in both values, by recall."""
    best: list[dict[str, Any]] = []
    for point in sorted(curve, key=lambda point: (-point["recall"], -point["one"])):
        if not best or point["one"] > best[-1]["one"]:
            best.append(point)
    return best[::-1]


if __name__ == "__main__":
    main()
