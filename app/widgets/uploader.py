"""Uploader: sends any number of images, folders or zips to the server.

    uploader = Uploader(elem_id="uploader", max_bytes=20_000_000)
    added = page.on(uploader.submit, self.add, [...], [...], writes=True)  # event.to, event.files: see `uploaded_files`
    uploader.continue_after(added)                  # continue if the files were accepted, stop if they were rejected
    return uploader_value("photos")                 # the destination, such as a collection

Gradio's own upload sends a folder as one request, but a server accepts only 20 MB and a folder of 5,000 photos has
10 GB. This widget sends batches, and large files in parts. After every few hundred images it triggers `submit`, and
those images are safe if the browser is closed. With `whole`, it triggers `submit` once, at the end: for uploads that
are not useful in parts.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from gradio.utils import get_upload_folder

from nnclr_hub.encoder.image_folder import IMAGE_SUFFIXES
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.workbench.image_zip import SUFFIX

from .inputs import is_one_line
from .widget import Widget

MAX_FILES = 500  # of one `submit`
MAX_FILES_WHOLE = 5000
MAX_PARTS = 1000
MAX_NAME = 1000
SUBMIT_BYTES = 100_000_000  # bytes after which `submit` is triggered
REQUEST_BYTES = 8_000_000
REQUEST_FILES = 64
MAX_ZIP = 400_000_000  # bytes; all stored uploads together can have 500 MB
FOLDER_HINT = "The folder of an image becomes its label: pets/cat/01.jpg is a cat."


class Uploader(Widget):
    """Event: `submit`.

    Args:
        max_bytes: maximum size of a request, and of one image.
        whole: a selection becomes one `submit`, or is rejected.
        hint: explains what folders mean.
    """

    script: ClassVar[str] = "uploader.js"

    def __init__(
        self,
        value: Any = None,
        *,
        max_bytes: int = 20_000_000,
        whole: bool = False,
        hint: str = FOLDER_HINT,
        **options: Any,
    ) -> None:
        settings = {
            "suffixes": sorted(IMAGE_SUFFIXES),
            "zip": SUFFIX,
            "max_bytes": max_bytes,
            "max_zip": MAX_ZIP,
            "submit_files": MAX_FILES_WHOLE if whole else MAX_FILES,
            "submit_bytes": MAX_ZIP if whole else SUBMIT_BYTES,
            "whole": whole,
            "hint": hint,
            "request_files": REQUEST_FILES,
            "request_bytes": min(REQUEST_BYTES, max_bytes * 9 // 10),
        }
        super().__init__(value, **{**options, "settings": settings})

    def continue_after(self, added: Any) -> None:
        """Report to the script whether its files were accepted or rejected.

        Args:
            added: what `page.on` returned for `submit`.
        """
        for event, outcome in ((added.success, "accepted"), (added.failure, "rejected")):  # runs in the browser
            event(None, self, self, js=f"value => ({{...value, {outcome}: Date.now()}})", show_progress="hidden")


def uploader_value(to: str) -> dict[str, Any]:
    """Return an Uploader value: the destination of the images."""
    return {"to": to}


def uploaded_files(files: Any, max_files: int | None = None) -> list[tuple[str, list[Path]]]:
    """Return the files of a `submit`: for each its name and the paths of its parts, all uploads to this server.

    Args:
        max_files: the limit; None for that of an uploader that is not `whole`.

    Raises:
        InvalidRequest: the uploader would not send this.
    """
    max_files = MAX_FILES if max_files is None else max_files
    files = files if isinstance(files, list) and 0 < len(files) <= max_files else []
    found = [_file(one) for one in files]
    if not found:
        raise InvalidRequest(f"An upload must have between 1 and {max_files} files.")
    parts = [part for _, parts in found for part in parts]
    if len(set(parts)) < len(parts):
        raise InvalidRequest("The upload contains a file twice. Choose the images again.")
    return found


def _file(file: Any) -> tuple[str, list[Path]]:
    name, parts = (file.get("name"), file.get("parts")) if isinstance(file, dict) else (None, None)
    if not isinstance(name, str) or len(name) > MAX_NAME or not is_one_line(name):
        raise InvalidRequest(f"A file name must have 1 to {MAX_NAME} characters in one line, got {name!r:.60}.")
    if name.startswith("/") or "\\" in name or ".." in PurePosixPath(name).parts:
        raise InvalidRequest(f"A file name must be a relative path without '..', got {name!r:.60}.")
    if not isinstance(parts, list) or not 0 < len(parts) <= MAX_PARTS:
        raise InvalidRequest(f"The upload of {name} is incomplete. Choose it again.")
    return name, [_upload(part, name) for part in parts]


def _upload(part: Any, name: str) -> Path:
    """Return the path of an upload, as Gradio reported it to the browser; reject every other path of this machine."""
    folder = Path(get_upload_folder()).resolve()
    try:
        path = Path(part).resolve() if isinstance(part, str) else folder
        if path.is_relative_to(folder) and path.is_file():
            return path
    except (OSError, ValueError):
        pass
    raise InvalidRequest(f"The upload of {name} has expired; uploads are deleted after an hour. Choose it again.")
