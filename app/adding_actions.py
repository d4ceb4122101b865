"""The calls that do what the tab Collections does with images that are given to it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nnclr_hub.encoder.image_folder import label_of
from nnclr_hub.workbench.zips import SUFFIX

from .actions import Action, collection_path

HERE = "Run it in the folder where the files lie, under the names that stand there."
IMPORTS = (
    "import hashlib",
    "import zipfile",
    "from pathlib import Path",
    "from nnclr_hub.client.uploading import Image",
    "from nnclr_hub.encoder.image_folder import IMAGE_SUFFIXES, label_of",
)
PROGRAM = """\
collection = client.collection({collection!r})

def add(name, data, root=""):
    label = label_of(Path(name), Path(root))
    metadata = {{"name": Path(name).name}} | ({{"label": label}} if label else {{}})
    [error] = collection.add_images([Image(hashlib.sha256(data).hexdigest()[:32], data, metadata)])
    print(name, error or "is added")
"""
FILES = """
for name in {names}:
    add(name, Path(name).read_bytes())
"""
ZIP = """
with zipfile.ZipFile({zip!r}) as file:
    for name in file.namelist():
        hidden = any(part.startswith((".", "__MACOSX")) for part in Path(name).parts)
        if Path(name).suffix.lower() in IMAGE_SUFFIXES and not hidden:
            add(name, file.read(name), {root!r})
"""


@dataclass(frozen=True)
class Given:
    """A file that was given.

    name: its path below the folder that was chosen.
    size: in bytes.
    root: of a zip: the one folder in which all of it lies, which is no label; "" for none.
    """

    name: str
    size: int
    root: str = ""

    @property
    def is_zip(self) -> bool:
        return self.name.lower().endswith(SUFFIX)


def add_action(collection: str, given: Sequence[Given], most_files: int, most_bytes: int) -> Action:
    """The call that adds files: one request, or a program where REST takes them in several.

    Args:
        most_files, most_bytes: of a request.
    """
    whole = sum(one.size for one in given) <= most_bytes * 9 // 10  # the rest is for the names and labels
    if len(given) > most_files or not whole or any(one.is_zip for one in given):
        return Action("POST", "", program=_program(collection, given), imports=IMPORTS, where=HERE)
    labels = [label_of(Path(one.name), Path()) for one in given]
    notes = [{"metadata": {"label": label} if label else {}} for label in labels]
    form = {"items": notes} if any(labels) else {}
    files = tuple(("files", one.name) for one in given)
    return Action("POST", f"{collection_path(collection)}/items", form=form, files=files, where=HERE)


def add_folder_action(collection: str, source: str | None, folder: str) -> Action:
    """The call that adds a folder of the server's machine.

    Args:
        source: the name of one of the server's folders; None: its only one.
        folder: below that; "." for all of it.
    """
    asked = {"source": source, "folder": folder}
    call = f"client.collection({collection!r}).index_there({folder!r}, source={source!r})"
    return Action("POST", f"{collection_path(collection)}/index", json=asked, call=call)


def _program(collection: str, given: Sequence[Given]) -> str:
    names = [one.name for one in given if not one.is_zip]
    listed = json.dumps(names, indent=4, ensure_ascii=False)
    parts = [PROGRAM.format(collection=collection)]
    parts += [FILES.format(names=listed)] if names else []
    parts += [ZIP.format(zip=one.name, root=one.root) for one in given if one.is_zip]
    return "".join(parts).strip()
