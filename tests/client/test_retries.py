"""Which requests are retried, and which error of the library each failure raises."""

import base64
import json
import socket
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import numpy as np
import pytest
from client.scripted_server import Response, problem, scripted
from PIL import Image

from nnclr_hub import AsyncClient, Client, Item
from nnclr_hub.client.remote import RemoteCollection
from nnclr_hub.client.transport import LONGEST_PAUSE_S, Answer, Call, Connection
from nnclr_hub.errors import (
    CollectionNotFound,
    DeadlineExceeded,
    FingerprintMismatch,
    ImageError,
    InvalidFilter,
    InvalidRequest,
    NNCLRHubError,
    Overloaded,
    RequestTooLarge,
    ServerUnreachable,
    ServiceError,
    StoreReadOnly,
    UnknownModel,
)
from nnclr_hub.workbench import NewImage
from nnclr_hub.workbench.file_import import ImportRequest

EMPTY = Response(200, {"collections": []})
BUSY = problem(429, "overloaded")


@pytest.fixture
def server():
    with scripted() as running:
        yield running


@pytest.fixture
def client(server):
    with Client(server.url, api_key="secret", timeout=120) as opened:
        yield opened


class Played(Connection):
    """A connection with scripted answers and a simulated clock."""

    def __init__(self, script: list, timeout: float) -> None:
        super().__init__("http://x", None, timeout)
        self.script, self.now, self.pauses = iter(script), 0.0, []

    def attempt(self, call: Call, seconds: float) -> Answer:
        assert 0 < seconds <= self._timeout
        line = next(self.script)
        if isinstance(line, Exception):
            raise line
        return line

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def clock(self) -> float:
        return self.now

    def jitter(self) -> float:
        return 1.0


def play(
    call: Call, script: list, timeout: float = 100.0, patience: float = 0.0, afterwards: str = ""
) -> tuple[object, list[float]]:
    """Run a call with a simulated clock, and return its outcome and its pauses; a patient one after another answer."""
    played = Played([FINE] * bool(patience) + script, timeout).patient(patience, afterwards)
    if patience:
        played.send(CALL)
    try:
        return played.send(call), played.pauses
    except NNCLRHubError as error:
        return error, played.pauses


def answer(status: int, code: str, **headers: str) -> Answer:
    kind = {"content-type": "application/problem+json"}
    return Answer("http://x", status, {**kind, **headers}, f'{{"code": "{code}", "detail": "d"}}'.encode())


CALL = Call("GET", "/")
FINE = Answer("http://x", 200, {}, b"")


def test_the_pauses_grow_to_a_cap_and_end_at_the_deadline():
    busy = answer(429, "overloaded")
    outcome, pauses = play(CALL, [busy] * 30 + [FINE], timeout=60)
    assert isinstance(outcome, Overloaded)
    assert pauses[:4] == [0.1, 0.2, 0.4, 0.8]
    assert max(pauses) == LONGEST_PAUSE_S
    assert sum(pauses) < 60
    assert play(CALL, [busy, busy, FINE]) == (FINE, [0.1, 0.2])


def test_retry_after_is_waited_for():
    waiting = answer(503, "not_ready", **{"retry-after": "7"})
    assert play(CALL, [waiting, FINE]) == (FINE, [7.0])
    outcome, pauses = play(CALL, [waiting], timeout=5)
    assert outcome.code == "not_ready"
    assert pauses == []


def test_retry_after_may_be_a_date():
    """Proxies write dates (RFC 9110, 10.2.3). A past or invalid date gives the usual pause."""
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=20), usegmt=True)
    outcome, (pause,) = play(CALL, [answer(503, "not_ready", **{"retry-after": later}), FINE])
    assert outcome == FINE
    assert 15 < pause <= 20
    for text in ("Wed, 21 Oct 2015 07:28:00 GMT", "soon", "Wed, 21 Oct 2015 07:28:00 -0000"):
        assert play(CALL, [answer(503, "not_ready", **{"retry-after": text}), FINE]) == (FINE, [0.1])


def test_an_unreachable_server_stops_calls_early_but_uploads_wait():
    lost = ServerUnreachable("gone")
    outcome, pauses = play(CALL, [lost] * 50, timeout=1000)
    assert outcome is lost
    assert len(pauses) == 4
    assert play(CALL, [*[lost] * 15, FINE], patience=300)[0] == FINE
    assert play(CALL, [DeadlineExceeded("slow"), FINE], patience=300)[0] == FINE
    late = DeadlineExceeded("slow")
    assert play(CALL, [late, FINE])[0] is late


DEAD_PROXY = Answer("http://x", 502, {"content-type": "text/html"}, b"<html>")


