"""kill -9, at every named step and at random moments under load: nothing acknowledged is missing or undone."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from itertools import islice

import pytest
from store.crash import load
from store.crash.ledger import Ledger
from store.crash.script import operations, perform, worlds
from store.crash.small import LONG, SECONDS, SEED, environment, open_small_store
from store.crash.world import read_backups, read_collection, read_world

from nnclr_hub.store.failpoints import STEPS

LENGTH = 60
ROUNDS = 2


class Doomed:
    """Performs scripts in processes that are killed at failpoints."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "store.crash.doomed"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )

    def perform(self, folder, failpoint: str = "", seed: int = SEED) -> tuple[int, int, dict[str, int]]:
        """The wait status, how many operations were acknowledged, and the numbers of changes at the last of them."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"folder": str(folder), "failpoint": failpoint, "seed": seed, "length": LENGTH}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        status = json.loads(self._process.stdout.readline())["status"]
        said = folder.with_suffix(".acknowledged").read_text()
        lines = [json.loads(line) for line in said.splitlines(keepends=True) if line.endswith("\n")]
        last = lines[-1] if lines else {"done": 0, "seqs": {}}
        return status, last["done"], last["seqs"]

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def doomed():
    processes = Doomed()
    yield processes
    processes.close()


@pytest.fixture(scope="module")
def reached(doomed, tmp_path_factory) -> dict[str, int]:
    """How often the script reaches each step when nobody kills it."""
    folder = tmp_path_factory.mktemp("alive") / "store"
    status, done, _ = doomed.perform(folder)
    assert (status, done) == (0, LENGTH)
    with open_small_store(folder) as store:
        assert read_world(store) == worlds(operations(SEED, LENGTH))[-1]
    return json.loads(folder.with_suffix(".reached").read_text())


def test_every_step_has_a_name_that_the_tests_know(reached):
    assert reached.keys() <= set(STEPS)


@pytest.mark.parametrize("step", STEPS)
def test_nothing_is_lost_by_a_kill_at(step, doomed, reached, tmp_path):
    """At one of the times when the step is reached; in the long form, at many."""
    times = reached.get(step, 0)
    assert times, f"the script never comes to {step}: its failpoint proves nothing"
    script = operations(SEED, LENGTH)
    foreseen = worlds(script)
    for n in sorted({1 + times // 2, *(range(1, times, 1 + times // 40) if LONG else ())}):
        folder = tmp_path / f"store{n}"
        status, done, seqs = doomed.perform(folder, f"{step}:{n}")
        # folds and snapshots come by themselves too, so a later time may not come at all
        assert status == 0 if n > 1 and status == 0 else os.WTERMSIG(status) == signal.SIGKILL
        with open_small_store(folder) as store:
            world = read_world(store)
            assert world in foreseen[done : done + 2], f"{step}:{n} after {script[:done]}"
            if world == foreseen[done]:
                now = {info.name: info.durable_seq for info in store.list()}
                assert all(now[name] >= seq for name, seq in seqs.items()), "changes are counted again"
            then = done + foreseen[done : done + 2].index(world)
            stop = LENGTH if LONG else min(then + 4, LENGTH)
            for operation in script[then:stop]:
                if operation[0] != "reopen":
                    perform(store, operation)
            assert read_world(store) == foreseen[stop], "the store differs from what was acknowledged"


def kill_under_load(folder, seed: int, requests: int, seconds: float, ledger: Ledger) -> None:
    """Lets the load come to so many requests, and on for a moment, kills it and takes down what it said."""
    command = [sys.executable, "-m", "store.crash.load", str(folder), str(seed)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        lines = list(islice(child.stdout, 2 * requests))  # each is begun and done
        timer = threading.Timer(seconds, child.send_signal, [signal.SIGKILL])
        timer.start()
        lines += child.stdout
        timer.cancel()
        complaint = child.stderr.read()
    assert child.returncode == -signal.SIGKILL, f"seed {seed}: {complaint}"
    ledger.hear(lines)


def test_random_kills_under_load_lose_nothing(tmp_path):
    """Writers, replacements, deletions, searches, snapshots and compactions at once; kill -9 at a random moment.

    NNCLR_CRASH_SECONDS says for how long, NNCLR_CRASH_SEED which load and which moments.
    """
    rng = random.Random(SEED)
    folder = tmp_path / "store"
    ledger = Ledger()
    until = time.monotonic() + SECONDS
    round_ = 0
    while round_ < ROUNDS or time.monotonic() < until:
        # by requests rather than by the clock, so that a busy machine has come as far
        kill_under_load(folder, 1000 * SEED + round_, rng.randrange(2, 350), rng.uniform(0.0, 0.1), ledger)
        with open_small_store(folder) as store:
            collection = store.get(load.NAME)
            info = collection.info()
            assert info.durable_seq >= ledger.seq, "changes are counted again"
            assert info.indexed_seq == info.durable_seq
            ledger.seq = info.durable_seq
            ledger.settle(read_collection(collection))
            read_backups(store)
        round_ += 1
    assert ledger.requests > 20 * ROUNDS
