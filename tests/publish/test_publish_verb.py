"""`nnclr publish` in a separate process, because the Hub's client reads its variables when it is imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants
from publish.hub_server import TOKEN
from typer.testing import CliRunner

from nnclr_hub.cli.app import app

NAME = "org/small"
ROOT = Path(__file__).parents[2]


def test_the_command_publishes_and_prints_the_line_to_load(hub, folder, tmp_path):
    variables = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}
    call = [sys.executable, "-m", "nnclr_hub.cli", "publish", str(folder), NAME, "--tag", "v1.0"]
    done = subprocess.run(call, env=os.environ | variables, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    commit = hub.repositories[NAME].refs["refs/tags/v1.0"]
    assert done.stdout.splitlines()[-1] == f'load_encoder("hf-hub:{NAME}@{commit}")'


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
def test_a_hub_without_xet_is_met_with_the_variable_that_turns_it_off(hub, folder, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    done = CliRunner().invoke(app, ["publish", str(folder), NAME])
    assert done.exit_code == 1
    assert isinstance(done.exception, SystemExit)
    assert "set HF_HUB_DISABLE_XET=1" in " ".join(done.stderr.split())
