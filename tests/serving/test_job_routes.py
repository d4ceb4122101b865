"""Jobs over REST: list, follow and cancel; duplicates, maintenance, backups and re-embedding."""

import json
import shutil
import tarfile
import threading
import time
import zipfile

import fastapi.routing
import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from rest_requests import ended, finished, held_up
from waiting import until

from nnclr_hub.client import Client
from nnclr_hub.store.backup import restore, verify_backups
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.workbench.maintenance import BackupRequest, CollectionRequest
from nnclr_hub.workbench.tasks import Task

JOBS, BACKUPS = "/api/v1/jobs", "/api/v1/store/backups"


@pytest.fixture(scope="module")
def server(model, make_model, tmp_path_factory, serve):
    """Run a server with a source folder, a second model, and space for two waiting jobs."""
    folder = tmp_path_factory.mktemp("jobs")
    options = {"source_folders": [str(folder / "allowed")], "jobs_waiting": 2, "backup_to": str(folder / "backups")}
    for running in serve(model, folder / "store", capacity=100, **options):
        running.folder = folder
        running.other = folder / "another"
        shutil.copytree(make_model(seed=1), running.other)
        running.engines.get(str(running.other))
        yield running


class Steps:
    """A kind of job whose steps the test releases."""

    def __init__(self) -> None:
        self.steps = threading.Semaphore(0)

    def run(self, bench, request, context):
        for step in range(3):
            context.begin(f"Step {step}")
            context.progress(step, 3)
            while not self.steps.acquire(timeout=0.01):
                context.raise_if_cancelled()
        return {"made": "fine"}


@pytest.fixture
def steps(server, monkeypatch):
    """Replace verification by such a kind."""
    made = Steps()
    verify = Task("verify", CollectionRequest, "/collections/{collection}/verify", False, made.run)
    monkeypatch.setitem(server.app.state.jobs.tasks, "verify", verify)
    name = f"held-{time.monotonic_ns()}"
    server.bench.store.create(name, CollectionSpec(2))
    made.collection = name
    made.path = f"/api/v1/collections/{name}/verify"
    yield made
    for job in server.app.state.jobs.list(1000)[0]:
        server.app.state.jobs.cancel(job.id)
    server.bench.drop(name)


def events(lines, last=lambda event: False):
    """Return the events of a stream, as (id, name, data), until its end or `last`."""
    found, one = [], {}
    for line in lines:
        if line.startswith(":"):
            found.append(("", "comment", line))
        elif line:
            field, _, value = line.partition(": ")
            one[field] = value
        elif one:
            if "data" in one:
                found.append((one["id"], one["event"], json.loads(one["data"])))
                if last(found[-1]):
                    break
            one = {}
    return found


def test_events_report_progress_to_several_clients_and_end_with_the_job(client, steps):
    job = client.post(steps.path).json()
    path = f"{JOBS}/{job['id']}/events"
    with client.stream("GET", path) as first, client.stream("GET", path) as second:
        assert first.headers["content-type"].startswith("text/event-stream")
        assert first.headers["cache-control"] == "no-cache"
        streams = [first.iter_lines(), second.iter_lines()]
        begun = [events(lines, last=lambda event: event[2]["total"] == 3) for lines in streams]
        steps.steps.release()
        later = [events(lines, last=lambda event: event[1] == "progress") for lines in streams]
        steps.steps.release(2)
        heard = [begun[i] + later[i] + events(streams[i]) for i in range(2)]
    for seen in heard:
        assert {one["id"] for _, _, one in seen} == {job["id"]}
        assert [one["progress"]["phase"] for _, name, one in seen if name == "progress"][-1].startswith("Step ")
        assert seen[-1][2]["progress"] == {"phase": None}
        assert [one["done"] for _, _, one in seen] == sorted(one["done"] for _, _, one in seen)
        ids = [int(id) for id, _, _ in seen]
        assert ids == sorted(set(ids))
        assert (seen[-1][1], seen[-1][2]["state"], seen[-1][2]["result"]) == ("state", "done", {"made": "fine"})


def test_a_client_that_reconnects_gets_only_new_events(client, steps):
    job = client.post(steps.path).json()
    url = f"{JOBS}/{job['id']}/events"
    with client.stream("GET", url) as stream:
        first = events(stream.iter_lines(), last=lambda event: event[2]["total"] == 3)[-1]
    for _ in range(3):
        steps.steps.release()
    with client.stream("GET", url, headers={"Last-Event-ID": first[0]}) as stream:
        later = events(stream.iter_lines())
    assert first[0] not in [id for id, _, _ in later]
    assert later[-1][2]["state"] == "done"
    answer = client.get(url, headers={"Last-Event-ID": later[-1][0]})
    assert (answer.status_code, answer.content) == (204, b"")
    whole = events(client.get(url).iter_lines())  # for a client that comes late
    assert [event[2]["state"] for event in whole] == ["done"]