@pytest.mark.parametrize("line", [ServerUnreachable("gone"), DEAD_PROXY])
def test_long_work_waits_two_minutes_for_a_dead_server(line, caplog):
    """It says once how long, and at the end how to continue. An answer in between begins a new outage."""
    patient = {"patience": 600, "afterwards": "Run it again."}
    outcome, pauses = play(CALL, [line] * 500, timeout=60, **patient)
    assert isinstance(outcome, ServerUnreachable)
    assert str(outcome).endswith("Run it again.")
    assert 100 < sum(pauses) <= 120
    [record] = caplog.records
    assert "Retrying for another" in record.getMessage()
    assert record.getMessage().endswith("Run it again.")
    busy = answer(429, "overloaded")
    caplog.clear()
    assert play(CALL, [line, FINE], **patient)[0] == FINE
    assert caplog.records == [], "a moment is not worth a word"
    assert play(CALL, [*[line] * 12, busy, *[line] * 8, busy, FINE], **patient)[0] == FINE


def test_calls_at_the_same_time_share_an_outage(caplog):
    played = Played([FINE] + [ServerUnreachable("gone")] * 500, 60).patient(600.0, "Run it again.")
    played.send(CALL)
    for _ in range(3):
        with pytest.raises(ServerUnreachable):
            played.send(CALL)
    assert sum(played.pauses) <= 120
    assert len(caplog.records) == 1


def as_json(body: object) -> Answer:
    return Answer("http://x", 200, {"content-type": "application/json"}, json.dumps(body).encode())


INFO = dict.fromkeys(("bytes", "count", "durable_seq", "indexed_seq", "vectors_seq", "dim"), 1)
INFO |= dict.fromkeys(("model", "fingerprint", "state", "index_in_use"), "") | {"recall_estimate": None}
INFO |= {"name": "c", "metric": "cosine", "indexed": [], "index": "auto", "precision": "f32", "vectors": "raw"}
JOB = {"id": "1", "kind": "import", "state": "queued", "done": 0, "total": 0, "eta_s": None, "result": None}
JOB |= {"truncated": "", "error": None}
# what the server answers to an upload
UPLOADS = {
    "folder": [INFO, {"items": [], "cursor": None}, {"results": [{"index": 0, "id": "a"}]}],
    "file": [INFO, {"job": None, "received": 0}, {"job": JOB, "received": 0}],
}


@pytest.mark.parametrize("kind", UPLOADS)
@pytest.mark.parametrize("answered", [0, 1, 2])
def test_an_upload_waits_for_a_server_that_has_answered_once(kind, answered, tmp_path, monkeypatch):
    """At any call. A server that has never answered probably has another address."""
    answers = list(map(as_json, UPLOADS[kind]))
    answers[answered:answered] = [ServerUnreachable("gone")] * 12
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / "v.ndjson").write_text('{"id": "a", "vector": [1.0]}\n')
    played = Played(answers, 60)
    monkeypatch.setattr("nnclr_hub.client.client.Connection", lambda *given: played)
    collection, client = RemoteCollection(played, "c"), Client()
    upload = {
        "folder": lambda: collection.index_folder(tmp_path).added == 1,
        "file": lambda: client.start("import", ImportRequest("c", str(tmp_path / "v.ndjson"))).id == "1",
    }[kind]
    if answered:
        assert upload()
    else:
        with pytest.raises(ServerUnreachable):
            upload()


VECTOR = base64.b64encode(bytes(4)).decode()
ALONE = {  # calls with two images, and the answer to each of them alone
    "embed": (lambda client: client.embed_each([b"x", b"y"]), {"data": [{"embedding": VECTOR}]}),
    "add": (
        lambda client: client.collection("c").add_images([NewImage("a", b"x"), NewImage("b", b"y")]),
        {"results": [{"index": 0, "id": "a"}]},
    ),
    "predict": (lambda client: client.probes.predict("p", [b"x", b"y"]), {"results": [{"label": "cat", "top": []}]}),
}


@pytest.mark.parametrize("kind", ALONE)
def test_a_request_that_is_too_large_is_sent_in_halves(server, client, kind):
    call, alone = ALONE[kind]
    large = problem(413, "request_too_large")
    server.script = [large, Response(200, alone), Response(200, alone)]
    first, second = call(client)
    assert (len(server.requests), repr(first)) == (3, repr(second))
    server.script = [large]
    assert [error.code for error in call(client)] == ["image_too_large"] * 2


def test_permanent_errors_are_not_retried():
    for code, status in (("store_read_only", 503), ("invalid_request", 422), ("internal", 500), ("model_error", 503)):
        outcome, pauses = play(CALL, [answer(status, code), FINE])
        assert outcome.code in (code, "service_error")
        assert pauses == []


def test_a_retried_deletion_that_finds_nothing_succeeds(server, client):
    """The first attempt deleted it. A first attempt that finds nothing raises."""
    server.script = [Response(hang_up=True), problem(404, "collection_not_found"), problem(404, "collection_not_found")]
    client.store.drop("photos")
    with pytest.raises(NNCLRHubError):
        client.store.drop("photos")
    assert [method for method, *_ in server.requests] == ["DELETE"] * 3


def test_a_retried_deletion_succeeds_after_a_proxy_reports_a_dead_server():
    deletion = replace(CALL, gone=CollectionNotFound)
    died = answer(503, "server_unreachable", **{"retry-after": "1"})
    missing = answer(404, "collection_not_found")
    assert play(deletion, [died, missing]) == (missing, [1.0])
    assert isinstance(play(deletion, [missing])[0], CollectionNotFound)
    refused = answer(503, "not_ready", **{"retry-after": "1"})  # from the server itself, which deleted nothing
    assert isinstance(play(deletion, [refused, missing])[0], CollectionNotFound)


