"""Bodies that are large, truncated or malicious; afterwards the server is still ready."""

import asyncio
import json
import threading
from collections.abc import Iterator

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving import request_bodies
from serving.request_bodies import LARGE, in_thread_if_large

strict_server = pytest.mark.usefixtures("well_afterwards")

FORM = {"Content-Type": "multipart/form-data; boundary=b"}
JSON = {"Content-Type": "application/json"}
PART = b'--b\r\nContent-Disposition: form-data; name="%s"; filename="x.jpg"\r\n\r\nx\r\n'
FIELD = b'--b\r\nContent-Disposition: form-data; name="%s"\r\n\r\nx\r\n'


def test_work_on_many_bytes_runs_in_a_thread():
    async def run() -> None:
        assert await in_thread_if_large(LARGE, threading.get_ident) == threading.get_ident()
        assert await in_thread_if_large(LARGE + 1, threading.get_ident) != threading.get_ident()

    asyncio.run(run())


# ---- forms


@strict_server
@pytest.mark.parametrize("part", [PART, FIELD])
@pytest.mark.parametrize("count", [129, 20_000])
@pytest.mark.parametrize("path", ["/api/v1/embed", "/api/v1/collections/c/items", "/api/v1/collections/c/search"])
def test_thousands_of_parts_are_refused(strict, part, count, path):
    body = b"".join(part % b"files" for _ in range(count)) + b"--b--\r\n"
    answer = httpx.post(strict.url + path, content=body, headers=FORM, timeout=120)
    assert answer.status_code in (400, 413, 422)
    assert answer.json()["code"]


@strict_server
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--b",
        b"--b\r\nContent-Disp",
        b"--b--",
        b"--b\r\n\r\n\r\n--b--\r\n",
        b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--\r\n",
        b'--b\r\nContent-Disposition: form-data; name="files"; filename="'
        + b"a" * 500_000
        + b'"\r\n\r\nx\r\n--b--\r\n',
        b'--b\r\nContent-Disposition: form-data; name="m"\r\n\r\n' + b"x" * 1_900_000 + b"\r\n--b--\r\n",
        b"--b\r\n" + b"X: y\r\n" * 100_000 + b"\r\n\r\n--b--\r\n",
        b"garbage" * 1000,
    ],
)
def test_a_malformed_form_is_refused(strict, body):
    assert httpx.post(f"{strict.url}/api/v1/embed", content=body, headers=FORM, timeout=60).status_code in (
        400,
        413,
        422,
    )


@strict_server
def test_a_truncated_form_is_refused_as_a_whole(strict):
    item = b'--b\r\nContent-Disposition: form-data; name="files"; filename="%s"\r\n\r\nx\r\n'
    whole = item % b"one.jpg" + item % b"two.jpg" + b"--b--"
    for end in range(1, len(whole), 7):
        answer = httpx.post(f"{strict.url}/api/v1/embed", content=whole[:end], headers=FORM, timeout=60)
        assert (answer.status_code, answer.json()["code"]) == (400, "malformed"), whole[:end]
    answer = httpx.post(f"{strict.url}/api/v1/embed", content=whole, headers=FORM, timeout=60)
    assert (answer.status_code, answer.json()["code"]) == (422, "undecodable_image")  # a whole form without images


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


@strict_server
def test_millions_of_lists_are_refused_before_they_are_made(strict):
    """Making them takes seconds in which no other thread runs."""
    with httpx.Client(base_url=strict.url, timeout=120) as client:
        for method, path, body in shapes(b"[" + b"[]," * 500_000 + b"[]]"):
            answer = client.request(method, path, content=body, headers=JSON)
            assert answer.status_code == 413, (path, answer.text[:300])
        metadata = {"note": "[{" * 200_000 + '\\"'}  # brackets in a string do not count
        answer = client.put("/api/v1/collections/c/items", json=[{"id": "a", "vector": [1, 2], "metadata": metadata}])
        assert answer.status_code != 413


def count_by_character(text: str) -> int:
    """Count the lists and objects of JSON, character by character."""
    count, in_string, escaped = 0, False, False
    for character in text:
        if escaped:
            escaped = False
        elif character == '"':
            in_string = not in_string
        elif in_string:
            escaped = character == "\\"
        else:
            count += character in "[{"
    return count


ANY_JSON = st.recursive(
    st.text(st.sampled_from('[{"\\]a\u00e9\n'), max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(ANY_JSON, st.booleans())
def test_lists_and_objects_are_counted_outside_of_strings(value, plain):
    text = json.dumps(value, ensure_ascii=plain)
    assert request_bodies._count(text.encode(), b"[{", 0) == count_by_character(text)


@strict_server
@pytest.mark.parametrize("body", [b'"' + b'\\"' * 900_000, b'"' + b"\\\\" * 900_000 + b"\\", b'"a' * 600_001])
def test_unterminated_strings_are_scanned_once(strict, body):
    """A scan that restarts at each of their quotes would take hours for 2 MB."""
    body = b"[" * 199_000 + body[:1_790_000] + b"[" * 9_000
    answer = httpx.put(f"{strict.url}/api/v1/collections/c/items", content=body, headers=JSON, timeout=60)
    assert answer.status_code in (400, 413)


@strict_server
@pytest.mark.parametrize(
    "inner",
    [
        b"[" * 10_000,
        b"[" * 10_000 + b"]" * 10_000,
        b"[" * 900 + b"]" * 900,
        b'{"a":' * 900 + b"1" + b"}" * 900,
        b'{"must":[' * 60 + b"]}" * 60,
        b"NaN",
        b"Infinity",
        b"-Infinity",
        b"1e400",
        b"9" * 400,
        b"9" * 5000,
        b"-0.0e-999999",
        b'"\\ud800"',
        b'"\\u0000"',
        b'"\xff\xfe"',
        b'"' + b"a" * 100_000 + b'"',
        b"null",
        b"true",
        b"[]",
        b"{}",
    ],
    ids=lambda inner: inner[:12].decode("latin-1") + f"-{len(inner)}",
)
def test_no_json_makes_the_server_fail(strict, inner):
    with httpx.Client(base_url=strict.url, timeout=120) as client:
        for method, path, body in shapes(inner):
            answer = client.request(method, path, content=body, headers=JSON)
            assert answer.status_code in (200, 201, 400, 404, 409, 413, 415, 422), (path, body[:60], answer.text[:300])
            json.loads(answer.content, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
        client.delete("/api/v1/collections/d")
