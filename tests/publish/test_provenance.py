"""Parents, terms of the images, and the licenses that they allow."""

import json
import shutil
from types import SimpleNamespace

import pytest
import timm
from tiny_runs import nnclr, recipe

from nnclr_hub import load_encoder, wrap_encoder
from nnclr_hub.encoder.preprocessing import Preprocessing
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.hub.layout import read_config
from nnclr_hub.publish.card import write_card
from nnclr_hub.publish.export import export_run
from nnclr_hub.publish.provenance import FORCED, check_license, describe_training, parent_record, width
from training.pretrain import pretrain
from training.recorder import lineage_of


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ("CC0 1.0", 4),
        ("apache-2.0", 3),
        ("MIT (LICENSE in the pack)", 3),
        ("cc-by-4.0", 2),
        ("CC0, MIT and CC BY 4.0", 2),
        ("cc-by-sa-4.0", 1),
        ("gpl-3.0", 1),
        ("cc-by-nc-4.0", 0),
        ("ImageNet terms (non-commercial research)", 0),
        ("ask the owner", None),
        ("admitted", None),
    ],
)
def test_terms_are_ordered_by_what_they_allow(terms, expected):
    assert width(terms) == expected


def parent(terms: str) -> dict:
    """Return the record of a parent under MIT, whose parent has these terms."""
    return {"source": "p", "fingerprint": "1", "license": "mit", "parents": [{"source": "g", "license": terms}]}


GRANDPARENT = {"source": "g", "fingerprint": "0", "license": "mit", "data_terms": "research only"}
RESTRICTED = {"parents": [{"source": "p", "fingerprint": "1", "license": "mit", "parents": [GRANDPARENT]}]}
ALLOWED = [
    ("cc-by-nc-4.0", RESTRICTED, None),
    ("apache-2.0", {"data_terms": "CC0 1.0"}, None),
    ("apache-2.0", {}, None),
    ("apache-2.0", {}, {}),
    ("apache-2.0", {}, {"license": "unknown"}),  # weights without a license can be given one
    *((terms, {"parents": [parent(terms)]}, None) for terms in ("unknown", "see timm", "a-license-of-ours")),
]
TOO_WIDE = [
    *((license, RESTRICTED, None) for license in ("apache-2.0", "cc0-1.0", "cc-by-4.0")),
    ("apache-2.0", {"data_terms": "cc-by-4.0"}, None),
    ("apache-2.0", {}, {"license": "a-license-of-ours"}),
    # next to terms that are not recognized
    *(
        (license, *where)
        for license in ("cc0-1.0", "apache-2.0", "cc-by-nc-4.0", "another-license")
        for terms in ("unknown", "see timm", "a-license-of-ours")
        for where in (({"parents": [parent(terms)]}, None), ({}, {"parents": [parent(terms)]}))
    ),
]


@pytest.mark.parametrize(("license", "about", "before"), ALLOWED)
def test_a_license_that_parents_and_images_allow_is_accepted(license, about, before):
    check_license(license, about, before)


@pytest.mark.parametrize(("license", "about", "before"), TOO_WIDE)
def test_a_license_may_not_be_wider_than_any_ancestor_or_its_images(license, about, before):
    with pytest.raises(InvalidRequest, match="force-license"):
        check_license(license, about, before)


@pytest.mark.parametrize(
    ("name", "stated"),
    [
        ("vit_base_patch16_224.mae", "cc-by-nc-4.0"),
        ("vit_base_patch16_224.augreg_in21k", "apache-2.0"),
        (None, "unknown"),
    ],
)
def test_the_license_of_a_parent_from_timm_is_the_one_that_timm_states(name, stated, monkeypatch):
    network = timm.create_model(name or "vit_base_patch16_224.mae", depth=1, num_classes=0)
    if name is None:
        network.pretrained_cfg = {**network.pretrained_cfg, "license": None}
    monkeypatch.setattr("nnclr_hub.encoder.backbones.create_backbone", lambda *_, **__: network)
    setup = SimpleNamespace(folders=["photos"], files=range(3), init="timm:vit_base_patch16_224.mae", teacher=None)
    about = lineage_of(SimpleNamespace(terms=None), setup)
    assert about["parents"][0]["license"] == stated
    if stated == "apache-2.0":
        check_license("apache-2.0", about)
    else:
        with pytest.raises(InvalidRequest, match="force-license"):
            check_license("apache-2.0", about)


def test_a_folder_of_timm_keeps_its_license(model, tmp_path):
    """Such a folder has no block "nnclr"; its license is in pretrained_cfg."""
    folder = shutil.copytree(model, tmp_path / "timm")
    config = json.loads((folder / "config.json").read_text())
    del config["nnclr"]
    config["pretrained_cfg"]["license"] = "cc-by-nc-4.0"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidRequest, match="force-license"):
        export_run(folder, tmp_path / "wide", provenance={"license": "apache-2.0"})
    kept = read_config(export_run(folder, tmp_path / "kept"))
    assert kept.nnclr["license"] == kept.pretrained_cfg["license"] == "cc-by-nc-4.0"


