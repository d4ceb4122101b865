"""Attention: what the encoder looks at in an image, and where it finds the same in others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gradio as gr

from nnclr_hub.encoder.attention import MOST_TARGETS, SIMILARITIES, Box, Point
from nnclr_hub.encoder.decoding import decode_image
from nnclr_hub.errors import InvalidRequest, NNCLRHubError

from ..actions import Action, attention_call
from ..gallery import examples
from ..looking import maps_beside
from ..page import Page
from ..widgets.drawing import Drawing, checked_box, checked_point, data_uri, image_value
from ..widgets.figures import Figures, figure
from ..widgets.raw_files import RawFiles
from ..widgets.raw_image import raw_image
from ..widgets.tiles import Tile, Tiles, shown
from ..widgets.uploaded import Uploaded

SIDE = 640  # pixels of the maps that are shown, and of the images that the encoder is given
ALL_HEADS = "all of them"
NO_HEADS = (
    "Heads, and a share of the attention to keep, are of vision transformers that have a class token; the encoder that "
    "is served here has none to choose from."
)
INTRO = (
    "Give an image: **bright is what the encoder looks at**. Click a point or drag a box to ask instead where it sees "
    "*the same as there*, in this image and in up to six others."
)
ONE_AT_A_TIME: dict[str, Any] = {"trigger_mode": "always_last", "show_progress": "minimal"}


@dataclass(frozen=True)
class Look:
    """What is looked at: an image, a point or a box on it, and the images beside it."""

    path: Path | None = None
    name: str = ""
    point: tuple[float, float] | None = None
    box: tuple[float, float, float, float] | None = None
    others: tuple[Uploaded, ...] = ()


@dataclass(frozen=True)
class Ways:
    """How it is looked at, as the controls say it."""

    similarity: str
    head: int | None
    threshold: float | None


class AttentionTab:
    """Builds the tab inside an open gr.Tab."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self.look = gr.State(Look())
        gr.Markdown(INTRO)
        with gr.Row():
            with gr.Column(scale=1, min_width=280):
                self._ask()
            with gr.Column(scale=2, min_width=300):
                self.status = gr.Markdown("", elem_id="attention-status")
                self.maps = Figures([], elem_id="maps")
        self._wire(page)

    def _ask(self) -> None:
        self.picker = raw_image("Picture", elem_id="attention-image")
        self.drawing = Drawing(
            elem_id="attention-picture", draws=("box", "point"), says="The image that is looked at", visible=False
        )
        self.another = gr.Button("Another image", elem_id="attention-another", size="sm", visible=False)
        tries = [Tile(name, data_uri(decode_image(path), 160), name) for name, path in examples().items()]
        if tries:
            gr.Markdown("Or try one of these:", elem_classes="small")
        self.tries = Tiles(shown(tries), elem_id="attention-tries", elem_classes="four")
        self.others = RawFiles(
            label=f"Other images to look in, {MOST_TARGETS} at most",
            file_count="multiple",
            elem_id="attention-others",
            height=150,
        )
        with gr.Accordion("How", open=False, elem_id="attention-how"):
            self.similarity = gr.Radio(
                list(SIMILARITIES), value="dot", label="Similarity", elem_id="similarity", interactive=True
            )
            heads = _heads(self._page)
            if heads is None:
                gr.Markdown(NO_HEADS, elem_id="no-heads", elem_classes="small")
            self.head = gr.Dropdown(
                [(ALL_HEADS, ""), *((str(head), str(head)) for head in range(heads or 0))],
                value="",
                label=f"Head, one of {heads}: of the map without a point or a box",
                elem_id="head",
                interactive=True,
                visible=heads is not None,
            )
            self.threshold = gr.Textbox(
                "",
                label="Keep the brightest share of the attention, above 0 up to 1",
                placeholder="all of it",
                max_lines=1,
                elem_id="threshold",
                visible=heads is not None,
            )

    def _wire(self, page: Page) -> None:
        ways = [self.similarity, self.head, self.threshold]
        out = [self.look, self.status, self.maps]
        asked = [self.picker, self.drawing, self.another]
        given = page.on(self.picker.input, self._give, [self.picker, self.look, *ways], [*out, *asked], **ONE_AT_A_TIME)
        page.clear_on_failure(given, self.picker)
        page.on(self.tries.open, self._try, [self.look, *ways], [*out, *asked], **ONE_AT_A_TIME)
        page.on(self.another.click, self._take_away, self.look, [*out, *asked])
        page.on(self.drawing.box, self._box, [self.look, *ways], out, **ONE_AT_A_TIME)
        page.on(self.drawing.point, self._point, [self.look, *ways], out, **ONE_AT_A_TIME)
        page.on(self.others.change, self._beside, [self.others, self.look, *ways], out, **ONE_AT_A_TIME)
        for event in (
            self.similarity.input,
            self.head.input,
            self.threshold.submit,
            self.threshold.blur,
        ):
            page.on(event, self._again, [self.look, *ways], out, **ONE_AT_A_TIME)

    # ---- what happens

    def _give(self, given: Uploaded | None, look: Look, similarity: str, head: str, threshold: str) -> tuple[Any, ...]:
        if given is None:  # taken away by us, when it was shown as a drawing
            return (gr.skip(),) * 6
        return self._picture(given, look, (similarity, head, threshold))

    def _try(self, look: Look, similarity: str, head: str, threshold: str, event: gr.EventData) -> tuple[Any, ...]:
        path = examples().get(str(event.id))
        if path is None:
            raise InvalidRequest("There is no such example: choose one of those that are shown.")
        return self._picture(Uploaded(path, path.name), look, (similarity, head, threshold))

    def _take_away(self, look: Look) -> tuple[Any, ...]:
        return replace(look, path=None, point=None, box=None), "", [], *_asked(None)

    def _box(self, look: Look, similarity: str, head: str, threshold: str, event: gr.EventData) -> tuple[Any, ...]:
        return self._seen(replace(look, point=None, box=checked_box(event.box)), (similarity, head, threshold))

    def _point(self, look: Look, similarity: str, head: str, threshold: str, event: gr.EventData) -> tuple[Any, ...]:
        point = None if event.point is None else checked_point(event.point)
        return self._seen(replace(look, point=point, box=None), (similarity, head, threshold))

    def _beside(
        self, others: Sequence[Uploaded], look: Look, similarity: str, head: str, threshold: str
    ) -> tuple[Any, ...]:
        if len(others) > MOST_TARGETS:
            raise InvalidRequest(f"{len(others)} images are too many to look in: give at most {MOST_TARGETS}.")
        return self._seen(replace(look, others=tuple(others)), (similarity, head, threshold))

    def _again(self, look: Look, similarity: str, head: str, threshold: str) -> tuple[Any, ...]:
        return self._seen(look, (similarity, head, threshold))

    # ---- inside

    def _picture(self, given: Uploaded, look: Look, ways: Sequence[str]) -> tuple[Any, ...]:
        value = image_value(given.path)
        look = replace(look, path=given.path, name=given.name, point=None, box=None)
        return *self._seen(look, ways), *_asked(value)

    def _seen(self, look: Look, given: Sequence[str]) -> tuple[Any, ...]:
        if look.path is None:
            return look, "", []
        if not look.path.is_file() or not all(one.path.is_file() for one in look.others):
            raise InvalidRequest("Your image was forgotten, as uploads are after an hour: give it again.")
        ways = read_ways(*given)
        query = Point(*look.point) if look.point else Box(*look.box) if look.box else None
        embedder = self._page.bench.models.get()
        options: dict[str, Any] = {**vars(ways), "max_side": SIDE}
        maps = maps_beside(embedder, look.path, query, [one.path for one in look.others], **options)
        self._page.did(attention_action(look, ways))
        names = ["this image", *(one.name for one in look.others)]
        figures = [
            figure(data_uri(one.picture, SIDE), data_uri(one.colored(), SIDE), name)
            for name, one in zip(names, maps, strict=True)
        ]
        return look, _told(look, ways), figures


