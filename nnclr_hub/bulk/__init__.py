"""Millions of images to vectors: a folder of shards that any number of processes and machines fill together.

    embed_shards(Path("vectors"), [Path("photos"), Path("more.tar")], encoder)      # again, to go on
    for shard in open_shards(Path("vectors")):
        shard.vectors, shard.paths                                                  # (n, D) float32, n names

`images.py` lists what there is to do, `plan.py` cuts it into shards and writes that down, `shards.py` keeps what is
done, `local.py` does it here, `ray.py` on a cluster, `joining.py` makes one array of it and `collecting.py` a
collection. A shard is written whole or not at all, and says which plan it belongs to: what is there is done.
"""

from __future__ import annotations

from nnclr_hub.bulk.local import Embedded, embed_shards
from nnclr_hub.bulk.ray import embed_shards_by_ray
from nnclr_hub.bulk.shards import Shard, Shards, open_shards

__all__ = ["Embedded", "Shard", "Shards", "embed_shards", "embed_shards_by_ray", "open_shards"]
