"""How REST says no."""

from rest_requests import is_problem

WRONG_KIND = "unsupported_media_type"


def test_malformed_requests_and_unknown_paths_are_problems_too(client, collection):
    headers = {"Content-Type": "application/json"}
    is_problem(client.post(f"{collection}/search", content=b'{"k":', headers=headers), 400, "malformed")
    is_problem(client.put(f"{collection}/items", content=b"[{", headers=headers), 400, "malformed")
    is_problem(client.get("/api/v1/nothing"), 404, "not_found")
    is_problem(client.patch("/api/v1/collections"), 405, "method_not_allowed")
    is_problem(client.post("/api/v1/embed"), 415, WRONG_KIND)
    is_problem(client.post("/api/v1/embed", content=b"x", headers={"Content-Type": "text/plain"}), 415, WRONG_KIND)
    is_problem(client.put(f"{collection}/items", content=b"x", headers={"Content-Type": "text/plain"}), 415, WRONG_KIND)
    is_problem(client.post("/api/v1/embed", files={"other": ("a.jpg", b"x")}), 422, "invalid_request")
    files = {"files": ("a.jpg", b"x")}
    for path in ("/api/v1/embed", f"{collection}/items"):
        response = client.post(path, files=files, data={"itmes": "[]"})
        assert "no field 'itmes'" in is_problem(response, 422, "invalid_request")
    is_problem(client.post(f"{collection}/items", data={"items": "["}, files=files), 400, "malformed")
    is_problem(client.post(f"{collection}/items", data={"items": "[{}, {}]"}, files=files), 422, "invalid_request")
    is_problem(client.get(f"{collection}/items", params={"where": "{"}), 422, "invalid_filter")
    is_problem(client.get(f"{collection}/items", params={"limit": 0}), 422, "invalid_request")
    is_problem(client.put(f"{collection}/items", json=[{"id": "a/b", "vector": [1.0] * 32}]), 422, "invalid_request")


def test_a_body_with_a_million_faults_is_refused_as_fast_as_one_with_one(client, collection):
    """Not with a million sentences, which would take all the server's time and memory."""
    faults = {
        f"{collection}/items": b"[" + b",".join([b"0"] * 2_000_000) + b"]",
        "/api/v1/collections/x": b"{" + b",".join(b'"%d":0' % i for i in range(500_000)) + b"}",
    }
    for path, body in faults.items():
        response = client.put(path, content=body, headers={"Content-Type": "application/json"})
        is_problem(response, 422, "invalid_request")
        assert len(response.content) < 2000
    assert "500000 things are wrong" in response.text


def test_pages_elsewhere_can_neither_reach_nor_write(client):
    is_problem(client.get("/api/v1/collections", headers={"Host": "evil.example"}), 403, "host_not_allowed")
    response = client.put("/api/v1/collections/x", json={"dim": 3}, headers={"Origin": "http://evil.example"})
    is_problem(response, 403, "origin_not_allowed")


def test_the_description_of_the_api_is_there(client):
    paths = client.get("/openapi.json").json()["paths"]
    assert "/api/v1/collections/{name}/search" in paths
    assert "/v1/embeddings" in paths