def test_head_of_a_stream_returns_at_once(client, steps):
    """The next request on the same connection does not wait for the last event."""
    job = client.post(steps.path).json()
    head = client.head(f"{JOBS}/{job['id']}/events")
    assert client.get("/healthz").json() == {"status": "ok"}
    with client.stream("GET", f"{JOBS}/{job['id']}/events") as stream:
        names = ("content-type", "cache-control")
        assert [head.headers[name] for name in names] == [stream.headers[name] for name in names]
    assert client.get(f"{JOBS}/{job['id']}").json()["state"] in ("queued", "running")


def test_a_silent_stream_sends_heartbeats(client, server, steps, monkeypatch):
    monkeypatch.setattr("serving.routes.jobs.HEARTBEAT_S", 0.1)
    job = client.post(steps.path).json()
    with client.stream("GET", f"{JOBS}/{job['id']}/events") as stream:
        for line in stream.iter_lines():
            if line.startswith(":"):
                break
        else:
            pytest.fail("no heartbeat")
    assert client.delete(f"{JOBS}/{job['id']}").json()["cancelling"]


def test_cancelling_is_idempotent_and_too_many_are_refused(client, steps):
    jobs = [client.post(steps.path).json()]
    until(lambda: client.get(f"{JOBS}/{jobs[0]['id']}").json()["state"] == "running")
    paths = [f"/api/v1/collections/{name}/verify" for name in ("one", "two", "three")]
    for name in ("one", "two", "three"):
        client.put(f"/api/v1/aliases/{name}", json={"collection": steps.collection})
    jobs += [client.post(path).json() for path in paths[:2]]
    refused = client.post(paths[2])
    assert (refused.status_code, refused.json()["code"]) == (429, "overloaded")
    assert int(refused.headers["retry-after"]) > 0
    assert client.delete(f"{JOBS}/{jobs[2]['id']}").json()["state"] == "cancelled"
    assert client.delete(f"{JOBS}/{jobs[2]['id']}").json()["state"] == "cancelled"
    assert client.post(paths[2]).status_code == 202
    client.delete(f"{JOBS}/{jobs[0]['id']}")
    assert finished(client, f"{JOBS}/{jobs[0]['id']}")["state"] == "cancelled"


def test_jobs_are_listed_in_pages_newest_first(client, steps, monkeypatch):
    made = []
    for _ in range(3):
        steps.steps.release(3)
        made.append(ended(client, client.post(steps.path))["id"])
    page = client.get(JOBS, params={"limit": 2, "kind": "verify"}).json()
    assert [job["id"] for job in page["jobs"]] == [made[2], made[1]]
    page = client.get(JOBS, params={"limit": 1, "kind": "verify", "cursor": page["cursor"]}).json()
    assert [job["id"] for job in page["jobs"]] == [made[0]]
    assert client.get(f"{JOBS}/latest").json()["id"] == made[2]
    assert client.get(JOBS, params={"state": "queued"}).json() == {"jobs": [], "cursor": None}
    monkeypatch.setattr("serving.routes.jobs.MOST_PAGE", 1)  # long parameters end a page early
    page = client.get(JOBS, params={"limit": 2, "kind": "verify"}).json()
    assert [job["id"] for job in page["jobs"]] == [made[2]]
    page = client.get(JOBS, params={"limit": 2, "kind": "verify", "cursor": page["cursor"]}).json()
    assert [job["id"] for job in page["jobs"]] == [made[1]]


def test_answers_that_may_be_long_are_not_encoded_in_the_event_loop(client, server, steps, monkeypatch):
    steps.steps.release(3)
    done = ended(client, client.post(steps.path))
    encoded = []
    serialize = fastapi.routing.serialize_response

    async def count(**given):
        encoded.append(given)
        return await serialize(**given)

    monkeypatch.setattr("fastapi.routing.serialize_response", count)
    place = f"/api/v1/collections/{steps.collection}"
    for path in (JOBS, f"{JOBS}/{done['id']}", "/api/v1/collections", "/api/v1/probes", f"{place}/items"):
        assert client.get(path).status_code == 200
    assert client.post(f"{place}/facets", json={"keys": ["label"]}).status_code == 200
    assert client.put("/api/v1/aliases/some", json={"collection": steps.collection}).status_code == 200
    assert client.put(f"{place}/items", json=[{"id": "a", "vector": [1.0, 0.0]}]).status_code == 200
    labels = client.post(f"{place}/labels", content=b"id,label\na,b\n", headers={"Content-Type": "text/csv"})
    assert labels.json()["matched"] == 1
    assert encoded == []


def test_backups_go_to_the_configured_destination_only(server, client, tmp_path, monkeypatch):
    server.bench.store.create("kept", CollectionSpec(4)).upsert([Item(f"{i}", np.eye(4)[i]) for i in range(4)])
    with Client(server.url) as remote:
        made = remote.run("backup", BackupRequest())
    assert verify_backups(server.folder / "backups") == {made["id"]: None}
    assert restore(server.folder / "backups", tmp_path / "restored").collections["kept"] == 4
    job = ended(client, client.post(BACKUPS, json={"destination": str(tmp_path / "elsewhere")}))
    assert job["state"] == "done"
    assert not (tmp_path / "elsewhere").exists()
    with Client(server.url) as remote:
        kept = remote.run("backup", BackupRequest(keep=1))
    assert verify_backups(server.folder / "backups") == {kept["id"]: None}
    shutil.rmtree(server.folder / "backups")
    (server.folder / "backups").write_text("no folder")
    job = ended(client, client.post(BACKUPS))
    assert (job["state"], job["error"]["code"]) == ("failed", "store_error")
    assert str(server.folder) not in json.dumps(job)
    server.bench.drop("kept")
    monkeypatch.setattr(server.app.state.settings, "backup_to", None)
    assert client.post(BACKUPS).status_code == 422


