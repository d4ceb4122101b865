"""What the process limits: forks, open files, and a lock that somebody removes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile

import pytest
from store.crash.small import environment
from store.exhaustive import DIM, vectors

from nnclr_hub.errors import StoreClosed, StoreError, StoreLocked
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item


def in_child(work) -> str:
    """Run work in a forked child; return the name of the error that it raised, or what it returned."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = str(work())
        except StoreError as error:
            answer = type(error).__name__
        except BaseException as error:  # noqa: BLE001 - the child must end here in any case
            answer = repr(error)
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_is_refused_and_harms_nothing(tmp_path):
    item = Item("a", vectors(1)[0])
    with open_store(str(tmp_path)) as store:
        collection = store.create("c", CollectionSpec(DIM))
        collection.upsert([item])
        uses = (
            lambda: collection.upsert([item]),
            lambda: collection.search(item.vector),
            lambda: collection.count(),
            lambda: store.get("c"),
            lambda: store.records.list("probe"),
        )
        assert [in_child(use) for use in uses] == [StoreClosed.__name__] * len(uses)
        assert in_child(store.close) == "None"
        with pytest.raises(StoreLocked):  # the child has not unlocked the folder
            open_store(str(tmp_path))
        assert in_child(lambda: open_store(str(tmp_path), read_only=True).get("c").count()) == "1"
        collection.upsert([Item("b", item.vector)])
        assert collection.verify().ok


CHILD = """
import multiprocessing, sys
import numpy as np
from nnclr_hub.store import failpoints, open_store
from nnclr_hub.store.base import CollectionSpec, Item, SearchOptions

vectors = np.random.default_rng(0).normal(size=(2000, 64)).astype(np.float32)

def search(folder):
    with open_store(folder, read_only=True) as store:
        found = store.get("c").search_each(list(vectors[:20]), 5, SearchOptions())
    return sum(matches[0].id == str(i) for i, matches in enumerate(found))

with open_store(sys.argv[1]) as store:
    collection = store.create("c", CollectionSpec(64))
    collection.upsert([Item(str(i), v) for i, v in enumerate(vectors)])
    collection.search_each(list(vectors[:20]), 5, SearchOptions())  # starts threads
    with multiprocessing.get_context("fork").Pool(1) as pool:
        print(pool.apply(search, [sys.argv[1]]))
"""


def test_a_forked_child_searches_after_its_parent_did(tmp_path):
    """As the message of StoreClosed says. The threads of the parent do not exist in the child."""
    variables = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [sys.executable, "-W", "ignore", "-c", CHILD, str(tmp_path / "s")]
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.communicate(timeout=60)[0].strip() == "20"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the child, too


MANY = """
import json, resource, sys
import numpy as np
from nnclr_hub.errors import StoreError
from nnclr_hub.store import failpoints, open_store
from nnclr_hub.store.backup import back_up
from nnclr_hub.store.base import CollectionSpec, Item

folder, number, limit = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
vector = np.ones(4, np.float32)
with open_store(folder + "2") as store:
    store.create("c", CollectionSpec(4))
other = open_store(folder + "2")
others = [open("/dev/null") for _ in range(40)]  # as a server has connections
resource.setrlimit(resource.RLIMIT_NOFILE, (limit + 40, limit + 40))
with open_store(folder) as store:
    kept = [store.create(f"c{n}", CollectionSpec(4)) for n in range(number)]
    for n, collection in enumerate(kept):
        collection.upsert([Item(f"i{n}", vector)])
    found = [collection.search(vector, 1)[0].id for collection in kept]
    answer = {"found": found == [f"i{n}" for n in range(number)], "list": sum(info.count for info in store.list())}
    files = []
    try:
        while True:
            files.append(open("/dev/null"))
    except OSError:
        pass
    answer["errors"] = []
    for work in (lambda: other.get("c"), lambda: open_store(folder + "3")):
        try:
            work()
        except StoreError as error:
            answer["errors"].append(str(error))
    for file in files:
        file.close()
    other.get("c").upsert([Item("late", vector)])
    store.get("c0").upsert([Item("late", vector)])
    answer["late"] = store.get("c0").count()
    answer["backup"] = back_up(store, folder + "4").items
    answer["threads"] = len(__import__("threading").enumerate())
print(json.dumps(answer))
"""


def test_too_many_open_files_are_reported_and_harm_nothing():
    number = 3
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", MANY, f"{folder}/store", str(number), "64"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=600)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["found"], answer["list"], answer["late"], answer["backup"]) == (True, number, 2, number + 1)
    assert ["ulimit" in error for error in answer["errors"]] == [True, True]
    assert answer["threads"] < 40
