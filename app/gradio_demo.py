"""The Gradio demo of the paper's idea, in four acts, as a client of the REST API.

    python -m app.gradio_demo --url http://127.0.0.1:8000 --port 8001 --runs runs

It runs in a separate process. Its main events are also endpoints for `gradio_client`: `/search`, `/attention` and
`/predict`.
"""

from __future__ import annotations

import argparse
import base64
import json
import logging
import os
import threading
import time
from collections import Counter
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
from nnclr_hub.errors import NNCLRHubError, ProbeExists
from nnclr_hub.store.base import Match
from nnclr_hub.store.items import percent_text
from nnclr_hub.workbench import Example, SearchQuery

K, SHOWN = 23, 24  # neighbors, and images of the collection
SAME = 0.9  # least score of an image with its own thumbnail
PARTS = 6  # images in which a part is looked for
START_S = 600.0  # for a server to load
GRACE_S = 5  # for open pages at the end
FIT_S, AGAIN_S = 30.0, 60.0  # to wait for a fit, and until a fit that failed is tried again
FIELD = "label"
PLAIN: dict[str, Any] = {"show_label": False, "height": "auto", "object_fit": "contain"}
INTRO = """# nnclr_hub
NNCLR learns image encoders from unlabeled images: what is near in its vectors looks alike. Click an image to see its
nearest neighbors in **{collection}** ({count:,} images). Encoder: {model}.
"""
STORY = """A contrastive method pulls two augmented views of **one** image together. NNCLR replaces one view by its
**nearest neighbor** in a support set of earlier images, so the encoder also learns what different images share.
Below, this collection is the support set. Click again for another random view.
"""
EVOLUTION = """The neighbors that the training of **{run}** used as positives, from its first to its last epoch: first
they share colors, then kinds."""

Shown = list[tuple[Image.Image, str]]
log = logging.getLogger(__name__)