def test_an_upload_is_repeated(server, client):
    stored = Response(200, {"results": [{"index": 0, "id": "a"}]})
    server.script = [
        BUSY,
        Response(hang_up=True),
        Response(502, text="<html>", headers={"Content-Type": "text/html"}),
        stored,
    ]
    assert client.collection("photos").add_images([NewImage("a", b"x")]) == [None]
    assert len(server.requests) == 4
    assert len({headers["content-length"] for _, _, headers in server.requests}) == 1


def test_every_request_has_the_api_key(server, client):
    server.script = [EMPTY]
    client.store.list()
    assert server.requests[0][2]["authorization"] == "Bearer secret"
    assert repr(client) == f"Client({server.url!r})"
    assert repr(client.collection("photos")) == f"RemoteCollection('photos', {server.url!r})"
    assert repr(AsyncClient(server.url, "secret")) == f"AsyncClient({server.url!r})"


def test_a_closed_port_is_server_unreachable():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]  # held, but it does not listen
        with Client(f"http://127.0.0.1:{port}") as client:
            with pytest.raises(ServerUnreachable):
                client.store.list()
            with pytest.raises(ServerUnreachable, match=rf"http://127.0.0.1:{port} "):
                client.ready()


def test_answers_of_another_program_are_service_errors(server, client):
    page = {"Content-Type": "text/html; charset=utf-8"}
    for response in (
        Response(200, text="<html></html>", headers=page),
        Response(404, text="<html></html>", headers=page),
        Response(302, text="", headers={"Location": "/login", **page}),
        Response(500, {"oops": True}),
    ):
        server.script = [response]
        with pytest.raises(ServiceError):
            client.store.list()
    server.script = [Response(200, {"unexpected": True})]
    with pytest.raises(ServiceError):
        client.store.list()
    server.script = [Response(413, text="<html></html>", headers=page)]
    with pytest.raises(RequestTooLarge):
        client.store.list()


def test_errors_have_the_class_of_their_code(server, client):
    for response, kind in (
        (problem(409, "fingerprint_mismatch"), FingerprintMismatch),
        (problem(503, "store_read_only"), StoreReadOnly),
        (problem(401, "unauthorized"), ServiceError),
        (problem(500, "some_code_of_tomorrow"), ServiceError),
        (Response(404, {"error": {"message": "A sentence.", "type": "x", "code": "unknown_model"}}), UnknownModel),
    ):
        server.script = [response]
        with pytest.raises(kind):
            client.collection("c").snapshot()
        assert len(server.requests) == 1
        server.requests.clear()


def test_a_slow_answer_raises_deadline_exceeded(server):
    """The timeout also covers a response that arrives byte by byte."""
    for response in (Response(200, {"collections": []}, drip_s=0.1), Response(200, {"collections": []}, drip_s=30)):
        server.script = [response]
        with Client(server.url, timeout=0.5) as client:
            begun = time.monotonic()
            with pytest.raises(DeadlineExceeded):
                client.store.list()
            assert time.monotonic() - begun < 25


def test_invalid_arguments_are_refused_before_a_request_is_sent(server, client, tmp_path):
    for url in ("localhost:8000", "ftp://x", "http://", "http:/x", "", "http://127.0.0.1:8000/api/v1"):
        with pytest.raises(InvalidRequest):
            Client(url)
    for key in ("", "a\nb", "kä"):
        with pytest.raises(InvalidRequest):
            Client(server.url, api_key=key)
    with pytest.raises(InvalidRequest):
        Client(server.url, timeout=0)
    collection = client.collection("c")
    for ask, kind in (
        (lambda: collection.upsert([Item("a", np.ones(3), {"x": float("inf")})]), InvalidRequest),
        (lambda: collection.upsert([Item("a", np.ones(3), {}, b"\xff\xd8")]), InvalidRequest),  # it makes thumbnails
        (lambda: collection.delete("abc"), InvalidRequest),
        (lambda: collection.search(), InvalidRequest),
        (lambda: collection.search(np.zeros((2, 2))), InvalidRequest),
        (lambda: collection.search(np.ones(3), where={"must": float("nan")}), InvalidFilter),
        (lambda: client.collection("../models"), InvalidRequest),
        (lambda: client.jobs.get("../models"), InvalidRequest),
        (lambda: client.probes.fit("a", vectors=np.ones((3, 2)), labels=["x"]), InvalidRequest),
        (lambda: client.probes.fit("a", images=[b"x"], labels=[1.5]), InvalidRequest),
        (lambda: client.attention(b"x", target=[]), InvalidRequest),
        (lambda: client.attention(tmp_path / "none.jpg"), ImageError),
    ):
        with pytest.raises(kind):
            ask()
    client.close()
    with pytest.raises(InvalidRequest):
        client.store.list()
    assert server.requests == []
