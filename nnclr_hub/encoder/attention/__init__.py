"""What an encoder looks at: the paper's attention maps ("Attention in NNCLR ResNet" and the two sections after it).

    encoder.attention("cat.jpg").overlay().save("map.png")                            # the image as a whole
    encoder.attention("cat.jpg", Point(120, 80)).values                               # (h, w): where it looks the same
    encoder.attention("cat.jpg", Box(40, 60, 200, 220), target=["a.jpg", "b.jpg"])    # where else the object is

F is the feature map of an image, q the query's features; a map is A[i, j] = <F[i, j], q>. Of a vision transformer
without a query it is the softmax row of [CLS] in the last block. What is asked and what is answered is here, without
torch; `looker.py` looks.
"""

from nnclr_hub.encoder.attention.maps import OPACITY, AttentionMap, check_opacity, on_one_scale
from nnclr_hub.encoder.attention.queries import Box, Point, Query
from nnclr_hub.encoder.attention.settings import MOST_TARGETS, SIMILARITIES, AttentionSettings
from nnclr_hub.encoder.attention.sizes import MAX_SIDE

__all__ = [
    "MAX_SIDE",
    "MOST_TARGETS",
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
