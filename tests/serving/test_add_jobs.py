"""The jobs that add images: staged uploads, zip files, and a folder of the server."""

import hashlib
import json
import secrets
import shutil
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest
from rest_requests import ended, is_problem
from waiting import until

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.workbench import Workbench, file_import, folder_index
from nnclr_hub.workbench.staging import complete, folder_of, partial_file, staged
from nnclr_hub.workbench.tasks import Interrupted, TaskContext
from serving.jobs import own_tasks


@pytest.fixture
def ticket(tmp_path, image_files):
    """Return ticket({name: file or bytes}), which stages a zip of these images and returns its ticket."""

    def make(files) -> str:
        ticket = secrets.token_hex(16)
        with zipfile.ZipFile(partial_file(ticket), "w") as packed:
            for name, source in files.items():
                packed.writestr(name, source if isinstance(source, bytes) else source.read_bytes())
        complete(ticket, "photos.zip")
        return ticket

    return make


def waits(ticket: str) -> bool:
    try:
        staged(ticket)
    except InvalidRequest:
        return False
    return True


def run(server, kind: str, hidden: dict, **params):
    """Run a job, and return it when it has ended."""
    jobs = server.app.state.jobs
    job = jobs.submit(kind, params, hidden)
    until(lambda: jobs.get(job.id).has_ended)
    return jobs.get(job.id)


def add(server, ticket: str, most: int = 20_000_000):
    return run(server, "add", {"upload": ticket, "max_bytes": most}, collection="photos", format="zip")


def test_uploads_of_a_job_are_deleted_however_it_ends(server, client, collection, ticket, image_files, monkeypatch):
    """Check jobs that are cancelled while they wait, cancelled while they run, and failed."""
    going = threading.Event()
    add_images = Workbench.add_images
    monkeypatch.setattr(Workbench, "add_images", lambda *given: (going.wait(120), add_images(*given))[1])
    jobs, tickets = server.app.state.jobs, [ticket({"a.jpg": image_files[i]}) for i in range(20)]
    made = [jobs.submit("add", {"collection": "photos", "format": "zip"}, {"upload": one}) for one in tickets]
    failing = ticket({"a.jpg": image_files[0]})
    for job in made:
        jobs.cancel(job.id)
    going.set()
    assert run(server, "add", {"upload": failing}, collection="nowhere", format="zip").state == "failed"
    until(lambda: not any(map(waits, [*tickets, failing])))
    assert {jobs.get(job.id).state for job in made} <= {"cancelled", "done"}


def resumed(server, kind: str, params: dict[str, Any], folder: Path | None = None):
    """Run the task of a job, which a shutdown interrupts after 8 and after 16 images; return its result."""
    notes: list[dict] = [{}]
    for most in (8, 16, None):
        reported = [0]

        def check(most=most, reported=reported) -> None:
            if most is not None and reported[-1] >= most:
                raise Interrupted

        def progress(done, total, reported=reported) -> None:
            reported.append(done)

        context = TaskContext(progress, check, folder=folder, state=notes[-1], save=notes.append)
        task = own_tasks()[kind]
        try:
            return task.run(server.bench, task.request.from_json(params), context)
        except Interrupted:
            assert reported[-1] < 24
    pytest.fail("the last attempt was interrupted")


def test_an_interrupted_job_embeds_each_image_once(server, collection, ticket, image_files, monkeypatch):
    """One image exists already, one is uploaded twice, and one is broken."""
    assert add(server, ticket({"there.jpg": image_files[20]})).result["added"] == 1
    files = {f"{i}.jpg": path for i, path in enumerate(image_files[:24])}
    given = ticket({**files, "again.jpg": image_files[0], "broken.jpg": b"no image"})
    embedded: list[str] = []
    original = Workbench.add_images

    def noting(bench, name, images):
        embedded.extend(one.id for one in images)
        return original(bench, name, images)

    monkeypatch.setattr(Workbench, "add_images", noting)
    monkeypatch.setattr(file_import, "IMAGES", 8)
    params = {"collection": "photos", "max_bytes": 10**6, "path": str(staged(given).path), "format": "zip"}
    report = resumed(server, "add", params, folder_of(given))
    assert (report["added"], report["replaced"], report["errors_count"]) == (23, 2, 1)
    assert len(set(embedded[:16])) == 16
    assert embedded.count(hashlib.sha256(image_files[1].read_bytes()).hexdigest()[:32]) == 1


def test_an_interrupted_index_job_counts_all_its_work(server, collection, photos, monkeypatch):
    """Some images exist already, one has changed and one was removed; the job is interrupted several times."""
    root = server.app.state.settings.source_folders[0].resolve()
    folder = shutil.copytree(photos / "cat", root / "cut" / "cat").parent
    params = {"collection": "photos", "folder": "cut", "prune": True}
    assert run(server, "index", {"root": str(root)}, **params).result["added"] == 20
    shutil.copytree(photos, folder, dirs_exist_ok=True)
    changed, gone, *_ = sorted((folder / "cat").iterdir())
    changed.write_bytes(gone.read_bytes())
    gone.unlink()
    monkeypatch.setattr(folder_index, "BATCH", 8)
    body = resumed(server, "index", {**params, "root": str(root)})
    assert [body[name] for name in ("added", "replaced", "unchanged", "removed")] == [40, 1, 18, 1]
    shutil.rmtree(folder)


# ---- over REST; no file outside the source folders is read


def indexed(client, collection: str, **body) -> dict:
    return ended(client, client.post(f"{collection}/index", json=body))


def test_a_folder_is_indexed_and_its_changes_are_updated(client, server, collection):
    [source] = server.app.state.settings.source_folders
    folder = source / "summer"
    first = indexed(client, collection, source=source.name, folder="summer")
    assert (first["state"], first["done"], first["total"]) == ("done", 60, 60)
    found = client.get(f"{collection}/items", params={"limit": 100}).json()["items"]
    assert {item["metadata"]["label"] for item in found} == {one.name for one in folder.iterdir()}

    gone = sorted(folder.rglob("*.jpg"))[0]
    aside = gone.rename(source / "aside")
    (folder / "cat" / "broken.jpg").write_bytes(b"no image")
    again, pruned = (indexed(client, collection, folder="summer", prune=prune) for prune in (False, True))
    aside.rename(gone)
    (folder / "cat" / "broken.jpg").unlink()
    assert [(job["result"]["unchanged"], job["result"]["removed"]) for job in (again, pruned)] == [(59, 0), (59, 1)]
    assert [error["name"] for error in pruned["result"]["errors"]] == ["cat/broken.jpg"]
    assert client.get(f"{collection}/count").json()["count"] == 59


def test_a_job_without_images_fails_and_reports_no_paths_of_the_machine(client, server, collection):
    [source] = server.app.state.settings.source_folders
    (source / "empty").mkdir()
    job = indexed(client, collection, folder="empty")
    assert (job["state"], job["error"]["code"]) == ("failed", "no_images")
    assert str(source) not in json.dumps([job, client.get("/api/v1/jobs").json()])


def test_a_server_on_the_network_reads_no_folders(client, server, collection, monkeypatch):
    monkeypatch.setattr(server.app.state.settings, "host", "0.0.0.0")
    is_problem(client.post(f"{collection}/index", json={"folder": "summer"}), 422, "invalid_request")


def test_a_folder_removed_from_the_settings_is_not_read(server, collection, photos):
    """A job outlives the settings of the server that took it."""
    job = run(server, "index", {"root": str(photos)}, collection="photos", folder=".", prune=False)
    assert job.error["code"] == "invalid_request"
    assert server.bench.collection("photos").count() == 0
