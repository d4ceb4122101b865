"""The Gradio demo of the paper's idea, in four acts, as a client of the REST API.

    nnclr serve --store nnclr-store --gradio-port 8001

It runs in a separate process. Each act opens when a page is loaded, so the store may be empty before, and an act that
cannot be shown says why in its tab. The main events are also endpoints for `gradio_client`: `/search`, `/attention` and
`/predict`.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
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
from nnclr_hub.client.remote import RemoteCollection
from nnclr_hub.encoder.attention import Point
from nnclr_hub.encoder.embedder import ImageLike
from nnclr_hub.errors import InvalidRequest, NNCLRHubError, NoImages
from nnclr_hub.store.base import Match
from nnclr_hub.workbench import Example, SearchQuery

log = logging.getLogger(__name__)
K = 24  # neighbors, and images among which the first is chosen
SAME = 0.9  # least score of an image with its own thumbnail
PARTS = 6  # images in which a part is looked for
EPOCHS = 6  # checkpoints whose neighbors are shown
START_S, FIT_S = 600.0, 120.0  # for a server to load, and for a probe
GRACE_S = 5  # for open pages at the end
FIELD, PROBE = "label", "demo"
Gallery = partial(
    gr.Gallery,
    type="pil",
    show_label=False,
    height="max-content",
    object_fit="contain",
    allow_preview=False,
    interactive=False,
)
# as many columns as fit; those of a number of columns are cut off on a phone
CSS = ".flow .grid-container { grid-template-columns: repeat(auto-fill, minmax(135px, 1fr)) !important }"
EMPTY = "The store has no images yet. Add some with the web app or `nnclr index FOLDER`, then reload this page."
BARE = "The first items of {name} have no images, only vectors. Fill a collection with `nnclr index FOLDER`."
SINGLE = "The collection has one image, and a positive is another one. Add images, then reload this page."
INTRO = """NNCLR learns image encoders from unlabeled images: what is near in its vectors looks alike. Click an image to
see its nearest neighbors in **{info.name}** ({info.count:,} images). Encoder: {info.spec.model}."""
LOOK = "What the encoder looks at. Click a part of the image to see the same part in the nearest images."
STORY = """A contrastive method pulls two augmented views of **one** image together. NNCLR replaces one view by its
**nearest neighbor** in a support set of earlier images, so the encoder also learns what different images share.
Here, this collection is the support set."""
EVOLUTION = "The neighbors that the training of **{run}** used as positives: first they share colors, then kinds."
CLASSES = "The class of an image, by a linear probe that was fitted on the labels of the collection."

Shown = list[tuple[Image.Image, str]]
Event = Callable[..., Any]


class Demo:
    """What the events do, with the largest collection of a server and the newest run of a folder, if one is given."""

    def __init__(self, client: Client, runs: Path | None = None) -> None:
        self.client, self.runs = client, runs
        self.rng = np.random.default_rng(0)
        self.fitting = threading.Lock()

    def collection(self) -> RemoteCollection:
        """Return the largest collection. Each event asks the server, whose first images may come later."""
        largest = max(self.client.store.list(), key=lambda info: info.count, default=None)
        if largest is None or largest.count == 0:
            raise NoImages(EMPTY)
        return self.client.collection(largest.name)

    def first(self) -> Image.Image:
        """Return the first image of the collection; wait for a server that is starting."""
        self.client.ready(wait=START_S)
        collection = self.collection()
        items = collection.scroll(limit=K, with_vector=False).items
        for jpeg in filter(None, collection.thumbnails([item.id for item in items])):
            return _tile(jpeg)
        raise NoImages(BARE.format(name=collection.name))

    def introduction(self) -> tuple[str, Shown]:
        first = self.first()
        return INTRO.format(info=self.collection().info()), self.search(first)

    def search(self, image: ImageLike) -> Shown:
        """Return the nearest neighbors of an image or a file."""
        return self._shown(self._search(image))

    def select(self, shown: Shown, event: gr.SelectData) -> Shown:
        """Return the neighbors of the image that was clicked."""
        return self.search(shown[int(event.index)][0])

    def attention(self, image: Image.Image, point: Point | None = None) -> tuple[Image.Image, list[Image.Image]]:
        """Return what the encoder looks at: in an image or for a point in pixels, and the same part of six others."""
        collection = self.collection()
        own: Any = self.client.attention(image, point, collection=collection.name)
        others = collection.thumbnails([one.id for one in self._others(image, image)[:PARTS]])
        part, targets = point or Point(image.width / 2, image.height / 2), [jpeg for jpeg in others if jpeg]
        maps: Any = self.client.attention(image, part, targets, collection=collection.name) if targets else []
        return own.overlay(), [one.overlay() for one in maps]

    def point(self, image: Image.Image, event: gr.SelectData) -> tuple[Image.Image, list[Image.Image]]:
        """Return what `attention` does for the point that was clicked."""
        return self.attention(image, Point(*event.index))

    def predict(self, image: Image.Image) -> dict[str, float]:
        """Return the probabilities of the most probable classes."""
        [found] = self.client.probes.predict(self._fitted_probe(), [image])
        if isinstance(found, NNCLRHubError):
            raise found
        return {str(label): share for label, share in found.top}

    def positive(self, image: Image.Image) -> Shown:
        """Return a random view of an image, as in training, and the neighbor that NNCLR takes as its positive."""
        size, side = np.array(image.size), self.rng.uniform(0.4, 0.9, 2)
        corner = self.rng.random(2) * (1 - side)
        box = (*(size * corner), *(size * (corner + side)))
        view = image.transform(image.size, Image.Transform.EXTENT, box, Image.Resampling.BILINEAR)
        if self.rng.random() < 0.5:
            view = ImageOps.mirror(view)
        for change in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
            view = change(view).enhance(self.rng.uniform(0.6, 1.4))
        for neighbor, _ in self._shown(self._others(view, image)[:1]):
            return [(view, "augmented view"), (neighbor, "its positive")]
        raise InvalidRequest(SINGLE)

    def evolution(self) -> tuple[str, gr.Gallery]:
        """Return an image of a run with its neighbors in the support set, at its first to its last checkpoint."""
        files = sorted((self.runs or Path()).rglob("neighbors.jsonl"), key=lambda path: path.stat().st_mtime)
        lines = files[-1].read_text().split("\n")[:-1] if files else []  # a run may be writing another one
        if not lines:
            raise InvalidRequest("No training run has recorded its neighbors yet.")
        places = np.unique(np.linspace(0, len(lines) - 1, EPOCHS).round().astype(int))
        tiles, columns = [], 0
        for line in (json.loads(lines[place]) for place in places):
            numbers = [line["queries"][0], *line["neighbors"][0]]
            jpegs = [line["thumbnails"].get(str(number)) for number in numbers]  # none of an initial random row
            captions, columns = [f"epoch {line['epoch']:g}"] + [""] * len(jpegs), len(jpegs)
            tiles += [(_tile(base64.b64decode(jpeg or "")), text) for jpeg, text in zip(jpegs, captions, strict=False)]
        return EVOLUTION.format(run=files[-1].parent.name), gr.Gallery(tiles, columns=columns)

    def _fitted_probe(self) -> str:
        """Return a probe of the collection's encoder; fit it if there is none."""
        collection = self.collection()
        with self.fitting:
            for one in self.client.probes.list():
                if one.fingerprint == collection.spec.fingerprint:
                    return one.name
            job = self.client.probes.fit(PROBE, collection=collection.name, field=FIELD, replace=True)
            self.client.jobs.wait(job.id, timeout=FIT_S)
            return PROBE

    def _search(self, image: ImageLike) -> list[Match]:
        return self.collection().search(SearchQuery([Example(image=image)], k=K))

    def _others(self, query: Image.Image, image: Image.Image) -> list[Match]:
        """Return the neighbors of a query without the item that has the pixels of an image."""
        own = [one.id for one in self._search(image)[:1] if one.score > SAME]
        return [one for one in self._search(query) if one.id not in own]

    def _shown(self, matches: list[Match]) -> Shown:
        names = [one.metadata.get(FIELD, one.metadata.get("path", one.id)) for one in matches]
        captions = [f"{name} {one.score:.2f}" for name, one in zip(names, matches, strict=True)]
        jpegs = self.collection().thumbnails([one.id for one in matches])
        return list(zip(map(_tile, jpegs), captions, strict=True))


