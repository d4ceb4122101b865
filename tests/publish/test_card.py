"""The card is up to date, its results name their source, and edits are detected."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from nnclr_hub import list_models, model_info
from nnclr_hub.errors import InvalidRequest, NNCLRHubError
from nnclr_hub.hub.layout import read_config
from nnclr_hub.hub.registry import BENCHMARKS
from nnclr_hub.publish.card import is_ours, model_card, sealed, write_card
from nnclr_hub.publish.export import export_run


@pytest.mark.parametrize("name", list_models())
def test_the_card_of_a_shipped_starter_is_up_to_date(name):
    folder = model_info(name).folder
    assert card_of(folder) == model_card(name, read_config(folder)), "nnclr card FOLDER --write"


def front_matter_of(card: str) -> list[dict]:
    """Return the results of the model index."""
    return ModelCard(card).data.to_dict()["model-index"][0]["results"]


@pytest.mark.parametrize("name", list_models())
def test_the_card_of_a_registered_model_has_the_scores_of_test_splits_and_floors(name):
    info, card = model_info(name), card_of(model_info(name).folder)
    results = front_matter_of(card)
    assert {one["metrics"][0]["name"]: one["metrics"][0]["value"] for one in results} == info.metrics
    assert {one["dataset"]["split"] for one in results} == {"test"}
    for metric, value in info.metrics.items():
        floors = BENCHMARKS[metric.removeprefix("knn20/")]
        best = max(floors, key=floors.__getitem__)
        assert f"| {metric} | {value} | {floors[best]} ({best}) |" in card
        assert f"`nnclr eval knn ./{name} --data {metric.removeprefix('knn20/')}`" in card
    assert info.limits in " ".join(card.split())


def test_the_scores_of_the_run_of_a_registered_model_name_their_split():
    """Of clothing160, which has val/; imagenette128 has none."""
    card = card_of(model_info("nnclr_resnet18_starter").folder)
    assert "| knn20/clothing160 | validation | 0.7302 | 0.7302 |" in card
    assert "| knn20/imagenette128 | test | 0.8619 | 0.8619 |" in card


def test_the_registry_describes_weights_whatever_their_folder_is_called(model):
    info = model_info("nnclr_resnet50_starter")
    ours = model_card("copy", read_config(info.folder))
    assert {one["dataset"]["split"] for one in front_matter_of(ours)} == {"test"}
    assert "weaker than" in ours
    another = model_card(info.name, read_config(model))
    assert "weaker than" not in another
    assert front_matter_of(another)[0]["metrics"][0]["name"] == "knn20/made_up"
    assert front_matter_of(another)[0]["dataset"]["split"] == "not recorded"


def test_a_figure_says_whether_it_was_measured_again_and_by_which_command(model, tmp_path):
    assert "| 0.5 | not checked | `nnclr eval knn ./resnet18 --data made_up` |" in card_of(model)
    checked = export_run(model, tmp_path / "again", provenance={"rechecked": {"knn20/made_up": 0.4999}})
    assert "| 0.5 | 0.4999 |" in card_of(checked)


@pytest.mark.parametrize("split", ["test", "validation", "held out"])
def test_a_figure_names_the_split_that_its_run_recorded(model, tmp_path, split):
    folder = export_run(model, tmp_path / "out", provenance={"splits": {"made_up": split}})
    assert f"| knn20/made_up | {split} | 0.5 |" in card_of(folder)
    [result] = front_matter_of(card_of(folder))
    assert result["dataset"]["split"] == split
    assert ("`nnclr eval" in card_of(folder).partition("## Results")[2].partition("##")[0]) == (split != "held out")


def card_of(folder: Path) -> str:
    return (folder / "README.md").read_text()


def test_a_revision_is_pinned_in_every_snippet(model):
    config = read_config(model)
    card = model_card("name", config, repository="org/name", revision="v1.0")
    assert card.count("hf-hub:org/name@v1.0") >= 2
    assert 'from_pretrained("org/name", revision="v1.0")' in card
    assert "@COMMIT" in model_card("name", config, repository="org/name")


def test_weights_of_others_are_not_called_ours(model, tmp_path):
    about = {"converted": {"from": "DINO", "branch": "teacher", "file": "dino.pth", "sha256": "0" * 64}}
    card = card_of(export_run(model, tmp_path / "dino", provenance=about))
    assert "converted from a checkpoint of DINO" in card
    assert "dwibedi2021nnclr" not in card


def test_an_edited_card_is_detected_and_kept(model, tmp_path):
    folder = export_run(model, tmp_path / "mine")
    text = card_of(folder)
    assert is_ours(text)
    assert sealed(text) == text
    for edited in (text.replace("apache-2.0", "mit"), text + "\nMy own words.\n", "# Another\n"):
        assert not is_ours(edited)
        assert is_ours(sealed(edited))
    (folder / "README.md").write_text(text + "\nMy own words.\n")
    with pytest.raises(InvalidRequest):
        write_card(folder)
    write_card(folder, overwrite=True)
    assert card_of(folder) == text


def test_the_card_lists_the_hash_of_each_file(model):
    hashes = json.loads((model / "config.json").read_text())["nnclr"]["sha256"]
    assert hashes
    for file, digest in hashes.items():
        assert f"| `{file}` | `{digest}` |" in card_of(model)


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("pretrained_cfg", "crop_pct", 0),
        ("nnclr", "commands", "x"),
        ("nnclr", "converted", "x"),
    ],
)
def test_an_invalid_config_does_not_get_a_card(model, tmp_path, part, field, value):
    fields = json.loads((model / "config.json").read_text())
    fields[part][field] = value
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(NNCLRHubError):
        write_card(tmp_path)
    assert not (tmp_path / "README.md").exists()


def test_fields_missing_in_timm_have_the_defaults_of_timm(model, tmp_path):
    fields = json.loads((model / "config.json").read_text())
    del fields["pretrained_cfg"]["crop_pct"]
    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert "to 54 pixels" in write_card(tmp_path).read_text()


@pytest.mark.parametrize(
    ("mode", "words"), [("center", "short side"), ("squash", "Both of its sides"), ("border", "padded")]
)
def test_the_card_describes_how_an_image_becomes_a_square(model, mode, words):
    config = read_config(model)
    config = replace(config, pretrained_cfg={**config.pretrained_cfg, "crop_mode": mode})
    assert words in model_card("name", config)