class Demo:
    """What the events do, on one collection of a server, whose folder of training runs may be given."""

    def __init__(self, client: Client, collection: str, runs: Path | None = None) -> None:
        self.client = client
        self.collection = client.collection(collection)
        self.info = self.collection.info()
        self.items = self.collection.scroll(limit=SHOWN, with_vector=False).items
        self.rng = np.random.default_rng(0)
        self.run, self.moments = newest_neighbors(runs)
        self._probe: str | None = None
        self._again = 0.0  # when another fit may be asked for

    def first(self) -> Image.Image | None:
        return self.image(self.items[0].id) if self.items else None

    def image(self, id: str) -> Image.Image:
        return Image.open(BytesIO(self.collection.thumbnail(id))).convert("RGB")

    def search(self, file: str | None) -> tuple[Shown, list[str]]:
        """Return the nearest neighbors of an image file, and their ids."""
        return self._shown(self._search(Example(image=Path(file).read_bytes())) if file else [])

    def select(self, ids: list[str], event: gr.SelectData) -> tuple[Shown, list[str]]:
        """Return the neighbors of the image that was clicked, and their ids."""
        return self.similar(ids[int(event.index)])

    def similar(self, id: str) -> tuple[Shown, list[str]]:
        """Return an item with its nearest neighbors, and their ids."""
        [item] = self.collection.get([id])
        return self._shown([Match(id, 1.0, item.metadata), *self._search(Example(id=id))])

    def attention(
        self, image: Image.Image | None, x: float | None = None, y: float | None = None
    ) -> tuple[Image.Image | None, list[Image.Image]]:
        """Return what the encoder attends to in an image; for a point in pixels also the same part of six others."""
        if image is None:
            return None, []
        data, name = _png(image), self.collection.name
        point = None if x is None or y is None else Point(x, y)
        others = [self.image(one.id) for one in self._search(_of(image))[:PARTS]] if point else []
        own: Any = self.client.attention(data, point, collection=name)
        maps: Any = self.client.attention(data, point, [_png(one) for one in others], collection=name) if others else []
        return own.overlay(), [one.overlay() for one in maps]

    def point(self, image: Image.Image, event: gr.SelectData) -> tuple[Image.Image | None, list[Image.Image]]:
        """Return what `attention` does for the point that was clicked."""
        return self.attention(image, *event.index)

    @property
    def probe(self) -> str | None:
        """A probe of the collection's encoder, which the first call has fitted; None while there is none."""
        with suppress(NNCLRHubError):
            self._probe = self._probe or self._first_probe()
            if self._probe is None and time.monotonic() >= self._again:
                self._again = time.monotonic() + AGAIN_S
                with suppress(ProbeExists):  # of another process
                    fit = self.client.probes.fit("demo", collection=self.collection.name, field=FIELD)
                    self.client.jobs.wait(fit.id, timeout=FIT_S)  # the server continues afterwards
                self._probe = self._first_probe()
        return self._probe

    def _first_probe(self) -> str | None:
        own = self.info.spec.fingerprint
        return next((one.name for one in self.client.probes.list() if one.fingerprint == own), None)

    def predict(self, image: Image.Image | None) -> dict[str, float]:
        """Return the probabilities of the most probable classes; without a probe, the votes of the neighbors."""
        if image is None:
            return {}
        if self.probe is None:
            votes = Counter(str(one.metadata[FIELD]) for one in self._search(_of(image)) if FIELD in one.metadata)
            return {label: number / votes.total() for label, number in votes.most_common(5)}
        [found] = self.client.probes.predict(self.probe, [_png(image)])
        if isinstance(found, NNCLRHubError):
            raise found
        return {str(label): share for label, share in found.top}

    def positive(self, image: Image.Image | None) -> Shown:
        """Return a random view of an image, as in training, and the neighbor that NNCLR takes as its positive."""
        if image is None:
            return []
        size = np.array(image.size)
        side = np.maximum(1, size * self.rng.uniform(0.4, 0.9, 2)).astype(int)
        left, top = (self.rng.random(2) * (size - side)).astype(int)
        view = image.convert("RGB").crop((left, top, left + side[0], top + side[1])).resize(image.size)
        if self.rng.random() < 0.5:
            view = ImageOps.mirror(view)
        for change in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
            view = change(view).enhance(self.rng.uniform(0.6, 1.4))
        matches = self._search(_of(view))
        own = next((one.id for one in self._search(_of(image))[:1] if one.score > SAME), None)
        nearest = next(one for one in matches if one.id != own)
        return [(view, "augmented view"), (self.image(nearest.id), "its positive: the neighbor")]

    def moment(self, place: float) -> Shown:
        """Return the recorded queries of the run, each with its neighbors at a checkpoint."""
        line = self.moments[int(place)]
        rows = zip(line["queries"], line["neighbors"], line["similarity"], strict=True)
        tiles = [pair for query, found, near in rows for pair in [(query, "image"), *zip(found, near, strict=True)]]
        thumbnails = line["thumbnails"]
        blank = Image.new("RGB", (56, 56), "gray")  # an initial random row of the support set
        return [(_decoded(thumbnails[str(i)]) if str(i) in thumbnails else blank, str(text)) for i, text in tiles]

    def _search(self, example: Example) -> list[Match]:
        return self.collection.search(SearchQuery([example], k=K, with_percentile=True))

    def _shown(self, matches: list[Match]) -> tuple[Shown, list[str]]:
        captions = []
        for match in matches:
            share = f"({percent_text(match.percentile)})  " if match.percentile is not None else ""
            name = match.metadata.get(FIELD, match.metadata.get("path", match.id))
            captions.append(f"{match.score:.3f}  {share}{name}")
        ids = [match.id for match in matches]
        return list(zip(map(self.image, ids), captions, strict=True)), ids


def newest_neighbors(runs: Path | None) -> tuple[str, list[dict[str, Any]]]:
    """Return the name and the recorded neighbors of the newest run below a folder; "" and [] if there are none."""
    files = sorted(runs.rglob("neighbors.jsonl"), key=lambda path: path.stat().st_mtime) if runs else []
    return (files[-1].parent.name, list(map(json.loads, files[-1].read_text().splitlines()))) if files else ("", [])


