"""Names with line breaks and markup cannot inject headers or log lines."""

import logging

from rest_requests import talk

EVIL = "a\r\nX-Evil: 1\r\n\r\n<script>\x1b[31m\u2028"


def test_names_cannot_inject_headers_or_log_lines(server, client, caplog):
    caplog.set_level(logging.INFO)
    quoted = "%61%0d%0aX-Evil:%201%0d%0a%0d%0a%3Cscript%3E%1b%5B31m"
    answers = [
        client.get(f"/api/v1/collections/{quoted}"),
        client.delete(f"/api/v1/collections/{quoted}"),
        client.put(f"/api/v1/collections/{quoted}", json={"dim": 2}),
        client.get(f"/v1/models/{quoted}"),
        client.get(f"/{quoted}"),
        client.get(f"/login?next={quoted}"),
        client.get("/api/v1/collections", params={"x": EVIL}),
        client.post("/v1/embeddings", json={"model": EVIL, "input": EVIL, "user": EVIL}),
        client.post("/api/v1/embed", files={"files": (EVIL, b"x", "image/jpeg")}, data={"model": EVIL}),
    ]
    for answer in answers:
        assert "x-evil" not in answer.headers, answer.url
        assert answer.status_code < 500, answer.text
        assert "text/html" not in answer.headers.get("content-type", "") or answer.status_code == 303
    for name in (b"Host", b"Origin", b"User-Agent", b"X-Request-Id", b"Authorization", b"Cookie", b"Idempotency-Key"):
        for value in (b"a\tb\x1b[31m\xff", b"a\x0bX-Evil: 1", b"b" * 50_000):
            head = b"PUT /x HTTP/1.1\r\nConnection: close\r\n%s: %s\r\n" % (name, value)
            answer = talk(server.url, [head + (b"\r\n" if name == b"Host" else b"Host: 127.0.0.1\r\n\r\n")])
            assert answer.split(b" ")[1] in (b"400", b"403", b"404", b"405"), (name, answer)
            assert b"\r\nX-Evil" not in answer
    formatter = logging.Formatter("%(levelname)s %(name)s %(message)s")
    for record in caplog.records:
        if record.name.startswith(("nnclr_hub", "serving", "uvicorn")):
            line = formatter.format(record)
            assert not {"\r", "\n", "\x1b", "\u2028"} & set(line), line


def test_metadata_is_returned_unchanged(client):
    client.put("/api/v1/collections/odd", json={"dim": 2})
    items = [{"id": "a", "vector": [1, 0], "metadata": {"name": EVIL, EVIL: "x"}}]
    assert client.put("/api/v1/collections/odd/items", json=items).status_code == 200
    assert client.get("/api/v1/collections/odd/items/a").json()["metadata"] == items[0]["metadata"]
    client.delete("/api/v1/collections/odd")
