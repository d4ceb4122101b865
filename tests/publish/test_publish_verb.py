"""`nnclr publish` with a stand-in for the Hub."""

import pytest
from commands import output_of, refused
from huggingface_hub import constants

NAME = "org/small"


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
def test_the_command_publishes_and_prints_the_line_to_load(hub, folder):
    out = output_of("publish", folder, NAME, "--tag", "v1.0")
    commit = hub.repositories[NAME].refs["refs/tags/v1.0"]
    assert out.splitlines()[-1] == f'load_encoder("hf-hub:{NAME}@{commit}")'


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
def test_a_hub_without_xet_is_met_with_the_variable_that_turns_it_off(hub, folder, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    monkeypatch.delenv("SSL_CERT_DIR")  # its client is built with certificates only
    assert "set HF_HUB_DISABLE_XET=1" in refused("publish", folder, NAME, code=1)
