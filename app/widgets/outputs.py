"""Small widgets that show a value; each script of the same name describes what it draws.

    code = Code(elem_id="code")
    return [code_block("Shell", "curl ...")]                # the value that a handler returns

JobList and Runs poll REST from the browser, so they need no events for their updates.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from nnclr_hub.probe.labeling import Labeling

from .widget import Widget

RUNS_POLL_MS = 4000


class Address(Widget):
    """The fragment of the page's URL, which makes a search a link and a history entry.

    A new value adds a history entry. Event: `back`, with event.fragment, when the user goes back or forward. Browsers
    do not send the fragment to the server; only our script does.
    """

    script: ClassVar[str] = "address.js"


class Code(Widget):
    """Blocks of code, each with a copy button."""

    script: ClassVar[str] = "code.js"


def code_block(title: str, text: str) -> dict[str, Any]:
    """Return one block of a Code value."""
    return {"title": title, "text": text}


class Download(Widget):
    """An invisible widget that makes the browser save a file."""

    script: ClassVar[str] = "download.js"


def file_value(name: str, text: str, kind: str = "text/csv") -> dict[str, Any]:
    """Return a Download value; the random id makes an equal file a new value."""
    return {"name": name, "text": text, "kind": kind, "id": secrets.token_hex(4)}


class Figures(Widget):
    """Images side by side, each with an overlay that a slider fades without a request."""

    script: ClassVar[str] = "figures.js"


def figure(src: str, overlay: str, caption: str) -> dict[str, Any]:
    """Return one figure of a Figures value."""
    return {"src": src, "overlay": overlay, "caption": caption}


class JobList(Widget):
    """Background jobs and their progress, which the browser polls; the value is the list of job ids, oldest first.

    While the server does not answer, it shows a message and keeps polling. The browser stores which jobs the user has
    hidden. Events: `cancel` with event.id, `ended` with event.ids, `search` with event.collection.
    """

    script: ClassVar[str] = "job_list.js"

    def __init__(self, value: Any = (), **options: Any) -> None:
        super().__init__(list(value or ()), **options)


class Prediction(Widget):
    """The most probable labels of an image, as bars."""

    script: ClassVar[str] = "prediction.js"


def prediction_value(labeling: Labeling) -> dict[str, Any]:
    """Return a Prediction value: probabilities in [0, 1], the most probable label first."""
    labels = (
        labeling.label if isinstance(labeling.label, tuple) else () if labeling.label is None else (labeling.label,)
    )
    answer = ", ".join(map(str, labels)) or "No label is probable enough."
    return {"answer": answer, "top": [{"label": str(label), "probability": float(p)} for label, p in labeling.top]}


class Runs(Widget):
    """Pretraining runs and their reports, which the browser polls while the widget is visible.

    A report is a file that someone else wrote. It is shown in a sandboxed frame, without scripts, forms or external
    content; the REST route sends the same restrictions.

    Args:
        configured: whether the server has a folder of runs.
    """

    script: ClassVar[str] = "runs.js"

    def __init__(self, value: Any = None, *, configured: bool = False, **options: Any) -> None:
        settings = {"configured": configured, "poll_ms": RUNS_POLL_MS}
        super().__init__(value, **{**options, "settings": settings})


@dataclass(frozen=True)
class Shown:
    """An image in the viewer, its caption, and the link that a click opens."""

    src: str
    caption: str
    href: str = ""


class Viewer(Widget):
    """A dialog with images; Escape and its button close it."""

    script: ClassVar[str] = "viewer.js"


def viewer_value(
    title: str, images: Sequence[Shown], note: str = "", facts: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return a value that opens the viewer; the random id makes an equal value open it again.

    Args:
        facts: shown as a table of names and values.
    """
    rows = [[str(name), str(value)] for name, value in (facts or {}).items()]
    shown = [asdict(one) for one in images]
    return {"title": title, "images": shown, "note": note, "facts": rows, "id": secrets.token_hex(4)}
