"""A collection takes another's place, and a swap that is cut short anywhere is finished by the next call."""

from contextlib import ExitStack, suppress
from unittest.mock import patch

import pytest

from nnclr_hub.errors import CollectionNotFound
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec
from nnclr_hub.store.embedded.store import EmbeddedStore
from nnclr_hub.store.replacement import drop_with_replacement, finish_swaps, replacement_of, swap, write_targets

OLD, NEW = CollectionSpec(4), CollectionSpec(5)
STEPS = ("alias", "unalias", "promote", "rename")


class Stopped(Exception):
    pass


class InTwoSteps(EmbeddedStore):
    """As a store without transactions promotes: first the old collection loses the name, then the alias is made.

    In between it is found by the marker.
    """

    def get(self, name):
        try:
            return super().get(name)
        except CollectionNotFound:
            return super().get(f"{name}~was")

    def promote(self, name, alias):
        kept = None
        if alias in [info.name for info in self.list()]:
            kept = f"{alias}.old"
            self.rename(alias, kept)
        self.alias(alias, name)
        return kept


def cut_at(store, number: int) -> list:
    """Patches that let the store change names so often, and then no more."""
    left = number

    def until_cut(method):
        def call(*arguments):
            nonlocal left
            if not left:
                raise Stopped
            left -= 1
            return method(*arguments)

        return call

    return [patch.object(store, step, until_cut(getattr(store, step))) for step in STEPS]


def cut_swap(store, name: str, number: int) -> bool:
    """Swap up to a number of steps; return whether the swap was finished by then."""
    following = replacement_of(store, name)
    assert following is not None
    with ExitStack() as patched, suppress(Stopped):
        for one in cut_at(store, number):
            patched.enter_context(one)
        swap(store, name, following)
        return True
    return False


@pytest.fixture(params=[EmbeddedStore, InTwoSteps])
def make(request, tmp_path):
    """make() -> a store with the collection c, its alias best, and d, which is to take its place."""
    stores = []

    def made(name: str):
        store = request.param(str(tmp_path / str(len(stores))))
        stores.append(store)
        store.create("c", OLD)
        store.create("d", NEW)
        store.alias("best", "c")
        store.alias("unconcerned", "d")
        store.alias(f"{name}~next", "d")
        return store

    yield made
    for store in stores:
        store.close()


@pytest.mark.parametrize(("name", "found_by"), [("c", "c"), ("c", "best"), ("best", "best")])
def test_a_swap_cut_short_anywhere_is_finished_by_the_next_call(make, name, found_by):
    """At every change of a name; then all names mean the new collection, and none of the helpers is left."""
    for number in range(20):
        store = make(found_by)
        done = cut_swap(store, name, number)
        finish_swaps(store)
        if store.get(name).spec == OLD:  # it had not begun
            again = replacement_of(store, name)
            assert again is not None
            swap(store, name, again)
        kept = "c.old" if name == "c" else "c"
        aliases = {"best": "d", "unconcerned": "d", name: "d"}
        assert store.aliases() == aliases, number
        assert store.get(kept).spec == OLD
        finish_swaps(store)
        assert store.aliases() == aliases
        if done:
            assert number >= 4
            return
    raise AssertionError("a swap has fewer steps")


@pytest.mark.parametrize("name", ["c", "best"])
def test_writes_during_a_swap_are_kept(make, name):
    """By whichever name: it goes to the new collection, alone or as well."""
    for number in range(20):
        store = make(name)
        done = cut_swap(store, name, number)
        for written in {name, "best"}:  # re-embedded as best, c itself stays what it is
            with write_targets(store, written) as collections:
                assert "d" in [one.name for one in collections], (number, written, store.aliases())
        if done:
            return
    raise AssertionError("a swap has fewer steps")


def test_the_old_collection_is_dropped_in_the_middle_of_a_swap_without_the_new_one(make):
    for number in range(20):
        store = make("c")
        done = cut_swap(store, "c", number)
        with suppress(CollectionNotFound):  # it is still called c
            assert drop_with_replacement(store, "c.old") == ("c.old",)
            assert store.get("c").spec == NEW
        assert store.get("d").spec == NEW
        if done:
            return
    raise AssertionError("a swap has fewer steps")


def swap_with(store, action) -> int:
    """Swap c, call `action` before every change of a name, and return the number of changes."""
    steps, inside = 0, False

    def counted(method):
        def call(*arguments):
            nonlocal steps, inside
            if not inside:
                steps, inside = steps + 1, True
                action()
                inside = False
            return method(*arguments)

        return call

    following = replacement_of(store, "c")
    assert following is not None
    with ExitStack() as patched:
        for step in STEPS:
            patched.enter_context(patch.object(store, step, counted(getattr(store, step))))
        swap(store, "c", following)
    return steps


def test_a_drop_by_another_process_during_a_swap_leaves_the_swap_alone(make):
    """At every step of it: the other has no part in it, so it neither finishes it nor hinders it."""
    store = make("c")

    def drop_another():
        store.create("z", OLD)
        before = store.aliases()
        assert drop_with_replacement(store, "z") == ("z",)
        assert store.aliases() == before

    assert swap_with(store, drop_another) >= 4
    assert store.aliases() == {"best": "d", "unconcerned": "d", "c": "d"}


def test_a_swap_that_another_process_finishes_action_comes_to_the_same_end(make):
    """As a call to re-embed does, which takes it for one that was cut short."""
    store = make("c")
    assert swap_with(store, lambda: finish_swaps(store)) >= 4
    assert store.aliases() == {"best": "d", "unconcerned": "d", "c": "d"}


def test_what_is_still_being_built_is_left_alone(tmp_path):
    with open_store(str(tmp_path / "store")) as store:
        store.create("c", OLD)
        store.create("d", NEW)
        store.alias("c~next", "d")
        finish_swaps(store)
        assert store.aliases() == {"c~next": "d"}
        assert store.get("c").spec == OLD
