"""Queries per second at equal recall, filters, ingest, opening, memory and disk, next to other embedded stores.

    pip install qdrant-edge-py lancedb chromadb usearch hnswlib sqlite-vec apsw
    python benchmarks/store_peers.py                              # 100,000 x 256 and all installed peers
    python benchmarks/store_peers.py --items 20000 --only nnclr_hub,USearch --plot peers.png --json peers.json
    python benchmarks/store_peers.py --saved peers.json others.json --plot all.png     # several runs in one plot

Each peer has its own process on one core. It adds the rows in requests of 1000 and builds. Then all peers take turns:
for each effort and filter, one after another answers the same queries. Times are CPU times of the whole process, so
other work on the machine matters little, and waiting for the disk is not counted. Opening and memory are measured in a
new process. `store_peer_kinds.py` defines the peers. Those that are not installed are reported and skipped.
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
from collections import ChainMap
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
if "--worker" in sys.argv:  # before any library starts its threads
    os.environ["OMP_NUM_THREADS"] = os.environ["RAYON_NUM_THREADS"] = "1"
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import numpy as np
from store_data import Clusters, exact
from store_peer_kinds import PEERS, Hits, Peer
from store_report import Report, cpu_seconds, versions

K = 10
REQUEST = 1000
BATCH = 64
TARGET = 0.98
FILTERS = ("", "50%", "1%", "0.01%")
PATIENCE = 4.0  # CPU seconds of a measurement of a slow peer
ALL_FOUND = 5e-4  # where a logarithmic plot of what was missed puts those that missed nothing


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--items", type=int, default=100_000)
    arguments.add_argument("--dim", type=int, default=256)
    arguments.add_argument("--queries", type=int, default=200)
    arguments.add_argument("--turns", type=int, default=3)
    arguments.add_argument("--only", default=",".join(PEERS), help="comma-separated peers")
    arguments.add_argument("--plot", type=Path, help="write the curves to this PNG")
    arguments.add_argument("--json", type=Path, help="write all figures to this file")
    arguments.add_argument("--saved", type=Path, nargs="+", help="measure nothing; plot what --json wrote")
    arguments.add_argument("--worker", nargs=3, metavar=("PEER", "DATA", "FOLDER"), help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    if chosen.worker:
        work(PEERS[chosen.worker[0]], Path(chosen.worker[1]), Path(chosen.worker[2]))
        return
    if chosen.saved:
        runs = [json.loads(file.read_text()) for file in chosen.saved]
        plot(dict(ChainMap(*runs)), chosen.plot, f"{runs[0]['settings']['items']:,} x {runs[0]['settings']['dim']}")
        return
    names = chosen.only.split(",")
    if unknown := set(names) - set(PEERS):
        arguments.error(f"--only takes some of {', '.join(PEERS)}; got {', '.join(sorted(unknown))}")
    report = Report(chosen.json)
    report.begin(items=chosen.items, dim=chosen.dim, queries=chosen.queries)
    installed = versions(sorted({PEERS[name].package for name in names}))
    print(f"peers: {installed}", flush=True)
    with tempfile.TemporaryDirectory() as place:
        data = Path(place)
        write_data(data, Clusters(chosen.items, chosen.dim), chosen.queries)
        workers = {}
        for name in names:
            if installed[PEERS[name].package] == "not installed":
                print(f"{name}: skipped, {PEERS[name].package} is not installed", flush=True)
                continue
            worker = Worker(name, data)
            try:
                report.say(name, worker.call("fill"), f"{name}: {worker.last}")
                workers[name] = worker
            except EOFError:
                print(f"{name}: skipped, its process failed", flush=True)
        compare(report, workers, chosen.turns)
        for name, worker in workers.items():
            worker.end()
            if PEERS[name].kind == "store":
                opened = Worker(name, data, worker.folder)
                report.figures[name]["open"] = opened.call("open")
                opened.end()
    report.say("done", None, "\n" + table(report.figures))
    if chosen.plot:
        plot(report.figures, chosen.plot, f"{chosen.items:,} x {chosen.dim}")


def write_data(folder: Path, data: Clusters, queries: int) -> None:
    """Write vectors, metadata, queries and exact results for all peers."""
    asked = data.queries(queries)
    chunks = list(data.chunks())
    np.save(folder / "vectors.npy", np.concatenate([rows.vectors for rows in chunks]))
    metadata = [
        {"label": one["label"], "half": one["half"], "part": one["part"]} for c in chunks for one in c.metadata()
    ]
    (folder / "metadata.json").write_text(json.dumps(metadata))
    np.save(folder / "queries.npy", asked)
    for name, rows in exact(data, asked, K, FILTERS[1:]).items():
        np.save(folder / f"truth-{FILTERS.index(name)}.npy", rows)


class Worker:
    """The process of a peer; it answers one command at a time."""

    def __init__(self, name: str, data: Path, folder: Path | None = None) -> None:
        self.folder = folder or Path(tempfile.mkdtemp(dir=data))
        self.last: Any = None
        command = [sys.executable, str(Path(__file__).resolve()), "--worker", name, str(data), str(self.folder)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def call(self, what: str, **named: Any) -> dict[str, Any]:
        """Send a command and return its result; raises EOFError if the process ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"what": what, **named}) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):
                self.last = json.loads(line)
                return self.last
        raise EOFError

    def end(self) -> None:
        """Close the peer, so that another process can open its folder."""
        self._process.communicate()


