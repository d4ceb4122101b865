"""Index a folder of the server over REST; no file outside the source folders is read."""

import json
import shutil

import httpx
import pytest
from rest_requests import ended

JOBS = "/api/v1/jobs"
INDEX = "/api/v1/collections/{}/index"


@pytest.fixture(scope="module")
def server(model, photos, tmp_path_factory, serve):
    """Run a server with two source folders, one of them with images."""
    folder = tmp_path_factory.mktemp("indexing")
    shutil.copytree(photos, folder / "images" / "2024")
    (folder / "empty").mkdir()
    shutil.copytree(photos, folder / "secret")
    (folder / "images" / "loop").symlink_to("loop")
    for running in serve(model, folder / "store", source_folders=[str(folder / "images"), str(folder / "empty")]):
        running.folder = folder
        yield running


@pytest.fixture
def client(server):
    with httpx.Client(base_url=server.url, timeout=120) as opened:
        opened.put("/api/v1/collections/there", json={}).raise_for_status()
        yield opened
        opened.delete("/api/v1/collections/there").raise_for_status()


def indexed(client, **body) -> dict:
    return ended(client, client.post(INDEX.format("there"), json=body))


def test_a_folder_is_indexed_and_its_changes_are_updated(client, server):
    folder = server.folder / "images" / "2024"
    first = indexed(client, source="images", folder="2024")
    assert (first["state"], first["done"], first["total"]) == ("done", 60, 60)
    found = client.get("/api/v1/collections/there/items", params={"limit": 100}).json()["items"]
    assert {item["metadata"]["label"] for item in found} == {one.name for one in folder.iterdir()}

    gone = sorted(folder.rglob("*.jpg"))[0]
    aside = gone.rename(server.folder / "aside.jpg")
    (folder / "cat" / "broken.jpg").write_bytes(b"no image")
    again, pruned = (indexed(client, source="images", folder="2024", prune=prune) for prune in (False, True))
    aside.rename(gone)
    (folder / "cat" / "broken.jpg").unlink()
    assert [(job["result"]["unchanged"], job["result"]["removed"]) for job in (again, pruned)] == [(59, 0), (59, 1)]
    assert [error["name"] for error in pruned["result"]["errors"]] == ["cat/broken.jpg"]
    assert client.get("/api/v1/collections/there/count").json()["count"] == 59


def test_the_job_reports_no_paths_of_the_machine(client, server):
    job = indexed(client, source="empty")
    assert (job["state"], job["error"]["code"]) == ("failed", "no_images")
    for shown in (job, client.get(JOBS).json()):
        assert str(server.folder) not in json.dumps(shown)


def test_links_to_other_folders_are_not_followed(client, server):
    link = server.folder / "images" / "link"
    link.symlink_to(server.folder / "secret")
    try:
        for folder in ("link", "loop"):
            answer = client.post(INDEX.format("there"), json={"source": "images", "folder": folder})
            assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    finally:
        link.unlink()


def test_a_server_on_the_network_reads_no_folders(client, server, monkeypatch):
    monkeypatch.setattr(server.app.state.settings, "host", "0.0.0.0")
    answer = client.post(INDEX.format("there"), json={"source": "images", "folder": "2024"})
    assert answer.status_code == 422
    assert "127.0.0.1" in answer.json()["detail"]
