"""`nnclr publish` in a process of its own, for the Hub's variables are read when its client is imported."""

import os
import subprocess
import sys
from pathlib import Path

from publish.hub_server import TOKEN, HubServer

NAME = "org/small"
ROOT = Path(__file__).parents[2]


def nnclr_publish(
    hub: HubServer, tmp_path: Path, *arguments: object, **environment: str
) -> subprocess.CompletedProcess:
    variables = os.environ | {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path / "hf")} | environment
    call = [sys.executable, "-m", "nnclr_hub.cli", "publish", *map(str, arguments)]
    return subprocess.run(call, env=variables, capture_output=True, text=True, timeout=120, cwd=ROOT)


def test_the_command_publishes_and_prints_the_line_to_load(hub, folder, tmp_path):
    done = nnclr_publish(hub, tmp_path, folder, NAME, "--tag", "v1.0", HF_HUB_DISABLE_XET="1")
    assert done.returncode == 0, done.stderr
    commit = hub.repositories[NAME].refs["refs/tags/v1.0"]
    assert done.stdout.splitlines()[-1] == f'load_encoder("hf-hub:{NAME}@{commit}")'


def test_a_hub_without_xet_is_met_with_the_variable_that_turns_it_off(hub, folder, tmp_path):
    done = nnclr_publish(hub, tmp_path, folder, NAME, HF_HUB_DISABLE_XET="0")
    assert done.returncode == 1
    sentence = " ".join(done.stderr.split())
    assert "set HF_HUB_DISABLE_XET=1" in sentence
    assert "Traceback" not in sentence
