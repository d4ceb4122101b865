"""HEAD requests: the status and headers of GET, without the body."""

import httpx
from rest_requests import upload

OF_ONE_ANSWER = ("x-request-id", "server-timing", "date")


def headers(answer: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name not in OF_ONE_ANSWER}


def test_every_get_route_supports_head(client, server, collection, image_files):
    client.post(f"{collection}/items", files=upload(image_files[:1]), data={"items": '[{"id": "a"}]'})
    job = client.post("/api/v1/jobs", json={"kind": "verify", "collection": "photos"}).json()["id"]
    paths = [path for path, methods in server.app.openapi()["paths"].items() if "get" in methods]
    paths += ["/", "/favicon.ico", "/docs", "/openapi.json"]
    assert len(paths) > 15
    found = []
    for template in paths:
        id = job if "/jobs/" in template else "a"
        path = (
            template.replace("{name}", "photos")
            .replace("{id}", id)
            .replace("{alias}", "nothing")
            .replace("{probe}", "nothing")
        )
        got, head = client.get(path), client.head(path)
        assert (head.status_code, head.content) == (got.status_code, b""), path
        if "/jobs" not in path and path != "/metrics":  # these change between two requests
            assert headers(head) == headers(got), path
        found.append(got.status_code)
    assert found.count(200) > 10


def test_a_route_without_get_has_no_head(client, collection):
    assert client.head(f"{collection}/search").status_code == 405
