"""No response contains a path of the server's machine."""

import base64
import tempfile
from pathlib import Path

from rest_requests import is_problem

from nnclr_hub.errors import StoreError
from nnclr_hub.store.base import CollectionSpec


def test_no_response_has_a_path_of_this_machine(server, client, model, image_files, monkeypatch):
    """Model and store are folders, whose paths could appear in many responses."""
    secrets = [str(model.parent), tempfile.gettempdir(), str(Path.home()), "site-packages"]
    one = [("files", ("a.jpg", image_files[0].read_bytes(), "image/jpeg"))]

    def odd(*_, **__):
        raise OSError(5, "Input/output error", str(model / "catalog.sqlite"))

    def known(*_, **__):
        raise StoreError(f"The store in {model / 'store'} is closed.")

    def answers():
        yield client.get("/v1/models")
        yield client.get(f"/v1/models/{model.name}")
        yield client.get("/v1/models/unknown")
        yield client.get(f"/v1/models/local-dir:{model}/x")
        yield client.put("/api/v1/collections/paths", json={})
        yield client.put("/api/v1/collections/paths", json={"model": "/etc/passwd"})
        yield client.get("/api/v1/collections")
        yield client.get("/api/v1/collections/paths")
        yield client.post("/api/v1/embed", files=one)
        yield client.post("/api/v1/embed", files=[("files", ("a.jpg", b"x", "image/jpeg"))])
        yield client.post("/api/v1/collections/paths/items", files=one)
        yield client.get("/openapi.json")
        for failure in (odd, known):
            with monkeypatch.context() as patched:
                patched.setattr(type(server.bench), "collection", failure)
                close = {"Connection": "close"}  # as the server does after an unexpected error
                yield client.get("/api/v1/collections/paths", headers=close)
                yield client.post("/api/v1/collections/paths/search", json={"vector": [1]}, headers=close)
        with monkeypatch.context() as patched:
            patched.setattr(type(server.engines), "get", known)
            server.app.state.readiness.run()
            yield client.get("/readyz")
        server.app.state.readiness.run()
        yield client.delete("/api/v1/collections/paths")

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


def test_a_model_goes_by_its_name(client, model, image_files):
    """Check the list of models, requests, responses and collections."""
    assert client.get("/v1/models").json()["data"][0]["id"] == model.name
    answer = client.post("/api/v1/embed", files={"files": image_files[0].read_bytes()}, data={"model": model.name})
    assert answer.json()["model"] == model.name
    assert client.put("/api/v1/collections/named", json={"model": model.name}).status_code == 201
    assert client.get("/api/v1/collections/named").json()["model"] == model.name
    assert (
        client.post("/api/v1/collections/named/items", files={"files": image_files[0].read_bytes()}).status_code == 200
    )
    client.delete("/api/v1/collections/named")
