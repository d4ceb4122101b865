"""`push_to_hub`: upload an encoder in memory to the Hugging Face Hub in one call.

    push_to_hub(encoder, "org/photos", tag="v1.0", license="apache-2.0")

It is a function and not a method, because the encoder package must not depend on this one.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.encoder.preprocessing import Preprocessing
from nnclr_hub.errors import ModelError
from nnclr_hub.hub.layout import read_weights
from nnclr_hub.hub.sources import resolve
from nnclr_hub.images.reading import PLAIN
from nnclr_hub.publish.export import export_model, export_run
from nnclr_hub.publish.provenance import INHERITED, NO_LICENSE, check_license, license_of, parent_record, record_forced
from nnclr_hub.publish.upload import Published, check_options, publish_model


def push_to_hub(
    encoder: Encoder,
    repository: str,
    *,
    license: str | None = None,
    data: str | None = None,
    private: bool = False,
    tag: str | None = None,
    pr: bool = False,
    token: str | None = None,
    force_license: bool = False,
) -> Published:
    """Publish an encoder: `export_model` and `publish_model` in one.

    Heads and results are included only if weights and preprocessing are those of the model folder that the encoder
    was loaded from. License, images, terms and parents of that folder are always recorded, and timm as a parent.

    Args:
        license: of the weights, for the card; None: that of the model folder or of timm.
        data: the training images and their terms, for the card; None: those of the model folder.
        private, tag, pr, token: see `publish_model`.
        force_license: see `export_run`.

    Raises:
        NNCLRHubError: see `export_run` and `publish_model`.
    """
    check_options(repository, tag, pr)
    about = {key: value for key, value in (("license", license), ("data", data)) if value is not None}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / repository.rpartition("/")[2]
        origin = _unchanged_origin(encoder)
        if origin is not None:
            export_run(origin, folder, provenance=about, force_license=force_license)
        else:
            before = _inherited(encoder)
            with record_forced(force_license, about):
                if license not in (None, before.get("license")):
                    check_license(license, {}, before)
            export_model(encoder.backbone, folder, provenance={**before, **about}, **_described(encoder))
        return publish_model(folder, repository, private=private, tag=tag, pr=pr, token=token)


def _inherited(encoder: Encoder) -> dict[str, Any]:
    """Return the license, images, terms and parents of the weights that the encoder was loaded with, as far as known.

    They hold for weights that were changed since, but not for random weights in the network of a model folder.
    """
    if encoder.name.startswith("random:"):
        return {}
    if encoder.config is not None:
        about, license = encoder.config.nnclr, license_of(encoder.config)
        found = {name: about[name] for name in INHERITED if name in about}
    elif encoder.name.startswith("timm:"):
        parent = parent_record(encoder.name, encoder)
        license, found = parent["license"], {"parents": [parent]}
    else:
        return {}
    return found if license == NO_LICENSE else {**found, "license": license}


def _described(encoder: Encoder) -> dict[str, Any]:
    config = encoder.config
    timm_cfg: Any = encoder.backbone.pretrained_cfg
    return {
        "architecture": config.architecture if config else timm_cfg["architecture"],
        "model_args": config.model_args if config else {},
        "preprocessing": encoder.transform.preprocessing,
    }


def _unchanged_origin(encoder: Encoder) -> Path | None:
    """Return the model folder of the encoder if its weights and preprocessing have not changed since."""
    if encoder.config is None:
        return None
    try:
        found = resolve(encoder.name)
    except ModelError:  # deleted since
        return None
    if found.folder is None or found.seed is not None:
        return None
    if replace(encoder.transform.preprocessing, reading=PLAIN) != Preprocessing.from_pretrained_cfg(
        found.config.pretrained_cfg
    ):
        return None
    saved, now = read_weights(found.folder, found.weights), encoder.backbone.state_dict()
    same = saved.keys() == now.keys() and all(
        torch.equal(value.float(), now[key].float().cpu()) for key, value in saved.items()
    )
    return found.folder if same else None