def compare(report: Report, workers: dict[str, Worker], turns: int) -> None:
    """Let the peers take turns at each effort; with a filter, up to the first that reaches TARGET."""
    for filter in FILTERS:
        for step in range(max((len(PEERS[name].efforts) for name in workers), default=0)):
            cells: dict[str, list[dict[str, Any]]] = {}
            for _ in range(turns):
                for name, worker in workers.items():
                    efforts, found = PEERS[name].efforts, report.figures[name].setdefault("curves", {})
                    curve = found.setdefault(filter, [])
                    reached = any(point["recall"] >= TARGET for point in curve if point["step"] != step)
                    if step >= len(efforts) or (filter and (reached or PEERS[name].kind != "store")):
                        continue
                    cells.setdefault(name, []).append(worker.call("search", filter=filter, effort=efforts[step]))
            for name, points in cells.items():
                middle = {key: statistics.median(point[key] for point in points) for key in points[0]}
                report.figures[name]["curves"][filter].append(
                    {"step": step, "effort": PEERS[name].efforts[step], **middle}
                )
            print(f"filter {filter or 'none'}, effort {step + 1}", flush=True)


# ------------------------------------------------------------------------------ in the process of a peer


def work(kind: type[Peer], data: Path, folder: Path) -> None:
    """Answer commands until there are no more."""
    queries = np.load(data / "queries.npy")
    truth = [np.load(data / f"truth-{number}.npy") for number in range(len(FILTERS))]
    peer: Peer | None = None
    for line in sys.stdin:
        command = json.loads(line)
        if command["what"] == "fill":
            peer = kind(folder, queries.shape[1])
            found = fill(peer, data)
        elif command["what"] == "open":
            found = opened(kind, folder, queries)
        else:
            assert peer is not None
            found = point(peer, queries, truth[FILTERS.index(command["filter"])], command["filter"], command["effort"])
        print(json.dumps(found), flush=True)
    if peer is not None:
        peer.close()


def fill(peer: Peer, data: Path) -> dict[str, Any]:
    """Add all rows and build."""
    vectors, metadata = np.load(data / "vectors.npy", mmap_mode="r"), json.loads((data / "metadata.json").read_text())
    adding = 0.0
    for start in range(0, len(vectors), REQUEST):
        chunk = np.array(vectors[start : start + REQUEST])
        rows = range(start, start + len(chunk))
        adding += cpu_seconds(
            lambda rows=rows, chunk=chunk, start=start: peer.add(rows, metadata[start : start + REQUEST], chunk)
        )
    return {"kind": peer.kind, "durable": peer.durable, "adding": adding, "building": cpu_seconds(peer.finish)}


def opened(kind: type[Peer], folder: Path, queries: np.ndarray) -> dict[str, Any]:
    """Open what was filled, search once, and report CPU seconds, memory and disk."""
    before = memory()
    peers: list[Peer] = []

    def first_answer() -> None:
        peers.append(kind(folder, queries.shape[1]))
        peers[0].search(queries[:1], K, kind.efforts[0], "")

    seconds = cpu_seconds(first_answer)
    for query in queries:
        peers[0].search(query[None], K, kind.efforts[0], "")
    used = memory() - before
    disk = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return {"seconds": seconds, "memory": used, "disk": disk}