def _heads(page: Page) -> int | None:
    """Those of the encoder that is served, to choose from."""
    try:
        return page.bench.models.get().heads
    except NNCLRHubError:  # it cannot be had: who gives an image is told why
        return None


def read_ways(similarity: str, head: str, threshold: str) -> Ways:
    """What was typed.

    Raises:
        InvalidRequest: it is no number.
    """
    try:
        number = int(head) if head.strip() else None
        share = float(threshold.replace(",", ".")) if threshold.strip() else None
    except ValueError as error:
        raise InvalidRequest(
            f"A head is a number from 0 on and a share one up to 1, such as 0.6: not {head!r:.20}, {threshold!r:.20}."
        ) from error
    return Ways(similarity, number, share)


def _told(look: Look, ways: Ways) -> str:
    if look.box or look.point:
        return f"Bright is what looks the same as {'the box' if look.box else 'the point'}, by {ways.similarity}."
    return "Bright is what counts most for the encoder's answer. Click a point or drag a box to ask about it."


def attention_action(look: Look, ways: Ways) -> Action:
    """The REST call that is asked the same."""
    query: dict[str, Any] = {name: value for name, value in vars(ways).items() if value is not None}
    query["max_side"] = SIDE
    query |= {"point": list(look.point)} if look.point else {"box": list(look.box)} if look.box else {}
    files = (("image", look.name), *(("target", one.name) for one in look.others))
    call = attention_call(look.name, [one.name for one in look.others], query)
    return Action("POST", "/api/v1/attention", form={"query": query}, files=files, call=call)


def _asked(value: dict[str, Any] | None) -> tuple[Any, ...]:
    return (
        gr.update(value=None, visible=value is None),
        gr.update(value=value, visible=value is not None),
        gr.update(visible=value is not None),
    )
