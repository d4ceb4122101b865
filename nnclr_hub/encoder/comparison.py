"""Attention maps of the same images from several encoders ("Comparison of Attention in ResNets vs ViT").

from nnclr_hub.encoder.comparison import compare, comparison_figure

columns = compare(["cat.jpg"], ["random:resnet18", "nnclr_resnet18_starter"])
Path("grid.png").write_bytes(comparison_figure(columns))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nnclr_hub.encoder.attention.figure import Cell, draw
from nnclr_hub.encoder.attention.maps import OPACITY, AttentionMap
from nnclr_hub.encoder.attention.query import MAX_SIDE
from nnclr_hub.encoder.embedder import ImageLike
from nnclr_hub.encoder.loader import load_encoder
from nnclr_hub.errors import InvalidRequest, ModelError, ModelFilesMissing, UnknownModel

UNAVAILABLE = "not available"  # `EncoderColumn.missing` has the reason
# the paper's three kinds of weights in both families
COMPARED = {
    "ResNet-18, random": "random:resnet18",
    "ResNet-18, supervised": "timm:resnet18.a1_in1k",
    "ResNet-18, NNCLR": "nnclr_resnet18_starter",
    "ViT-S/16, random": "random:vit_small",
    "ViT-S/16, supervised": "timm:vit_small_patch16_224.augreg_in1k",
    "ViT-S/16, NNCLR": "nnclr_vit_small",
}


@dataclass(frozen=True)
class EncoderColumn:
    """One encoder's maps.

    name: name of the encoder, as shown.
    maps: one per image, without a query; () if the encoder is not available.
    missing: the message of the error if the encoder is not available.
    """

    name: str
    maps: tuple[AttentionMap, ...]
    missing: str = ""


def compare(
    images: Sequence[ImageLike],
    sources: Sequence[str] | Mapping[str, str] = COMPARED,
    *,
    max_side: int = MAX_SIDE,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[EncoderColumn]:
    """Make a map of each image with each encoder: the mean of F for a ResNet, the mean row of [CLS] for a transformer.

    Args:
        sources: of encoders, see `load_encoder`; or names to show -> sources.
        progress: called with (done, number of maps).

    Raises:
        ModelError: no source is available, or one is damaged.
        ImageError, InvalidRequest: see `Encoder.attention`.
    """
    named = sources if isinstance(sources, Mapping) else {source: source for source in sources}
    if not images or not named:
        raise InvalidRequest("A comparison needs at least one image and one encoder.")
    columns: list[EncoderColumn] = []
    failed: ModelError | None = None
    for name, source in named.items():
        maps: list[AttentionMap] = []
        try:
            encoder = load_encoder(source)
        except (ModelFilesMissing, UnknownModel) as error:
            failed = error
            columns.append(EncoderColumn(name, (), str(error)))
            continue
        for image in images:
            maps.append(encoder.attention(image, max_side=max_side, center_prior=False))
            progress(len(columns) * len(images) + len(maps), len(named) * len(images))
        columns.append(EncoderColumn(name, tuple(maps)))
    progress(len(named) * len(images), len(named) * len(images))
    if failed is not None and not any(column.maps for column in columns):
        raise failed
    return columns


def comparison_figure(columns: Sequence[EncoderColumn], opacity: float = OPACITY) -> bytes:
    """Draw a PNG file with a row per image and a column per encoder, of which one has maps; images come first."""
    images = [one.image for one in next(column.maps for column in columns if column.maps)]
    rows = [[Cell(image), *(_cell(column, i, opacity) for column in columns)] for i, image in enumerate(images)]
    titles = ["image", *(column.name for column in columns)]
    return draw([[Cell(cell.image, title, cell.note) for cell, title in zip(rows[0], titles, strict=True)], *rows[1:]])


def _cell(column: EncoderColumn, index: int, opacity: float) -> Cell:
    return Cell(column.maps[index].overlay(opacity)) if column.maps else Cell(None, note=UNAVAILABLE)