def build(demo: Demo) -> gr.Blocks:
    """Return the demo's page; each act opens with an image and an answer."""
    intro = INTRO.format(collection=demo.collection.name, count=demo.info.count, model=demo.info.spec.model)
    shown, ids = demo.similar(demo.items[0].id) if demo.items else ([], [])
    first = demo.first()
    with gr.Blocks(title="nnclr_hub", analytics_enabled=False) as page:
        gr.Markdown(intro)
        with gr.Tab("Nearest neighbors"):
            state = gr.State(ids)
            query = gr.UploadButton("Search by your image", file_types=["image"], size="sm")
            gallery = gr.Gallery(shown, columns=8, allow_preview=False, **PLAIN)
            query.upload(_said(demo.search), query, [gallery, state], api_name="search")
            gallery.select(_said(demo.select), state, [gallery, state], api_visibility="private")
        with gr.Tab("Attention"):
            with gr.Row():
                source = gr.Image(first, type="pil", label="Click a part of the image")
                attended = gr.Image(label="Bright where the encoder looks", interactive=False)
            gr.Markdown("The same part in the six nearest images:")
            parts = gr.Gallery(columns=PARTS, **PLAIN)
            source.change(_said(demo.attention), source, [attended, parts], api_name="attention")
            source.select(_said(demo.point), source, [attended, parts], api_visibility="private")
        with gr.Tab("How NNCLR learns"):
            gr.Markdown(STORY)
            with gr.Row():
                own = gr.Image(first, type="pil", label="An image", scale=1)
                pair = gr.Gallery(columns=2, scale=2, **PLAIN)
            gr.Button("Another view").click(_said(demo.positive), own, pair, api_visibility="private")
            own.change(_said(demo.positive), own, pair, api_visibility="private")
            if last := len(demo.moments):
                gr.Markdown(EVOLUTION.format(run=demo.run))
                epochs = " · ".join(f"{i}: epoch {moment['epoch']:g}" for i, moment in enumerate(demo.moments))
                wide = 1 + len(demo.moments[-1]["neighbors"][0])
                recorded = gr.Gallery(demo.moment(last - 1), columns=wide, render=False, **PLAIN)
                if last > 1:  # a slider needs two places
                    slider = gr.Slider(0, last - 1, last - 1, step=1, label="Checkpoint", info=epochs)
                    slider.change(_said(demo.moment), slider, recorded, api_visibility="private")
                recorded.render()
        with gr.Tab("Probe"), gr.Row():
            photo = gr.Image(first, type="pil", label="An image")
            method = "the votes of its neighbors" if demo.probe is None else "a probe on the labels"
            classes = gr.Label(label=f"Its class, by {method}", num_top_classes=5)
            photo.change(_said(demo.predict), photo, classes, api_name="predict")
        middle = [side / 2 for side in first.size] if first else []
        for answer, shows in (  # each when it is ready
            (lambda: demo.attention(first, *middle), [attended, parts]),
            (lambda: demo.positive(first), pair),
            (lambda: demo.predict(first), classes),
        ):
            page.load(_said(answer), None, shows, api_visibility="private")
    return page


def serve(url: str, collection: str | None, port: int, host: str, runs: Path | None = None) -> None:
    """Serve the demo until a signal arrives; the API may still be starting. Without a collection, show the largest."""
    client = Client(url, os.environ.get("NNCLR_API_KEY"))
    client.ready(wait=START_S)
    if collection is None:
        collection = max(client.store.list(), key=lambda info: info.count).name
    page = build(Demo(client, collection, runs)).queue(default_concurrency_limit=2, max_size=64)
    theme = gr.themes.Default(primary_hue="orange", neutral_hue="slate")
    served = gr.mount_gradio_app(
        FastAPI(), page, path="/", server_name=host, server_port=port, ssr_mode=False, theme=theme
    )
    # uvicorn's other parser, which `page.launch` would choose, executes the body of a request with `Upgrade` as a
    # request; see serving/run.py. Gradio has no web sockets.
    uvicorn.run(
        served, host=host, port=port, log_level="warning", http="h11", ws="none", timeout_graceful_shutdown=GRACE_S
    )


def _end_with(parent: int) -> None:
    """End this process when its parent ends, also after a `kill -9`."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def _said(event: Callable[..., Any]) -> Callable[..., Any]:
    """Return the event, with the sentences of the library's errors; other errors are only logged."""

    @wraps(event)
    def said(*inputs: Any, **named: Any) -> Any:
        try:
            return event(*inputs, **named)
        except NNCLRHubError as error:
            raise gr.Error(str(error), print_exception=False) from error
        except Exception as error:
            log.exception("an event failed")
            raise gr.Error("The demo failed; its log has the reason.", print_exception=False) from error

    return said


def _png(image: Image.Image) -> bytes:
    buffer = BytesIO()
    image.convert("RGB").save(buffer, "PNG")
    return buffer.getvalue()


def _of(image: Image.Image) -> Example:
    return Example(image=_png(image))


def _decoded(jpeg: str) -> Image.Image:
    return Image.open(BytesIO(base64.b64decode(jpeg)))


def main() -> None:
    """Read the options and serve."""
    parser = argparse.ArgumentParser(description="The Gradio demo of the paper's idea, as a client of the REST API.")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--collection", help="default: the largest")
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--host", default=os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1"))
    parser.add_argument("--runs", type=Path, help="folder of pretraining runs")
    parser.add_argument("--parent", type=int, help="process to end with")
    options = parser.parse_args()
    if options.parent is not None:
        _end_with(options.parent)
    serve(options.url, options.collection, options.port, options.host, options.runs)


if __name__ == "__main__":
    main()
