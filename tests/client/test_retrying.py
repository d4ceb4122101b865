"""What is asked again, what is not, and how each failure is one of the library's errors."""

import asyncio
import socket
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import numpy as np
import pytest
from client.scripted_server import Line, problem, scripted

from nnclr_hub import AsyncClient, Client, Item
from nnclr_hub.client.retry import LONGEST_PAUSE_S, Policy, answered
from nnclr_hub.client.steps import Answer, Attempt, Call, Pause
from nnclr_hub.errors import (
    CollectionMoving,
    CollectionNotFound,
    DeadlineExceeded,
    FingerprintMismatch,
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

EMPTY = Line(200, {"collections": []})
BUSY = problem(429, "overloaded")


@pytest.fixture
def server():
    with scripted() as running:
        yield running


@pytest.fixture
def client(server):
    with Client(server.url, api_key="secret", timeout=20) as opened:
        yield opened


def play(call: Call, script: list, timeout: float = 100.0) -> tuple[object, list[float]]:
    """Drives a call by hand on a clock of its own: what it comes to, and the pauses it made."""
    now = [0.0]
    steps = answered(call, Policy(timeout, clock=lambda: now[0], jitter=lambda: 1.0))
    pauses, outcome = [], None
    lines = iter(script)
    while True:
        try:
            step = steps.throw(outcome) if isinstance(outcome, Exception) else steps.send(outcome)
        except StopIteration as end:
            return end.value, pauses
        except NNCLRHubError as error:
            return error, pauses
        outcome = None
        if isinstance(step, Pause):
            pauses.append(step.seconds)
            now[0] += step.seconds
        else:
            assert isinstance(step, Attempt)
            assert 0 < step.seconds <= timeout
            outcome = next(lines)


def answer(status: int, code: str, **headers: str) -> Answer:
    kind = {"content-type": "application/problem+json"}
    return Answer("http://x", status, {**kind, **headers}, f'{{"code": "{code}", "detail": "d"}}'.encode())


CALL = Call("GET", "/", lambda one: "done")
FINE = Answer("http://x", 200, {}, b"")


def test_the_pauses_grow_to_a_cap_and_end_at_the_deadline():
    busy = answer(429, "overloaded")
    outcome, pauses = play(CALL, [busy] * 30 + [FINE], timeout=60)
    assert isinstance(outcome, Overloaded)
    assert pauses[:4] == [0.1, 0.2, 0.4, 0.8]
    assert max(pauses) == LONGEST_PAUSE_S
    assert sum(pauses) < 60
    assert play(CALL, [busy, busy, FINE]) == ("done", [0.1, 0.2])


def test_retry_after_is_waited_for():
    waiting = answer(503, "not_ready", **{"retry-after": "7"})
    assert play(CALL, [waiting, FINE]) == ("done", [7.0])
    # the first attempt under this Idempotency-Key is still at work
    in_flight = answer(409, "idempotency_in_flight", **{"retry-after": "1"})
    assert play(CALL, [in_flight, FINE]) == ("done", [1.0])
    outcome, pauses = play(CALL, [waiting], timeout=5)
    assert outcome.code == "not_ready"
    assert pauses == []


def test_retry_after_may_be_a_date():
    """As proxies write it (RFC 9110, 10.2.3); one that has passed waits no longer than usual, and none at all too."""
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=20), usegmt=True)
    outcome, (pause,) = play(CALL, [answer(503, "not_ready", **{"retry-after": later}), FINE])
    assert outcome == "done"
    assert 15 < pause <= 20
    for text in ("Wed, 21 Oct 2015 07:28:00 GMT", "soon", "Wed, 21 Oct 2015 07:28:00 -0000"):
        assert play(CALL, [answer(503, "not_ready", **{"retry-after": text}), FINE]) == ("done", [0.1])


def test_a_long_wait_for_a_server_that_is_away_is_told(caplog):
    """Once a call, when a hurried one would have given up."""
    lost = ServerUnreachable("No server can be reached.")
    patient = Call("POST", "/", lambda one: "done", patience=600.0)
    assert play(patient, [lost] * 9 + [FINE])[0] == "done"
    assert len(caplog.records) == 1
    caplog.clear()
    assert play(patient, [lost, FINE])[0] == "done"
    assert caplog.records == []


def test_an_address_where_nothing_answers_is_given_up_soon_but_an_upload_waits():
    lost = ServerUnreachable("gone")
    outcome, pauses = play(CALL, [lost] * 50, timeout=1000)
    assert outcome is lost
    assert len(pauses) == 4
    patient = Call("POST", "/", lambda one: "done", patience=300.0)
    assert play(patient, [*[lost] * 20, FINE])[0] == "done"
    assert play(patient, [DeadlineExceeded("slow"), FINE])[0] == "done"
    late = DeadlineExceeded("slow")
    assert play(CALL, [late, FINE])[0] is late


def test_what_cannot_change_is_not_asked_again():
    for code, status in (("store_read_only", 503), ("invalid_request", 422), ("internal", 500), ("model_error", 503)):
        outcome, pauses = play(CALL, [answer(status, code), FINE])
        assert outcome.code in (code, "service_error")
        assert pauses == []


