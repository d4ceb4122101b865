"""The Attention tab: what the encoder attends to in an image, and where other images are similar to a part of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gradio as gr

from nnclr_hub.client.call_examples import ApiCall
from nnclr_hub.encoder.attention import MAX_TARGETS, SIMILARITIES, AttentionSettings, Box, Point
from nnclr_hub.encoder.decoding import decode_image
from nnclr_hub.errors import InvalidRequest, NNCLRHubError

from ..api_calls import attention_call
from ..finder import UPLOAD_EXPIRED
from ..gallery import examples
from ..item_views import comparable_maps
from ..page import Page
from ..widgets.drawing import Drawing, checked_box, checked_point, data_uri, image_value
from ..widgets.inputs import RawFiles, Uploaded, raw_image
from ..widgets.outputs import Figures, figure
from ..widgets.tiles import Tile, Tiles, tiles_value

SIDE = 640  # pixels of the maps, and of the images that the encoder gets
ALL_HEADS = "all"
NO_HEADS = (
    "This server's encoder has no attention heads to choose from. Only vision transformers with a class "
    "token have them."
)
INTRO = (
    "Upload an image to see **what the encoder attends to**: the bright areas. Click a point or drag a box to see "
    "which areas are *similar to it*, in this image and in up to six others."
)
LAST_WINS: dict[str, Any] = {"trigger_mode": "always_last", "show_progress": "minimal"}


@dataclass(frozen=True)
class Selection:
    """An image, a point or a box on it, and the other images to compare."""

    path: Path | None = None
    name: str = ""
    point: tuple[float, float] | None = None
    box: tuple[float, float, float, float] | None = None
    targets: tuple[Uploaded, ...] = ()


@dataclass(frozen=True)
class Settings:
    """The settings of the map; see `Encoder.attention`."""

    similarity: str
    head: int | None
    threshold: float | None


class AttentionTab:
    """Build the tab inside an open gr.Tab."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self.selection = gr.State(Selection())
        gr.Markdown(INTRO)
        with gr.Row():
            with gr.Column(scale=1, min_width=280):
                self._build_controls()
            with gr.Column(scale=2, min_width=300):
                self.status = gr.Markdown("", elem_id="attention-status")
                self.maps = Figures([], elem_id="maps")
        self._wire(page)

    def _build_controls(self) -> None:
        self.picker = raw_image("Your image", elem_id="attention-picker")
        self.drawing = Drawing(
            elem_id="attention-image", draws=("box", "point"), alt="The image of the map", visible=False
        )
        self.another = gr.Button("Another image", elem_id="attention-another", size="sm", visible=False)
        tries = [Tile(name, data_uri(decode_image(path), 160), name) for name, path in examples().items()]
        if tries:
            gr.Markdown("Or try an example:", elem_classes="small")
        self.tries = Tiles(tiles_value(tries), elem_id="attention-tries", elem_classes="four")
        self.targets = RawFiles(
            label=f"Other images to compare (at most {MAX_TARGETS})",
            file_count="multiple",
            elem_id="attention-targets",
            height=150,
        )
        with gr.Accordion("Options", open=False, elem_id="attention-options"):
            self.similarity = gr.Radio(
                list(SIMILARITIES), value="dot", label="Similarity", elem_id="similarity", interactive=True
            )
            heads = _head_count(self._page)
            if heads is None:
                gr.Markdown(NO_HEADS, elem_id="no-heads", elem_classes="small")
            self.head = gr.Dropdown(
                [(ALL_HEADS, ""), *((str(head), str(head)) for head in range(heads or 0))],
                value="",
                label="Attention head (for a map without a point or a box)",
                elem_id="head",
                interactive=True,
                visible=heads is not None,
            )
            self.threshold = gr.Textbox(
                "",
                label="Share of the attention to keep, from 0 to 1",
                placeholder="all",
                max_lines=1,
                elem_id="threshold",
                visible=heads is not None,
            )

    def _wire(self, page: Page) -> None:
        settings = [self.similarity, self.head, self.threshold]
        out = [self.selection, self.status, self.maps]
        image = [self.picker, self.drawing, self.another]
        inputs = [self.selection, *settings]
        uploaded = page.on(self.picker.input, self._upload, [self.picker, *inputs], [*out, *image], **LAST_WINS)
        page.clear_on_failure(uploaded, self.picker)
        page.on(self.tries.open, self._try_example, inputs, [*out, *image], **LAST_WINS)
        page.on(self.another.click, self._clear, self.selection, [*out, *image])
        page.on(self.drawing.box, self._select_box, inputs, out, **LAST_WINS)
        page.on(self.drawing.point, self._select_point, inputs, out, **LAST_WINS)
        page.on(self.targets.change, self._set_targets, [self.targets, *inputs], out, **LAST_WINS)
        for event in (self.similarity.input, self.head.input, self.threshold.submit, self.threshold.blur):
            page.on(event, self._change_settings, inputs, out, **LAST_WINS)

    # ---- handlers

    def _upload(
        self, file: Uploaded | None, selection: Selection, similarity: str, head: str, threshold: str
    ) -> tuple[Any, ...]:
        if file is None:  # this page emptied the picker, to show the image as a drawing
            return (gr.skip(),) * 6
        return self._show_image(file, selection, (similarity, head, threshold))

    def _try_example(
        self, selection: Selection, similarity: str, head: str, threshold: str, event: gr.EventData
    ) -> tuple[Any, ...]:
        path = examples().get(str(event.id))
        if path is None:
            raise InvalidRequest(f"There is no example {str(event.id)!r:.40}. Choose one that is shown.")
        return self._show_image(Uploaded(path, path.name), selection, (similarity, head, threshold))

    def _clear(self, selection: Selection) -> tuple[Any, ...]:
        return replace(selection, path=None, point=None, box=None), "", [], *_image_updates(None)

    def _select_box(
        self, selection: Selection, similarity: str, head: str, threshold: str, event: gr.EventData
    ) -> tuple[Any, ...]:
        selection = replace(selection, point=None, box=checked_box(event.box))
        return self._show_maps(selection, (similarity, head, threshold))

    def _select_point(
        self, selection: Selection, similarity: str, head: str, threshold: str, event: gr.EventData
    ) -> tuple[Any, ...]:
        point = None if event.point is None else checked_point(event.point)
        return self._show_maps(replace(selection, point=point, box=None), (similarity, head, threshold))

    def _set_targets(
        self, targets: Sequence[Uploaded], selection: Selection, similarity: str, head: str, threshold: str
    ) -> tuple[Any, ...]:
        if len(targets) > MAX_TARGETS:
            raise InvalidRequest(f"At most {MAX_TARGETS} other images can be compared, got {len(targets)}.")
        return self._show_maps(replace(selection, targets=tuple(targets)), (similarity, head, threshold))

    def _change_settings(self, selection: Selection, similarity: str, head: str, threshold: str) -> tuple[Any, ...]:
        return self._show_maps(selection, (similarity, head, threshold))

    # ---- the maps

    def _show_image(self, file: Uploaded, selection: Selection, settings: Sequence[str]) -> tuple[Any, ...]:
        value = image_value(file.path)
        selection = replace(selection, path=file.path, name=file.name, point=None, box=None)
        return *self._show_maps(selection, settings), *_image_updates(value)

    def _show_maps(self, selection: Selection, typed: Sequence[str]) -> tuple[Any, ...]:
        if selection.path is None:
            return selection, "", []
        if not selection.path.is_file() or not all(one.path.is_file() for one in selection.targets):
            raise InvalidRequest(UPLOAD_EXPIRED)
        settings = parse_settings(*typed)
        query = Point(*selection.point) if selection.point else Box(*selection.box) if selection.box else None
        targets = [one.path for one in selection.targets]
        embedder = self._page.bench.models.get()
        wanted = AttentionSettings(query, settings.similarity, settings.head, settings.threshold, SIDE)
        maps = comparable_maps(embedder, wanted, selection.path, targets)
        self._page.note(map_call(selection, settings))
        names = ["this image", *(one.name for one in selection.targets)]
        figures = [
            figure(data_uri(one.image, SIDE), data_uri(one.colored(), SIDE), name)
            for name, one in zip(names, maps, strict=True)
        ]
        return selection, _status(selection, settings), figures


