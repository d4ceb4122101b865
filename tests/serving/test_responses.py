"""HEAD requests: the status and headers of GET, without the body; and reports of runs, which are somebody's files."""

import httpx
from fake_runs import write_run
from rest_requests import upload

OF_ONE_ANSWER = ("x-request-id", "server-timing", "date")


def headers(answer: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name not in OF_ONE_ANSWER}


def test_every_get_route_supports_head(client, server, collection, image_files):
    client.post(f"{collection}/items", files=upload(image_files[:1]), data={"items": '[{"id": "a"}]'})
    job = client.post(f"{collection}/verify").json()["id"]
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


def test_runs_and_their_reports(client, server):
    write_run(server.app.state.settings.runs / "first")  # again: a run that writes nothing for long has stopped
    [run] = [one for one in client.get("/api/v1/runs").json()["runs"] if one["name"] == "first"]
    assert (run["state"], run["step"], run["steps"]) == ("running", 40, 100)
    answer = client.get("/api/v1/runs/first/report")
    assert answer.status_code == 200
    assert "Epoch 4" in answer.text
    write_run(server.app.state.settings.runs / "sets" / "a b", report="<h1>b</h1>")
    assert client.get("/api/v1/runs/sets/a%20b/report").text == "<h1>b</h1>"


def test_a_report_cannot_run_scripts_or_load_files(client):
    headers = client.get("/api/v1/runs/first/report").headers
    policy = headers["content-security-policy"].split("; ")
    assert {"sandbox", "default-src 'none'", "frame-ancestors 'self'", "form-action 'none'"} <= set(policy)
    assert not any("script" in part or "http" in part for part in policy)
    assert headers["x-frame-options"] == "SAMEORIGIN"
    assert headers["x-content-type-options"] == "nosniff"
