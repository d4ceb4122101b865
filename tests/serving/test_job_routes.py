"""Jobs over REST: list, follow and cancel."""

import json
import threading
import time

import httpx
import pytest
from rest_requests import ended, finished
from waiting import until

from nnclr_hub.store.base import CollectionSpec
from nnclr_hub.workbench.maintenance import CollectionRequest
from nnclr_hub.workbench.tasks import Task

JOBS = "/api/v1/jobs"


@pytest.fixture(scope="module")
def server(server_of_jobs):
    return server_of_jobs


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
    verify = Task("verify", CollectionRequest, "/jobs", False, made.run)
    monkeypatch.setitem(server.app.state.jobs.tasks, "verify", verify)
    name = f"held-{time.monotonic_ns()}"
    server.bench.store.create(name, CollectionSpec(2))
    made.body = {"kind": "verify", "collection": name}
    yield made
    for job in server.app.state.jobs.list(1000)[0]:
        server.app.state.jobs.cancel(job.id)
    server.bench.drop(name)


def events(lines, last=lambda event: False, found=None):
    """Return the events of a stream, as (id, name, data), until its end or `last`; add each to `found` at once."""
    found, one = [] if found is None else found, {}
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


def test_events_report_progress_to_several_clients_and_end_with_the_job(client, server, steps):
    job = client.post(JOBS, json=steps.body).json()
    heard: list[list] = [[], []]

    def listen(to: list) -> None:
        with (
            httpx.Client(base_url=server.url, timeout=120) as other,
            other.stream("GET", f"{JOBS}/{job['id']}/events") as stream,
        ):
            assert stream.headers["content-type"].startswith("text/event-stream")
            assert stream.headers["cache-control"] == "no-cache"
            events(stream.iter_lines(), found=to)

    threads = [threading.Thread(target=listen, args=[to]) for to in heard]
    for thread in threads:
        thread.start()
    until(lambda: all(heard))
    steps.steps.release()
    until(lambda: all(any(name == "progress" for _, name, _ in to) for to in heard))
    steps.steps.release(2)
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "the stream did not end"
    for seen in heard:
        assert {one["id"] for _, _, one in seen} == {job["id"]}
        assert [one["progress"]["phase"] for _, name, one in seen if name == "progress"][-1].startswith("Step ")
        assert seen[-1][2]["progress"] == {"phase": None}
        assert [one["done"] for _, _, one in seen] == sorted(one["done"] for _, _, one in seen)
        ids = [int(id) for id, _, _ in seen]
        assert ids == sorted(set(ids))
        assert (seen[-1][1], seen[-1][2]["state"], seen[-1][2]["result"]) == ("state", "done", {"made": "fine"})


def test_a_client_that_reconnects_gets_only_new_events(client, server, steps):
    job = client.post(JOBS, json=steps.body).json()
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
    job = client.post(JOBS, json=steps.body).json()
    head = client.head(f"{JOBS}/{job['id']}/events")
    assert client.get("/healthz").json() == {"status": "ok"}
    with client.stream("GET", f"{JOBS}/{job['id']}/events") as stream:
        names = ("content-type", "cache-control")
        assert [head.headers[name] for name in names] == [stream.headers[name] for name in names]
    assert client.get(f"{JOBS}/{job['id']}").json()["state"] in ("queued", "running")


def test_a_silent_stream_sends_heartbeats(client, server, steps, monkeypatch):
    monkeypatch.setattr("serving.routes.jobs.HEARTBEAT_S", 0.1)
    job = client.post(JOBS, json=steps.body).json()
    with client.stream("GET", f"{JOBS}/{job['id']}/events") as stream:
        for line in stream.iter_lines():
            if line.startswith(":"):
                break
        else:
            pytest.fail("no heartbeat")
    assert client.delete(f"{JOBS}/{job['id']}").json()["cancelling"]


def test_a_client_may_disconnect_from_a_stream(client, server, steps):
    job = client.post(JOBS, json=steps.body).json()
    for _ in range(5):
        with client.stream("GET", f"{JOBS}/{job['id']}/events") as stream:
            next(stream.iter_lines())
    for _ in range(3):
        steps.steps.release()
    assert finished(client, f"{JOBS}/{job['id']}")["state"] == "done"


def test_cancelling_is_idempotent_and_too_many_are_refused(client, steps):
    jobs = [client.post(JOBS, json=steps.body).json()]
    until(lambda: client.get(f"{JOBS}/{jobs[0]['id']}").json()["state"] == "running")
    bodies = [{**steps.body, "collection": name} for name in ("one", "two", "three")]
    for body in bodies:
        client.put(f"/api/v1/aliases/{body['collection']}", json={"collection": steps.body["collection"]})
    jobs += [client.post(JOBS, json=body).json() for body in bodies[:2]]
    refused = client.post(JOBS, json=bodies[2])
    assert (refused.status_code, refused.json()["code"]) == (429, "overloaded")
    assert int(refused.headers["retry-after"]) > 0
    assert client.delete(f"{JOBS}/{jobs[2]['id']}").json()["state"] == "cancelled"
    assert client.delete(f"{JOBS}/{jobs[2]['id']}").json()["state"] == "cancelled"
    assert client.post(JOBS, json=bodies[2]).status_code == 202
    client.delete(f"{JOBS}/{jobs[0]['id']}")
    assert finished(client, f"{JOBS}/{jobs[0]['id']}")["state"] == "cancelled"


def test_jobs_are_listed_in_pages_newest_first(client, steps):
    made = []
    for _ in range(3):
        steps.steps.release(3)
        made.append(ended(client, client.post(JOBS, json=steps.body))["id"])
    page = client.get(JOBS, params={"limit": 2, "kind": "verify"}).json()
    assert [job["id"] for job in page["jobs"]] == [made[2], made[1]]
    page = client.get(JOBS, params={"limit": 1, "kind": "verify", "cursor": page["cursor"]}).json()
    assert [job["id"] for job in page["jobs"]] == [made[0]]
    assert client.get(f"{JOBS}/latest").json()["id"] == made[2]
    assert client.get(JOBS, params={"state": "queued"}).json() == {"jobs": [], "cursor": None}


@pytest.mark.parametrize("query", [{"limit": 0}, {"cursor": "x"}, {"state": "maybe"}, {"kind": "other"}])
def test_an_invalid_listing_is_refused(client, query):
    answer = client.get(JOBS, params=query)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"


def test_unknown_jobs_and_collections_are_not_found(client):
    for answer in (client.get(f"{JOBS}/0"), client.delete(f"{JOBS}/0"), client.get(f"{JOBS}/0/events")):
        assert (answer.status_code, answer.json()["code"]) == (404, "job_not_found")
    for path in ("reembed", "duplicates"):
        answer = client.post(f"/api/v1/collections/none/{path}", json={"model": "default"} if path == "reembed" else {})
        assert (answer.status_code, answer.json()["code"]) == (404, "collection_not_found")
    assert client.post(JOBS, json={"kind": "verify", "collection": "none"}).status_code == 404
    assert client.post(JOBS, json={"kind": "probe_fit", "collection": "none"}).status_code == 422
    assert client.delete("/api/v1/collections/none/reembed").status_code == 404
