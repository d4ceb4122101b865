"""Pretraining runs over REST; a report is somebody's file, and shut in."""

from fake_runs import write_run
from rest_requests import is_problem


def test_runs_and_their_reports(client, server):
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


def test_only_runs_can_be_read(client, server):
    (server.app.state.settings.runs.parent / "report.html").write_text("outside")
    for name in ("nothing", "..", "%2e%2e", "..%2fstore", "first/.."):
        answer = client.get(f"/api/v1/runs/{name}/report")
        assert answer.status_code == 404, name
        assert "outside" not in answer.text
    said = is_problem(client.get("/api/v1/runs/nothing/report"), 404, "run_not_found")
    assert str(server.app.state.settings.runs) not in said


def test_a_server_without_a_runs_folder_lists_no_runs(model, tmp_path, serve):
    import httpx

    for served in serve(model, tmp_path / "store"):
        assert httpx.get(f"{served.url}/api/v1/runs", timeout=60).json() == {"runs": []}
        assert "--runs" in httpx.get(f"{served.url}/api/v1/runs/x/report", timeout=60).json()["detail"]
