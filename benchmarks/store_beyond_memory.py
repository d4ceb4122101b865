"""A collection with more vectors than the index may hold, in a process whose memory the operating system limits.

    python benchmarks/store_beyond_memory.py --rows 1000000 --dim 256 --folder /data/beyond

The limit is RATIO times the bytes of the vectors as float32, as 24 GiB are for 10,000,000 x 512. It counts everything:
Python, the index, SQLite's caches and the pages of files. The store is filled and searched under it, each in its own
process. Vectors of items, the truth and the queries come from `store_data`.

Needs root and the memory controller of cgroup 1 or 2.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from store_data import Clusters, exact, item_id

from nnclr_hub import EmbeddedStore
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.store.index_kinds import choose_kind
from nnclr_hub.store.settings import StoreSettings

K = 10
BATCH = 1000
RATIO = 24 * 2**30 / (10_000_000 * 512 * 4)
CGROUPS = {  # folder of the controller: file with the limit
    Path("/sys/fs/cgroup/memory"): "memory.limit_in_bytes",
    Path("/sys/fs/cgroup"): "memory.max",
}


@contextmanager
def limited(limit: int) -> Iterator[Path]:
    """Make a cgroup with a memory limit; yield the file that takes the processes of it."""
    for root, name in CGROUPS.items():
        group = root / f"nnclr-{os.getpid()}"
        try:
            group.mkdir()
            (group / name).write_text(str(limit))
        except OSError:
            continue
        try:
            yield group / "cgroup.procs"
        finally:
            time.sleep(0.5)
            group.rmdir()
        return
    sys.exit("no cgroup with a memory limit can be made here; run as root, with the memory controller")


def anonymous(pid: int) -> int:
    """Return the bytes of a process that are not pages of files."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return 1024 * int(next(line.split()[1] for line in text.splitlines() if line.startswith("Anonymous:")))


def run(what: str, chosen: argparse.Namespace, limit: int) -> dict:
    """Run a phase in its own process under the limit, and return what it prints with its peak of anonymous memory."""
    with limited(limit) as procs:
        command = [sys.executable, __file__, "--phase", what, "--folder", str(chosen.folder), "--limit", str(limit)]
        command += ["--rows", str(chosen.rows), "--dim", str(chosen.dim), "--queries", str(chosen.queries)]
        enter = lambda: procs.write_text(str(os.getpid()))  # noqa: E731
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=enter)
        peak, done = [0], threading.Event()

        def watch() -> None:
            while not done.wait(0.1):
                peak[0] = max(peak[0], anonymous(child.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        output, _ = child.communicate()
        done.set()
        watcher.join()
    if child.returncode:
        sys.exit(f"the phase {what} ended with {child.returncode}; -9 means that it needed more than the limit")
    return {**json.loads(output.splitlines()[-1]), "anonymous_peak": peak[0]}


def settings(limit: int) -> StoreSettings:
    """Return what the store would choose on a machine with this much memory."""
    return StoreSettings(memory=limit // 2, total_memory=3 * limit // 4)


def fill(chosen: argparse.Namespace) -> dict:
    """Write the items, and build the index that "auto" chooses for this many from the start."""
    data, spec = Clusters(chosen.rows, chosen.dim), CollectionSpec(chosen.dim)
    kind = choose_kind("auto", spec, chosen.rows, settings(chosen.limit)).name
    begun = time.process_time()
    with EmbeddedStore(chosen.folder, settings=settings(chosen.limit)) as store:
        collection = store.create("c", replace(spec, index=kind))
        for rows in data.chunks():
            items = [Item(*one) for one in zip(rows.ids(), rows.vectors, rows.metadata(), strict=True)]
            for start in range(0, len(items), BATCH):
                collection.upsert(items[start : start + BATCH])
        written = time.process_time() - begun
        collection.compact()
        info = collection.info()
    cpu = time.process_time() - begun
    return {"index": info.index, "recall_estimate": info.recall_estimate, "written_cpu": written, "built_cpu": cpu}


def search(chosen: argparse.Namespace) -> dict:
    """Search one by one; the first queries read vectors from the disk."""
    queries = Clusters(chosen.rows, chosen.dim).queries(chosen.queries)
    with EmbeddedStore(chosen.folder, settings=settings(chosen.limit), read_only=True) as store:
        collection = store.get("c")
        info, found, walls, cpus = collection.info(), [], [], []
        for query in queries:
            wall, cpu = time.perf_counter(), time.thread_time()
            found.append([match.id for match in collection.search(query, K)])
            walls.append(time.perf_counter() - wall)
            cpus.append(time.thread_time() - cpu)
        memory = anonymous(os.getpid())
    half = len(walls) // 2
    return {
        "index": info.index,
        "state": info.state,
        "recall_estimate": info.recall_estimate,
        "found": found,
        "anonymous": memory,
        "ms": {
            "first_half_p50": 1000 * float(np.median(walls[:half])),
            "p50": 1000 * float(np.median(walls[half:])),
            "p99": 1000 * float(np.quantile(walls[half:], 0.99)),
            "cpu_p50": 1000 * float(np.median(cpus[half:])),
        },
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rows", type=int, default=1_000_000)
    arguments.add_argument("--dim", type=int, default=256)
    arguments.add_argument("--queries", type=int, default=1000)
    arguments.add_argument("--ratio", type=float, default=RATIO, help="limit over the bytes of the vectors")
    arguments.add_argument("--folder", type=Path, required=True, help="of the store; an existing one is searched only")
    arguments.add_argument("--phase", choices=("fill", "search"), help=argparse.SUPPRESS)
    arguments.add_argument("--limit", type=int, help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    if chosen.phase:
        print(json.dumps({"fill": fill, "search": search}[chosen.phase](chosen)))
        return
    size = 4 * chosen.rows * chosen.dim
    limit = int(chosen.ratio * size)
    print(f"vectors {size / 2**20:.0f} MiB, limit {limit / 2**20:.0f} MiB", flush=True)
    if not chosen.folder.exists():
        filled = run("fill", chosen, limit)
        print(f"filled: {filled}, anonymous {filled['anonymous_peak'] / size:.2f} of the vectors at most", flush=True)
    data = Clusters(chosen.rows, chosen.dim)
    truth = exact(data, data.queries(chosen.queries), K)[""]
    searched = run("search", chosen, limit)
    found = searched.pop("found")
    found_again = [
        len({item_id(row) for row in rows} & set(ids)) for rows, ids in zip(truth.tolist(), found, strict=True)
    ]
    print(f"searched: {searched}")
    recall = sum(found_again) / K / len(found_again)
    print(
        f"recall@{K} {recall:.4f}, anonymous {searched['anonymous'] / size:.2f} of the vectors, "
        f"p50 {searched['ms']['p50']:.2f} ms"
    )


if __name__ == "__main__":
    main()