def test_a_deletion_whose_answer_was_lost_has_happened(server, client):
    """The second attempt finds nothing: the first one did it. A first attempt that finds nothing says so."""
    server.script = [Line(hang_up=True), problem(404, "collection_not_found"), problem(404, "collection_not_found")]
    client.collections.drop("photos")
    with pytest.raises(NNCLRHubError):
        client.collections.drop("photos")
    assert [method for method, *_ in server.asked] == ["DELETE"] * 3


def test_a_proxy_that_says_that_the_server_died_may_have_lost_its_answer():
    deletion = replace(CALL, gone=CollectionNotFound)
    died = answer(503, "server_unreachable", **{"retry-after": "1"})
    missing = answer(404, "collection_not_found")
    assert play(deletion, [died, missing]) == ("done", [1.0])
    assert isinstance(play(deletion, [missing])[0], CollectionNotFound)
    refused = answer(503, "not_ready", **{"retry-after": "1"})  # by the server itself, which did nothing
    assert isinstance(play(deletion, [refused, missing])[0], CollectionNotFound)


def test_an_upload_is_repeated_under_one_idempotency_key(server, client):
    stored = Line(200, {"results": [{"index": 0, "id": "a"}]})
    server.script = [BUSY, Line(hang_up=True), Line(502, text="<html>", headers={"Content-Type": "text/html"}), stored]
    assert client.collection("photos").add_images([NewImage("a", b"x")]) == [None]
    keys = [headers["idempotency-key"] for _, _, headers in server.asked]
    assert len(keys) == 4
    assert len(set(keys)) == 1
    # the same bytes as well: by them a server knows the request again
    assert len({headers["content-type"] for _, _, headers in server.asked}) == 1
    assert len({headers["content-length"] for _, _, headers in server.asked}) == 1
    client.collection("photos").add_images([NewImage("a", b"x")])
    assert server.asked[-1][2]["idempotency-key"] != keys[0]


def test_the_key_goes_with_every_request(server, client):
    server.script = [EMPTY]
    client.collections.list()
    assert server.asked[0][2]["authorization"] == "Bearer secret"
    assert "secret" not in repr(client.__dict__)


def test_nothing_listens_there():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with Client(f"http://127.0.0.1:{port}") as client:
        with pytest.raises(ServerUnreachable):
            client.collections.list()
        with pytest.raises(ServerUnreachable):
            client.ready()


def test_another_program_answers(server, client):
    page = {"Content-Type": "text/html; charset=utf-8"}
    for line in (
        Line(200, text="<html></html>", headers=page),
        Line(404, text="<html></html>", headers=page),
        Line(302, text="", headers={"Location": "/login", **page}),
        Line(500, {"oops": True}),
    ):
        server.script = [line]
        with pytest.raises(ServiceError):
            client.collections.list()
    server.script = [Line(200, {"unexpected": True})]
    with pytest.raises(ServiceError):
        client.collections.list()
    server.script = [Line(413, text="<html></html>", headers=page)]
    with pytest.raises(RequestTooLarge):
        client.collections.list()


def test_errors_have_the_class_of_their_code(server, client):
    for line, kind in (
        (problem(409, "fingerprint_mismatch"), FingerprintMismatch),
        (problem(409, "collection_moving"), CollectionMoving),
        (problem(503, "store_read_only"), StoreReadOnly),
        (problem(401, "unauthorized"), ServiceError),
        (problem(500, "some_code_of_tomorrow"), ServiceError),
        (Line(404, {"error": {"message": "A sentence.", "type": "x", "code": "unknown_model"}}), UnknownModel),
    ):
        server.script = [line]
        with pytest.raises(kind):
            client.collection("c").snapshot()
        assert len(server.asked) == 1
        server.asked.clear()


def test_a_slow_answer_ends_at_the_timeout(server):
    """Also one that comes in drops, each in time."""
    for line in (Line(200, {"collections": []}, drip_s=0.1), Line(200, {"collections": []}, drip_s=30)):
        server.script = [line]
        with Client(server.url, timeout=0.5) as client:
            begun = time.monotonic()
            with pytest.raises(DeadlineExceeded):
                client.collections.list()
            assert time.monotonic() - begun < 5

        async def ask() -> None:
            async with AsyncClient(server.url, timeout=0.5) as client:
                with pytest.raises(DeadlineExceeded):
                    await client.collections.list()

        asyncio.run(ask())


def test_the_awaited_client_retries_alike(server):
    server.script = [BUSY, Line(hang_up=True), EMPTY]

    async def ask() -> None:
        async with AsyncClient(server.url) as client:
            assert await client.collections.list() == []

    asyncio.run(ask())
    assert len(server.asked) == 3


def test_a_call_that_makes_no_sense_is_refused_before_it_is_sent(server, client):
    for url in ("localhost:8000", "ftp://x", "http://", "http:/x", ""):
        with pytest.raises(InvalidRequest):
            Client(url)
    for key in ("", "a\nb", "kä"):
        with pytest.raises(InvalidRequest):
            Client(server.url, api_key=key)
    with pytest.raises(InvalidRequest):
        Client(server.url, timeout=0)
    with pytest.raises(InvalidRequest):
        client.collection("c").upsert([Item("a", np.ones(3), {"x": float("inf")})])
    client.close()
    with pytest.raises(InvalidRequest):
        client.collections.list()
    assert server.asked == []
