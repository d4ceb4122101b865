"""The embedded store against what it is made of: bare SQLite, bare faiss, the bytes of the vectors.

    python benchmarks/store.py                                      # 1,000,000 x 256, everything
    python benchmarks/store.py --items 100000 --dim 2048
    python benchmarks/store.py --items 20000 --dim 64 --only ingest,search --json figures.json
    python benchmarks/store.py --folder /data/bench --only filter   # the store that an earlier run left there

Ratios are the result, both sides measured in this run. Sections:

    ingest   durable upserts over bare SQLite inserts of the same rows            at least 0.8
    search   queries/s over bare faiss on the same index: in batches of 64        at least 0.8
             one by one                                                           at least 0.7, toward 0.9
             recall@10 of the default                                             at least 0.98
    filter   recall@10 at 50%, 1% and 0.01% selectivity                           at least 0.98
    open     seconds from a snapshot over seconds of a rebuild                    at most 0.1
    memory   over the bytes of the vectors as f32: steady, while compacting       at most 1.45 and 2.7
    half     ingest and memory with precision="f16"                               at most 0.725 and 1.35
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from store_data import Clusters
from store_ingest import NAME, ingest_large, ingest_small
from store_report import Report
from store_search import filtered, search

from nnclr_hub.store import open_store

SECTIONS = ("ingest", "search", "filter", "open", "memory", "half")


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    arguments.add_argument("--items", type=int, default=1_000_000)
    arguments.add_argument("--dim", type=int, default=256)
    arguments.add_argument("--only", default=",".join(SECTIONS), help="comma-separated sections")
    arguments.add_argument("--queries", type=int, default=1024, help="for recall and speed; filters take a quarter")
    arguments.add_argument("--turns", type=int, default=5, help="repetitions of each comparison")
    arguments.add_argument("--folder", type=Path, help="folder for the store; an existing store is used")
    arguments.add_argument("--json", type=Path, help="write all figures to this file")
    chosen = arguments.parse_args()
    sections = chosen.only.split(",")
    if unknown := set(sections) - set(SECTIONS):
        arguments.error(f"--only takes some of {', '.join(SECTIONS)}; got {', '.join(sorted(unknown))}")
    report = Report(chosen.json)
    report.begin(items=chosen.items, dim=chosen.dim, turns=chosen.turns)
    data = Clusters(chosen.items, chosen.dim)
    if "ingest" in sections:
        for batch in (1000, 100):
            ingest_small(report, chosen.dim, chosen.items, batch, chosen.turns)
    with tempfile.TemporaryDirectory() if chosen.folder is None else nullcontext(chosen.folder) as place:
        folder = Path(place) / "f32"
        if set(sections) - {"half"} and not folder.exists():
            ingest_large(report, folder, data, "f32")
        if {"search", "filter"} & set(sections):
            with open_store(str(folder)) as store:
                collection = store.get(NAME)
                if "search" in sections:
                    search(report, collection, data, chosen.queries, chosen.turns)
                if "filter" in sections:
                    filtered(report, collection, data, max(1, chosen.queries // 4))
        if "memory" in sections:
            memory(report, folder)
        if "half" in sections:
            half = folder.with_name("f16")
            if not half.exists():
                ingest_large(report, half, data, "f16")
            memory(report, half)
        if "open" in sections:
            opening(report, folder)


def opening(report: Report, folder: Path) -> None:
    """Measure opening from the snapshot three times, then without one."""
    with open_store(str(folder)) as store:
        kind = store.get(NAME).info().index
    snapshot = [_process("open", folder, kind)["answers"] for _ in range(3)]
    lost = Path(tempfile.mkdtemp(dir=folder.parent))
    for file in folder.rglob("index-*"):
        shutil.move(file, lost)
    rebuilt = _process("open", folder, kind)
    shutil.rmtree(lost)
    median = sorted(snapshot)[1]
    ratio = median / rebuilt["answers"]
    report.say(
        "open",
        {"ratio": ratio, "snapshot": snapshot, "rebuild": rebuilt["answers"], "rebuild_there": rebuilt["there"]},
        f"open: from a snapshot over a rebuild to the same {kind} index {ratio:.3f}; {median:.1f} s, median of 3, "
        f"and {rebuilt['answers']:.1f} s, of which {rebuilt['there']:.1f} s until searches are answered at all",
    )


def memory(report: Report, folder: Path) -> None:
    """Measure a process that opens the store, searches, compacts and searches again."""
    found = _process("memory", folder)
    steady, peak, after = (found[name] / found["vectors"] for name in ("steady", "peak", "after"))
    report.say(
        f"memory_{folder.name}",
        {"steady": steady, "peak": peak, "after_compacting": after, "bytes": found},
        f"memory, {folder.name}, {found['index']}, over the {found['vectors'] / 2**20:.0f} MiB of the vectors as f32: "
        f"{steady:.2f} steady, {peak:.2f} at most while compacting, {after:.2f} after it",
    )


def _process(what: str, folder: Path, *more: str) -> dict:
    script = Path(__file__).with_name("store_process.py")
    done = subprocess.run(
        [sys.executable, str(script), what, str(folder), *more], check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