@pytest.fixture
def album(server, client, photos):
    """Make a collection of images in the source folder."""
    folder = server.folder / "allowed" / "photos"
    shutil.copytree(photos, folder, dirs_exist_ok=True)
    client.put("/api/v1/collections/album", json={})
    assert ended(client, client.post("/api/v1/collections/album/index", json={"folder": "photos"}))["state"] == "done"
    yield server.bench.collection("album")
    for alias in server.bench.store.aliases():
        server.bench.store.unalias(alias)
    for info in server.bench.store.list():
        if info.name.startswith("album"):
            server.bench.store.drop(info.name)


def test_a_cancelled_reembedding_leaves_nothing_behind(client, server, album, monkeypatch):
    engine = type(server.engines.get(str(server.other)))
    with held_up(monkeypatch, engine, "embed_each") as begun:
        answer = client.post("/api/v1/collections/album/reembed", json={"model": server.other.name})
        assert begun.acquire(timeout=120)
        assert len(server.bench.store.list()) == 2
        assert client.delete("/api/v1/collections/album/reembed").status_code == 422
        client.delete(answer.headers["location"])
    assert ended(client, answer)["state"] == "cancelled"
    assert [info.name for info in server.bench.store.list()] == ["album"]


def test_files_outside_the_folders_are_not_read(client, server, album, photos):
    """A client with a write key can name any file in the metadata of an item."""
    item = album.scroll(limit=1).items[0]
    outside = next(photos.rglob("*.jpg"))
    spied = {**item.metadata, "root": str(outside.parent), "path": outside.name}
    album.upsert([Item("spy", item.vector, {key: spied[key] for key in spied if key != "pixel_sha256"})])
    job = ended(client, client.post("/api/v1/collections/album/reembed", json={"model": server.other.name}))
    assert job["state"] == "failed"
    assert "folder" in job["error"]["detail"]
    assert str(outside.parent) not in job["error"]["detail"]
    assert client.delete("/api/v1/collections/album/reembed").status_code == 204
    assert client.delete("/api/v1/collections/album/reembed").status_code == 204
    assert [info.name for info in server.bench.store.list()] == ["album"]
    body = {"model": server.other.name, "skip_missing": True}
    job = ended(client, client.post("/api/v1/collections/album/reembed", json=body))
    assert (job["state"], job["result"]["items"], job["result"]["skipped_count"]) == ("done", 60, 1)


def test_without_source_folders_reembedding_reports_missing_images(client, server, album, monkeypatch):
    monkeypatch.setattr(server.app.state.settings, "source_folders", ())
    answer = client.post("/api/v1/collections/album/reembed", json={"model": server.other.name})
    assert answer.status_code == 422
    assert "NNCLR_SOURCE_FOLDERS" in answer.json()["detail"]


def test_archives_and_tables_of_source_folders_are_read_by_other_processes(server, client, image_files, monkeypatch):
    """The server continues whatever they contain."""
    folder = server.folder / "allowed" / "packed"
    for name in ("zip", "tar", "table"):
        (folder / name).mkdir(parents=True)
    with zipfile.ZipFile(folder / "zip" / "photos.zip", "w") as packed:
        packed.write(image_files[0], "cat/a.jpg")
    with tarfile.open(folder / "tar" / "photos.tar", "w") as packed:
        packed.add(image_files[1], "cat/b.jpg")
    table = pyarrow.table({"image": [path.read_bytes() for path in image_files[2:4]], "label": ["cat", "dog"]})
    parquet.write_table(table, folder / "table" / "photos.parquet")

    def refuse(*given, **options):
        raise AssertionError("read by the server's own process")

    for opened in ("zipfile.ZipFile", "tarfile.open", "pyarrow.parquet.ParquetFile"):
        monkeypatch.setattr(opened, refuse)
    place = "/api/v1/collections/packed"
    assert client.put(place, json={}).status_code == 201
    for name, added in (("zip", 1), ("tar", 1), ("table", 2)):
        job = ended(client, client.post(f"{place}/index", json={"folder": f"packed/{name}"}))
        assert (job["state"], job["error"]) == ("done", None)
        assert (job["result"]["added"], job["result"]["errors"]) == (added, [])
    items = client.get(f"{place}/items").json()["items"]
    assert sorted(item["metadata"]["label"] for item in items) == ["cat", "cat", "cat", "dog"]
    originals = [client.get(f"{place}/items/{item['id']}/original") for item in items]
    assert {one.content for one in originals} == {path.read_bytes() for path in image_files[:4]}
    assert {one.headers["x-image"] for one in originals} == {"source"}
    client.delete(place)
