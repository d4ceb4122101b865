"""MilvusStore and real servers: filters, recall, addresses; and servers that are killed, stopped and started again."""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from store.milvus_servers import SERVERS, patiently, standalone_server
from store.test_milvus import check_filters

from nnclr_hub.errors import InvalidRequest, StoreUnreachable
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item, SearchOptions
from nnclr_hub.store.milvus import MilvusStore, connection

pytestmark = pytest.mark.scale
VECTORS = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)


def items(n):
    return [Item(f"i{i}", VECTORS[i], {"n": i}) for i in range(n)]


@pytest.fixture(params=list(SERVERS))
def server(request, tmp_path):
    with SERVERS[request.param](tmp_path) as server:
        yield server


# ------------------------------------------------------------------------------ filters and recall


def test_filters_agree_with_the_plain_reading_of_each_item(server):
    with open_store(server.uri) as store:
        check_filters(store, 300, seed=1)


def test_the_standalone_server_finds_neighbors_by_its_index(tmp_path):
    """Far from all items and under filters, too; what is exact or not kept is refused."""
    random = np.random.default_rng(0)
    centers = random.normal(size=(100, 32))
    vectors = (centers[random.integers(100, size=12_000)] + 0.5 * random.normal(size=(12_000, 32))).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    queries = np.concatenate([vectors[:20], random.normal(size=(20, 32))]).astype(np.float32)
    parts = random.integers(1000, size=12_000)
    with standalone_server(tmp_path) as server, MilvusStore(f"{server.uri}/default?M=12&nlist=64") as store:
        indexes = {"auto": "autoindex", "ivf": "ivf_flat"}
        for kind in ("auto", "hnsw", "ivf", "ivf_sq8"):
            collection = store.create(kind, CollectionSpec(32, indexed=("part",), index=kind))
            for start in range(0, 12_000, 2000):
                rows = range(start, start + 2000)
                collection.upsert([Item(f"i{i}", vectors[i], {"part": int(parts[i])}) for i in rows])
            collection.snapshot()
            collection.repair()  # builds the index of all items now
            for below in (1000, 500, 100, 10):
                scores = np.where(parts < below, queries @ vectors.T, -9)
                true = [{f"i{i}" for i in row} for row in np.argsort(-scores, axis=1)[:, :10]]
                where = {"must": [{"key": "part", "range": {"lt": below}}]} if below < 1000 else None
                found = collection.search_each(queries, 10, SearchOptions(where))
                hits = [len(ids & {match.id for match in some}) for ids, some in zip(true, found, strict=True)]
                assert sum(hits) >= 0.95 * 10 * len(queries), (kind, below)
            report = collection.verify()
            assert report.ok
            assert report.recall > 0.95
            info = collection.info()
            assert (info.index, info.recall_estimate) == (indexes.get(kind, kind), report.recall)
            built = store.connection.client.describe_index(connection.encode(kind), "vector")
            assert {"hnsw": built.get("M") == "12", "auto": True}.get(kind, built.get("nlist") == "64")
            with pytest.raises(InvalidRequest):
                collection.search(queries[0], exact=True)


def test_a_missing_database_is_reported(tmp_path):
    with standalone_server(tmp_path) as server:
        with pytest.raises(InvalidRequest, match="create it"):
            open_store(f"{server.uri}/absent")
        with open_store(f"{server.uri}/default") as store:
            assert store.list() == []


def test_tls_users_and_tokens(tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(certificate)]
    made += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(made, check=True, capture_output=True)
    options = ["--tls-mode", "1", "--server-key-path", str(key), "--authorization-enabled", "true"]
    options += [part for name in ("server", "ca") for part in (f"--{name}-pem-path", str(certificate))]
    # gRPC reads the certificates that it trusts once per process
    trusting = os.environ | {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(certificate)}

    def listed(address: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "nnclr_hub.cli", "store", "list", "--json", "--store", address]
        return subprocess.run(command, env=trusting, cwd=tmp_path, text=True, capture_output=True, check=False)

    def answers(uri: str) -> bool:
        return listed(uri.replace("milvus://", "milvus+tls://root:Milvus@")).stdout.strip() == "[]"

    with standalone_server(tmp_path, *options, answers=answers) as server:
        host = server.uri.removeprefix("milvus://")
        assert listed(f"milvus+tls://{host}/default?token=root:Milvus").stdout.strip() == "[]"
        for wrong in (f"milvus+tls://root:wrong@{host}", f"milvus+tls://{host}", f"milvus://root:Milvus@{host}"):
            refused = listed(wrong)
            assert refused.returncode != 0
            assert "Traceback" not in refused.stderr


# ------------------------------------------------------------------------------ servers that fail


def write_until_refused(collection, numbers, kept, gone):
    """Upserts, and deletes some; notes what was acknowledged."""
    for number in numbers:
        some = [f"i{number}-{i}" for i in range(20)]
        collection.upsert([Item(id, VECTORS[i], {"n": number}) for i, id in enumerate(some)])
        kept |= set(some)
        if number % 3 == 0:
            kept -= set(some[:5])  # neither, until it is acknowledged
            collection.delete(some[:5])
            gone |= set(some[:5])


def test_acknowledged_items_survive_a_killed_server(server):
    """SIGKILL in the middle of upserts and deletes, three times: every answer that came is kept."""
    kept, gone = set(), set()
    numbers = itertools.count()
    with open_store(server.uri) as store:
        store.create("c", CollectionSpec(4))
    for _ in range(3):
        with open_store(server.uri) as store:
            collection = patiently(lambda store=store: store.get("c"))
            killer = threading.Timer(0.7, server.kill)
            killer.start()
            with pytest.raises(StoreUnreachable):
                write_until_refused(collection, numbers, kept, gone)
            killer.join()
        server.start()
        with open_store(server.uri) as store:
            collection = patiently(lambda store=store: store.get("c"))
            assert {item.id for item in collection.get(sorted(kept))} == kept
            assert collection.get(sorted(gone)) == []
            listed = [item.id for page in collection.pages(with_vector=False) for item in page]
            assert collection.count() == len(listed) == len(set(listed))
            assert len(kept) > 20


def test_a_store_continues_after_a_restart_of_its_server(tmp_path):
    """The same objects, after clear errors. Milvus Lite forgets which collections were loaded."""
    with standalone_server(tmp_path) as server, open_store(server.uri) as store:
        collection = store.create("c", CollectionSpec(4))
        collection.upsert(items(30))
        server.kill()
        begun = time.monotonic()
        for refused in (lambda: collection.search(VECTORS[0]), lambda: collection.upsert(items(1)), store.list):
            with pytest.raises(StoreUnreachable):
                refused()
        assert time.monotonic() - begun < 60
        server.start()
        assert patiently(collection.count) == 30
        assert [match.id for match in patiently(lambda: collection.search(VECTORS[4], 1))] == ["i4"]
        assert collection.upsert(items(40)) > 0
        assert collection.count() == 40


def test_a_server_that_does_not_answer_is_given_up_in_time(server, monkeypatch):
    """It is stopped, not dead: the connection stands, and no answer comes."""
    monkeypatch.setattr(connection, "READ_TIMEOUT", 2.0)
    with open_store(server.uri) as store:
        collection = store.create("c", CollectionSpec(4))
        collection.upsert(items(30))
        server.signal(signal.SIGSTOP)
        try:
            begun = time.monotonic()
            with pytest.raises(StoreUnreachable):
                collection.search(VECTORS[0])
            assert time.monotonic() - begun < 30
        finally:
            server.signal(signal.SIGCONT)
        assert collection.count() == 30
