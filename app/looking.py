"""Why a hit was found: where on it the encoder finds what the query shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nnclr_hub.encoder.attention import AttentionMap, AttentionSettings, on_one_scale
from nnclr_hub.encoder.attention import Box as BoxQuery
from nnclr_hub.encoder.attention import Query as Attended
from nnclr_hub.encoder.embedder import Embedder, ImageLike
from nnclr_hub.workbench import Workbench

from .actions import Action, attention_call, original_path
from .finding import Finder
from .queries import Query, Sample
from .widgets.drawing import data_uri
from .widgets.viewer import Shown, view

SIDE = 512  # pixels of the images that the encoder looks at
LENT = "The image was pasted, taken or an example: save one as {name} first, and run it in the folder where that lies."


def why(bench: Workbench, finder: Finder, query: Query, id: str) -> tuple[dict[str, Any], Action]:
    """The hit with what is like the query bright, as a Viewer's value; and the REST call that does the same.

    Raises:
        InvalidRequest: a link holds no image, or the encoder has no attention.
        ImageError, ItemNotFound, FingerprintMismatch.
    """
    place, sample = _looked_for(finder, query, id)
    asked = finder.picture(query.collection, sample)
    original = finder.original(query.collection, id)
    embedder = bench.embedder_of(bench.collection(query.collection))
    inside = None if sample.box is None else _inside(sample.box, asked.size)
    box = None if inside is None else BoxQuery(*inside)
    [seen] = maps_of(embedder, asked, box, [original.data], max_side=SIDE)
    picked = "the image that you chose" if query.more else "the whole of it"
    what = "your box" if box else "your image" if sample.id is None else picked
    what += f" (example {place} of {len(query.more)})" if len(query.more) > 1 else ""
    looked_at = "the file that was indexed" if original.of == "source" else f"the thumbnail: {original.reason}"
    note = (
        f"Bright is where the encoder finds on this image what it sees in {what}; dark is where it does not. "
        f"It looked at {looked_at}."
    )
    pictures = [Shown(data_uri(asked, SIDE), what), Shown(data_uri(seen.overlay(), SIDE), "what was found")]
    asks = {"collection": query.collection, "max_side": SIDE, **({"box": list(inside)} if inside else {})}
    theirs = [one for one in (sample.id, id) if one is not None]
    fetched = tuple((f"{one}.jpg", original_path(query.collection, one)) for one in dict.fromkeys(theirs))
    name = f"{sample.id}.jpg" if sample.id is not None else sample.name
    files = (("image", name), ("target", f"{id}.jpg"))
    call = attention_call(name, [f"{id}.jpg"], asks)
    where = LENT.format(name=name) if sample.lent else ""
    action = Action(
        "POST", "/api/v1/attention", form={"query": asks}, files=files, fetched=fetched, call=call, where=where
    )
    return view("Why was this found?", pictures, note), action


def maps_of(
    embedder: Embedder, image: ImageLike, query: Attended | None, targets: Sequence[ImageLike] = (), **options: Any
) -> list[AttentionMap]:
    """The map of the image, or one a target; see `Encoder.attention`."""
    return embedder.look(AttentionSettings(query, **options), image, targets)


def maps_beside(
    embedder: Embedder, image: ImageLike, query: Attended | None, others: Sequence[ImageLike], **options: Any
) -> list[AttentionMap]:
    """The map of the image and those of others beside it, equal values in equal colors.

    Without a query a vision transformer's own map is of shares of attention and the others of similarities, which have
    no common scale: the first then keeps its own.
    """
    maps = maps_of(embedder, image, query, **options)
    if others:
        maps += maps_of(embedder, image, query, others, **options)
    return on_one_scale(maps) if len({one.kind for one in maps}) == 1 else maps


def _looked_for(finder: Finder, query: Query, id: str) -> tuple[int, Sample]:
    """The first example that has an image, and its place from 1; where there is no search, the image itself."""
    samples = query.more or (Sample(id=id),)
    seen = ((i, one) for i, one in enumerate(samples, 1) if finder.has_image(query.collection, one))
    return next(seen, (1, samples[0]))


def _inside(box: tuple[float, float, float, float], size: tuple[int, int]) -> tuple[float, float, float, float]:
    """The part of a box that lies on the image, as searches take it."""
    x0, y0, x1, y1 = box
    return max(0.0, x0), max(0.0, y0), min(float(size[0]), x1), min(float(size[1]), y1)
