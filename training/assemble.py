"""A recipe made into what a run works with: sizes that fit the data, a precision, a learner."""

from __future__ import annotations

import dataclasses

import torch
from rich.console import Console

from nnclr_hub.encoder.backbones import create_backbone
from nnclr_hub.errors import NoImages
from nnclr_hub.method import METHODS, Learner, PredictionHead, ProjectionHead, SupportSet

from .recipes import Recipe


def fit_to_data(recipe: Recipe, images: int, say: Console) -> Recipe:
    """Shrinks the batch so that an epoch has at least four steps, and the queue to the number of pictures."""
    if images < 8:
        raise NoImages(f"{images} readable pictures are too few to learn from: give at least 8, better some thousands.")
    changes = {}
    if recipe.batch_size > images // 4:
        changes["batch_size"] = 1 << (images // 4).bit_length() - 1  # a power of two
    if recipe.queue_size > images:
        changes["queue_size"] = images
    for setting, value in changes.items():
        say.print(
            f"{setting}: {getattr(recipe, setting)} is too much for {images} pictures, using {value}", highlight=False
        )
    return dataclasses.replace(recipe, **changes)


def choose_precision(precision: str, where: torch.device) -> str:
    """bf16 where the hardware multiplies it; elsewhere it would be slower than fp32."""
    if precision != "auto":
        return precision
    if where.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    features = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return "bf16" if features.get("avx512_bf16") or features.get("amx_bf16") else "fp32"


def build_learner(recipe: Recipe) -> Learner:
    """Backbone, heads and support set as the recipe and its method say."""
    method = METHODS[recipe.method]
    if recipe.prediction != "method":
        method = dataclasses.replace(method, prediction=recipe.prediction)
    backbone = create_backbone(recipe.backbone, model_args=recipe.model_args, image_size=recipe.image_size)
    d = recipe.projection_dim
    return Learner(
        backbone,
        method,
        ProjectionHead(int(backbone.num_features), recipe.projection_hidden, d),  # type: ignore[arg-type]
        PredictionHead(d, recipe.prediction_hidden) if method.prediction == "paper" else None,
        SupportSet(recipe.queue_size, d, mask_own=recipe.mask_own, seed=recipe.seed)
        if method.target == "neighbour"
        else None,
        temperature=recipe.temperature,
        transposed_term=recipe.transposed_term,
    )
