"""What a run leaves in its folder beside the checkpoint and the log: run.json and encoder/."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from pathlib import Path

import timm
import torch
from torch import nn

import nnclr_hub
from nnclr_hub.encoder.preprocess import Preprocessing
from nnclr_hub.method import Learner
from nnclr_hub.publish.export import export_model

from .data.datasets import ImageFiles
from .distributed import Ranks
from .recipes import Recipe


def write_about(
    out: Path,
    name: str,
    recipe: Recipe,
    data: Sequence[Path],
    files: ImageFiles,
    ranks: Ranks,
    start: str | None,
    steps: int,
) -> None:
    """RUN/run.json: what the report shows at its foot."""
    where = ranks.where
    about = {
        "recipe": name,
        "init": start,
        "steps": steps,
        "data": [folder.name for folder in map(Path, data)],
        "pictures": len(files.paths),
        "device": str(where) if where.type == "cpu" else torch.cuda.get_device_name(where),
        "processes": ranks.world,
        "threads": torch.get_num_threads(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "timm": timm.__version__,
            "nnclr_hub": nnclr_hub.__version__,
        },
        **{key: getattr(recipe, key) for key, _, _ in recipe.settings()},
    }
    (out / "run.json").write_text(json.dumps(about, indent=2) + "\n")


def network(learner: Learner, recipe: Recipe) -> tuple[nn.Module, nn.Module]:
    """Backbone and projection that the recipe evaluates and exports: the online ones or the momentum encoder's."""
    if recipe.encoder == "momentum" and learner.momentum is not None:
        return learner.target[0], learner.target[1]
    return learner.backbone, learner.projection


def export_encoder(
    learner: Learner,
    preprocessing: Preprocessing,
    recipe: Recipe,
    out: Path,
    name: str,
    step: int,
    steps: int,
    scores: dict[str, float],
) -> None:
    """RUN/encoder/: the backbone as a model folder, with the heads beside it and its scores in it."""
    backbone, projection = network(learner, recipe)
    heads = {"projection": projection, "prediction": learner.prediction}
    export_model(
        backbone,
        out / "encoder",
        architecture=recipe.backbone,
        model_args=recipe.model_args,
        preprocessing=preprocessing,
        heads={name: head for name, head in heads.items() if head.state_dict()},
        provenance={
            "recipe": name,
            "method": recipe.method,
            "encoder": recipe.encoder,
            "step": step,
            "steps": steps,
            "epochs": recipe.epochs,
            "seed": recipe.seed,
            "temperature": recipe.temperature,
            "support_set_size": recipe.queue_size if learner.support_set is not None else 0,
            "metrics": {key: round(value, 4) for key, value in scores.items()},
        },
    )
