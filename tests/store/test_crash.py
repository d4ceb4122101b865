"""kill -9 in the middle of writing: nothing acknowledged is missing, nothing deleted comes back."""

import random
import signal
import subprocess
import sys
import time

import numpy as np

from nnclr_hub.store import open_store

WRITER = """
import sys
import numpy as np
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item

store = open_store(sys.argv[1])
try:
    collection = store.get("c")
except Exception:
    collection = store.create("c", CollectionSpec(16))
start = int(sys.argv[2])
for n in range(start, start + 100_000):
    vector = np.random.default_rng(n).normal(size=16)
    collection.upsert([Item(f"i{n}", vector, {"n": n}, b"thumb")])
    print("+", n, flush=True)
    if n % 5 == 4:
        collection.delete([f"i{n - 2}"])
        print("-", n - 2, flush=True)
    if n % 40 == 39:
        collection.snapshot()
"""


def test_acknowledged_writes_survive_kill_9(tmp_path):
    """Six rounds of writer and SIGKILL at a random moment, then everything is held against the acknowledgements."""
    rng = random.Random(0)
    added: set[int] = set()
    deleted: set[int] = set()
    perhaps_deleted: set[int] = set()  # the kill may fall between a deletion and its acknowledgement
    start = 0
    for _ in range(6):
        command = [sys.executable, "-c", WRITER, str(tmp_path / "store"), str(start)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            first = writer.stdout.readline()  # it is at work
            time.sleep(rng.uniform(0.02, 0.5))
            writer.send_signal(signal.SIGKILL)
            lines = [first, *writer.stdout]
        for line in lines:
            if line.endswith("\n"):
                sign, number = line.split()
                (added if sign == "+" else deleted).add(int(number))
        perhaps_deleted.add(max(added) - 2)
        start = max(added) + 2  # the one after the last acknowledged may or may not be there
        with open_store(str(tmp_path / "store")) as store:
            collection = store.get("c")
            items = {int(item.id[1:]): item for item in collection.scroll(limit=10_000).items}
            assert (added - deleted) - items.keys() <= perhaps_deleted, "acknowledged and missing"
            assert not items.keys() & deleted, "deleted and back"
            for number, item in items.items():
                want = np.random.default_rng(number).normal(size=16)
                np.testing.assert_allclose(item.vector, want / np.linalg.norm(want), atol=1e-5)
                assert collection.thumbnail(item.id) == b"thumb"
            assert collection.verify().ok
            sample = sorted(items)[:: max(1, len(items) // 20)]
            assert all(collection.search(items[n].vector, 1)[0].id == f"i{n}" for n in sample)
    assert len(added) > 50
