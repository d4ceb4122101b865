"""Publishing by the Hub's own client to a stand-in for the Hub: what is sent, when, and what is refused before."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
from commands import output_of
from commands import refused as command_refused
from huggingface_hub import constants

from nnclr_hub import Encoder, load_encoder, push_to_hub
from nnclr_hub.encoder.preprocessing import EvalTransform, Preprocessing
from nnclr_hub.errors import InvalidRequest, PublishingError
from nnclr_hub.hub.sources import keep, resolve, verify
from nnclr_hub.publish.card import is_ours
from nnclr_hub.publish.export import export_run
from nnclr_hub.publish.provenance import FORCED
from nnclr_hub.publish.upload import publish_model

# the client itself calls httpx in a way that httpx wants changed
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
NAME = "org/small"
ROOT = Path(__file__).parents[2]
FILES = {"README.md", "config.json", "model.safetensors"}


def test_a_model_is_sent_tagged_and_loads_again_by_the_line_that_is_given(hub, folder):
    done = publish_model(folder, NAME, tag="v1.0")
    there = hub.repositories[NAME]
    assert there.refs["refs/tags/v1.0"] == there.refs["refs/heads/main"] == done.commit
    changes = [line for line in hub.writes() if "/commit/" in line or "/tag/" in line]
    assert changes == [f"POST /api/models/{NAME}/commit/main", f"POST /api/models/{NAME}/tag/{done.commit}"]
    assert len(there.commits) == 2, "the Hub's own first one, and this"
    assert there.files().keys() == {".gitattributes", *FILES}
    for name in FILES - {"README.md"}:
        assert there.files()[name] == (folder / name).read_bytes()
    card = there.files()["README.md"].decode()
    assert is_ours(card)
    assert f'load_encoder("hf-hub:{NAME}@v1.0")' in card
    assert "./small" not in card
    assert done.created
    assert done.source == f"hf-hub:{NAME}@{done.commit}"
    want = load_encoder(folder, device="cpu").fingerprint
    for source in (done.source, f"hf-hub:{NAME}@v1.0", f"hf-hub:{NAME}"):
        assert load_encoder(source, device="cpu").fingerprint == want
    assert any(agent.startswith("nnclr_hub/") for agent in hub.agents)


def test_a_large_file_goes_in_parts(hub, make_model, tmp_path):
    wide = export_run(make_model(model_args={"channels": [16, 32, 48, 64]}), tmp_path / "wide")
    size = (wide / "model.safetensors").stat().st_size
    assert size > 3 * hub.part
    publish_model(wide, NAME)
    assert hub.repositories[NAME].files()["model.safetensors"] == (wide / "model.safetensors").read_bytes()
    pieces = hub.sent("/large/")
    assert len(pieces) == -(-size // hub.part)
    assert sum(pieces) == size


def test_called_again_it_sends_only_what_changed(hub, model, folder, tmp_path):
    first = publish_model(folder, NAME, tag="v1.0")
    hub.log.clear()
    again = publish_model(folder, NAME, tag="v1.0")
    assert (first.tagged, again.tagged, again.tag) == (True, False, "v1.0")
    assert (again.commit, again.sent, hub.writes()) == (first.commit, {}, [])
    relicensed = export_run(model, tmp_path / "small", provenance={"license": "mit"})
    done = publish_model(relicensed, NAME)
    assert set(done.sent) == {"README.md", "config.json"}
    assert not hub.sent("/large/")


def test_a_tag_that_was_not_set_is_set_without_another_commit(hub, folder):
    hub.faults[("POST", "/tag/")] = [500]
    with pytest.raises(PublishingError):
        publish_model(folder, NAME, tag="v1.0")
    commit = hub.repositories[NAME].refs["refs/heads/main"]
    hub.log.clear()
    done = publish_model(folder, NAME, tag="v1.0")
    assert done.commit == commit == hub.repositories[NAME].refs["refs/tags/v1.0"]
    assert hub.writes() == [f"POST /api/models/{NAME}/tag/{commit}"]


def test_an_interrupted_upload_continues(hub, folder, monkeypatch):
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)  # between the client's own retries
    hub.part = 1 << 30
    hub.faults[("PUT", "/large/")] = [500]
    publish_model(folder, NAME)
    assert len(hub.sent("/large/")) == 2  # the client itself tries once more
    hub.faults[("POST", "/commit/")] = [500]
    (folder / "LICENSE").write_text("Use it as you like.\n")
    with pytest.raises(PublishingError):
        publish_model(folder, NAME)
    hub.log.clear()
    publish_model(folder, NAME)
    assert not hub.sent("/large/")
    assert hub.repositories[NAME].files()["LICENSE"] == b"Use it as you like.\n"


# ---- looking only


def test_a_dry_run_changes_nothing_and_reports_its_plan(hub, folder):
    plan = publish_model(folder, NAME, tag="v1.0", dry_run=True)
    assert plan.created
    assert plan.tagged
    assert plan.commit is None
    assert set(plan.sent) == FILES
    assert hub.writes() == []
    assert not hub.repositories
    publish_model(folder, NAME)
    hub.log.clear()
    assert publish_model(folder, NAME, dry_run=True).sent == {}
    assert hub.writes() == []


# ---- pull requests


def test_a_pull_request_leaves_the_branch_alone(hub, folder, another):
    main = publish_model(folder, NAME).commit
    done = publish_model(another, NAME, pr=True)
    there = hub.repositories[NAME]
    assert done.pull_request == 1
    assert there.refs["refs/heads/main"] == main
    assert there.refs["refs/pr/1"] == done.commit
    assert done.source is not None
    assert load_encoder(done.source, device="cpu").fingerprint == load_encoder(another, device="cpu").fingerprint


# ---- for the habit


def test_a_pushed_encoder_loads_again(hub, folder):
    done = push_to_hub(load_encoder(folder, device="cpu"), NAME, tag="v1.0")
    there = hub.repositories[NAME].files("v1.0")
    assert there["model.safetensors"] == (folder / "model.safetensors").read_bytes()
    again = load_encoder(f"hf-hub:{NAME}@v1.0", device="cpu")
    assert again.fingerprint == load_encoder(folder, device="cpu").fingerprint
    assert load_encoder(folder, device="cpu").fingerprint == again.fingerprint
    assert done.commit == hub.repositories[NAME].refs["refs/tags/v1.0"]


def test_a_changed_encoder_keeps_the_limits_of_its_license_and_not_its_results(hub, folder):
    encoder = load_encoder(folder, device="cpu")
    change_weights(encoder)
    with pytest.raises(InvalidRequest, match="force-license"):
        push_to_hub(encoder, NAME, license="cc0-1.0")
    assert NAME not in hub.repositories
    push_to_hub(encoder, NAME, license="mit")
    there = hub.repositories[NAME].files()
    assert b"knn20/made_up" not in there["README.md"]
    assert b"license: mit" in there["README.md"]
    assert there["model.safetensors"] != (folder / "model.safetensors").read_bytes()
    x = torch.randn(2, 3, 48, 48)
    again = load_encoder(f"hf-hub:{NAME}", device="cpu")
    torch.testing.assert_close(torch.from_numpy(again.embed(x)), torch.from_numpy(encoder.embed(x)), atol=1e-5, rtol=0)
    push_to_hub(encoder, "org/forced", license="cc0-1.0", force_license=True)
    assert b"license: cc0-1.0" in hub.repositories["org/forced"].files()["README.md"]
    assert resolve("hf-hub:org/forced").config.nnclr[FORCED] is True


def change_weights(encoder):
    with torch.no_grad():
        encoder.backbone.conv1.weight.mul_(2)


def change_crop(encoder):
    encoder.transform = EvalTransform(replace(encoder.transform.preprocessing, crop_pct=0.5))


@pytest.mark.parametrize("change", [change_weights, change_crop])
def test_a_changed_encoder_keeps_license_terms_and_parents_by_default(hub, model, tmp_path, change):
    parent = {"source": "hf-hub:org/parent", "fingerprint": "0", "license": "cc-by-nc-4.0"}
    about = {"license": "cc-by-nc-4.0", "data_terms": "research only", "data": "ours", "parents": [parent]}
    encoder = load_encoder(export_run(model, tmp_path / "nc", provenance=about), device="cpu")
    change(encoder)
    push_to_hub(encoder, NAME)
    there = resolve(f"hf-hub:{NAME}")
    assert load_encoder(f"hf-hub:{NAME}", device="cpu").transform.preprocessing == encoder.transform.preprocessing
    assert {key: there.config.nnclr.get(key) for key in about} == about
    card = hub.repositories[NAME].files()["README.md"].decode()
    assert "license: cc-by-nc-4.0" in card
    assert "base_model:\n- org/parent" in card
    with pytest.raises(InvalidRequest, match="force-license"):
        export_run(there.folder, tmp_path / "free", provenance={"license": "cc0-1.0"})


def test_an_encoder_of_timm_is_pushed_with_timm_as_its_parent(hub, tmp_path):
    network = timm.create_model("test_resnet", num_classes=0)
    network.pretrained_cfg = {**network.pretrained_cfg, "license": "cc-by-nc-4.0"}
    encoder = Encoder(network, Preprocessing(64), name="timm:test_resnet.mae", device="cpu")
    push_to_hub(encoder, NAME)
    there = resolve(f"hf-hub:{NAME}")
    (parent,) = there.config.nnclr["parents"]
    assert parent == {"source": encoder.name, "fingerprint": encoder.fingerprint, "license": "cc-by-nc-4.0"}
    assert there.config.nnclr["license"] == "cc-by-nc-4.0"
    assert "Started from timm:test_resnet.mae" in hub.repositories[NAME].files()["README.md"].decode()
    with pytest.raises(InvalidRequest, match="force-license"):
        export_run(there.folder, tmp_path / "free", provenance={"license": "cc0-1.0"})
    with pytest.raises(InvalidRequest, match="force-license"):
        push_to_hub(encoder, "org/free", license="cc0-1.0")


def test_random_weights_are_pushed_without_the_license_of_their_architecture(hub, model):
    push_to_hub(load_encoder(f"random:{model}", device="cpu"), NAME)
    assert "license" not in resolve(f"hf-hub:{NAME}").config.nnclr


def test_heads_are_published_downloaded_and_removed_with_their_model(hub, model, folder, tmp_path):
    full = export_run(model, tmp_path / "full", heads={"projection.weight": torch.randn(3, 3)})
    done = publish_model(full, NAME)
    assert "nnclr_heads.safetensors" in hub.repositories[NAME].files()
    copy = keep(resolve(str(done.source)), tmp_path / "copy")
    for name in ("nnclr_heads.safetensors", "model.safetensors", "config.json"):
        assert (copy / name).read_bytes() == (full / name).read_bytes()
    assert [one.pinned_by for one in verify(str(done.source))] == ["nobody", "Hub", "Hub"]
    assert set(publish_model(folder, NAME).removed) == {"nnclr_heads.safetensors"}
    assert "nnclr_heads.safetensors" not in hub.repositories[NAME].files()


def test_the_snippet_of_the_page_runs(hub, folder, monkeypatch, tmp_path):
    page = (ROOT / "docs" / "publish.md").read_text("utf-8")
    (snippet,) = re.findall(r"^```py\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    shutil.copytree(folder, tmp_path / "models" / "photos")
    monkeypatch.chdir(tmp_path)
    found: dict[str, object] = {}
    exec(snippet, found)
    assert found["encoder"].fingerprint == load_encoder(folder, device="cpu").fingerprint  # type: ignore[attr-defined]
    assert "refs/tags/v1.0" in hub.repositories["ORG/photos"].refs


def test_the_command_publishes_and_prints_the_line_to_load(hub, folder, monkeypatch):
    out = output_of("publish", folder, NAME, "--tag", "v1.0")
    commit = hub.repositories[NAME].refs["refs/tags/v1.0"]
    assert out.splitlines()[-1] == f'load_encoder("hf-hub:{NAME}@{commit}")'
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)  # of which this Hub has none
    monkeypatch.delenv("SSL_CERT_DIR")  # its client is built with certificates only
    (folder / "LICENSE").write_text("Use it as you like.\n")
    assert "set HF_HUB_DISABLE_XET=1" in command_refused("publish", folder, "org/other", code=1)
