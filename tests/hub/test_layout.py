"""config.json is read strictly, written alike each time, and whatever is wrong with it is one sentence."""

import json

import pytest

from nnclr_hub import load_encoder
from nnclr_hub.errors import ModelTooNew, WeightsMismatch
from nnclr_hub.hub.layout import CONFIG, WEIGHTS, read_config, sha256_of

GOOD = {"architecture": "resnet18", "num_features": 32, "pretrained_cfg": {"input_size": [3, 48, 48]}}


def test_written_fields_are_read_back(model):
    config = read_config(model)
    assert config.to_json() == (model / CONFIG).read_text()
    assert config.model_args == {"channels": [8, 16, 24, 32]}
    assert config.nnclr["sha256"][WEIGHTS] == sha256_of(model / WEIGHTS)


def test_missing_fields_have_defaults(tmp_path):
    """A folder that timm wrote has no block of ours, and may say null for model_args."""
    (tmp_path / CONFIG).write_text(json.dumps({**GOOD, "model_args": None}))
    config = read_config(tmp_path)
    assert (config.model_args, config.nnclr, config.global_pool) == ({}, {}, "avg")


@pytest.mark.parametrize(
    "text",
    [
        *("[]", "5", "{", "{}", "\xff"),
        json.dumps({**GOOD, "architecture": None}),
        json.dumps({**GOOD, "num_features": "many"}),
        json.dumps({**GOOD, "pretrained_cfg": []}),
        *(
            json.dumps({**GOOD, "nnclr": ours})
            for ours in (
                "yes",
                {"format_version": "1"},
                {"sha256": "abc"},
                {"sha256": {WEIGHTS: 5}},
                {"metrics": "good"},
                {"metrics": {"knn20/x": "0.5"}},
                {"rechecked": [0.5]},
                {"converted": "dino"},
                {"converted": {"from": "DINO"}},
            )
        ),
    ],
)
def test_an_invalid_config_is_refused(tmp_path, text):
    (tmp_path / CONFIG).write_bytes(text.encode("latin-1"))
    with pytest.raises(WeightsMismatch):
        read_config(tmp_path)


def test_a_config_of_the_future_asks_for_a_newer_library(model, tmp_path):
    """Before anything else is made of it, and by every way in."""
    config = json.loads((model / CONFIG).read_text())
    config["nnclr"]["format_version"] = 99
    (tmp_path / CONFIG).write_text(json.dumps(config))
    (tmp_path / WEIGHTS).write_bytes(b"")
    with pytest.raises(ModelTooNew):
        load_encoder(tmp_path)
