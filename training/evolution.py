"""RUN/neighbors.jsonl: what the support set holds nearest to a few fixed images, as training proceeds.

The paper's figure "Evolution of Nearest-Neighbors". A line a checkpoint, with the thumbnails in it, so that
the report needs nothing but the run folder.
"""

from __future__ import annotations

import base64
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from nnclr_hub.method import Learner

from .data.augment import View, make_view
from .data.batches import Batches
from .measuring import measuring
from .monitor import read_lines, replace_text
from .recipes import Recipe

NAME = "neighbors.jsonl"
QUERIES = 8
NEIGHBORS = 5
THUMBNAIL = 56  # pixels of the longer side
# the whole image, as it is
PLAIN = View(scale=(1.0, 1.0), flip=0.0, jitter=0.0, gray=0.0, blur=0.0)


def fixed_queries(pictures: int, seed: int) -> Tensor:
    """The places of the images that are followed: (up to 8,) int64."""
    return torch.randperm(pictures, generator=torch.Generator().manual_seed(seed))[:QUERIES].sort().values


@torch.no_grad()
def record_neighbors(run: Path, learner: Learner, batches: Batches, recipe: Recipe, step: int, epoch: float) -> None:
    """Appends a line; nothing for methods without a support set. Lines of later steps are dropped.

    Args:
        run: the run folder.
        learner: in training mode before and after.
        batches: of the training images.
        recipe: for the network's input, and the seed of the choice of queries.
        step, epoch: when.
    """
    if learner.support_set is None:
        return
    queries = fixed_queries(len(batches), recipe.seed)
    batch = batches.of(queries)
    plain = replace(PLAIN, size=recipe.eval_size, mean=recipe.mean, std=recipe.std)
    view = make_view(batch.images, batch.aspect, plain, torch.Generator())
    learner.eval()
    with measuring():
        z = torch.nn.functional.normalize(learner.project(view).float(), dim=1)
    learner.train()
    similarity = z @ learner.support_set.queue.T
    similarity[:, learner.support_set.ids < 0] = -2  # rows of the random start, or without an image
    similarity[batch.ids[:, None] == learner.support_set.ids[None]] = -2
    value, place = similarity.topk(min(NEIGHBORS, similarity.shape[1]), dim=1)
    ids = learner.support_set.ids[place].cpu()
    line = {
        "step": step,
        "epoch": round(epoch, 4),
        "queries": queries.tolist(),
        "neighbors": ids.tolist(),
        "similarity": [[round(v, 4) for v in row] for row in value.tolist()],
        "thumbnails": _thumbnails(torch.cat([queries, ids[ids >= 0]]).unique(), batches),
    }
    lines = [json.dumps(one) for one in read_neighbors(run) if one["step"] < step]
    replace_text(run / NAME, "\n".join([*lines, json.dumps(line)]) + "\n")


def read_neighbors(run: Path) -> list[dict[str, Any]]:
    """The lines of RUN/neighbors.jsonl, if there are any."""
    return read_lines(run / NAME)


def _thumbnails(ids: Tensor, batches: Batches) -> dict[str, str]:
    """Small JPEGs in base64, in the originals' proportions."""
    batch = batches.of(ids)
    thumbnails = {}
    for number, pixels, aspect in zip(ids.tolist(), batch.images.cpu().numpy(), batch.aspect.tolist(), strict=True):
        width, height = (THUMBNAIL, THUMBNAIL / aspect) if aspect > 1 else (THUMBNAIL * aspect, THUMBNAIL)
        file = io.BytesIO()
        Image.fromarray(pixels).resize((max(1, round(width)), max(1, round(height)))).save(file, "JPEG", quality=80)
        thumbnails[str(number)] = base64.b64encode(file.getvalue()).decode()
    return thumbnails
