"""The model card: README.md of a model folder, with nothing in it that was not measured."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from nnclr_hub.hub.layout import CONFIG, ModelConfig

NO_LICENSE = "unknown"  # the Hub's word for weights whose licence nobody has stated
_BODY = """
# {name}

A {architecture} that turns a picture into a vector of {dim} numbers; trained without labels by NNCLR's code
({training}).

## Load it

```python
from nnclr_hub import load_encoder
encoder = load_encoder("./{name}")              # a checkout or download of this folder
vectors = encoder.embed(["a.jpg", "b.jpg"])     # (2, {dim}) float32, unit rows

{timm_import}
backbone = timm.create_model("local-dir:./{name}", pretrained=True)
```

From the Hugging Face Hub name the commit, so that the weights stay the same:
`load_encoder("hf-hub:ORGANISATION/{name}@COMMIT")`,
`timm.create_model("hf-hub:ORGANISATION/{name}@COMMIT", pretrained=True)`.

## Input

RGB, short side resized ({interpolation}) to {resize} pixels, centre crop of {size}, mean {mean}, std {std}.

## Measured

{metrics}

## Terms

Weights: {license}. Training pictures: {data}.

## Files

| file | sha256 |
|---|---|
{files}

`{config_file}` is timm's, with a block `nnclr` that says how the encoder came to be.
"""

_TIMM = (
    "import timm                                     # without nnclr_hub; pretrained=True, or the weights are random"
)
_OURS = """import timm                                     # pretrained=True, or the weights are random
import nnclr_hub.encoder.cifar_resnet           # timm lacks this architecture: here it is registered"""


def model_card(name: str, config: ModelConfig) -> str:
    """The card's text, front matter included.

    Args:
        name: of the model.
        config: its config.json; config.nnclr may hold "metrics" {name: value}, "license" of the weights, and of the
            training pictures their "data" (a name or several) and "data_terms".
    """
    about, preprocessing = config.nnclr, config.pretrained_cfg
    size = preprocessing["input_size"][-1]
    body = _BODY.format(
        name=name,
        architecture=config.architecture,
        timm_import=_OURS if config.architecture.startswith("nnclr_") else _TIMM,
        dim=config.num_features,
        training=_training(about),
        interpolation=preprocessing["interpolation"],
        resize=math.floor(size / preprocessing["crop_pct"]),
        size=size,
        mean=list(preprocessing["mean"]),
        std=list(preprocessing["std"]),
        metrics=_table(about.get("metrics") or {}),
        license=about.get("license", "licence not stated"),
        data=_pictures(about),
        config_file=CONFIG,
        files="\n".join(f"| `{file}` | `{digest}` |" for file, digest in (about.get("sha256") or {}).items()),
    )
    return "\n".join(["---", *_front_matter(name, about), "---"]) + "\n" + body


def _front_matter(name: str, about: Mapping[str, Any]) -> list[str]:
    """The Hub's YAML; values are written as JSON, which is YAML."""
    tags = ["image-feature-extraction", "timm", "transformers", "nnclr", "nnclr_hub", "self-supervised"]
    lines = [
        "library_name: timm",
        "pipeline_tag: image-feature-extraction",
        f"license: {json.dumps(str(about.get('license', NO_LICENSE)))}",
        f"tags: {json.dumps(tags)}",
    ]
    results = [_result(metric, value) for metric, value in (about.get("metrics") or {}).items()]
    if results:
        lines.append(f"model-index: {json.dumps([{'name': name, 'results': results}])}")
    return lines


def _result(metric: str, value: float) -> dict[str, Any]:
    """One entry of the model index; a metric is called KIND/DATASET, as in knn20/imagenette128."""
    kind, _, dataset = metric.partition("/")
    dataset = dataset or "not stated"
    return {
        "task": {"type": "image-classification", "name": kind},
        "dataset": {"type": dataset, "name": dataset},
        "metrics": [{"type": "accuracy", "name": metric, "value": value}],
    }


def _table(metrics: Mapping[str, float]) -> str:
    if not metrics:
        return "Nothing yet."
    return "\n".join(["| metric | value |", "|---|---|", *(f"| {key} | {value} |" for key, value in metrics.items())])


def _training(about: Mapping[str, Any]) -> str:
    """What is recorded of the training, in the recipe's own words."""
    known = [str(about[key]) for key in ("method", "recipe") if key in about]
    known += [f"{about[key]} {unit}" for key, unit in (("step", "steps"), ("epochs", "epochs")) if key in about]
    known += [f"seed {about['seed']}"] if "seed" in about else []
    return ", ".join(known) or "how is not recorded"


def _pictures(about: Mapping[str, Any]) -> str:
    data = about.get("data", "not recorded")
    data = data if isinstance(data, str) else ", ".join(map(str, data))
    return f"{data}; {about['data_terms']}" if "data_terms" in about else data