@pytest.fixture(scope="module")
def child(data, model, tmp_path_factory):
    """Return a run that started from `model` and stopped after its first step."""
    run = tmp_path_factory.mktemp("lineage") / "child"
    done = pretrain(recipe("channels=8,16,24,32"), [data], run, init=str(model), minutes=0, terms="CC BY 4.0")
    assert not done.finished
    return run


def test_an_encoder_records_its_parents_images_and_steps(child, model, data):
    about = read_config(child / "encoder").nnclr
    (parent,) = about["parents"]
    assert parent["source"] == str(model)
    assert parent["fingerprint"] == load_encoder(model).fingerprint
    assert parent["license"] == "apache-2.0"
    assert about["data"] == [data.name]
    assert about["data_images"] == 42
    assert about["data_terms"] == "CC BY 4.0"
    assert about["step"] < about["steps"]


def test_export_refuses_a_license_that_is_too_wide_unless_forced(child, tmp_path):
    code, _, err = nnclr("export", child, tmp_path / "wide", "--license", "apache-2.0")
    assert code == 2
    assert "--force-license" in err
    assert not (tmp_path / "wide").exists()
    code, _, err = nnclr("export", child, tmp_path / "narrow", "--license", "cc-by-4.0")
    assert code == 0, err
    forced = ("--license", "apache-2.0", "--force-license")
    code, _, err = nnclr("export", child, tmp_path / "forced", *forced)
    assert code == 0, err
    assert read_config(tmp_path / "forced").nnclr[FORCED] is True
    rows = [nnclr("info", one)[1] for one in (tmp_path / "forced", child / "encoder")]
    assert ["license or terms" in one for one in rows] == [True, False]
    assert FORCED not in read_config(tmp_path / "narrow").nnclr
    again = export_run(tmp_path / "forced", tmp_path / "again", provenance={"license": "cc-by-nc-4.0"})
    assert read_config(again).nnclr[FORCED] is True, "of an earlier version"
    assert "forced" in terms_of(tmp_path / "forced")
    assert "forced" not in terms_of(tmp_path / "narrow")
    card = (tmp_path / "narrow" / "README.md").read_text()
    assert "unfinished" in card
    assert "Started from" in card


def terms_of(folder):
    """Return what the card says of the license."""
    return (folder / "README.md").read_text().partition("\n## Terms\n")[2].partition("\n## ")[0]


def test_the_encoder_of_a_parent_without_a_license_is_exported_without_one(child, tmp_path):
    run = shutil.copytree(child, tmp_path / "run")
    config = json.loads((run / "encoder" / "config.json").read_text())
    config["nnclr"]["parents"][0]["license"] = "unknown"
    (run / "encoder" / "config.json").write_text(json.dumps(config))
    code, _, err = nnclr("export", run, tmp_path / "stated", "--license", "cc0-1.0")
    assert code == 2
    assert "--force-license" in err
    code, _, err = nnclr("export", run, tmp_path / "plain")
    assert code == 0, err
    assert "license" not in read_config(tmp_path / "plain").nnclr
    forced = ("--license", "cc0-1.0", "--force-license")
    code, _, err = nnclr("export", run, tmp_path / "forced", *forced)
    assert code == 0, err


def test_a_child_of_weights_with_a_forced_license_has_it_on_its_card(model, tmp_path):
    parent = {"source": "hf-hub:org/parent", "fingerprint": "0123456789", "license": "mit"}
    for folder, record in (("plain", parent), ("forced", {**parent, FORCED: True})):
        export_run(model, tmp_path / folder, provenance={"parents": [record], "license": "mit", "method": "nnclr"})
    cards = [(tmp_path / name / "README.md").read_text() for name in ("plain", "forced")]
    assert ["mit, forced" in card for card in cards] == [False, True]


def test_the_card_names_the_base_model_of_the_hub(child, tmp_path):
    folder = export_run(child, tmp_path / "out")
    config = json.loads((folder / "config.json").read_text())
    config["nnclr"]["parents"][0]["source"] = "hf-hub:org/parent@v1"
    (folder / "config.json").write_text(json.dumps(config))
    assert "base_model:\n- org/parent" in write_card(folder, overwrite=True).read_text()


def test_a_resumed_run_keeps_its_terms(child, data, model):
    pretrain(recipe("channels=8,16,24,32"), [data], child, init=str(model), minutes=0, resume=True)
    assert read_config(child / "encoder").nnclr["data_terms"] == "CC BY 4.0"