def build(demo: Demo) -> gr.Blocks:
    """Return the demo's page; each act opens with an image and an answer."""
    with gr.Blocks(title="nnclr_hub", analytics_enabled=False) as page:
        gr.Markdown("# nnclr_hub")
        with gr.Tab("Neighbors"), _act(page, demo.introduction) as shown:
            query = gr.UploadButton("Search by your image", file_types=["image"], size="sm")
            shown += [Gallery(elem_classes="flow")]
            query.upload(_said(demo.search), query, shown, api_name="search")
            shown[0].select(_said(demo.select), shown, shown, api_visibility="private")
        with gr.Tab("Attention"), _act(page, lambda: (LOOK, (own := demo.first()), *demo.attention(own))) as shown:
            with gr.Row():
                source = gr.Image(type="pil", label="An image")
                attended = gr.Image(label="Bright where the encoder looks", interactive=False)
            shown += [source, attended, Gallery(elem_classes="flow")]
            source.input(_said(demo.attention), source, shown[1:], api_name="attention")
            source.select(_said(demo.point), source, shown[1:], api_visibility="private")
        with gr.Tab("How NNCLR learns"):
            with _act(page, lambda: (STORY, (own := demo.first()), demo.positive(own))) as shown:
                with gr.Row():
                    source = gr.Image(type="pil", label="An image", scale=1)
                    shown += [source, Gallery(columns=2, scale=2)]
                again = gr.Button("Another view").click
                gr.on([again, source.input], _said(demo.positive), source, shown[1], api_visibility="private")
            if demo.runs:
                with _act(page, demo.evolution) as shown:
                    shown += [Gallery()]
        with (
            gr.Tab("Probe"),
            _act(page, lambda: (CLASSES, (own := demo.first()), demo.predict(own))) as shown,
            gr.Row(),
        ):
            shown += [gr.Image(type="pil", label="An image"), gr.Label(label="Its class", num_top_classes=5)]
            shown[0].input(_said(demo.predict), *shown, api_name="predict")
    return page


