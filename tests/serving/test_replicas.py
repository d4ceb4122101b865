"""What can be said of replicas without Ray; test_ray_serve.py runs them."""

import asyncio
import pickle
import sys
from types import SimpleNamespace

import pytest
from prometheus_client import generate_latest
from typer.testing import CliRunner

from nnclr_hub.cli.app import app as cli
from nnclr_hub.errors import InvalidRequest, NotReady, OpenedForReading
from nnclr_hub.store import open_store
from nnclr_hub.store.records import Record
from nnclr_hub.workbench import Workbench
from serving.jobs import Jobs
from serving.jobs.ledger import JOB
from serving.ray_serve import Named, Replica, share
from serving.schemas import Readiness
from serving.settings import Settings
from serving.telemetry import Metrics

READY = Readiness(
    status="ready",
    detail=None,
    read_only=False,
    model_warm=True,
    threads_alive=True,
    collections_loaded=0,
    collections_total=0,
    collection_states={},
)


def checked(*reports: Readiness) -> None:
    """Ray's question to a replica whose readiness reports these, one after another."""
    told = iter(reports)
    state = SimpleNamespace(readiness=SimpleNamespace(report=lambda: next(told)))
    asyncio.run(Replica.check_health(SimpleNamespace(_app=SimpleNamespace(state=state))))  # type: ignore[arg-type]


def test_a_replica_is_well_when_it_is_ready_and_loading_is_waited_for():
    loading = READY.model_copy(update={"status": "loading"})
    checked(READY)
    checked(loading, loading, READY)
    for status in ("failed", "ill"):
        with pytest.raises(NotReady, match="the device thread has stalled"):
            checked(loading, READY.model_copy(update={"status": status, "detail": "the device thread has stalled"}))


@pytest.mark.parametrize(
    ("machines", "replicas", "cores", "gpu"),
    [
        ([(2, 0)], 2, 1, 0),
        ([(2, 0)], 3, 1, 0),  # more than cores: one each, and Ray waits for machines
        ([(64, 0)], 3, 21, 0),
        ([(5, 0), (5, 0)], 3, 2, 0),  # three cores each would leave no room for the third
        ([(8, 1)], 1, 8, 1),
        ([(8, 1)], 4, 2, 0.25),
        ([(16, 2)], 3, 5, 0.5),
        ([(64, 0), (8, 2)], 2, 4, 1),  # where the GPUs are, and not where the cores are
    ],
)
def test_each_replica_gets_as_much_as_lets_all_of_them_find_room(machines, replicas, cores, gpu):
    found = share([{"CPU": float(cpu), "GPU": float(gpus)} for cpu, gpus in machines], replicas)
    assert found == {"num_cpus": cores, "num_gpus": gpu}


def test_metrics_say_whose_they_are():
    metrics = Metrics()
    metrics.images.labels("m", "embedded").inc(3)
    text = generate_latest(Named(metrics.registry, replica="one")).decode()
    assert 'nnclr_images_total{model="m",outcome="embedded",replica="one"} 3.0' in text
    assert 'nnclr_images_in_work{replica="one"} 0.0' in text


def test_settings_are_sent_with_hashes_of_the_keys_and_let_the_same_keys_in(tmp_path):
    secret, other = "f3c19ab7e2d40586f3c1", "0586e2d49ab7f3c10586"
    file = tmp_path / "keys"
    file.write_text(f"read phone:{secret}\nwrite ci:{other}\n")
    sent = Settings(keys_file=file).sent()
    file.unlink()  # it is on this machine alone
    assert not [one for one in (secret, other) if one.encode() in pickle.dumps(sent)]
    keys = sent.keys()
    assert {(key.name, key.scopes) for key in (keys.find(secret), keys.find(other)) if key} == {
        ("phone", ("read",)),
        ("ci", ("read", "write")),
    }


def test_a_store_of_one_process_is_refused_to_several_by_a_sentence_that_names_the_ways_on(tmp_path):
    folder = tmp_path / "store"
    flags = ["serve", "--store", str(folder), "--model", "random:test_resnet", "--port", "0", "--replicas", "2"]
    refused = CliRunner().invoke(cli, flags)
    assert refused.exit_code == 2, refused.output
    assert "--read-only" in refused.output
    assert "milvus://HOST:PORT" in refused.output
    assert not folder.exists()
    open_store(str(folder)).close()
    open_store(str(folder), read_only=True, shared=True).close()
    with pytest.raises(InvalidRequest, match=r"one process: for several, keep the vectors in a Milvus server"):
        open_store(str(tmp_path / "x.milvus.db"), read_only=True, shared=True)


def test_without_ray_the_sentence_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setenv("RAY_DEDUP_LOGS", "0")  # both are set by the verb, and are to go with the test
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    store = tmp_path / "store"
    flags = ["serve", "--store", str(store), "--model", "random:test_resnet", "--port", "0", "--replicas", "1"]
    refused = CliRunner().invoke(cli, flags)
    assert refused.exit_code == 1, refused.output
    assert "pip install 'nnclr_hub[scale]'" in " ".join(refused.output.split())


def test_a_job_of_another_server_is_seen_and_cannot_be_cancelled(tmp_path):
    """Or who asked would believe that it had been."""
    with open_store(str(tmp_path / "store")) as store:
        about = {"id": "0" * 14, "kind": "compact", "params": {}, "state": "running", "created": 1.0}
        store.records.put(Record(JOB, "0" * 14, about))
    with open_store(str(tmp_path / "store"), read_only=True, shared=True) as store:
        jobs = Jobs(Workbench(None, store), Metrics(), waiting=1, keep=1)  # type: ignore[arg-type]
        jobs.start()
        assert jobs.get("0" * 14).state == "running"
        for refused in (lambda: jobs.cancel("0" * 14), lambda: jobs.submit("compact", {})):
            with pytest.raises(OpenedForReading, match="one of several servers"):
                refused()
        jobs.stop()
