"""Refused requests: problems with a stable code, for every way to send something invalid."""

from rest_requests import is_problem

WRONG_TYPE = "unsupported_media_type"


def test_malformed_requests_and_unknown_paths_are_problems(client, collection):
    headers = {"Content-Type": "application/json"}
    is_problem(client.post(f"{collection}/search", content=b'{"k":', headers=headers), 400, "malformed")
    is_problem(client.put(f"{collection}/items", content=b"[{", headers=headers), 400, "malformed")
    is_problem(client.get("/api/v1/nothing"), 404, "not_found")
    is_problem(client.patch("/api/v1/collections"), 405, "method_not_allowed")
    is_problem(client.post("/api/v1/embed"), 415, WRONG_TYPE)
    is_problem(client.post("/api/v1/embed", content=b"x", headers={"Content-Type": "text/plain"}), 415, WRONG_TYPE)
    is_problem(client.put(f"{collection}/items", content=b"x", headers={"Content-Type": "text/plain"}), 415, WRONG_TYPE)
    is_problem(client.post("/api/v1/embed", files={"other": ("a.jpg", b"x")}), 422, "invalid_request")
    files = {"files": ("a.jpg", b"x")}
    for path in ("/api/v1/embed", f"{collection}/items"):
        response = client.post(path, files=files, data={"itmes": "[]"})
        assert "'itmes'" in is_problem(response, 422, "invalid_request")
    is_problem(client.post(f"{collection}/items", data={"items": "["}, files=files), 400, "malformed")
    is_problem(client.post(f"{collection}/items", data={"items": "[{}, {}]"}, files=files), 422, "invalid_request")
    is_problem(client.get(f"{collection}/items", params={"where": "{"}), 422, "invalid_filter")
    is_problem(client.get(f"{collection}/items", params={"limit": 0}), 422, "invalid_request")
    is_problem(client.get(f"{collection}/items", params={"cursor": "x"}), 422, "invalid_request")
    is_problem(client.put(f"{collection}/items", json=[{"id": "a/b", "vector": [1.0] * 32}]), 422, "invalid_request")


def test_text_in_an_image_field_is_refused_and_not_ignored(client, collection, image_files):
    """`curl -F files=b.jpg` without its @ sends text, next to an image that did arrive."""
    image = image_files[0].read_bytes()
    for path, field, text_field in (
        ("/api/v1/embed", "files", "files"),
        (f"{collection}/items", "files", "files"),
        ("/api/v1/attention", "image", "target"),
    ):
        response = client.post(path, files={field: ("a.jpg", image)}, data={text_field: "b.jpg"})
        assert text_field in is_problem(response, 422, "invalid_request")


def test_unknown_and_repeated_query_parameters_are_refused(client, collection):
    detail = is_problem(client.get(f"{collection}/items", params={"limt": 5}), 422, "invalid_request")
    assert all(name in detail for name in ("'limt'", "cursor", "limit", "where", "with_vector"))
    is_problem(client.get(f"{collection}/items?limit=1&limit=2"), 422, "invalid_request")
    answer = client.get("/v1/models", params={"x": 1})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
    for path, methods in client.get("/openapi.json").json()["paths"].items():
        for method in methods:
            response = client.request(method, path.replace("{name}", "photos"), params={"no_such": 1}, json={})
            assert response.status_code in (400, 422), (method, path)
            assert "'no_such'" in response.text, (method, path)
    assert client.get("/docs", params={"theme": "dark"}).status_code == 200


def test_validation_errors_name_the_place_and_the_expected_value(client, collection):
    for body, place, expected in (
        ({"id": 5}, "body.id", "string"),
        ({"id": "a", "more": 1}, "body.more", "not permitted"),
        ({"id": "a", "k": "5"}, "body.k", "integer"),
        ({"vector": {}}, "body.vector", "array"),
        ({"vector": [1.0, "x"]}, "body.vector", "number"),
        ({"image": "x", "box": [1, 2]}, "body.box.2", "required"),
        ({"id": "a", "where": {"must": [{"key": "root", "exists": True}]}}, "body.where", "'root'"),
        ([], "body", "object"),
    ):
        response = client.post(f"{collection}/search", json=body)
        is_problem(response, 422, "invalid_request")
        errors = response.json()["errors"]
        assert any(error["loc"].startswith(place) and expected in error["msg"] for error in errors), errors
    response = client.get("/api/v1/jobs", params={"limit": "x", "kind": "y"})
    is_problem(response, 422, "invalid_request")
    assert [error["loc"] for error in response.json()["errors"]] == ["query.limit", "query.kind"]
    error = client.post("/v1/embeddings", json={"model": "default"}).json()["error"]
    assert (error["code"], error["param"]) == ("invalid_request", "input")


def test_a_body_with_a_million_errors_gets_a_short_answer(client, collection):
    faults = {
        f"{collection}/items": b"[" + b",".join([b"0"] * 1_000_000) + b"]",
        "/api/v1/collections/x": b"{" + b",".join(b'"%d":0' % i for i in range(500_000)) + b"}",
    }
    for path, body in faults.items():
        response = client.put(path, content=body, headers={"Content-Type": "application/json"})
        is_problem(response, 422, "invalid_request")
        assert len(response.content) < 2000
