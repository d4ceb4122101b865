"""The Gradio demo of the paper's idea: nearest neighbors, attention and probes, as a client of the REST API.

    python -m app.gradio_demo --url http://127.0.0.1:8000 --port 8001

It runs in a separate process. Each event is also an endpoint for `gradio_client`: `/search`, `/attention` and
`/predict`; `/similar` returns the neighbors of an item as JSON.
"""

from __future__ import annotations

import argparse
import logging
import os
import threading
import time
from collections.abc import Callable
from functools import wraps
from io import BytesIO
from typing import Any

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # read when gradio is imported

import gradio as gr
import uvicorn
from fastapi import FastAPI
from PIL import Image

from nnclr_hub.client import Client
from nnclr_hub.encoder.attention import Point
from nnclr_hub.errors import NNCLRHubError
from nnclr_hub.store.base import Match
from nnclr_hub.store.items import percent_text
from nnclr_hub.workbench import Example, SearchQuery

K = 24
SHOWN = 36  # images of the collection to begin with
START_S = 600.0  # for a server to load
INTRO = """# nnclr_hub

NNCLR learns image encoders from unlabeled images: what is near in its vectors looks alike. Click an image, or upload
one, to see its nearest neighbors in **{collection}** ({count:,} images). Encoder: {model}.
"""

Shown = list[tuple[Image.Image, str]]
log = logging.getLogger(__name__)


class Demo:
    """What the events do, on one collection of a server.

    Args:
        client: of the server.
        collection: its name.
    """

    def __init__(self, client: Client, collection: str) -> None:
        self.client = client
        self.collection = client.collection(collection)
        self.info = self.collection.info()

    def first(self) -> tuple[Shown, list[str]]:
        """Return images to begin with, and their ids."""
        items = self.collection.scroll(limit=SHOWN, with_vector=False).items
        return self._shown([Match(item.id, float("nan"), item.metadata) for item in items])

    def search(self, image: Image.Image | None) -> tuple[Shown, list[str]]:
        """Return the nearest neighbors of an image, and their ids."""
        if image is None:
            return self.first()
        return self._shown(self._search(Example(image=_png(image))))

    def similar(self, id: str) -> tuple[Shown, list[str]]:
        """Return an item with its nearest neighbors, and their ids."""
        [item] = self.collection.get([id])
        return self._shown([Match(id, 1.0, item.metadata), *self._search(Example(id=id))])

    def neighbors(self, id: str) -> list[dict[str, Any]]:
        """Return the nearest neighbors of an item as JSON, without metadata: Gradio takes a `path` for a file."""
        return [
            {"id": match.id, "score": match.score, "percentile": match.percentile}
            for match in self._search(Example(id=id))
        ]

    def attention(
        self, image: Image.Image | None, x: float | None = None, y: float | None = None
    ) -> Image.Image | None:
        """Return what the encoder attends to in an image: as a whole, or at a point in pixels."""
        if image is None:
            return None
        point = None if x is None or y is None else Point(x, y)
        data = _png(image)
        found = self.client.attention(data, point, collection=self.collection.name)
        assert not isinstance(found, list)
        return found.overlay()

    def probes(self) -> list[str]:
        """Return the names of the probes that fit the collection's encoder."""
        return [one.name for one in self.client.probes.list() if one.fingerprint == self.info.spec.fingerprint]

    def predict(self, image: Image.Image | None, probe: str | None) -> dict[str, float]:
        """Return the probabilities of the most probable classes of an image."""
        if image is None or not probe:
            return {}
        [found] = self.client.probes.predict(probe, [_png(image)])
        if isinstance(found, NNCLRHubError):
            raise found
        return {str(label): share for label, share in found.top}

    def _search(self, example: Example) -> list[Match]:
        return self.collection.search(SearchQuery([example], k=K, with_percentile=True))

    def _shown(self, matches: list[Match]) -> tuple[Shown, list[str]]:
        shown = []
        for match in matches:
            thumbnail = Image.open(BytesIO(self.collection.thumbnail(match.id)))
            score = "" if match.score != match.score else f"{match.score:.3f}  "
            if match.percentile is not None:
                score += f"({percent_text(match.percentile)})  "
            shown.append((thumbnail, score + str(match.metadata.get("label", match.metadata.get("path", match.id)))))
        return shown, [match.id for match in matches]


