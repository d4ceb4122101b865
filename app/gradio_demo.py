"""The Gradio demo of the paper's idea, in four acts, as a client of the REST API.

    nnclr serve --store nnclr-store --gradio-port 8001

It runs in a separate process. Its main events are also endpoints for `gradio_client`: `/search`, `/attention` and
`/predict`.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from io import BytesIO
from pathlib import Path
from typing import Any

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # read when gradio is imported

import gradio as gr
import numpy as np
import uvicorn
from fastapi import FastAPI
from PIL import Image, ImageEnhance, ImageOps

from nnclr_hub.client import Client
from nnclr_hub.encoder.attention import Point
from nnclr_hub.errors import NNCLRHubError
from nnclr_hub.store.base import Match
from nnclr_hub.workbench import Example, SearchQuery

K, SHOWN = 23, 24  # neighbors, and images of the collection
SAME = 0.9  # least score of an image with its own thumbnail
PARTS = 6  # images in which a part is looked for
EPOCHS = 6  # checkpoints whose neighbors are shown
START_S, FIT_S = 600.0, 120.0  # for a server to load, and for a probe
GRACE_S = 5  # for open pages at the end
FIELD = "label"
PLAIN: dict[str, Any] = {"show_label": False, "height": "max-content", "object_fit": "contain", "allow_preview": False}
# as many columns as fit; those of a number of columns are cut off on a phone
CSS = ".flow .grid-container { grid-template-columns: repeat(auto-fill, minmax(135px, 1fr)) !important }"
INTRO = """# nnclr_hub
NNCLR learns image encoders from unlabeled images: what is near in its vectors looks alike. Click an image to see its
nearest neighbors in **{collection}** ({count:,} images). Encoder: {model}.
"""
STORY = """A contrastive method pulls two augmented views of **one** image together. NNCLR replaces one view by its
**nearest neighbor** in a support set of earlier images, so the encoder also learns what different images share.
Here, this collection is the support set.
"""
EVOLUTION = "The neighbors that the training of **{run}** used as positives: first they share colors, then kinds."

Shown = list[tuple[Image.Image, str]]


class Demo:
    """What the events do, on one collection of a server, whose folder of training runs may be given."""

    def __init__(self, client: Client, collection: str, runs: Path | None = None) -> None:
        self.client = client
        self.collection = client.collection(collection)
        self.info = self.collection.info()
        self.items = self.collection.scroll(limit=SHOWN, with_vector=False).items
        self.first = self.image(self.items[0].id)
        self.probe = self._fitted_probe()
        self.rng = np.random.default_rng(0)
        files = sorted(runs.rglob("neighbors.jsonl"), key=lambda path: path.stat().st_mtime) if runs else []
        self.neighbors = files[-1] if files else None  # of the newest run

    def image(self, id: str) -> Image.Image:
        return Image.open(BytesIO(self.collection.thumbnail(id))).convert("RGB")

    def search(self, file: str) -> tuple[Shown, list[str]]:
        """Return the nearest neighbors of an image file, and their ids."""
        return self._shown(self._search(Example(image=Path(file).read_bytes())))

    def select(self, ids: list[str], event: gr.SelectData) -> tuple[Shown, list[str]]:
        """Return the neighbors of the image that was clicked, and their ids."""
        return self.similar(ids[int(event.index)])

    def similar(self, id: str) -> tuple[Shown, list[str]]:
        """Return an item with its nearest neighbors, and their ids."""
        [item] = self.collection.get([id])
        return self._shown([Match(id, 1.0, item.metadata), *self._search(Example(id=id))])

    def attention(self, image: Image.Image, point: Point | None = None) -> tuple[Image.Image, list[Image.Image]]:
        """Return what the encoder attends to in an image; for a point in pixels also the same part of six others."""
        data, name = _png(image), self.collection.name
        own: Any = self.client.attention(data, point, collection=name)
        if point is None:
            return own.overlay(), []
        others = [_png(self.image(one.id)) for one in self._others(image, image)[:PARTS]]
        maps: Any = self.client.attention(data, point, others, collection=name)
        return own.overlay(), [one.overlay() for one in maps]

    def point(self, image: Image.Image, event: gr.SelectData) -> tuple[Image.Image, list[Image.Image]]:
        """Return what `attention` does for the point that was clicked."""
        return self.attention(image, Point(*event.index))

    def predict(self, image: Image.Image) -> dict[str, float]:
        """Return the probabilities of the most probable classes."""
        [found] = self.client.probes.predict(self.probe or "", [_png(image)])
        if isinstance(found, NNCLRHubError):
            raise found
        return {str(label): share for label, share in found.top}

    def positive(self, image: Image.Image) -> Shown:
        """Return a random view of an image, as in training, and the neighbor that NNCLR takes as its positive."""
        size, side = np.array(image.size), self.rng.uniform(0.4, 0.9, 2)
        corner = self.rng.random(2) * (1 - side)
        box = (*(size * corner), *(size * (corner + side)))
        view = image.convert("RGB").transform(image.size, Image.Transform.EXTENT, box, Image.Resampling.BILINEAR)
        if self.rng.random() < 0.5:
            view = ImageOps.mirror(view)
        for change in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
            view = change(view).enhance(self.rng.uniform(0.6, 1.4))
        nearest = self._others(view, image)[0]
        return [(view, "augmented view"), (self.image(nearest.id), "its positive: the neighbor")]

    def evolution(self, file: Path) -> Shown:
        """Return an image of a run with its neighbors in the support set, at its first to its last checkpoint."""
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        shown = []
        for place in np.unique(np.linspace(0, len(lines) - 1, EPOCHS).round().astype(int)):
            thumbnails, epoch = lines[place]["thumbnails"], f"epoch {lines[place]['epoch']:g}"
            for number in (lines[place]["queries"][0], *lines[place]["neighbors"][0]):
                jpeg = thumbnails.get(str(number))  # an initial random row of the support set has no image
                tile = Image.open(BytesIO(base64.b64decode(jpeg))) if jpeg else Image.new("RGB", (56, 56), "gray")
                shown.append((tile, epoch))
                epoch = ""
        return shown

    def _fitted_probe(self) -> str | None:
        """Return a probe of the collection's encoder, fitted now if there is none; None if that is impossible."""
        own = self.info.spec.fingerprint
        with suppress(NNCLRHubError):  # there are too few labels, or the server is read-only
            known = [one.name for one in self.client.probes.list() if one.fingerprint == own]
            if known:
                return known[0]
            job = self.client.probes.fit("demo", collection=self.collection.name, field=FIELD)
            self.client.jobs.wait(job.id, timeout=FIT_S)
            return "demo"
        return None

    def _search(self, example: Example) -> list[Match]:
        return self.collection.search(SearchQuery([example], k=K))

    def _others(self, query: Image.Image, image: Image.Image) -> list[Match]:
        """Return the neighbors of a query without the item that has the pixels of an image."""
        own = [one.id for one in self._search(Example(image=_png(image)))[:1] if one.score > SAME]
        return [one for one in self._search(Example(image=_png(query))) if one.id not in own]

    def _shown(self, matches: list[Match]) -> tuple[Shown, list[str]]:
        names = [one.metadata.get(FIELD, one.metadata.get("path", one.id)) for one in matches]
        captions = [f"{name} {one.score:.2f}" for name, one in zip(names, matches, strict=True)]
        ids = [one.id for one in matches]
        return list(zip(map(self.image, ids), captions, strict=True)), ids


