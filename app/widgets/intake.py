"""Intake: images, a folder of them or a zip, from a person's disk to the server, however many there are.

    intake = Intake(elem_id="intake", most_bytes=20_000_000)
    given = page.on(intake.give, self.add, [...], [...], writes=True)    # event.to, event.files: see `chosen_files`
    intake.answered(given)                                      # it goes on when they are taken, and stops when not
    return intake_value("photos")                               # whatever they are for, such as a collection

Gradio's own upload sends a folder as one request, of which a server takes 20 MB, and a folder of 5,000 photos is 10
GB. This one sends batches, large files in parts, and after every few hundred images says `give`: from then on they
are safe when the browser is closed. An intake that is `whole` says it once, at the end, for what is of no use in parts.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from gradio.utils import get_upload_folder

from nnclr_hub.encoder.image_folder import IMAGE_SUFFIXES
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.workbench.zips import SUFFIX

from .file_name import is_a_line
from .widget import Widget

MOST_FILES = 500  # of one `give`
MOST_FILES_WHOLE = 5000
MOST_PARTS = 1000
MOST_NAME = 1000
ADD_BYTES = 100_000_000  # after which there is a `give`
REQUEST_BYTES = 8_000_000
REQUEST_FILES = 64
MOST_ZIP = 400_000_000  # bytes; all uploads that wait may have 500 MB
FOLDER_HINT = "An image\u2019s folder becomes its label: pets/cat/01.jpg is a cat."


class Intake(Widget):
    """Event: `give`.

    Args:
        most_bytes: of a request, and of one image.
        whole: what is chosen at once is one `give`, or refused.
        hint: what the folders mean.
    """

    script: ClassVar[str] = "intake.js"

    def __init__(
        self,
        value: Any = None,
        *,
        most_bytes: int = 20_000_000,
        whole: bool = False,
        hint: str = FOLDER_HINT,
        **options: Any,
    ) -> None:
        settings = {
            "suffixes": sorted(IMAGE_SUFFIXES),
            "zip": SUFFIX,
            "most_bytes": most_bytes,
            "most_zip": MOST_ZIP,
            "add_files": MOST_FILES_WHOLE if whole else MOST_FILES,
            "add_bytes": MOST_ZIP if whole else ADD_BYTES,
            "whole": whole,
            "hint": hint,
            "request_files": REQUEST_FILES,
            "request_bytes": min(REQUEST_BYTES, most_bytes * 9 // 10),
        }
        super().__init__(value, **{**options, "settings": settings})

    def answered(self, given: Any) -> None:
        """Tells the script whether what it gave was taken, or refused with an error.

        Args:
            given: what `page.on` returned for `give`.
        """
        for event, how in ((given.success, "taken"), (given.failure, "refused")):  # within the browser
            event(None, self, self, js=f"value => ({{...value, {how}: Date.now()}})", show_progress="hidden")


def intake_value(to: str) -> dict[str, Any]:
    """What the intake is told: where the images go."""
    return {"to": to}


def chosen_files(given: Any, most: int | None = None) -> list[tuple[str, list[Path]]]:
    """The files of a `give`, each its name and its parts, all of them uploads of this server.

    Args:
        most: how many; None for those of an intake that is not whole.

    Raises:
        InvalidRequest: it is nothing that the intake sends.
    """
    most = MOST_FILES if most is None else most
    files = given if isinstance(given, list) and 0 < len(given) <= most else []
    found = [_file(one) for one in files]
    if not found:
        raise InvalidRequest(f"1 to {most} files are added at a time: choose some images, a folder or a zip.")
    parts = [part for _, parts in found for part in parts]
    if len(set(parts)) < len(parts):
        raise InvalidRequest("A file was sent twice in one: choose the images again.")
    return found


def _file(given: Any) -> tuple[str, list[Path]]:
    name, parts = (given.get("name"), given.get("parts")) if isinstance(given, dict) else (None, None)
    if not isinstance(name, str) or len(name) > MOST_NAME or not is_a_line(name):
        raise InvalidRequest(f"A file needs a name of 1 to {MOST_NAME} letters in one line; got {name!r:.60}.")
    if name.startswith("/") or "\\" in name or ".." in PurePosixPath(name).parts:
        raise InvalidRequest(f"The name of a file leads nowhere else; got {name!r:.60}.")
    if not isinstance(parts, list) or not 0 < len(parts) <= MOST_PARTS:
        raise InvalidRequest(f"{name} came without its parts: choose it again.")
    return name, [_upload(part, name) for part in parts]


def _upload(given: Any, name: str) -> Path:
    """An upload by the path that Gradio told the browser; nothing else of this machine's has one."""
    folder = Path(get_upload_folder()).resolve()
    try:
        path = Path(given).resolve() if isinstance(given, str) else folder
        if path.is_relative_to(folder) and path.is_file():
            return path
    except (OSError, ValueError):
        pass
    raise InvalidRequest(f"{name} is not here, for uploads are forgotten after an hour: choose it again.")