def build(demo: Demo) -> gr.Blocks:
    """Return the demo's page."""
    intro = INTRO.format(collection=demo.collection.name, count=demo.info.count, model=demo.info.spec.model)
    images, ids = demo.first()
    with gr.Blocks(title="nnclr_hub", analytics_enabled=False) as page:
        gr.Markdown(intro)
        with gr.Tab("Nearest neighbors"):
            shown = gr.State(ids)
            query = gr.Image(type="pil", label="Search by your image", height=240)
            gallery = gr.Gallery(images, label="Click an image to see its neighbors", columns=6, allow_preview=False)
            query.change(_said(demo.search), query, [gallery, shown], api_name="search")
            gallery.select(_said(_clicked(demo)), shown, [gallery, shown], api_visibility="private")
            gr.api(_said(demo.neighbors), api_name="similar")
        with gr.Tab("Attention"), gr.Row():
            source = gr.Image(type="pil", label="An image; click on a point of it")
            attended = gr.Image(label="Bright where the encoder looks", interactive=False)
            source.change(_said(demo.attention), source, attended, api_name="attention")
            source.select(_said(_pointed(demo)), source, attended, api_visibility="private")
        with gr.Tab("Probe"), gr.Row():
            photo = gr.Image(type="pil", label="An image")
            with gr.Column():
                probe = gr.Dropdown(demo.probes(), label="Probe", info="Fit one with `nnclr probe fit`, or in the app.")
                classes = gr.Label(label="Classes", num_top_classes=5)
            predict = _said(demo.predict)
            photo.change(predict, [photo, probe], classes, api_name="predict")
            probe.change(predict, [photo, probe], classes, api_visibility="private")
        page.load(lambda: gr.Dropdown(demo.probes()), None, probe, api_visibility="private")
    return page


def serve(url: str, collection: str | None, port: int, host: str) -> None:
    """Serve the demo until a signal arrives.

    Args:
        url: of the API; it may still be starting.
        collection: its name; None: the largest.
    """
    client = Client(url, os.environ.get("NNCLR_API_KEY"))
    client.ready(wait=START_S)
    if collection is None:
        collection = max(client.collections.list(), key=lambda info: info.count).name
    page = build(Demo(client, collection)).queue(default_concurrency_limit=2, max_size=64)
    served = gr.mount_gradio_app(FastAPI(), page, path="/", server_name=host, server_port=port, ssr_mode=False)
    # uvicorn's other parser, which `page.launch` would choose, executes the body of a request with `Upgrade` as a
    # request; see serving/http_protocol.py. Gradio has no web sockets.
    uvicorn.run(served, host=host, port=port, log_level="warning", http="h11", ws="none")


# ---- inside


def _end_with(parent: int) -> None:
    """End this process when its parent ends, also after a `kill -9`."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def _clicked(demo: Demo) -> Callable[..., Any]:
    def neighbors(ids: list[str], event: gr.SelectData) -> tuple[Shown, list[str]]:
        return demo.similar(ids[int(event.index)])

    return neighbors


def _pointed(demo: Demo) -> Callable[..., Any]:
    def attention(image: Image.Image, event: gr.SelectData) -> Image.Image | None:
        x, y = event.index
        return demo.attention(image, x, y)

    return attention


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


def main() -> None:
    """Read the options and serve."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--collection", help="default: the largest")
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--host", default=os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1"))
    parser.add_argument("--parent", type=int, help="process to end with")
    options = parser.parse_args()
    if options.parent is not None:
        _end_with(options.parent)
    serve(options.url, options.collection, options.port, options.host)


if __name__ == "__main__":
    main()
