"""How REST says no."""

from rest_requests import is_problem

WRONG_KIND = "unsupported_media_type"


def test_malformed_requests_and_unknown_paths_are_problems_too(client, collection):
    headers = {"Content-Type": "application/json"}
    said = is_problem(client.post(f"{collection}/search", content=b'{"k":', headers=headers), 400, "malformed")
    assert said == "The body is not valid JSON."
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
    said = is_problem(client.post(f"{collection}/items", data={"items": "["}, files=files), 400, "malformed")
    assert said == "The field items is not valid JSON."
    is_problem(client.post(f"{collection}/items", data={"items": "[{}, {}]"}, files=files), 422, "invalid_request")
    is_problem(client.get(f"{collection}/items", params={"where": "{"}), 422, "invalid_filter")
    is_problem(client.get(f"{collection}/items", params={"limit": 0}), 422, "invalid_request")
    is_problem(client.put(f"{collection}/items", json=[{"id": "a/b", "vector": [1.0] * 32}]), 422, "invalid_request")


def test_text_where_a_image_belongs_is_refused_and_not_left_out(client, collection, pictures):
    """As of `curl -F files=b.jpg`, without its @, beside an image that came."""
    picture = pictures[0].read_bytes()
    for path, field, given in (
        ("/api/v1/embed", "files", "files"),
        (f"{collection}/items", "files", "files"),
        ("/api/v1/attention", "image", "target"),
    ):
        response = client.post(path, files={field: ("a.jpg", picture)}, data={given: "b.jpg"})
        assert f"The field {given} came as text" in is_problem(response, 422, "invalid_request")


def test_parameters_that_a_path_does_not_take_are_refused_by_name(client, collection):
    said = is_problem(client.get(f"{collection}/items", params={"limt": 5}), 422, "invalid_request")
    assert said == "The path has no parameter 'limt': it takes cursor, limit, where, with_vector."
    assert "given 2 times" in is_problem(client.get(f"{collection}/items?limit=1&limit=2"), 422, "invalid_request")
    answer = client.get("/v1/models", params={"x": 1})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
    for path, methods in client.get("/openapi.json").json()["paths"].items():
        for method in methods:
            response = client.request(method, path.replace("{name}", "photos"), params={"no_such": 1}, json={})
            assert response.status_code in (400, 422), (method, path)
            assert "no parameter 'no_such'" in response.text, (method, path)
    assert client.get("/docs", params={"theme": "dark"}).status_code == 200


def test_what_is_wrong_is_said_in_words(client, collection):
    for body, words in (
        ({"id": 5, "more": 1}, "id must be a text; more is not known here"),
        ({"id": "a", "k": "5"}, "k must be a whole number"),
        ({"vector": {}}, "vector must be a list or a text"),
        ({"vector": [1.0, "x"]}, "vector[1] must be a number"),
        ({"image": "x", "box": [1, 2]}, "box[2] is missing; box[3] is missing"),
        ({"id": "a", "where": {"must": [{"key": "root", "exists": True}]}}, "where: the key 'root' names a folder"),
        ([], "it must be an object"),
    ):
        said = is_problem(client.post(f"{collection}/search", json=body), 422, "invalid_request")
        assert words in said, said
    [error] = client.put("/api/v1/aliases/x", json={}).json()["errors"]
    assert error == {"loc": "body.collection", "msg": "collection is missing"}
    said = is_problem(client.get("/api/v1/jobs", params={"limit": "x", "kind": "y"}), 422, "invalid_request")
    assert "limit must be a whole number; kind must be 'probe_fit', 'reembed'," in said
    answer = client.post("/v1/embeddings", json={"model": "default"}).json()["error"]
    assert answer["param"] == "input"
    assert answer["message"].endswith(": input is missing.")


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
