"""No response contains a path of the server's machine."""

import base64
import logging
import tempfile
from pathlib import Path

from rest_requests import is_problem, talk

from nnclr_hub.errors import StoreError
from nnclr_hub.store.base import CollectionSpec


def test_no_response_has_a_path_of_this_machine(server, client, model, image_files, monkeypatch):
    """Model and store are folders, whose paths could appear in many responses."""
    secrets = [str(model.parent), tempfile.gettempdir(), str(Path.home()), "site-packages"]
    image = {"files": image_files[0].read_bytes()}
    path = "/api/v1/collections/paths"

    def odd(*_, **__):
        raise OSError(5, "Input/output error", str(model / "catalog.sqlite"))

    def known(*_, **__):
        raise StoreError(f"The store in {model / 'store'} is closed.")

    def answers():
        for name in ("", f"/{model.name}", "/unknown", f"/local-dir:{model}/x"):
            yield client.get(f"/v1/models{name}")
        for body in ({}, {"model": "/etc/passwd"}):
            yield client.put(path, json=body)
        for url in ("/api/v1/collections", path, "/openapi.json"):
            yield client.get(url)
        for url, files in (("/api/v1/embed", image), ("/api/v1/embed", {"files": b"x"}), (f"{path}/items", image)):
            yield client.post(url, files=files)
        for failure in (odd, known):
            with monkeypatch.context() as patched:
                patched.setattr(type(server.bench), "collection", failure)
                close = {"Connection": "close"}  # as the server does after an unexpected error
                yield client.get(path, headers=close)
                yield client.post(f"{path}/search", json={"vector": [1]}, headers=close)
        with monkeypatch.context() as patched:
            patched.setattr(type(server.engines), "get", known)
            server.app.state.readiness.run()
            yield client.get("/readyz")
        server.app.state.readiness.run()
        yield client.delete(path)

    for answer in answers():
        for secret in secrets:
            assert secret not in answer.text, (answer.url, answer.text)
            assert secret not in str(answer.headers), answer.url


def test_errors_about_a_function_of_the_server_do_not_name_its_folder(server, client, image_files):
    """Such as a collection of a server that served this function, and was started again with another model."""
    folder = Path.home() / "private-project"
    spec = CollectionSpec(6, fingerprint="0" * 32, model=f"python:{folder}/mine.py:tower")
    server.bench.store.create("functions", spec)
    query = {"image": base64.b64encode(image_files[0].read_bytes()).decode()}
    detail = is_problem(client.post("/api/v1/collections/functions/search", json=query), 409, "fingerprint_mismatch")
    server.bench.store.drop("functions")
    assert detail.count("python:mine.py:tower") == 2
    assert "private-project" not in detail
    assert str(Path.home()) not in detail


# ---- names with line breaks and markup cannot inject headers or log lines


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
