"""Attention maps of an encoder, as in the paper ("Attention in NNCLR ResNet" and the two sections after it).

    encoder.attention("cat.jpg").overlay().save("map.png")                            # the whole image
    encoder.attention("cat.jpg", Point(120, 80)).values                               # (h, w): similarity to a point
    encoder.attention("cat.jpg", Box(40, 60, 200, 220), target=["a.jpg", "b.jpg"])    # the object in other images

F is the feature map of an image and q the feature vector of the query; a map is A[i, j] = <F[i, j], q>. For a vision
transformer without a query, the map is the softmax row of [CLS] in the last block.

    query.py        what to show: Point, Box, AttentionSettings
    geometry.py     input size, and where cells of a feature map are in the image
    maps.py         AttentionMap
    extractor.py    AttentionExtractor: image -> AttentionMap (needs torch)
    figure.py       several maps as one PNG file
"""

from nnclr_hub.encoder.attention.maps import OPACITY, AttentionMap, check_opacity, on_one_scale
from nnclr_hub.encoder.attention.query import (
    MAX_SIDE,
    MAX_TARGETS,
    SIMILARITIES,
    AttentionSettings,
    Box,
    Point,
    Query,
)

__all__ = [
    "MAX_SIDE",
    "MAX_TARGETS",
    "OPACITY",
    "SIMILARITIES",
    "AttentionMap",
    "AttentionSettings",
    "Box",
    "Point",
    "Query",
    "check_opacity",
    "on_one_scale",
]
