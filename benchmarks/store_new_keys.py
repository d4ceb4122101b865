"""The first filter on keys that no filter has used: CPU seconds in all, and of the longest piece.

    python benchmarks/store_new_keys.py --rows 1000000 --keys 64

Cancellation, and filters of other threads, wait for one piece. The table of items is in memory.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import time
from itertools import pairwise

from nnclr_hub.store.columns.columns import Columns

from nnclr_hub.store.cancellation import cancellable
from nnclr_hub.store.where import parse


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=64)
    given = parser.parse_args()
    names = [f"k{key}" for key in range(given.keys)]
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("CREATE TABLE items (rid INTEGER PRIMARY KEY, id TEXT, metadata TEXT)")
    connection.execute("CREATE TABLE oplog (seq INTEGER PRIMARY KEY, op TEXT, rid INTEGER)")
    rows = (
        (row, str(row), json.dumps({name: (31 * row + key) % 1000 for key, name in enumerate(names)}))
        for row in range(given.rows)
    )
    connection.executemany("INSERT INTO items VALUES (?, ?, ?)", rows)
    group = parse({"must": [{"key": name, "range": {"gte": key}} for key, name in enumerate(names)]})
    columns = Columns(memory=1 << 40)
    for name in ("first", "again"):
        moments = [time.thread_time()]
        with cancellable(lambda moments=moments: moments.append(time.thread_time())):
            passing = len(columns.passing(connection, 0, group))
        moments.append(time.thread_time())
        longest = max(after - before for before, after in pairwise(moments))
        expected = sum(
            all((31 * row + key) % 1000 >= key for key in range(given.keys)) for row in range(min(1000, given.rows))
        )
        assert passing == expected * given.rows // 1000 or given.rows % 1000, passing
        print(
            f"{name}: {moments[-1] - moments[0]:.2f} CPU s, longest piece {longest:.2f} s, "
            f"{columns.nbytes / 1e6:.0f} MB",
            flush=True,
        )


if __name__ == "__main__":
    main()