@pytest.mark.parametrize(
    ("sources", "name", "earlier"),
    [
        (["weights/nnclr_resnet18_starter"], "nnclr_resnet18_starter", 1),
        (["nnclr_resnet18_starter"], "somewhere/nnclr_resnet18_starter", 1),
        (["hf-hub:other/nnclr_resnet18_starter@v1"], "nnclr_resnet18_starter", 0),
        (["runs/a/encoder"], "encoder", 0),
        (["nnclr_resnet18_free_starter"], "nnclr_resnet18_starter", 0),
        # a card does not read as if weights had started from themselves
        (["runs/5/encoder", "weights/nnclr_resnet18_starter", "nnclr_resnet18_starter"], "photos", 1),
        (["runs/5/encoder", "weights/nnclr_resnet18_starter", "nnclr_resnet18_starter"], "nnclr_resnet18_starter", 2),
    ],
)
def test_only_parents_of_the_same_published_name_are_earlier_versions(sources, name, earlier):
    chain: dict = {}
    for number, source in enumerate(reversed(sources)):
        chain = {"parents": [{"source": source, "fingerprint": f"{number}123456789", "license": "mit", **chain}]}
    text = describe_training({"method": "nnclr", **chain}, name)
    assert text.count("an earlier version") == earlier
    assert "01234567" in text


@pytest.mark.parametrize("license", ["mit", "cc-by-4.0", "public-domain", "a-license-of-ours"])
def test_new_terms_do_not_free_weights_that_were_restricted(model, tmp_path, license):
    restricted = export_run(
        model, tmp_path / "nc", provenance={"license": "cc-by-nc-4.0", "data_terms": "research only"}
    )
    wider = {"license": license, "data_terms": "mit", "data": "mine"}
    with pytest.raises(InvalidRequest, match="force-license"):
        export_run(restricted, tmp_path / "wide", provenance=wider)
    assert not (tmp_path / "wide").exists()
    assert export_run(restricted, tmp_path / "wide", provenance=wider, force_license=True).is_dir()


def test_new_terms_are_compared_with_the_license_that_weights_keep(model, tmp_path):
    with pytest.raises(InvalidRequest, match="force-license"):
        export_run(model, tmp_path / "kept", provenance={"data_terms": "research only"})
    for terms in ("CC0 1.0", "our photos"):
        written = export_run(model, tmp_path / "kept", provenance={"data_terms": terms})
        assert read_config(written).nnclr["license"] == "apache-2.0"
    narrower = {"data_terms": "research only", "license": "cc-by-nc-4.0"}
    assert export_run(model, tmp_path / "narrow", provenance=narrower).is_dir()
    forced = export_run(model, tmp_path / "forced", provenance={"data_terms": "research only"}, force_license=True)
    assert export_run(forced, tmp_path / "again", provenance={"data_terms": "research only"}).is_dir(), "not new"


def test_terms_cannot_be_widened_without_a_license_first(model, tmp_path):
    run = without_license(model, tmp_path)
    recorded = export_run(run, tmp_path / "recorded", provenance={"data_terms": "CC BY-NC 4.0"})
    for terms in ("CC0 1.0", "our photos"):
        with pytest.raises(InvalidRequest, match="force-license"):
            export_run(recorded, tmp_path / "wide", provenance={"data_terms": terms})
    assert not (tmp_path / "wide").exists()
    same = export_run(recorded, tmp_path / "same", provenance={"data_terms": "research only"})
    assert read_config(same).nnclr["data_terms"] == "research only"
    assert export_run(recorded, tmp_path / "wide", provenance={"data_terms": "mit"}, force_license=True).is_dir()


def without_license(model, tmp_path):
    folder = shutil.copytree(model, tmp_path / "null")
    config = json.loads((folder / "config.json").read_text())
    config["nnclr"]["license"] = config["pretrained_cfg"]["license"] = None
    config["nnclr"]["parents"] = [{"source": "p", "fingerprint": "0", "license": None}]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_license_of_null_is_not_stated(model, tmp_path):
    written = export_run(without_license(model, tmp_path), tmp_path / "out")
    assert read_config(written).pretrained_cfg["license"] == "unknown"
    card = (written / "README.md").read_text()
    assert "license: unknown" in card
    assert "Weights: license not stated" in card
    assert "Started from p (fingerprint 0, unknown)" in card


def test_a_function_does_not_have_the_license_of_its_architecture():
    """timm states the license of its weights, also for a network that it built without them."""
    encoder = wrap_encoder(timm.create_model("resnet18", num_classes=0), Preprocessing(64), "tower", 512)
    assert encoder.backbone.pretrained_cfg["license"] == "apache-2.0"
    assert parent_record("python:mine.py:tower", encoder)["license"] == "unknown"
