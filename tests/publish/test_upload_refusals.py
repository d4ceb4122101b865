"""What publishing refuses, with nothing asked of the Hub that could change anything."""

import json
import shutil
from typing import Any

import pytest
import torch
from hub_server import READ_ONLY, TOKEN, HubServer
from huggingface_hub import constants
from safetensors.torch import load_file, save

from nnclr_hub import load_encoder, push_to_hub
from nnclr_hub.errors import InvalidRequest, ModelFilesMissing, PublishingError, TamperedModel, WeightsMismatch
from nnclr_hub.hub.layout import sha256_of
from nnclr_hub.hub.repositories import hub_failure
from nnclr_hub.publish.card import is_ours
from nnclr_hub.publish.upload import publish_model

# the client itself calls httpx in a way that httpx wants changed
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
NAME = "org/small"


def refused(hub: HubServer, *arguments: Any, kind: type[Exception] = PublishingError, **options: Any) -> None:
    """Check that publish_model refuses, and sends no request that could change anything."""
    hub.log.clear()
    with pytest.raises(kind):
        publish_model(*arguments, **options)
    assert hub.writes() == []


def test_a_tag_is_never_moved(hub, folder, another):
    first = publish_model(folder, NAME, tag="v1.0")
    refused(hub, another, NAME, tag="v1.0")
    second = publish_model(another, NAME, tag="v2.0")
    assert hub.repositories[NAME].refs["refs/tags/v1.0"] == first.commit != second.commit
    refused(hub, folder, NAME, tag="v1.0")
    refused(hub, another, NAME, tag="v1.0")


def test_a_tag_may_not_have_the_name_of_a_branch(hub, folder):
    """A request for a revision of this name would return the branch."""
    publish_model(folder, NAME)
    there = hub.repositories[NAME]
    there.refs["refs/heads/v2"] = there.refs["refs/heads/main"]
    refused(hub, folder, NAME, tag="v2")


def test_a_card_edited_on_the_hub_is_kept(hub, folder, another):
    publish_model(folder, NAME)
    there = hub.repositories[NAME]
    edited = there.files() | {"README.md": there.files()["README.md"] + b"\nA word of mine.\n"}
    there.commit("refs/heads/main", edited)
    refused(hub, another, NAME)
    assert there.files()["README.md"].endswith(b"A word of mine.\n")
    publish_model(another, NAME, overwrite_card=True)
    assert is_ours(there.files()["README.md"].decode())


def test_a_card_that_was_edited_here_goes_as_it_is_and_is_known_afterwards(hub, folder):
    (folder / "README.md").write_text("---\nlicense: mit\n---\n\n# Mine\n")
    publish_model(folder, NAME)
    card = hub.repositories[NAME].files()["README.md"].decode()
    assert card.startswith("---\nlicense: mit\n---\n\n# Mine\n")
    (folder / "README.md").write_text("---\nlicense: mit\n---\n\n# Mine, better\n")
    publish_model(folder, NAME)
    assert "better" in hub.repositories[NAME].files()["README.md"].decode()


def test_a_public_repository_is_not_taken_for_a_private_one(hub, folder):
    publish_model(folder, NAME)
    refused(hub, folder, NAME, private=True)
    publish_model(folder, "org/secret", private=True)
    assert hub.repositories["org/secret"].private
    publish_model(folder, "org/secret")
    assert hub.repositories["org/secret"].private


def test_a_folder_that_is_not_whole_is_refused(hub, folder, model, tmp_path):
    refused(hub, tmp_path / "nowhere", NAME, kind=ModelFilesMissing)
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    weights = load_file(broken / "model.safetensors")
    weights["conv1.weight"][0] = torch.nan
    (broken / "model.safetensors").write_bytes(save(weights, metadata={"format": "pt"}))
    refused(hub, broken, NAME, kind=TamperedModel)
    config = (broken / "config.json").read_text()
    old, new = sha256_of(folder / "model.safetensors"), sha256_of(broken / "model.safetensors")
    (broken / "config.json").write_text(config.replace(old, new))
    refused(hub, broken, NAME, kind=WeightsMismatch)
    assert not hub.repositories


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("small", {}),
        ("org/small/more", {}),
        ("org/small", {"tag": "not a tag"}),
        ("org/small", {"tag": "main"}),
        ("org/small", {"tag": "v1..2"}),
        ("org/small", {"tag": "v1."}),
        ("org/small", {"tag": "v1.lock"}),
        ("org/small", {"tag": "v1", "pr": True}),
    ],
)
def test_an_invalid_call_is_refused(hub, folder, name, options):
    refused(hub, folder, name, kind=InvalidRequest, **options)


def test_a_pull_request_to_a_missing_repository_and_a_card_that_is_not_text_are_refused(hub, folder):
    refused(hub, folder, NAME, pr=True)
    (folder / "README.md").write_bytes(b"\xff\xfe")
    refused(hub, folder, NAME, kind=WeightsMismatch)


def test_without_a_token_or_with_a_bad_one_it_is_refused(hub, folder, monkeypatch, tmp_path):
    publish_model(folder, NAME)
    (folder / "LICENSE").write_text("changed")
    for token in (READ_ONLY, "hf_sécret", "hf_nonsense"):
        monkeypatch.setenv("HF_TOKEN", token)
        with pytest.raises(PublishingError) as caught:
            publish_model(folder, NAME)
        assert token not in str(caught.value)
    refused(hub, folder, NAME, dry_run=True)
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    refused(hub, folder, NAME)
    plan = publish_model(folder, NAME, dry_run=True)
    assert list(plan.sent) == ["LICENSE"], "a dry run needs no token"


def test_a_concurrent_commit_is_not_overwritten(hub, folder, another):
    publish_model(folder, NAME)
    hub.faults[("POST", "/commit/")] = [412]
    with pytest.raises(PublishingError):
        publish_model(another, NAME)


def test_an_unreachable_hub_is_named(folder, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with pytest.raises(PublishingError, match="HF_ENDPOINT"):
        publish_model(folder, NAME)
    monkeypatch.setattr(constants, "ENDPOINT", "hub.example.com")
    with pytest.raises(InvalidRequest):
        publish_model(folder, NAME)


def test_a_config_that_speaks_of_another_network_or_of_files_elsewhere_sends_neither(hub, folder, tmp_path):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    (tmp_path / "secret").write_text("mine")
    config["nnclr"]["sha256"]["../secret"] = sha256_of(tmp_path / "secret")
    path.write_text(json.dumps(config))
    assert set(publish_model(folder, NAME, dry_run=True).sent) == {"README.md", "config.json", "model.safetensors"}
    path.write_text(json.dumps({**config, "num_features": 7}))
    refused(hub, folder, NAME, kind=WeightsMismatch)


def test_a_sensible_call_is_asked_for_before_anything_is_exported(hub, model, monkeypatch):
    monkeypatch.setattr("nnclr_hub.publish.upload.export_model", None)
    with pytest.raises(InvalidRequest, match="ORGANIZATION/NAME"):
        push_to_hub(load_encoder(model, device="cpu"), "..")


def test_an_address_in_a_message_has_no_signature():
    failure = hub_failure(OSError("500 for url 'http://host/large/1?X-Signature=abc' (try)"), NAME)
    assert "http://host/large/1" in str(failure)
    assert "Signature" not in str(failure)
