"""Any sequence of operations against a dict and numpy, drawn and, when it fails, shortened by hypothesis."""

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from store.crash.small import LONG, open_small_store, repeated
from store.filter_oracle import Dice
from store.model import World

from nnclr_hub.errors import ItemNotFound
from nnclr_hub.store.spec import CollectionSpec, IndexName

EXAMPLES = 6
seeds = st.integers(0, 2**31)


def copied_if_it_exists(source: str, target: str) -> None:
    """Copy a file, unless maintenance has just renamed or removed it."""
    with suppress(FileNotFoundError):
        shutil.copy2(source, target)


class StoreMachine(RuleBasedStateMachine):
    """One collection and its world, changed and read through crashes and restarts."""

    index: IndexName = "flat"

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.store = None

    @initialize(metric=st.sampled_from(["cosine", "dot", "l2"]), precision=st.sampled_from(["f32", "f16"]))
    def create(self, metric, precision):
        self.store = open_small_store(self.folder)
        spec = CollectionSpec(6, metric=metric, index=self.index, precision=precision, indexed=("label", "odd key'"))
        self.world = World(self.store.create("c", spec), 0)

    def reopen_in(self, folder: Path) -> None:
        self.folder = folder
        self.store = open_small_store(self.folder)
        self.world.collection = self.store.get("c")

    # ---- changes

    @rule(seed=seeds, steps=st.integers(1, 4))
    def change(self, seed, steps):
        self.world.dice = Dice(seed)
        for _ in range(steps):
            self.world.step()

    @rule()
    def snapshot(self):
        self.world.collection.snapshot()

    @rule()
    def reopen(self):
        self.store.close()
        self.reopen_in(self.folder)

    @rule()
    def crash(self):
        """Continue with a copy of the folder of the open store."""
        copy = Path(tempfile.mkdtemp())
        ignored = shutil.ignore_patterns("*-shm")
        shutil.copytree(self.folder, copy, dirs_exist_ok=True, ignore=ignored, copy_function=copied_if_it_exists)
        self.store.close()
        shutil.rmtree(self.folder)
        self.reopen_in(copy)

    # ---- questions

    @rule(seed=seeds, read_only=st.booleans())
    def ask(self, seed, read_only):
        """Also as another process asks."""
        self.world.dice, own = Dice(seed), self.world.collection
        if read_only:
            with open_small_store(self.folder, read_only=True) as reader:
                self.world.collection = reader.get("c")
                self.world.check()
            self.world.collection = own
        else:
            self.world.check()

    @rule(id=st.integers(0, 80).map("i{}".format))
    def thumbnail(self, id):
        if id in self.world.truth:
            assert self.world.collection.thumbnail(id) == self.world.truth[id][2]
        else:
            with pytest.raises(ItemNotFound):
                self.world.collection.thumbnail(id)

    # ---- always

    @invariant()
    def numbers_agree(self):
        if self.store is not None:
            info = self.world.collection.info()
            assert info.count == len(self.world.truth)
            assert info.indexed_seq == info.durable_seq
            assert info.state == "ready" or info.state.startswith("building")  # in the background

    def teardown(self):
        try:
            if self.store is not None:
                assert self.world.collection.verify().ok
                assert self.world.found >= 0.9 * self.world.wanted, f"{self.world.found} of {self.world.wanted}"
                self.store.close()
        finally:
            shutil.rmtree(self.folder)


SLOW = [pytest.param(index, marks=pytest.mark.slow) for index in ("flat", "ivf")]


@pytest.mark.parametrize("index", ["hnsw", "ivf_pq", "auto", *SLOW])
def test_the_store_does_what_a_dict_and_numpy_do(index):
    machine = type("StoreMachine", (StoreMachine,), {"index": index})
    for _ in repeated(0.2):
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=30,
                deadline=None,
                derandomize=not LONG,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
            ),
        )
