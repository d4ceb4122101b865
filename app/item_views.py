"""Images in the viewer: the original of an item, and an explanation of why an item matches a query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nnclr_hub.client.call_examples import ApiCall
from nnclr_hub.encoder.attention import AttentionMap, AttentionSettings, on_one_scale
from nnclr_hub.encoder.attention import Box as BoxQuery
from nnclr_hub.encoder.embedder import Embedder, ImageLike
from nnclr_hub.workbench import Workbench
from nnclr_hub.workbench.sources import Original

from .api_calls import attention_call, item_path
from .finder import Finder
from .query import Query, Sample
from .widgets.drawing import data_uri
from .widgets.outputs import Shown, viewer_value

INTERNAL = {"pixel_sha256", "mtime", "size", "root"}  # metadata that indexing writes
SIDE = 512  # pixels of the images that the encoder gets
UNSAVED = "You have no file of this image. Save an image as {name}, and run the command in its folder."


def original_view(finder: Finder, collection: str, id: str) -> dict[str, Any]:
    """Return a viewer value with the indexed file of an item, or with its thumbnail and the reason.

    Raises:
        ItemNotFound, CollectionNotFound.
    """
    original = finder.original(collection, id)
    path = item_path(collection, id, "/original")
    metadata = finder.metadata(collection, id)
    facts = {"id": id, **{name: value for name, value in metadata.items() if name not in INTERNAL}}
    title = "Original" if original.of == "source" else "Thumbnail"
    return viewer_value(title, [Shown(path, _describe(original), path)], facts=facts)


def explain_match(bench: Workbench, finder: Finder, query: Query, id: str) -> tuple[dict[str, Any], ApiCall]:
    """Return a viewer value that shows where an item is similar to the query, and the same REST call.

    Raises:
        InvalidRequest: the query's image is not available, or the encoder has no attention.
        ImageError, ItemNotFound, FingerprintMismatch.
    """
    place, sample = _first_with_image(finder, query, id)
    image = finder.image(query.collection, sample)
    original = finder.original(query.collection, id)
    embedder = bench.embedder_of(bench.collection(query.collection))
    box = None if sample.box is None else BoxQuery(*sample.box)
    [attention] = embedder.attention_maps(AttentionSettings(box, max_side=SIDE), image, [original.data])
    whole = "the example image" if query.positive else "the whole image"
    name = "your box" if box else "your image" if sample.id is None else whole
    name += f" (example {place} of {len(query.positive)})" if len(query.positive) > 1 else ""
    note = (
        f"To the encoder, the bright areas of this result are similar to {name}. "
        f"The map is computed on {_describe(original)}."
    )
    images = [Shown(data_uri(image, SIDE), name), Shown(data_uri(attention.overlay(), SIDE), "this result")]
    settings = {"collection": query.collection, "max_side": SIDE, **({"box": list(sample.box)} if sample.box else {})}
    items = [one for one in (sample.id, id) if one is not None]
    downloads = tuple((f"{one}.jpg", item_path(query.collection, one, "/original")) for one in dict.fromkeys(items))
    file = f"{sample.id}.jpg" if sample.id is not None else sample.name
    note_on_file = UNSAVED.format(name=file) if sample.unsaved else ""
    call = attention_call(file, [f"{id}.jpg"], settings, downloads, note_on_file)
    return viewer_value("Why does this image match?", images, note), call


def comparable_maps(
    embedder: Embedder, settings: AttentionSettings, image: ImageLike, targets: Sequence[ImageLike]
) -> list[AttentionMap]:
    """Return the map of the image and of each target, with equal colors for equal values.

    Without a query, the map of a vision transformer contains attention shares, and those of the targets contain
    similarities. These have no common scale, so each map keeps its own.
    """
    maps = embedder.attention_maps(settings, image)
    if targets:
        maps += embedder.attention_maps(settings, image, targets)
    return on_one_scale(maps) if len({one.kind for one in maps}) == 1 else maps


def _describe(original: Original) -> str:
    return "the indexed file" if original.of == "source" else f"the thumbnail: {original.reason}"


def _first_with_image(finder: Finder, query: Query, id: str) -> tuple[int, Sample]:
    """Return the first example with an image, and its position from 1; without examples, the item itself."""
    samples = query.positive or (Sample(id=id),)
    found = ((i, one) for i, one in enumerate(samples, 1) if finder.has_image(query.collection, one))
    return next(found, (1, samples[0]))
