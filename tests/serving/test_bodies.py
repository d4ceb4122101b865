"""Bodies and heads that are malicious, large, slow or truncated, sent byte by byte; afterwards the server is ready."""

import asyncio
import json
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rest_requests import talk
from starlette.types import Message
from waiting import until

from nnclr_hub.errors import RequestTooSlow
from serving.limits import BodyLimits, Budget, Exchange, RequestLimits
from serving.multipart import MAX_PARTS, MalformedForm, parse_form
from serving.settings import Settings

pytestmark = pytest.mark.usefixtures("well_afterwards")

HOST = b"Host: 127.0.0.1\r\n"
OFFER = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"  # see test_upgrade.py
CHUNKED = b"Transfer-Encoding: chunked\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\n"
EMBED = b"POST /api/v1/embed HTTP/1.1\r\n" + HOST + b"Content-Type: multipart/form-data; boundary=b\r\n"
PUT = b"PUT /api/v1/collections/c/items HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
FORM, JSON = {"Content-Type": "multipart/form-data; boundary=b"}, {"Content-Type": "application/json"}
FILE = b'--b\r\nContent-Disposition: form-data; name="files"; filename="x.jpg"\r\n\r\nx\r\n'
FIELD = b'--b\r\nContent-Disposition: form-data; name="files"\r\n\r\nx\r\n'
END = b"--b--\r\n"


def chunks(piece: bytes, times: int) -> Iterator[bytes]:
    for _ in range(times):
        yield b"%x\r\n%s\r\n" % (len(piece), piece)
    yield b"0\r\n\r\n"


# ---- the head, and the length of the body


