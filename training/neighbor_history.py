"""RUN/neighbors.jsonl: nearest neighbors of a few fixed images in the support set, as training proceeds.

The file is the data of the paper's figure "Evolution of Nearest-Neighbors". Each checkpoint adds a line that includes
thumbnails, so the report needs only the run folder.
"""

from __future__ import annotations

import base64
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nnclr_hub.file_replacement import replace_file
from nnclr_hub.images.channels import for_people
from nnclr_hub.images.readers.stack import as_image
from nnclr_hub.method import Learner

from .data.augment import make_views
from .data.batches import Batches
from .data.views import View
from .evaluation import exact_inference
from .monitor import read_lines
from .recipes import Recipe

NAME = "neighbors.jsonl"
QUERIES = 8
NEIGHBORS = 5
THUMBNAIL = 56  # pixels of the longer side
# the whole image, squashed to a square
PLAIN = View(scale=(1.0, 1.0), ratio=(1e-6, 1e6), flip=0.0, jitter=0.0, gray=0.0, blur=0.0)


def fixed_queries(images: int, seed: int) -> Tensor:
    """Return the positions of the query images: (up to 8,) int64."""
    return torch.randperm(images, generator=torch.Generator().manual_seed(seed))[:QUERIES].sort().values


@torch.no_grad()
def record_neighbors(run: Path, learner: Learner, batches: Batches, recipe: Recipe, step: int, epoch: float) -> None:
    """Append a line and drop lines of later steps; does nothing for methods without a support set.

    Args:
        learner: in training mode before and after.
        recipe: for the network's input, and the seed that selects the queries.
    """
    if learner.support_set is None:
        return
    queries = fixed_queries(len(batches), recipe.seed)
    plain = replace(PLAIN, size=recipe.eval_size, mean=recipe.mean, std=recipe.std)
    batch = batches.of(queries, [plain], recipe.seed)
    [view] = make_views(batch.pixels, [plain], batch.numbers)
    learner.eval()
    with exact_inference():
        z = torch.nn.functional.normalize(learner.project(view).float(), dim=1)
    learner.train()
    similarity = z @ learner.support_set.queue.T
    similarity[:, learner.support_set.ids < 0] = -2  # initial random rows, or rows without an id
    similarity[batch.ids[:, None] == learner.support_set.ids[None]] = -2
    value, place = similarity.topk(min(NEIGHBORS, similarity.shape[1]), dim=1)
    ids = learner.support_set.ids[place].cpu()
    line = {
        "step": step,
        "epoch": round(epoch, 4),
        "queries": queries.tolist(),
        "neighbors": ids.tolist(),
        "similarity": [[round(v, 4) for v in row] for row in value.tolist()],
        "thumbnails": _thumbnails(torch.cat([queries, ids[ids >= 0]]).unique(), batches, recipe.in_chans),
    }
    lines = [json.dumps(one) for one in read_neighbors(run) if one["step"] < step]
    replace_file(run / NAME, "\n".join([*lines, json.dumps(line)]) + "\n")


def read_neighbors(run: Path) -> list[dict[str, Any]]:
    """Return the lines of RUN/neighbors.jsonl; empty without the file."""
    return read_lines(run / NAME)


def _thumbnails(ids: Tensor, batches: Batches, channels: int) -> dict[str, str]:
    """Return small JPEGs in base64, with the proportions of the original images."""
    plain = replace(PLAIN, size=THUMBNAIL, mean=(0.0,) * channels, std=(1.0,) * channels)
    batch = batches.of(ids, [plain], 0)
    [squares] = make_views(batch.pixels, [plain], batch.numbers)
    pixels = (squares.permute(0, 2, 3, 1) * 255).round().to(torch.uint8).cpu().numpy()
    thumbnails = {}
    for number, square, size in zip(ids.tolist(), pixels, batch.pixels.sizes, strict=True):
        height, width = (max(1, round(THUMBNAIL * side / max(size))) for side in size)
        file = io.BytesIO()
        for_people(as_image(square)).resize((width, height)).save(file, "JPEG", quality=80)
        thumbnails[str(number)] = base64.b64encode(file.getvalue()).decode()
    return thumbnails
