"""The model card: README.md of a model folder, with nothing in it that was not measured."""

from __future__ import annotations

from nnclr_hub.hub.layout import CONFIG, WEIGHTS, ModelConfig

_BODY = """
# {name}

A {architecture} that turns a picture into a vector of {dim} numbers; trained without labels by NNCLR's code
({method}, {steps} steps, {epochs} epochs, seed {seed}).

## Load it

```python
from nnclr_hub import load_encoder
encoder = load_encoder("./{name}")              # a checkout or download of this folder
vectors = encoder.embed(["a.jpg", "b.jpg"])     # (2, {dim}) float32, unit rows

import timm                                     # without nnclr_hub; pretrained=True, or the weights are random
backbone = timm.create_model("local-dir:./{name}", pretrained=True)
```

## Input

RGB, short side resized ({interpolation}) to {resize} pixels, centre crop of {size}, mean {mean}, std {std}.

## Measured

{metrics}

## Terms

Weights: {license}. Training pictures: {data}.

## Files

`{config_file}` `{weights_file}` sha256 `{sha256}`
"""


def model_card(name: str, config: ModelConfig) -> str:
    """The card's text, front matter included; metrics come from config.nnclr["metrics"]."""
    about, preprocessing = config.nnclr, config.pretrained_cfg
    size = preprocessing["input_size"][-1]
    metrics = about.get("metrics") or {}
    table = "\n".join(["| metric | value |", "|---|---|", *(f"| {key} | {value} |" for key, value in metrics.items())])
    weights_license = about.get("license", "apache-2.0")
    front = "\n".join(
        [
            "---",
            "library_name: timm",
            "pipeline_tag: image-feature-extraction",
            f"license: {weights_license}",
            "tags: [image-feature-extraction, timm, transformers, nnclr, nnclr_hub, self-supervised]",
            "---",
        ]
    )
    body = _BODY.format(
        name=name,
        architecture=config.architecture,
        dim=config.num_features,
        method=about.get("method", "method not recorded"),
        steps=about.get("step", "?"),
        epochs=about.get("epochs", "?"),
        seed=about.get("seed", "?"),
        interpolation=preprocessing["interpolation"],
        resize=int(size / preprocessing["crop_pct"]),
        size=size,
        mean=list(preprocessing["mean"]),
        std=list(preprocessing["std"]),
        metrics=table if metrics else "Nothing yet.",
        license=weights_license,
        data=about.get("data", "not recorded"),
        config_file=CONFIG,
        weights_file=WEIGHTS,
        sha256=(about.get("sha256") or {}).get(WEIGHTS, "?"),
    )
    return front + "\n" + body
