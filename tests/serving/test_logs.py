"""The output of `nnclr serve`: its addresses, and a log in one format without private data."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from waiting import free_port, until_served

ROOT = Path(__file__).parents[2]


@pytest.fixture
def output(model, tmp_path):
    """output(format) -> lines of `nnclr serve` on all addresses, for three requests."""

    def run(form: str) -> list[str]:
        port = free_port()
        command = ["-m", "nnclr_hub.cli", "serve", "--model", str(model), "--store", str(tmp_path / "store")]
        environment = os.environ | {
            "NNCLR_LOG_FORMAT": form,
            "NNCLR_API_KEYS": '["anna:a-secret-of-sixteen-letters"]',
            "NNCLR_SOURCE_FOLDERS": json.dumps([str(tmp_path), str(tmp_path / "no-such-disk")]),
            "NNCLR_HOST": "0.0.0.0",
        }
        log = tmp_path / "log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, *command, "--port", str(port), "--no-page"], cwd=ROOT, env=environment, stderr=file
            )
            try:
                until_served(f"http://127.0.0.1:{port}/readyz", process, log)
                with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
                    client.get("/v1/models", headers={"X-Request-ID": "me"})
                    key = {"Authorization": "Bearer a-secret-of-sixteen-letters", "X-Request-ID": "anna-1"}
                    client.get("/v1/models", headers=key)
                    client.get("/healthz")
            finally:
                process.send_signal(signal.SIGTERM)
                assert process.wait(60) == 0
        return [line for line in log.read_text().splitlines() if "X-Request-ID" not in line]

    return run


@pytest.mark.slow
def test_a_process_logs_json_with_the_name_of_the_key(output):
    """Before that it prints its addresses and logs missing source folders."""
    written = output("json")
    [addresses] = [line for line in written if line.startswith("API: ")]
    assert re.findall(r"https?://([^:/]+)", addresses) == ["127.0.0.1"] * 3
    entries = [json.loads(line) for line in written if line.startswith("{")]
    [warned] = [entry["message"] for entry in entries if entry["level"] == "warning"]
    assert "no-such-disk" in warned
    lines = {entry["id"]: entry for entry in entries if "id" in entry}
    assert (lines["me"]["status"], lines["me"]["code"]) == (401, "unauthorized")
    assert (lines["anna-1"]["status"], lines["anna-1"]["key"]) == (200, "anna")
    assert "/healthz" not in [entry.get("route") for entry in entries]
    assert "a-secret-of" not in json.dumps(entries)
