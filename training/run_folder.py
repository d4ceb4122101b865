"""What a run leaves in its folder beside the checkpoint and the log: run.json and encoder/."""

from __future__ import annotations

import dataclasses
import json
import platform
from collections.abc import Sequence
from pathlib import Path

import timm
import torch

import nnclr_hub
from nnclr_hub.encoder.preprocess import Preprocessing
from nnclr_hub.method import Learner
from nnclr_hub.publish.export import export_model

from .data.datasets import ImageFiles
from .recipes import Recipe


def write_about(
    out: Path, name: str, recipe: Recipe, data: Sequence[Path], files: ImageFiles, where: torch.device
) -> None:
    """RUN/run.json: what the report shows at its foot."""
    about = {
        "recipe": name,
        "data": [folder.name for folder in map(Path, data)],
        "pictures": len(files.paths),
        "device": str(where) if where.type == "cpu" else torch.cuda.get_device_name(where),
        "threads": torch.get_num_threads(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "timm": timm.__version__,
            "nnclr_hub": nnclr_hub.__version__,
        },
        **dataclasses.asdict(recipe),
    }
    (out / "run.json").write_text(json.dumps(about, indent=2) + "\n")


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
    """RUN/encoder/: the backbone as a model folder, with the heads beside it and its 20-NN in it."""
    heads = {"projection": learner.projection}
    if learner.method.prediction != "none":
        heads["prediction"] = learner.prediction
    export_model(
        learner.backbone,
        out / "encoder",
        architecture=recipe.backbone,
        model_args=recipe.model_args,
        preprocessing=preprocessing,
        heads=heads,
        provenance={
            "recipe": name,
            "method": recipe.method,
            "step": step,
            "steps": steps,
            "epochs": recipe.epochs,
            "seed": recipe.seed,
            "temperature": recipe.temperature,
            "support_set_size": recipe.queue_size if learner.support_set is not None else 0,
            "metrics": {key: round(value, 4) for key, value in scores.items()},
        },
    )