def memory() -> int:
    """Return the resident memory of this process in bytes, with the pages of mapped files."""
    text = Path("/proc/self/status").read_text()
    return 1024 * int(next(line.split()[1] for line in text.splitlines() if line.startswith("VmRSS:")))


def point(peer: Peer, queries: np.ndarray, truth: np.ndarray, filter: str, effort: int | None) -> dict[str, Any]:
    """Return the recall, and queries per CPU second one by one and in batches."""
    began, found = time.process_time(), []
    for query in queries:
        found.append(peer.search(query[None], K, effort, filter)[0])
        if time.process_time() - began > PATIENCE:
            break
    rate = len(found) / max(1e-9, time.process_time() - began)
    result = {"recall": recall(found, truth[: len(found)]), "one": rate}
    if peer.batches and not filter and len(found) == len(queries):
        starts = range(0, len(queries) - BATCH + 1, BATCH)
        taken = cpu_seconds(lambda: [peer.search(queries[start : start + BATCH], K, effort, "") for start in starts])
        result["batch"] = len(starts) * BATCH / max(1e-9, taken)
    return result


def recall(found: Hits, truth: np.ndarray) -> float:
    """Return the share of the true rows, -1 for none, that were found."""
    rows = [{int(hit[0] if isinstance(hit, tuple) else hit) for hit in hits} for hits in found]
    wanted = [set(true) - {-1} for true in truth.tolist()]
    return sum(len(true & one) for true, one in zip(wanted, rows, strict=True)) / max(1, sum(map(len, wanted)))


# ------------------------------------------------------------------------------ what is shown


def at(curve: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the fastest point that reaches TARGET."""
    return max((one for one in curve if one["recall"] >= TARGET), key=lambda one: one["one"], default=None)


def table(figures: dict[str, Any]) -> str:
    """Return Markdown: each peer where it reaches TARGET."""
    heads = ["", "is", f"queries/s at recall {TARGET}", f"in batches of {BATCH}", *FILTERS[1:], "rows added/s"]
    heads += ["durable by", "build s", "open s", "memory MB", "disk MB"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, found in figures.items():
        if name not in PEERS or found is None:
            continue
        cells = []
        for filter in FILTERS:
            curve = found["curves"].get(filter, [])
            best = at(curve)
            most = max((one["recall"] for one in curve), default=None)
            cells.append(
                f"{best['one']:.0f} ({best['recall']:.3f})" if best else "" if most is None else f"({most:.3f})"
            )
            if not filter:
                cells.append(f"{best['batch']:.0f}" if best and "batch" in best else "")
        cells += [f"{figures['settings']['items'] / found['adding']:.0f}", found["durable"], f"{found['building']:.0f}"]
        there = found.get("open")
        cells += ["", "", ""] if there is None else [f"{there['seconds']:.2f}"]
        cells += [] if there is None else [f"{there['memory'] / 1e6:.0f}", f"{there['disk'] / 1e6:.0f}"]
        lines.append(f"| {' | '.join([name, found['kind'], *cells])} |")
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
        curve = sorted(figures[name]["curves"][""], key=lambda one: one["recall"])
        store = figures[name]["kind"] == "store"
        axes.plot(
            [max(1 - one["recall"], ALL_FOUND) for one in curve],
            [one["one"] for one in curve],
            "o-" if store else "^--",
            color=colors(i),
            linewidth=2.6 if name == "nnclr_hub" else 1.4,
            markersize=5,
            label=f"{name} ({figures[name]['kind']})",
        )
    ticks = [0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001, ALL_FOUND]
    axes.set(xscale="log", yscale="log", xlim=(0.5, ALL_FOUND * 0.8), ylabel="queries per CPU second, one by one")
    axes.set_xticks(ticks, [*(f"{1 - tick:g}" for tick in ticks[:-1]), "all"], minor=False)
    axes.set_xticks([], minor=True)
    axes.set_xlabel(f"recall@{K}")
    axes.axvline(1 - TARGET, color="gray", linewidth=0.8)
    axes.set_title(f"Recall against speed, {title}, clustered vectors")
    axes.grid(which="major", alpha=0.4)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