def serve(url: str, port: int, host: str, runs: Path | None = None) -> None:
    """Serve the demo of the largest collection until a signal arrives; the API may still be starting."""
    demo = Demo(Client(url, os.environ.get("NNCLR_API_KEY")), runs)
    page = build(demo).queue(default_concurrency_limit=2, max_size=64)
    theme = gr.themes.Default(primary_hue="orange", neutral_hue="slate", font=["system-ui", "sans-serif"])
    served = gr.mount_gradio_app(
        FastAPI(), page, path="/", server_name=host, server_port=port, ssr_mode=False, theme=theme, css=CSS
    )
    # uvicorn's other parser, which `page.launch` would choose, executes the body of a request with `Upgrade` as a
    # request; see serving/run.py. Gradio has no web sockets.
    uvicorn.run(
        served, host=host, port=port, log_level="warning", http="h11", ws="none", timeout_graceful_shutdown=GRACE_S
    )


@contextmanager
def _act(page: gr.Blocks, opening: Event) -> Iterator[list[Any]]:
    """Provide the list of the components that an act fills when a page is loaded; if that fails, its text says why."""
    text, filled = gr.Markdown("Loading ..."), []
    with gr.Column(visible=False) as body:
        yield filled

    def opened() -> dict[Any, Any]:
        try:
            said, *values = opening()
        except Exception as error:  # whatever it is, the other acts stay
            if not isinstance(error, NNCLRHubError):
                log.exception("An act of the demo cannot be shown.")
            return {text: f"This cannot be shown. {error}", body: gr.Column(visible=False)}
        return {text: said, body: gr.Column(visible=True), **dict(zip(filled, values, strict=True))}

    page.load(opened, None, [text, body, *filled], api_visibility="private")


def _said(event: Event) -> Event:
    """Return the event, which shows the library's errors, and does nothing without an image."""

    @wraps(event)
    def said(*inputs: Any) -> Any:
        try:
            return gr.skip() if inputs[0] is None else event(*inputs)
        except NNCLRHubError as error:
            raise gr.Error(str(error), print_exception=False) from error

    return said


def _tile(jpeg: bytes | None) -> Image.Image:
    """Return an image of bytes; a gray one for an item without an image."""
    return Image.open(BytesIO(jpeg)).convert("RGB") if jpeg else Image.new("RGB", (56, 56), "gray")