# what is sent, and how the first line of the answer begins. A request could be smuggled past a proxy in the body of
# another one if the two servers read its head differently.
SMUGGLED = b"\r\nabc" + HEALTH + HOST + b"\r\n"
HEADS = {
    **{
        f"{head[:4].decode()} with a length of {length}": (head + b"Content-Length: %d\r\n\r\n" % length, 413)
        for head in (EMBED, PUT)
        for length in (2_000_001, 10**12, 10**18)
    },
    "two lengths": (PUT + b"Content-Length: 3\r\nContent-Length: 4\r\n" + SMUGGLED, 400),
    "a length and chunks": (PUT + b"Content-Length: 3\r\n" + CHUNKED + SMUGGLED, 400),
    "two lengths and an offer": (PUT + OFFER + b"Content-Length: 3\r\nContent-Length: 4\r\n" + SMUGGLED, 400),
    "a length, chunks and an offer": (PUT + OFFER + b"Content-Length: 3\r\n" + CHUNKED + SMUGGLED, 400),
    "a negative length": (PUT + b"Content-Length: -3\r\n" + SMUGGLED, 400),
    "a length with a sign": (PUT + b"Content-Length: +3\r\n" + SMUGGLED, 400),
    "a length of 26 digits": (PUT + b"Content-Length: 99999999999999999999999999\r\n" + SMUGGLED, 400),
    "another transfer encoding": (PUT + b"Transfer-Encoding: chunked, identity\r\n" + SMUGGLED, 400),
    "two transfer encodings": (PUT + CHUNKED + b"Transfer-Encoding: identity\r\n" + SMUGGLED, 400),
    "a length and an unknown encoding": (PUT + b"Content-Length: 3\r\nTransfer-Encoding: xchunked\r\n" + SMUGGLED, 400),
    "a length after a space": (PUT + b"Content-Length : 3\r\n" + SMUGGLED, 400),
    "a hexadecimal length": (PUT + b"Content-Length: 0x3\r\n" + SMUGGLED, 400),
    **{
        f"a chunk of {length}": (PUT + CHUNKED + b"\r\n%s\r\n[]\r\n0\r\n\r\n" % length.encode(), 400)
        for length in ("-1", "g", "1", "f" * 17)
    },
    "many trailers": (PUT + CHUNKED + b"\r\n2\r\n[]\r\n0\r\n" + b"Host: evil.example\r\n" * 2000 + b"\r\n", 200),
    "a zero in a header": (PUT + b"X: a\x00b\r\n" + SMUGGLED, 400),
    "a header on two lines": (PUT + b"X: a\n b\r\n" + SMUGGLED, 400),
    "a folded first header": (PUT + b" X: folded\r\n" + SMUGGLED, 400),
    "chunks one byte above the limit": (b"".join([PUT, CHUNKED, b"\r\n", *chunks(b" " * 666_667, 3)]), 413),
    "chunks of as many bytes as allowed": (b"".join([PUT, CHUNKED, b"\r\n", *chunks(b" " * 500_000, 4)]), 400),
    "a head without an end": (HEALTH + HOST + b"X: " + b"y" * 1_000_000, 400),
    "headers without an end": (HEALTH + HOST + b"X: y\r\n" * 200_000, 400),
    "trailers without an end": (PUT + CHUNKED + b"\r\n2\r\n[]\r\n0\r\n" + b"X: y\r\n" * 200_000, 400),
    "a long head": (HEALTH + HOST + b"X: " + b"y" * 60_000 + b"\r\n\r\n", 200),
    "no head": (b"nonsense\r\n\r\n", 400),
    "HTTP/1.0": (HEALTH.replace(b"1.1", b"1.0") + HOST + b"\r\n", 200),
    "HTTP/3.7": (HEALTH.replace(b"1.1", b"3.7") + HOST + b"\r\n", 400),
    "lines without a carriage return": ((HEALTH + HOST + b"\r\n").replace(b"\r", b""), 400),
    "HTTP/2 without an offer": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(30), 400),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500), 400),
    "a client that waits for a sign": (PUT + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n[]", 100),
    "a long method": (b"A" * 100_000 + b" / HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "a long path": (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    **{f"{bad} in the path": (b"GET /a%sb HTTP/1.1\r\n%s\r\n" % (bad, HOST), 400) for bad in (b"\0", b"\x7f")},
    "no host": (b"GET /x HTTP/1.1\r\n\r\n", 403),
    "dots in the path": (b"GET /app/%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\n" + HOST + b"\r\n", 404),
    **{
        f"GET {path}": (b"GET %s HTTP/1.1\r\n%s\r\n" % (path.encode(), HOST), 404)
        for path in ("/../../etc/passwd", "/app/../../etc/passwd", "//etc/passwd")
    },
}


@pytest.mark.parametrize("name", HEADS)
def test_a_head_that_is_ambiguous_or_too_large_is_refused(strict, name):
    message, status = HEADS[name]
    answer = talk(strict.url, [message], whole=False)
    assert answer.startswith(b"HTTP/1.1 %d" % status)
    assert not [word for word in (b"server:", b"uvicorn", b"root:") if word in answer.lower()]


# ---- time and memory


@pytest.mark.parametrize(
    ("limits", "drips"),
    [
        ({"body_idle_s": 0.3}, False),
        ({"body_s": 0.3}, True),  # each byte comes within body_idle_s
        ({"body_s": 0.3, "body_idle_s": 600}, False),
    ],
)
def test_a_client_that_is_silent_or_slow_is_answered_408(model, tmp_path, serve, limits, drips):
    def slowly() -> Iterator[bytes]:
        yield PUT + b"Content-Length: 1000\r\n\r\n[1,"
        for _ in range(20 if drips else 0):
            time.sleep(0.05)
            yield b" "

    for server in serve(model, tmp_path / "store", **limits):
        answer = talk(server.url, slowly(), whole=False)
        assert answer.startswith(b"HTTP/1.1 408")
        assert RequestTooSlow.code.encode() in answer


class Body:
    """A body of ready pieces; the last one is followed by silence."""

    def __init__(self, size: int, pieces: int) -> None:
        self.size, self.pieces, self.received = size, pieces, 0

    async def read(self, limits: BodyLimits) -> None:
        """Receive all pieces, as a route does."""

        async def route(scope, receive, send) -> None:
            while self.received < self.pieces:
                await receive()

        headers = [(b"content-length", str(self.size * self.pieces).encode())]
        scope = {"type": "http", "http_version": "1.1", "path": "/", "headers": headers}
        await Exchange(limits, Budget(60), scope, self.receive, self.receive).run(route)  # type: ignore[arg-type]

    async def receive(self) -> Message:
        if self.received == self.pieces:
            await asyncio.Event().wait()
        self.received += 1
        return {"type": "http.request", "body": b"x" * self.size, "more_body": True}


def test_a_body_whose_parts_are_always_ready_has_a_limit_on_its_time():
    """No timeout can end a wait for them."""
    limits = BodyLimits(max_bytes=10**6, idle_s=60, total_s=0.01, permits=10**6)
    with pytest.raises(RequestTooSlow):
        asyncio.run(Body(1, 200_000).read(limits))  # more than a second


def test_a_body_without_a_length_is_received_over_http_2():
    received = []

    async def route(scope, receive, send) -> None:
        received.append(await receive())

    async def receive() -> Message:
        return {"type": "http.request", "body": b"[]", "more_body": False}

    scope = {"type": "http", "http_version": "2", "path": "/", "headers": []}
    asyncio.run(RequestLimits(route, Settings())(scope, receive, receive))  # type: ignore[arg-type]
    assert [message["body"] for message in received] == [b"[]"]


def test_the_memory_of_all_bodies_is_limited(strict):
    """Two bodies of 900 kB fit into the limit in the settings, and the third does not. Their memory comes back."""
    body = b"[" + b" " * 900_000 + b"]"
    address = ("127.0.0.1", httpx.URL(strict.url).port)
    for _ in range(2):
        with ExitStack() as held:
            connections = [held.enter_context(socket.create_connection(address)) for _ in range(3)]
            for connection in connections:  # none is complete
                connection.sendall(PUT + b"Content-Length: %d\r\n\r\n" % len(body) + body[:-1])
            answered, *_ = select.select(connections, (), (), 60)
            assert [connection.recv(12) for connection in answered] == [b"HTTP/1.1 429"]
    url = f"{strict.url}/api/v1/collections/c/items"
    until(lambda: httpx.put(url, content=body, headers=JSON, timeout=60).status_code == 200)


def test_an_ordinary_request_does_not_wait_for_all_large_bodies():
    limits = BodyLimits(max_bytes=10**8, idle_s=60, total_s=60, permits=10**9)
    bodies = [Body(200_000, 50) for _ in range(20)]

    async def use() -> int:
        uploads = [asyncio.create_task(body.read(limits)) for body in bodies]
        for _ in range(10):  # cycles of the event loop, as many as an ordinary request takes
            await asyncio.sleep(0)
        received = sum(body.received for body in bodies)
        while sum(body.received for body in bodies) < 20 * 20:
            await asyncio.sleep(0.01)
        for one in uploads:
            one.cancel()
        await asyncio.wait(uploads)
        assert min(body.received for body in bodies) > 10  # they take turns
        return received

    assert asyncio.run(use()) <= 10


# ---- forms


PATHS = ("embed", "collections/c/items", "collections/c/search")
BAD = {400, 413, 422}
# path, form, statuses
FORMS: dict[str, tuple[str, Callable[[], bytes], set[int]]] = {
    **{
        f"{count} {kind} to {path}": (path, lambda part=part, count=count: part * count + END, BAD)
        for path in PATHS
        for kind, part in (("files", FILE), ("fields", FIELD))
        for count in (129, 20_000)
    },
    **{
        name: (PATHS[0], lambda form=form: form, BAD)
        for name, form in {
            "nothing": b"",
            "a boundary": b"--b",
            "no end": b"--b\r\nContent-Disp",
            "only an end": b"--b--",
            "a part without headers": b"--b\r\n\r\n\r\n" + END,
            "no boundary": b"garbage" * 1000,
            "no name": b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n" + END,
            "a header without a colon": b"--b\r\nContent-Disposition\r\n\r\nx\r\n" + END,
            "a long name of a file": FILE.replace(b"x.jpg", b"a" * 500_000) + END,
            "a long text": FIELD.replace(b"\r\nx\r\n", b"x" * 1_900_000) + END,
            "many headers": b"--b\r\n" + b"X: y\r\n" * 100_000 + b"\r\n\r\n" + END,
        }.items()
    },
    **{
        f"cut after {end} bytes": (PATHS[0], lambda end=end: (FILE * 2 + END)[:end], {400})
        for end in range(1, 2 * len(FILE) + 4, 7)
    },
    "a whole form without images": (PATHS[0], lambda: FILE * 2 + END, {422}),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_malformed_form_is_refused_as_a_whole(strict, name):
    path, make, statuses = FORMS[name]
    answer = httpx.post(f"{strict.url}/api/v1/{path}", content=make(), headers=FORM, timeout=120)
    assert answer.status_code in statuses
    assert answer.json()["code"] in ("malformed", "request_too_large", "invalid_request", "undecodable_image")


# ---- JSON


def shapes(inner: bytes) -> Iterator[tuple[str, str, bytes]]:
    """Yield method, path and body, with the JSON in every place that takes any value."""
    items, search = "/api/v1/collections/c/items", "/api/v1/collections/c/search"
    yield "PUT", items, inner
    for field in (b"id", b"vector", b"metadata"):
        item = {b"id": b'"a"', b"vector": b"[1, 2]", b"metadata": b"{}"} | {field: inner}
        yield "PUT", items, b"[{" + b",".join(b'"%s":%s' % pair for pair in item.items()) + b"}]"
    yield "PUT", items, b'[{"id":"a","vector":[1,2],"metadata":{"a":%s}}]' % inner
    yield "PUT", items, b'[{"id":"a","vector":[1,%s]}]' % inner
    for field in (b"k", b"offset", b"where", b"box", b"exact", b"score_threshold", b"effort", b"image", b"unknown"):
        yield "POST", search, b'{"vector":[1,2],"%s":%s}' % (field, inner)
    yield "POST", search, b'{"vector":[1,2],"where":{"must":[{"key":"a","match":%s}]}}' % inner
    for field in (b"dim", b"indexed", b"model"):
        yield "PUT", "/api/v1/collections/d", b'{"%s":%s}' % (field, inner)
    for field in (b"model", b"input", b"dimensions", b"user"):
        yield "POST", "/v1/embeddings", b'{"model":"m","input":"YQ==","%s":%s}' % (field, inner)


ACCEPTED = {200, 201, 400, 404, 409, 413, 415, 422}
INNER = {
    # making millions of lists takes seconds in which no other thread runs
    "millions of lists": (b"[" + b"[]," * 500_000 + b"[]]", {413}),
    **{
        name: (inner, ACCEPTED)
        for name, inner in {
            "10,000 open lists": b"[" * 10_000,
            "lists 10,000 deep": b"[" * 10_000 + b"]" * 10_000,
            "lists 900 deep": b"[" * 900 + b"]" * 900,
            "objects 900 deep": b'{"a":' * 900 + b"1" + b"}" * 900,
            "filters 60 deep": b'{"must":[' * 60 + b"]}" * 60,
            "400 digits": b"9" * 400,
            "5000 digits": b"9" * 5000,
            "half of a surrogate": b'"\\ud800"',
            "a zero in a string": b'"\\u0000"',
            "no UTF-8": b'"\xff\xfe"',
            "a long string": b'"' + b"a" * 100_000 + b'"',
        }.items()
    },
    **{one.decode(): (one, ACCEPTED) for one in b"NaN Infinity -Infinity 1e400 -0.0e-999999 null true [] {}".split()},
}


@pytest.mark.parametrize("name", INNER)
def test_no_json_makes_the_server_fail(strict, name):
    inner, statuses = INNER[name]
    with httpx.Client(base_url=strict.url, timeout=120) as client:
        for method, path, body in shapes(inner):
            answer = client.request(method, path, content=body, headers=JSON)
            assert answer.status_code in statuses, (path, body[:60], answer.text[:300])
            json.loads(answer.content, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
        client.delete("/api/v1/collections/d")


LISTS = 200_000  # with the list around them one more than the limit
STRINGS = {
    "brackets in a string": (b'"' + b"[{" * LISTS + b'"', False),
    "brackets in a string after an escaped quote": (rb'"\"' + b"[" * LISTS + b'"', False),
    "brackets after a string that ends in a backslash": (rb'"\\",' + b"[" * LISTS, True),
    "lists": (b"[" * LISTS, True),
    "objects": (b"{" * LISTS, True),
    "as many lists as allowed": (b"[" * (LISTS - 1), False),
    # a scan that restarts at each of their quotes would take hours
    **{
        f"a string without an end: {part[:2]}": (b"[" * 199_000 + b'"' + part + b"[" * 9000, None)
        for part in (b'\\"' * 890_000, b"\\\\" * 890_000 + b"\\", b'a"' * 590_000)
    },
}


@pytest.mark.parametrize("name", STRINGS)
def test_lists_and_objects_are_counted_outside_of_strings(strict, name):
    inner, too_many = STRINGS[name]
    body = b"[" + inner + b"]"
    answer = httpx.put(f"{strict.url}/api/v1/collections/c/items", content=body, headers=JSON, timeout=60)
    assert answer.status_code in {True: {413}, False: {400, 422}, None: {400, 413}}[too_many]


# ---- forms, compared with those that httpx writes


KIND = "multipart/form-data; boundary=bound"
names = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc"], exclude_characters='"\\'), min_size=1, max_size=20
)
data = st.binary(max_size=200) | st.sampled_from([b"", b"\r\n", b"--bound", b"\r\n--", b"\r\n--boun", b"\r\n\r\n--x"])


@settings(max_examples=40)
@given(st.lists(st.tuples(names, st.none() | names, data), min_size=1, max_size=5), st.integers(0, 10_000))
def test_forms_are_read_as_they_were_written(fields, cut):
    files = [(name, (filename, content)) for name, filename, content in fields]
    request = httpx.Request("POST", "http://x", files=files, headers={"Content-Type": KIND})
    body = request.read()
    assert [tuple(part) for part in parse_form(KIND, [body[:cut], body[cut:]])] == fields
    with pytest.raises(MalformedForm):
        parse_form(KIND, [body[: min(cut, len(body) - 4)]])  # without the last "--"
    assert len(parse_form('multipart/form-data; boundary="bound"', [body])) == len(fields)  # as .NET writes it
    assert len(parse_form(KIND, [b"\r\n" + body + b"what follows is ignored"])) == len(fields)
    assert len(parse_form(KIND, [b"This is a multi-part message --bound.\r\n\r\n" + body])) == len(fields)


@given(st.binary(max_size=300))
def test_other_bytes_are_refused(noise):
    head = b'Content-Disposition: form-data; name="a"\r\n\r\n'
    for body in (noise, b"--bound" + noise, b"--bound\r\n" + noise, b"--bound\r\n" + head + noise):
        if b"--bound--" not in body:
            with pytest.raises(MalformedForm):
                parse_form(KIND, [body])


def test_parts_and_headers_are_limited():
    part = b'--bound\r\nContent-Disposition: form-data; name="a"%s\r\n\r\nx\r\n'
    assert len(parse_form(KIND, [part % b"" * MAX_PARTS + b"--bound--"])) == MAX_PARTS
    for body in (part % b"" * (MAX_PARTS + 1) + b"--bound--", part % (b"\r\nX: y" * 3000) + b"--bound--"):
        with pytest.raises(MalformedForm):
            parse_form(KIND, [body])
    with pytest.raises(MalformedForm):
        parse_form("multipart/form-data", [part % b"" + b"--bound--"])


@pytest.mark.parametrize(
    ("disposition", "filename"),
    [
        (b"filename*=utf-8''%D1%84%D0%B0.jpg", "фа.jpg"),
        (b"filename*=UTF-8'ru'%D1%84%D0%B0.jpg; filename=x.jpg", "фа.jpg"),
        (b"filename=\"x.jpg\"; FileName* = utf-8''a%20b%3B%22.jpg", 'a b;".jpg'),
        (b"filename*=iso-8859-1''%e9t%E9.jpg", "été.jpg"),
        (b"filename=\"=?utf-8?B?0YTQsC5qcGc=?=\"; filename*=utf-8''%D1%84%D0%B0.jpg", "фа.jpg"),
        (b'filename="=?utf-8?B?0YTQsC5qcGc=?="', "фа.jpg"),
        (b'filename="=?utf-8?Q?=C3=A9_1.jpg?="', "é 1.jpg"),
        (b'filename="\xe9t\xe9.jpg"', "été.jpg"),
        (b'filename="=?x.jpg"', "=?x.jpg"),
        (b'filename="=?none?B?eA==?="', "=?none?B?eA==?="),
        (b"filename=\"a; filename*=utf-8''b.jpg\"", "a; filename*=utf-8''b.jpg"),
        (b"filename=\"x.jpg\"; filename*=none''y.jpg", "x.jpg"),
        (b"filename=\"x.jpg\"; filename*=utf-8''%ff.jpg", "x.jpg"),
        (b"filename=\"\"; filename*=utf-8''", ""),
    ],
)
def test_names_of_files_as_clients_write_them(disposition, filename):
    body = b'--bound\r\nContent-Disposition: form-data; name="f"; ' + disposition + b"\r\n\r\nx\r\n--bound--\r\n"
    assert [tuple(part) for part in parse_form(KIND, [body])] == [("f", filename, b"x")]


@pytest.mark.parametrize(
    "disposition", [b"filename*=none''x", b"filename*=x.jpg", b"filename*0*=utf-8''x; filename*1*=y", b'filename*0="x"']
)
def test_a_name_of_a_file_that_cannot_be_decoded_is_refused(disposition):
    """It is not the name of a text field."""
    body = b"--bound\r\nContent-Disposition: form-data; name=f; " + disposition + b"\r\n\r\nx\r\n--bound--\r\n"
    with pytest.raises(MalformedForm):
        parse_form(KIND, [body])
    part = body.replace(b"name=f;", b'name=f; filename="plain.jpg";')
    assert parse_form(KIND, [part])[0].filename == "plain.jpg"
