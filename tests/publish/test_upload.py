"""Publishing by the Hub's own client to a stand-in for the Hub: what is sent, when, and what is refused before."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants
from publish.hub_server import READ_ONLY, TOKEN, HubServer, running_hub

from nnclr_hub import load_encoder
from nnclr_hub.errors import InvalidRequest, ModelFilesMissing, PublishingError, TamperedModel, WeightsMismatch
from nnclr_hub.publish.card import is_ours
from nnclr_hub.publish.export import export_run
from nnclr_hub.publish.upload import publish_model

# the client itself calls httpx in a way that httpx wants changed
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
NAME = "org/small"
ROOT = Path(__file__).parents[2]
FILES = {"README.md", "config.json", "model.safetensors"}


@pytest.fixture
def hub(monkeypatch, tmp_path) -> Iterator[HubServer]:
    """An empty Hub that takes large files of up to 64 KiB whole; the client is turned to it as HF_ENDPOINT would."""
    with running_hub(part=1 << 16) as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server


@pytest.fixture
def folder(model, tmp_path) -> Path:
    return export_run(model, tmp_path / "small")


@pytest.fixture
def another(make_model, tmp_path) -> Path:
    """The same architecture with other weights."""
    return export_run(make_model(seed=1), tmp_path / "another")


def test_a_model_is_sent_tagged_and_loads_again_by_the_line_that_is_given(hub, folder):
    done = publish_model(folder, NAME, tag="v1.0")
    there = hub.repositories[NAME]
    assert there.refs["refs/tags/v1.0"] == there.refs["refs/heads/main"] == done.commit
    assert there.files().keys() == {".gitattributes", *FILES}
    for name in FILES - {"README.md"}:
        assert there.files()[name] == (folder / name).read_bytes()
    assert done.created
    assert done.source == f"hf-hub:{NAME}@{done.commit}"
    want = load_encoder(folder, device="cpu").fingerprint
    for source in (done.source, f"hf-hub:{NAME}@v1.0", f"hf-hub:{NAME}"):
        assert load_encoder(source, device="cpu").fingerprint == want
    assert any(agent.startswith("nnclr_hub/") for agent in hub.agents)


def test_it_is_one_commit_and_then_the_tag(hub, folder):
    publish_model(folder, NAME, tag="v1.0")
    changes = [line for line in hub.writes() if "/commit/" in line or "/tag/" in line]
    commit = hub.repositories[NAME].refs["refs/heads/main"]
    assert changes == [f"POST /api/models/{NAME}/commit/main", f"POST /api/models/{NAME}/tag/{commit}"]
    assert len(hub.repositories[NAME].commits) == 2  # the Hub's own first one, and this


def test_the_card_there_loads_from_there(hub, folder):
    publish_model(folder, NAME, tag="v1.0")
    card = hub.repositories[NAME].files()["README.md"].decode()
    assert is_ours(card)
    assert f'load_encoder("hf-hub:{NAME}@v1.0")' in card
    assert "./small" not in card


def test_a_large_file_goes_in_parts(hub, make_model, tmp_path):
    wide = export_run(make_model(model_args={"channels": [16, 32, 48, 64]}), tmp_path / "wide")
    size = (wide / "model.safetensors").stat().st_size
    assert size > 3 * hub.part
    publish_model(wide, NAME)
    assert hub.repositories[NAME].files()["model.safetensors"] == (wide / "model.safetensors").read_bytes()
    pieces = hub.sent("/large/")
    assert len(pieces) == -(-size // hub.part)
    assert sum(pieces) == size


def test_a_small_one_goes_whole(hub, folder):
    hub.part = 1 << 30
    publish_model(folder, NAME)
    assert hub.sent("/large/") == [(folder / "model.safetensors").stat().st_size]


def test_called_again_it_sends_nothing_and_makes_no_commit(hub, folder):
    first = publish_model(folder, NAME, tag="v1.0")
    hub.log.clear()
    again = publish_model(folder, NAME, tag="v1.0")
    assert again.commit == first.commit
    assert again.sent == {}
    assert hub.writes() == []


def test_a_tag_that_was_not_set_is_set_without_another_commit(hub, folder):
    hub.faults[("POST", "/tag/")] = [500]
    with pytest.raises(PublishingError, match="status 500"):
        publish_model(folder, NAME, tag="v1.0")
    commit = hub.repositories[NAME].refs["refs/heads/main"]
    hub.log.clear()
    done = publish_model(folder, NAME, tag="v1.0")
    assert done.commit == commit == hub.repositories[NAME].refs["refs/tags/v1.0"]
    assert hub.writes() == [f"POST /api/models/{NAME}/tag/{commit}"]


def test_only_what_changed_is_sent(hub, model, folder, tmp_path):
    publish_model(folder, NAME)
    hub.log.clear()
    relicensed = export_run(model, tmp_path / "small", provenance={"license": "mit"})
    done = publish_model(relicensed, NAME)
    assert set(done.sent) == {"README.md", "config.json"}
    assert not hub.sent("/large/")


def test_an_upload_that_broke_off_goes_on(hub, folder, monkeypatch):
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)  # between the client's own retries
    hub.part = 1 << 30
    hub.faults[("PUT", "/large/")] = [500]
    publish_model(folder, NAME)
    assert len(hub.sent("/large/")) == 2  # the client itself tries once more
    hub.faults[("POST", "/commit/")] = [500]
    (folder / "LICENSE").write_text("Use it as you like.\n")
    with pytest.raises(PublishingError, match="status 500"):
        publish_model(folder, NAME)
    hub.log.clear()
    publish_model(folder, NAME)
    assert not hub.sent("/large/")
    assert hub.repositories[NAME].files()["LICENSE"] == b"Use it as you like.\n"


def test_heads_go_beside_and_leave_with_the_model_that_had_them(hub, model, folder, tmp_path):
    import torch

    bank = torch.nn.functional.normalize(torch.randn(5, 3))
    full = export_run(model, tmp_path / "full", heads={"projection.weight": torch.randn(3, 3)}, support_set=bank)
    publish_model(full, NAME)
    beside = {"nnclr_heads.safetensors", "nnclr_support_set.safetensors"}
    assert beside < hub.repositories[NAME].files().keys()
    done = publish_model(folder, NAME)
    assert set(done.removed) == beside
    assert not beside & hub.repositories[NAME].files().keys()


# ---- refused before anything is sent


def refused(hub: HubServer, match: str, *arguments: object, kind=PublishingError, **options: object) -> None:
    """publish_model refuses, and has asked for nothing that changes anything."""
    hub.log.clear()
    with pytest.raises(kind, match=match):
        publish_model(*arguments, **options)
    assert hub.writes() == []


def test_a_tag_is_never_moved(hub, folder, another):
    first = publish_model(folder, NAME, tag="v1.0")
    refused(hub, "tag v1.0 of org/small stands at", another, NAME, tag="v1.0")
    second = publish_model(another, NAME, tag="v2.0")
    assert hub.repositories[NAME].refs["refs/tags/v1.0"] == first.commit != second.commit
    refused(hub, "choose a new tag", folder, NAME, tag="v1.0")
    refused(hub, "choose a new tag", another, NAME, tag="v1.0")


def test_a_card_that_somebody_edited_there_stays(hub, folder, another):
    publish_model(folder, NAME)
    there = hub.repositories[NAME]
    edited = there.files() | {"README.md": there.files()["README.md"] + b"\nA word of mine.\n"}
    there.commit("refs/heads/main", edited)
    refused(hub, "give --overwrite-card", another, NAME)
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
    refused(hub, "org/small is public", folder, NAME, private=True)
    publish_model(folder, "org/secret", private=True)
    assert hub.repositories["org/secret"].private
    publish_model(folder, "org/secret")
    assert hub.repositories["org/secret"].private


def test_a_folder_that_is_not_whole_is_refused(hub, folder, model, tmp_path):
    import torch
    from safetensors.torch import load_file, save

    refused(hub, "is missing", tmp_path / "nowhere", NAME, kind=ModelFilesMissing)
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    weights = load_file(broken / "model.safetensors")
    weights["conv1.weight"][0] = torch.nan
    (broken / "model.safetensors").write_bytes(save(weights, metadata={"format": "pt"}))
    refused(hub, r"model\.safetensors", broken, NAME, kind=TamperedModel)
    config = (broken / "config.json").read_text()
    from nnclr_hub.hub.layout import sha256_of

    old, new = sha256_of(folder / "model.safetensors"), sha256_of(broken / "model.safetensors")
    (broken / "config.json").write_text(config.replace(old, new))
    refused(hub, "NaN", broken, NAME, kind=WeightsMismatch)
    assert not hub.repositories


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("small", {}, "ORGANISATION/NAME"),
        ("org/small/more", {}, "ORGANISATION/NAME"),
        ("org/small", {"tag": "not a tag"}, "cannot be a tag"),
        ("org/small", {"tag": "main"}, "cannot be a tag"),
        ("org/small", {"tag": "v1", "pr": True}, "leave out --tag, or --pr"),
    ],
)
def test_a_call_that_makes_no_sense_is_refused(hub, folder, name, options, sentence):
    refused(hub, sentence, folder, name, kind=InvalidRequest, **options)


def test_without_a_token_or_with_a_bad_one_it_is_refused(hub, folder, monkeypatch, tmp_path):
    publish_model(folder, NAME)
    monkeypatch.setenv("HF_TOKEN", READ_ONLY)
    (folder / "LICENSE").write_text("changed")
    with pytest.raises(PublishingError, match="may not write to org/small"):
        publish_model(folder, NAME)
    monkeypatch.setenv("HF_TOKEN", "hf_nonsense")
    with pytest.raises(PublishingError, match="set HF_TOKEN"):
        publish_model(folder, NAME)
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    refused(hub, "HF_TOKEN, or log in", folder, NAME)


def test_somebody_elses_commit_meanwhile_is_not_overwritten(hub, folder, another):
    publish_model(folder, NAME)
    hub.faults[("POST", "/commit/")] = [412]
    with pytest.raises(PublishingError, match="meanwhile"):
        publish_model(another, NAME)


def test_a_hub_that_is_not_there_is_named(folder, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with pytest.raises(PublishingError, match="HF_ENDPOINT"):
        publish_model(folder, NAME)


# ---- looking only


def test_a_dry_run_changes_nothing_and_tells_what_it_would_do(hub, folder):
    plan = publish_model(folder, NAME, tag="v1.0", dry_run=True)
    assert plan.created
    assert plan.commit is None
    assert set(plan.sent) == FILES
    assert hub.writes() == []
    assert not hub.repositories
    publish_model(folder, NAME)
    hub.log.clear()
    assert publish_model(folder, NAME, dry_run=True).sent == {}
    assert hub.writes() == []


# ---- pull requests


def test_a_pull_request_is_opened_continued_and_opened_anew(hub, folder, another, make_model, tmp_path):
    main = publish_model(folder, NAME).commit
    first = publish_model(another, NAME, pr=True)
    there = hub.repositories[NAME]
    assert first.pull_request == 1
    assert there.refs["refs/heads/main"] == main
    assert there.refs["refs/pr/1"] == first.commit
    hub.log.clear()
    assert publish_model(another, NAME, pr=True).sent == {}
    assert hub.writes() == []
    third = export_run(make_model(seed=2), tmp_path / "third")
    again = publish_model(third, NAME, pr=True)
    assert (again.pull_request, len(there.discussions)) == (1, 1)
    assert there.refs["refs/pr/1"] == again.commit != first.commit
    assert there.files("refs/pr/1")["model.safetensors"] == (third / "model.safetensors").read_bytes()
    assert again.source is not None
    assert load_encoder(again.source, device="cpu").fingerprint == load_encoder(third, device="cpu").fingerprint
    there.discussions[0]["status"] = "merged"
    assert publish_model(another, NAME, pr=True).pull_request == 2


def test_a_pull_request_of_somebody_else_is_not_touched(hub, folder, another):
    publish_model(folder, NAME)
    publish_model(another, NAME, pr=True)
    hub.repositories[NAME].discussions[0]["author"]["name"] = "another"
    assert publish_model(another, NAME, pr=True).pull_request == 2


def test_there_is_no_pull_request_to_what_is_not_there(hub, folder):
    refused(hub, "leave out --pr", folder, NAME, pr=True)


# ---- the command, in a process of its own: the variables are read when the client is imported


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