def _head_count(page: Page) -> int | None:
    """Return the number of attention heads of the served encoder; None if it has none to choose from."""
    try:
        return page.bench.models.get().heads
    except NNCLRHubError:  # the encoder cannot be loaded; an upload reports the reason
        return None


def parse_settings(similarity: str, head: str, threshold: str) -> Settings:
    """Return the settings that were typed.

    Raises:
        InvalidRequest: the head or the threshold is not a number.
    """
    try:
        number = int(head) if head.strip() else None
        share = float(threshold.replace(",", ".")) if threshold.strip() else None
    except ValueError as error:
        raise InvalidRequest(
            f"The head must be an integer and the share a number from 0 to 1, got {head!r:.20} and {threshold!r:.20}."
        ) from error
    return Settings(similarity, number, share)


def map_call(selection: Selection, settings: Settings) -> ApiCall:
    """Return the REST call that computes the same maps."""
    query: dict[str, Any] = {name: value for name, value in vars(settings).items() if value is not None}
    query["max_side"] = SIDE
    query |= {"point": list(selection.point)} if selection.point else {}
    query |= {"box": list(selection.box)} if selection.box else {}
    return attention_call(selection.name, [one.name for one in selection.targets], query)


def _status(selection: Selection, settings: Settings) -> str:
    if selection.box or selection.point:
        shape = "box" if selection.box else "point"
        return f"Bright areas are similar to the {shape} (similarity: {settings.similarity})."
    return "Bright areas contribute most to the embedding. Click a point or drag a box to compare with it."


def _image_updates(value: dict[str, Any] | None) -> tuple[Any, ...]:
    return (
        gr.update(value=None, visible=value is None),
        gr.update(value=value, visible=value is not None),
        gr.update(visible=value is not None),
    )
