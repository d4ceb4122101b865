"""The paper's ablation tables as data: rows of settings over one base recipe, with the paper's results.

Sizes follow the base recipe. The paper varies the queue from 8,192 to 98,304; a recipe with a queue of 8,192 is varied
from 683 to 8,192. A recipe with the paper's sizes gets the paper's rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.method import PROJECTIONS

from .recipes import Recipe


@dataclass(frozen=True)
class Row:
    """One row of a table.

    label: as in the paper.
    settings: `key=value` over the base recipe.
    paper: the paper's ImageNet top-1 accuracy in linear evaluation, in percent; None if not reported.
    """

    label: str
    settings: tuple[str, ...]
    paper: float | None


@dataclass(frozen=True)
class Table:
    """One table of the paper.

    title: its caption.
    rows: computed for a base recipe.
    note: remarks for the reader.
    """

    title: str
    rows: Callable[[Recipe], list[Row]]
    note: str = ""


def _fixed(*rows: tuple[str, str, float | None]) -> Callable[[Recipe], list[Row]]:
    return lambda base: [Row(label, tuple(settings.split()), paper) for label, settings, paper in rows]


def _scaled(
    setting: str, own: int, results: dict[int, float], **factors: dict[int, float]
) -> Callable[[Recipe], list[Row]]:
    def rows(base: Recipe) -> list[Row]:
        made = []
        for value, paper in results.items():
            now = max(2, round(_now(base, setting) * value / own))
            more = [f"{name}={by_value[value] * getattr(base, name)}" for name, by_value in factors.items()]
            made.append(Row(f"{now:,} (the paper: {value:,})", (f"{setting}={now}", *more), paper))
        return made

    return rows


def _now(base: Recipe, setting: str) -> int:
    value = int(getattr(base, setting))
    if value == 0 and setting == "projection_dim":
        return PROJECTIONS[base.projection if base.projection in PROJECTIONS else "nnclr"].out_dim
    return value


_NNSIAM = "projection=simsiam prediction=simsiam projection_hidden=2048 projection_dim=2048 prediction_hidden=512"
_SAME_HEADS = "projection=nnclr prediction=paper"

TABLES: dict[str, Table] = {
    "positives": Table(
        "Effect of adding nearest-neighbors as positives",
        _fixed(
            ("view 1", f"method=simclr {_SAME_HEADS}", 71.4),
            ("NN of view 1", f"method=nnclr {_SAME_HEADS}", 74.5),
            ("momentum encoder, view 1", f"method=momentum_simclr {_SAME_HEADS}", 72.5),
            ("momentum encoder, NN of view 1", f"method=momentum_nnclr {_SAME_HEADS}", 74.9),
        ),
        "All rows have the prediction head. The paper's table on that head reports 74.5 without it.",
    ),
    "crop_only": Table(
        "Performance with only crop augmentation",
        _fixed(
            ("SimCLR, full augmentation", "method=simclr augmentation=byol", 67.9),
            ("SimCLR, crops alone", "method=simclr augmentation=crop_only", 40.3),
            ("BYOL, full augmentation", "method=byol augmentation=byol prediction=paper", 72.5),
            ("BYOL, crops alone", "method=byol augmentation=crop_only prediction=paper", 59.4),
            ("NNCLR, full augmentation", "method=nnclr augmentation=byol", 72.9),
            ("NNCLR, crops alone", "method=nnclr augmentation=crop_only", 68.2),
        ),
        "300 epochs in the paper. BYOL's rows have the prediction head, because BYOL collapses without it.",
    ),
    "epochs": Table(
        "Number of pre-training epochs vs. performance",
        _scaled(
            "epochs", 800, {100: 69.4, 200: 70.7, 400: 74.2, 800: 74.9}, base_lr={100: 4 / 3, 200: 1, 400: 1, 800: 1}
        ),
        "The shortest run has 4/3 of the learning rate of the others, like 0.4 and 0.3 in the paper.",
    ),
    "queue_size": Table(
        "Support set size",
        _scaled("queue_size", 98_304, {8192: 73.6, 16_384: 74.2, 32_768: 74.9, 65_536: 75.0, 98_304: 75.4}),
    ),
    "k": Table(
        "Varying k in k-NN",
        _fixed(
            *(
                (f"k = {k}", f"k={k}", top)
                for k, top in zip((1, 2, 4, 8, 16, 32), (74.9, 74.1, 73.8, 73.8, 73.8, 73.2), strict=True)
            )
        ),
    ),
    "soft": Table(
        "Soft vs. hard nearest neighbors as positives",
        _fixed(("soft nearest neighbor", "pick=soft", 71.4), ("hard nearest neighbor", "pick=nearest", 74.9)),
    ),
    "batch_size": Table(
        "Batch size",
        _scaled("batch_size", 4096, {256: 68.7, 512: 71.7, 1024: 72.9, 2048: 73.5, 4096: 74.9, 8192: 74.3}),
    ),
    "embedding_size": Table(
        "Varying embedding size d",
        _scaled("projection_dim", 256, {128: 74.9, 256: 74.9, 512: 74.8, 1024: 74.9, 2048: 74.6}),
    ),
    "prediction_head": Table(
        "Effect of prediction head",
        _fixed(("without", "prediction=none", 74.5), ("with", "prediction=paper", 74.9)),
    ),
    "support_set": Table(
        "Different implementations of the support set",
        _fixed(
            ("NNs from current encoder", "support_set=current_encoder", 74.0),
            ("NNs from queue (older embeddings)", "support_set=queue", 74.2),
            ("random replacement instead of first in, first out", "support_set=random_replacement", None),
        ),
        "16,384 rows in the paper, which reports that random replacement is more than 2 points worse.",
    ),
    "oracle": Table(
        "Ground Truth Nearest Neighbor",
        _fixed(("nearest neighbor", "pick=nearest", 72.9), ("nearest of the same class", "pick=oracle", 75.8)),
        "300 epochs in the paper; the second row uses labels.",
    ),
    "enqueue": Table(
        "Views in the support set",
        _fixed(("one view", "enqueue=first", 74.9), ("both views", "enqueue=both", None)),
        'The paper ("Implementation details") adds one view and reports no gain from both.',
    ),
    "transposed_term": Table(
        "Loss with the transposed term",
        _fixed(("without", "transposed_term=false", 74.9), ("with", "transposed_term=true", None)),
        'The paper ("Implementation details") reports no effect of the term. Here it is halved, as the loss is.',
    ),
    "crop_only_long": Table(
        "Performance with only crop augmentation, in a longer run",
        lambda base: [
            Row(label, (f"augmentation={name}", f"epochs={round(base.epochs * 1000 / 300)}"), paper)
            for label, name, paper in (("full augmentation", "byol", 74.9), ("crops alone", "crop_only", 73.3))
        ],
        "1000 epochs in the paper; here as many times the epochs of the recipe as that is of 300.",
    ),
    "vit": Table(
        "Vision transformers",
        _fixed(("SimCLR", "method=simclr", 74.5), ("NNCLR", "method=nnclr", 76.5)),
        "ViT-B/16 in the paper. Use it with --recipe vit_base_imagenet, or another recipe with --set backbone=vit_...",
    ),
    "own": Table("Own rows", lambda base: []),
    "nnsiam": Table(
        "SimSiam with nearest-neighbor as positive",
        _fixed(
            ("SimSiam: view 1", f"method=simsiam {_NNSIAM}", 71.3),
            ("NNSiam: NN of view 1", f"method=nnsiam {_NNSIAM}", 72.6),
        ),
    ),
}


def parse_row(text: str) -> Row:
    """Parse a user's own row, such as "tau .2: temperature=0.2"."""
    label, colon, settings = text.partition(":")
    if not (label.strip() and colon and settings.strip()):
        raise InvalidRequest(
            f'--row takes "LABEL: KEY=VALUE KEY=VALUE", such as "tau .2: temperature=0.2"; got {text!r}.'
        )
    return Row(label.strip(), tuple(settings.split()), None)


def find_table(name: str) -> Table:
    """Return the table of that name."""
    if name not in TABLES:
        raise InvalidRequest(f"No table is named {name!r}; choose one of {', '.join(TABLES)}.")
    return TABLES[name]
