"""Jobs and probes by the client: fitted, waited for, asked, taken home."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from commands import nnclr

from nnclr_hub import Client, ImageError, Item, LinearProbe
from nnclr_hub.errors import (
    DeadlineExceeded,
    InspectionNotFound,
    InvalidRequest,
    NNCLRHubError,
    ProbeExists,
    ProbeNotFound,
    ServiceError,
    UnknownModel,
)
from nnclr_hub.probe.cross_validation import out_of_fold
from nnclr_hub.workbench.duplicates import DuplicatesRequest
from nnclr_hub.workbench.inspection.comparison import ComparisonRequest
from nnclr_hub.workbench.inspection.findings import InspectionRequest
from nnclr_hub.workbench.inspections import get_inspection, is_current
from nnclr_hub.workbench.requests import NewCollection


@pytest.fixture(scope="module")
def server(model, photos, tmp_path_factory, serve) -> Iterator:
    for running in serve(model, tmp_path_factory.mktemp("probes") / "store", source_folders=[str(photos)]):
        with Client(running.url) as client:
            client.create_collection("photos")
            client.collection("photos").index_folder(photos)
        yield running


def test_a_probe_is_fitted_on_a_field_predicts_and_is_downloaded(client, encoder, image_files, tmp_path):
    seen = []
    job = client.probes.fit("classes", collection="photos", field="label")
    done = client.jobs.wait(job.id, progress=lambda done, total: seen.append((done, total)))
    assert (done.state, done.id, done.kind) == ("done", job.id, "probe_fit")
    assert seen
    about = client.probes.get("classes")
    assert set(about.classes) == {"astronaut", "cat", "coffee"}
    assert [one.name for one in client.probes.list()] == ["classes"]

    probe = LinearProbe.load(client.probes.export("classes", tmp_path / "probe"))
    vectors = encoder.embed(image_files)
    want = probe.predict(vectors).labels
    said = client.probes.predict("classes", image_files)
    assert [one.label for one in said] == want
    assert np.mean([one.label == path.parent.name for one, path in zip(said, image_files, strict=True)]) > 0.6
    assert [one.label for one in client.probes.predict("classes", vectors=vectors)] == want
    mixed = client.probes.predict("classes", [image_files[0], b"garbage", tmp_path / "missing.jpg"], top=2)
    assert mixed[0].label == want[0]
    assert len(mixed[0].top) == 2
    assert all(isinstance(one, ImageError) for one in mixed[1:])
    first = client.collection("photos").scroll(limit=1).items[0]
    by_id = client.probes.predict("classes", collection="photos", ids=[first.id, "nobody"])
    assert by_id[0].label == probe.predict(first.vector[None]).labels[0]
    assert isinstance(by_id[1], NNCLRHubError)
    client.probes.delete("classes")
    with pytest.raises(ProbeNotFound):
        client.probes.get("classes")


def test_a_probe_is_fitted_on_rows_and_on_images(client, encoder, image_files):
    labels = [path.parent.name for path in image_files]
    by_rows = client.probes.fit("rows", vectors=encoder.embed(image_files), labels=labels, l2=0.01)
    by_images = client.probes.fit("pictures", images=image_files, labels=labels, l2=0.01)
    for job in (by_rows, by_images):
        client.jobs.wait(job.id)
    answers = [[one.label for one in client.probes.predict(name, image_files)] for name in ("rows", "pictures")]
    assert answers[0] == answers[1]
    many = [*image_files, *image_files]  # more than a request holds
    job = client.jobs.wait(client.probes.fit("many", images=many, labels=[*labels, *labels], l2=0.01).id)
    assert client.probes.get("many").rows == len(many)
    assert [one.state for one in client.jobs.list(1)] == [job.state]
    with pytest.raises(ProbeExists):
        client.probes.fit("rows", vectors=encoder.embed(image_files), labels=labels)
    vectors = encoder.embed(image_files)
    client.jobs.wait(client.probes.fit("near", vectors=vectors, labels=labels, l2=0.01, reject_far=0.1).id)
    assert {one.label for one in client.probes.predict("near", vectors=-vectors)} == {None}
    assert {one.label for one in client.probes.predict("near", vectors=vectors)} >= {"astronaut", "cat", "coffee"}
    again = client.probes.fit("rows", vectors=encoder.embed(image_files), labels=np.arange(60) % 2, replace=True)
    client.jobs.wait(again.id)
    assert client.probes.get("rows").classes == (0, 1)


def test_jobs_are_listed_cancelled_and_awaited_with_a_timeout(client, server, monkeypatch):
    def endless(bench, request, context):
        while True:
            context.raise_if_cancelled()
            time.sleep(0.01)

    tasks = server.app.state.jobs.tasks
    monkeypatch.setitem(tasks, "probe_fit", replace(tasks["probe_fit"], run=endless))
    job = client.probes.fit("slow", vectors=np.eye(4, dtype=np.float32), labels=[*"aabb"])
    with pytest.raises(DeadlineExceeded):
        client.jobs.wait(job.id, timeout=0.001)
    assert job.id in {one.id for one in client.jobs.list()}
    client.jobs.cancel(job.id)
    with pytest.raises(ServiceError):
        client.jobs.wait(job.id)
    assert client.jobs.get(job.id).state == "cancelled"


def test_an_inspection_is_made_read_and_extended(client, server, encoder, image_files):
    collection = client.collection("photos")
    done = client.run("inspection", InspectionRequest("photos", write_fields=True, label_next=3))
    assert done["items"] == 60
    kept = collection.inspection()
    local = get_inspection(server.bench.store.records, server.bench.collection("photos"))
    assert collection.inspections()[0] == kept.number == local.number
    assert kept.ids == local.ids
    for name in ("coordinates", "clusters", "outlier_scores", "labels", "predicted"):
        assert np.array_equal(getattr(kept, name), getattr(local, name)), name
    assert kept.findings == local.findings
    assert is_current(kept, collection)
    assert collection.count({"must": [{"key": "inspection.seq", "match": kept.seq}]}) == 60
    labels = [item.metadata["label"] for item in collection.get(kept.ids)]
    assert [kept.findings["classes"][k] for k in kept.labels] == labels
    right = kept.predicted == kept.labels
    assert right.mean() == pytest.approx(kept.findings["accuracy"]["top1"], abs=1e-3)
    assert collection.placements().ids == ()
    collection.upsert([Item("more", encoder.embed(image_files[:1])[0])])
    placed = collection.placements(kept.number, limit=1)
    assert (placed.ids, placed.cursor) == (("more",), None)
    nearest = [one.id for one in collection.search(collection.get(["more"])[0].vector, k=6) if one.id != "more"]
    rows = [kept.ids.index(id) for id in nearest]
    assert np.bincount(kept.clusters[rows])[placed.clusters[0]] == np.bincount(kept.clusters[rows]).max()
    np.testing.assert_allclose(placed.coordinates[0], np.median(kept.coordinates[rows], axis=0), rtol=1e-5)
    assert not is_current(kept, collection)
    collection.delete(["more"])
    with pytest.raises(InspectionNotFound):
        collection.inspection(999)
    with pytest.raises(InvalidRequest):
        InspectionRequest("photos", label_next=0)


def test_encoders_are_compared_on_a_collection(client, server):
    done = client.run("comparison", ComparisonRequest("photos", ["pixels", "default"]))
    collection, own = server.bench.collection("photos"), server.bench.models.get()
    ids = sorted(item.id for item in collection.scroll(limit=1000).items)
    labels = [item.metadata["label"] for item in collection.get(ids)]
    codes = np.unique(labels, return_inverse=True)[1]
    vectors = np.stack(own.embed_each([collection.thumbnail(id) for id in ids]))  # of the same pixels, all at once
    right = out_of_fold(vectors, codes, classifier="knn").right
    pixels, network = done["scores"]
    assert (pixels["source"], done["images"], done["labels"]) == ("pixels", len(ids), len(ids))
    assert network["knn"][0] == pytest.approx(right.mean())
    assert network["against_first"]["mean"] == pytest.approx(network["linear"][0] - pixels["linear"][0])
    code, printed, err = nnclr("inspect", "photos", "--server", server.url, "--compare", "pixels", "--json")
    assert (code, json.loads(printed)["scores"][0]["knn"]) == (0, pixels["knn"]), err
    for wrong, kind in ((["nothing"], UnknownModel), (["pixels"] * 9, InvalidRequest)):
        with pytest.raises(kind):
            client.start("comparison", ComparisonRequest("photos", wrong))


def test_a_result_that_is_too_long_for_an_answer_says_what_is_missing(model, tmp_path, serve, caplog):
    rng = np.random.default_rng(0)
    for running in serve(model, tmp_path / "store", answer_bytes=2000):
        with Client(running.url) as client:
            collection = client.create_collection("pairs", NewCollection(dim=8))
            vectors = rng.normal(size=(60, 8))
            collection.upsert([Item(f"{i}-{half}", vectors[i]) for i in range(60) for half in "ab"])
            result = client.run("duplicates", DuplicatesRequest("pairs", threshold=0.9999))
            [job] = [one for one in client.jobs.list() if one.kind == "duplicates"]
            job = client.jobs.get(job.id)
            assert result == job.result
            assert 0 < len(result["groups"]) < 60
            assert f"{60 - len(result['groups'])} of the 60 entries of `groups`" in job.truncated
            assert job.truncated in caplog.text
