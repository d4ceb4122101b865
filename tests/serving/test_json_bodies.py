"""JSON that means ill, sent to a real server; afterwards it must be well."""

import json
from collections.abc import Iterator

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving import request_bodies

pytestmark = pytest.mark.usefixtures("well_afterwards")


def shapes(inner: bytes) -> Iterator[tuple[str, str, bytes]]:
    """Every place of a JSON body where anything may stand, with it there."""
    yield "PUT", "/api/v1/collections/c/items", inner
    for field in (b"id", b"vector", b"metadata"):
        item = {b"id": b'"a"', b"vector": b"[1, 2]", b"metadata": b"{}"} | {field: inner}
        yield (
            "PUT",
            "/api/v1/collections/c/items",
            b"[{" + b",".join(b'"%s":%s' % pair for pair in item.items()) + b"}]",
        )
    yield "PUT", "/api/v1/collections/c/items", b'[{"id":"a","vector":[1,2],"metadata":{"a":%s}}]' % inner
    yield "PUT", "/api/v1/collections/c/items", b'[{"id":"a","vector":[1,%s]}]' % inner
    for field in (b"k", b"where", b"box", b"exact", b"score_threshold", b"effort", b"image", b"unknown"):
        yield "POST", "/api/v1/collections/c/search", b'{"vector":[1,2],"%s":%s}' % (field, inner)
    yield "POST", "/api/v1/collections/c/search", b'{"vector":[1,2],"where":{"must":[{"key":"a","match":%s}]}}' % inner
    for field in (b"dim", b"indexed", b"model"):
        yield "PUT", "/api/v1/collections/d", b'{"%s":%s}' % (field, inner)
    for field in (b"model", b"input", b"dimensions", b"user"):
        yield "POST", "/v1/embeddings", b'{"model":"m","input":"YQ==","%s":%s}' % (field, inner)


def test_millions_of_lists_hold_nobody_up(strict):
    """Making them takes seconds in which no other thread runs."""
    with httpx.Client(base_url=strict.url, timeout=120) as client:
        for method, path, body in shapes(b"[" + b"[]," * 500_000 + b"[]]"):
            answer = client.request(method, path, content=body, headers={"Content-Type": "application/json"})
            assert answer.status_code == 413, (path, answer.text[:300])
            assert "lists and objects" in answer.text
        metadata = {"note": "[{" * 200_000 + '\\"'}  # these are words
        answer = client.put("/api/v1/collections/c/items", json=[{"id": "a", "vector": [1, 2], "metadata": metadata}])
        assert "lists and objects" not in answer.text


def counted(text: str) -> int:
    """Lists and objects of JSON, character by character."""
    count, within, escaped = 0, False, False
    for character in text:
        if escaped:
            escaped = False
        elif character == '"':
            within = not within
        elif within:
            escaped = character == "\\"
        else:
            count += character in "[{"
    return count


ANY_JSON = st.recursive(
    st.text(st.sampled_from('[{"\\]a\u00e9\n'), max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(ANY_JSON, st.booleans())
def test_lists_and_objects_are_counted_outside_of_words(value, plain):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_bodies, "MAX_LISTS", 0)  # where they are many, they are looked at closely
        text = json.dumps(value, ensure_ascii=plain)
        assert request_bodies._count_lists(text) == request_bodies._count_lists(text.encode()) == counted(text)


@pytest.mark.parametrize("body", [b'"' + b'\\"' * 900_000, b'"' + b"\\\\" * 900_000 + b"\\", b'"a' * 600_001])
def test_words_that_never_end_are_looked_through_once(strict, body):
    """Begun anew at each of their quotes, a look through 2 MB would take hours."""
    headers = {"Content-Type": "application/json"}
    body = b"[" * 199_000 + body[:1_790_000] + b"[" * 9_000
    answer = httpx.put(f"{strict.url}/api/v1/collections/c/items", content=body, headers=headers, timeout=60)
    assert answer.status_code in (400, 413)


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
            answer = client.request(method, path, content=body, headers={"Content-Type": "application/json"})
            assert answer.status_code in (200, 201, 400, 404, 409, 413, 415, 422), (path, body[:60], answer.text[:300])
            json.loads(answer.content, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
        client.delete("/api/v1/collections/d")
