"""Loss of power, which kill -9 cannot simulate: unsynced data is lost, and nothing acknowledged.

A child performs a script under strace. The recording is replayed into a model of a disk, the power fails at many
moments of it, and what is left is opened and held against what the child had acknowledged by then.
"""

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from store.crash.disk import Disk
from store.crash.replay import STDOUT, Replay
from store.crash.script import operations, worlds
from store.crash.small import LONG, SEED, environment, open_small_store
from store.crash.strace import Call, calls, traced_run
from store.crash.world import read_world

SEEDS = [SEED, SEED + 1, SEED + 2] if LONG else [SEED]
LENGTH = 100 if LONG else 24
# of the moments between acknowledgements
MOMENTS = 200 if LONG else 12
# a child whose SQLite never syncs
CARELESS = """
import sqlite3, sys
class Careless(sqlite3.Connection):
    def execute(self, sql, *parameters):
        if sql.startswith("PRAGMA synchronous"):
            super().execute("PRAGMA synchronous = OFF")
            return super().execute("SELECT 2")  # the store asks whether its setting took
        return super().execute(sql, *parameters)
connect = sqlite3.connect
sqlite3.connect = lambda *given, **named: connect(*given, **named, factory=Careless)
from store.crash.script import operations, run
run(sys.argv[1], operations(int(sys.argv[2]), int(sys.argv[3])), 1)
"""


@pytest.fixture(scope="module", params=SEEDS)
def recording(request, tmp_path_factory) -> tuple[int, Path, list[Call]]:
    """A seed, a disk's root folder and the calls of a child that performed the script of that seed on it."""
    return request.param, *record(tmp_path_factory.mktemp("recorded"), request.param, "-m", "store.crash.script")


def record(tmp_path: Path, seed: int, *program: str) -> tuple[Path, list[Call]]:
    root = tmp_path / "disk"
    root.mkdir()
    command = [sys.executable, *program, str(root / "store"), str(seed), str(LENGTH)]
    done = traced_run(command, tmp_path / "trace", env=environment())
    assert done.returncode == 0, done.stderr
    return root, calls(tmp_path / "trace")


def moments(recorded: list[Call], rng: random.Random) -> set[int]:
    """Lines of the trace after which the power fails: every acknowledgement, and others drawn from all calls."""
    acknowledged = {call.ended for call in recorded if is_acknowledgement(call)}
    changing = [call.ended for call in recorded if call.name not in ("close", "fcntl", "lseek")]
    return acknowledged | set(rng.sample(changing, min(MOMENTS, len(changing))))


def is_acknowledgement(call: Call) -> bool:
    return call.name == "write" and call.arguments[0] == STDOUT


def bytes_of(call: Call) -> bytes:
    data = call.arguments[1]
    assert isinstance(data, bytes)
    return data


def losses(root: Path, recorded: list[Call], seed: int, out: Path) -> Iterator[tuple[int, dict, Path]]:
    """At each moment: how many operations were acknowledged, their numbers of changes, and what the disk holds."""
    rng = random.Random(seed)
    chosen = moments(recorded, rng)
    disk = Disk()
    done, seqs = 0, {}
    for call in Replay(disk, root).run(recorded):
        if is_acknowledgement(call):
            line = json.loads(bytes_of(call))
            done, seqs = line["done"], line["seqs"]
        if call.ended in chosen:
            # some of the volatile survives, and at an acknowledgement also nothing of it
            for part in (rng, None) if is_acknowledgement(call) else (rng,):
                left = out / f"{call.ended}{'-torn' if part else ''}"
                disk.materialize(left, part)
                yield done, seqs, left / "store"


def test_nothing_acknowledged_is_lost_with_the_power(tmp_path, recording):
    seed, root, recorded = recording
    script = operations(seed, LENGTH)
    foreseen = worlds(script)
    (tmp_path / "left").mkdir()
    seen = set()
    for done, seqs, left in losses(root, recorded, seed, tmp_path / "left"):
        with open_small_store(left) as store:
            world = read_world(store)
            assert world in foreseen[done : done + 2], f"{left}: after {done} of {script[: done + 1]}"
            next_kind = script[done][0] if done < LENGTH else ""
            # a promotion that was not acknowledged may have swapped two collections with equal contents
            if world == foreseen[done] and next_kind != "promote":
                now = {info.name: info.durable_seq for info in store.list()}
                assert all(now[name] >= seq for name, seq in seqs.items()), f"{left}: changes are counted again"
        seen.add(done)
    assert seen == set(range(LENGTH + 1))


def test_the_model_bites_where_sqlite_does_not_sync(tmp_path):
    """The same workload with synchronous=OFF loses what it acknowledged; else the test above would prove nothing."""
    foreseen = worlds(operations(SEED, LENGTH))
    root, recorded = record(tmp_path, SEED, "-c", CARELESS)
    (tmp_path / "left").mkdir()
    lost = 0
    for done, _, left in losses(root, recorded, SEED, tmp_path / "left"):
        try:
            with open_small_store(left) as store:
                lost += read_world(store) not in foreseen[done : done + 2]
        except Exception:  # noqa: BLE001 - a damaged file is a loss, however it shows
            lost += 1
    assert lost > LENGTH / 2
