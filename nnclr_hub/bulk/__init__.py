"""Embed millions of images into a folder of shards, which any number of processes and machines fill together.

    embed_shards(Path("vectors"), [Path("photos"), Path("more.tar")], encoder)      # call again to resume
    for shard in open_shards(Path("vectors")):
        shard.vectors, shard.paths                                                  # (n, D) float32, n names

`images/listing.py` lists the images, `plan.py` divides them into shards, and `shards.py` reads and writes shards.
`local.py` runs on this machine and `ray.py` on a cluster. `joined_file.py` makes one file of the shards, and
`collection_import.py` a collection. A shard is written as a whole or not at all and records its plan, so existing
shards need no further work.
"""

from __future__ import annotations

from nnclr_hub.bulk.local import Embedded, embed_shards
from nnclr_hub.bulk.ray import embed_shards_by_ray
from nnclr_hub.bulk.shards import Shard, Shards, open_shards

__all__ = ["Embedded", "Shard", "Shards", "embed_shards", "embed_shards_by_ray", "open_shards"]