def build(demo: Demo) -> gr.Blocks:
    """Return the demo's page; each act opens with an image and an answer."""
    first = demo.first
    shown, ids = demo.similar(demo.items[0].id)
    looks, same = demo.attention(first, Point(first.width / 2, first.height / 2))
    with gr.Blocks(title="nnclr_hub", analytics_enabled=False) as page:
        model = demo.info.spec.model
        gr.Markdown(INTRO.format(collection=demo.collection.name, count=demo.info.count, model=model))
        with gr.Tab("Nearest neighbors"):
            state = gr.State(ids)
            query = gr.UploadButton("Search by your image", file_types=["image"], size="sm")
            gallery = gr.Gallery(shown, elem_classes="flow", **PLAIN)
            query.upload(_said(demo.search), query, [gallery, state], api_name="search")
            gallery.select(_said(demo.select), state, [gallery, state], api_visibility="private")
        with gr.Tab("Attention"):
            with gr.Row():
                source = gr.Image(first, type="pil", label="Click a part of the image")
                attended = gr.Image(looks, label="Bright where the encoder looks", interactive=False)
            gr.Markdown("The same part in the six nearest images:")
            parts = gr.Gallery(same, elem_classes="flow", **PLAIN)
            source.change(_said(demo.attention), source, [attended, parts], api_name="attention")
            source.select(_said(demo.point), source, [attended, parts], api_visibility="private")
        with gr.Tab("How NNCLR learns"):
            gr.Markdown(STORY)
            with gr.Row():
                own = gr.Image(first, type="pil", label="An image", scale=1)
                pair = gr.Gallery(demo.positive(first), columns=2, scale=2, **PLAIN)
            gr.Button("Another view").click(_said(demo.positive), own, pair, api_visibility="private")
            own.change(_said(demo.positive), own, pair, api_visibility="private")
            if demo.neighbors:
                gr.Markdown(EVOLUTION.format(run=demo.neighbors.parent.name))
                tiles = demo.evolution(demo.neighbors)
                gr.Gallery(tiles, columns=len(tiles) // sum(bool(epoch) for _, epoch in tiles), **PLAIN)
        if demo.probe:
            with gr.Tab("Probe"), gr.Row():
                photo = gr.Image(first, type="pil", label="An image")
                label = "Its class, by a linear probe on the labels of the collection"
                classes = gr.Label(demo.predict(first), label=label, num_top_classes=5)
                photo.change(_said(demo.predict), photo, classes, api_name="predict")
    return page


def serve(url: str, port: int, host: str, runs: Path | None = None) -> None:
    """Serve the demo of the largest collection until a signal arrives; the API may still be starting."""
    client = Client(url, os.environ.get("NNCLR_API_KEY"))
    client.ready(wait=START_S)
    largest = max(client.store.list(), key=lambda info: info.count)
    page = build(Demo(client, largest.name, runs)).queue(default_concurrency_limit=2, max_size=64)
    theme = gr.themes.Default(primary_hue="orange", neutral_hue="slate")
    served = gr.mount_gradio_app(
        FastAPI(), page, path="/", server_name=host, server_port=port, ssr_mode=False, theme=theme, css=CSS
    )
    # uvicorn's other parser, which `page.launch` would choose, executes the body of a request with `Upgrade` as a
    # request; see serving/run.py. Gradio has no web sockets.
    uvicorn.run(
        served, host=host, port=port, log_level="warning", http="h11", ws="none", timeout_graceful_shutdown=GRACE_S
    )


def _said(event: Callable[..., Any]) -> Callable[..., Any]:
    """Return the event, which shows the library's errors, and does nothing without an image."""

    @wraps(event)
    def said(*inputs: Any) -> Any:
        try:
            return gr.skip() if inputs[0] is None else event(*inputs)
        except NNCLRHubError as error:
            raise gr.Error(str(error), print_exception=False) from error

    return said


def _png(image: Image.Image) -> bytes:
    buffer = BytesIO()
    image.convert("RGB").save(buffer, "PNG")
    return buffer.getvalue()
