"""The REST calls that do the same as the actions on the page; the API tab shows the last one.

    page.note(delete_call("photos", ["a"]))

`nnclr_hub.client.call_examples` renders them as curl and Python. A call with an empty path takes several requests, so
only the Python program is shown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from nnclr_hub.client.call_examples import ApiCall
from nnclr_hub.encoder.image_folder import label_of
from nnclr_hub.workbench.image_zip import SUFFIX

PROBES = "/api/v1/probes"
IN_FOLDER = "Run it in the folder that contains the files."
IMPORTS = (
    "import zipfile",
    "from pathlib import Path",
    "from nnclr_hub.workbench import NewImage",
    "from nnclr_hub.encoder.image_folder import IMAGE_SUFFIXES, label_of",
)
PROGRAM = """\
collection = client.collection({collection!r})

def add(name, data, root=""):
    label = label_of(Path(name), Path(root))
    metadata = {{"name": Path(name).name}} | ({{"label": label}} if label else {{}})
    [error] = collection.add_images([NewImage(None, data, metadata)])
    print(name, error or "added")
"""
ADD_FILES = """
for name in {names}:
    add(name, Path(name).read_bytes())
"""
ADD_ZIP = """
with zipfile.ZipFile({zip!r}) as file:
    for name in file.namelist():
        hidden = any(part.startswith((".", "__MACOSX")) for part in Path(name).parts)
        if Path(name).suffix.lower() in IMAGE_SUFFIXES and not hidden:
            add(name, file.read(name), {root!r})
"""


@dataclass(frozen=True)
class AddedFile:
    """A file that was uploaded.

    name: its path relative to the chosen folder.
    size: in bytes.
    root: for a zip, the only top-level folder, which is not a label; "" if there is none.
    """

    name: str
    size: int
    root: str = ""

    @property
    def is_zip(self) -> bool:
        return self.name.lower().endswith(SUFFIX)


def collection_path(name: str) -> str:
    """Return the REST path of a collection."""
    return f"/api/v1/collections/{quote(name, safe='')}"


def item_path(collection: str, id: str, part: str = "") -> str:
    """Return the REST path of an item, or of its "/thumbnail" or "/original"."""
    return f"{collection_path(collection)}/items/{quote(id, safe='')}{part}"


def delete_call(collection: str, ids: Sequence[str]) -> ApiCall:
    """Return the call that deletes items; REST deletes one item per request."""
    path = item_path(collection, ids[0]) if len(ids) == 1 else ""
    return ApiCall("DELETE", path, call=f"client.collection({collection!r}).delete({list(ids)!r})")


def attention_call(
    image: str,
    targets: Sequence[str],
    query: Mapping[str, Any],
    downloads: tuple[tuple[str, str], ...] = (),
    note: str = "",
) -> ApiCall:
    """Return the call that computes attention maps; its Python version saves them as files.

    Args:
        image, targets: file names.
        query: the settings of the REST request.
        downloads, note: see ApiCall.
    """
    arguments = [f"Path({image!r})"]
    arguments += [f"Point(*{query['point']})"] if "point" in query else []
    arguments += [f"Box(*{query['box']})"] if "box" in query else []
    arguments += [f"target=[{', '.join(f'Path({name!r})' for name in targets)}]"] if targets else []
    arguments += [f"{name}={value!r}" for name, value in query.items() if name not in ("point", "box")]
    call = f"client.attention({', '.join(arguments)})"
    if targets:
        call = f"[one.overlay().save(f'map-{{i}}.png') for i, one in enumerate({call})]"
    else:
        call = f"{call}.overlay().save('map.png')"
    files = (("image", image), *(("target", name) for name in targets))
    return ApiCall(
        "POST", "/api/v1/attention", form={"query": query}, files=files, downloads=downloads, call=call, note=note
    )


def add_call(collection: str, files: Sequence[AddedFile], max_files: int, max_bytes: int) -> ApiCall:
    """Return the call that adds files: one request, or a program if REST needs several.

    Args:
        max_files, max_bytes: limits of one request.
    """
    fits = sum(one.size for one in files) <= max_bytes * 9 // 10  # the rest is for names and labels
    if len(files) > max_files or not fits or any(one.is_zip for one in files):
        names = json.dumps([one.name for one in files if not one.is_zip], indent=4, ensure_ascii=False)
        parts = [PROGRAM.format(collection=collection)]
        parts += [ADD_FILES.format(names=names)] if names != "[]" else []
        parts += [ADD_ZIP.format(zip=one.name, root=one.root) for one in files if one.is_zip]
        return ApiCall("POST", "", program="".join(parts).strip(), imports=IMPORTS, note=IN_FOLDER)
    labels = [label_of(Path(one.name), Path()) for one in files]
    items = [{"metadata": {"label": label} if label else {}} for label in labels]
    form = {"items": items} if any(labels) else {}
    uploads = tuple(("files", one.name) for one in files)
    return ApiCall("POST", f"{collection_path(collection)}/items", form=form, files=uploads, note=IN_FOLDER)


def add_folder_call(collection: str, source: str | None, folder: str) -> ApiCall:
    """Return the call that adds a folder of the server's machine.

    Args:
        source: the name of a source folder of the server; None if it has only one.
        folder: a path relative to it; "." for the whole folder.
    """
    call = f"client.collection({collection!r}).index_there({folder!r}, source={source!r})"
    body = {"source": source, "folder": folder}
    return ApiCall("POST", f"{collection_path(collection)}/index", json=body, call=call)


def fit_folders_call(name: str, *, one_request: bool) -> ApiCall:
    """Return the call that fits a probe on the class folders in the current folder.

    Args:
        one_request: whether all images fit into one request; otherwise only the program is shown.
    """
    item = (
        r"""printf '{"label": "%s", "image": "%s"},' "$(dirname "$file")" "$(base64 < "$file" | tr -d '\n')" """.strip()
    )
    items = f"$(for file in */*.*; do {item}; done | sed 's/,$//')"
    body = f'{{"name": {json.dumps(name)}, "replace": true, "items": [{items}]}}'
    call = (
        f"client.probes.fit({name!r}, images=(files := sorted(Path().glob('*/*.*'))), "
        "labels=[file.parent.name for file in files], replace=True)"
    )
    note = "Run it in the folder that contains the class folders."
    return ApiCall("POST", PROBES if one_request else "", shell_body=body, call=call, note=note)


def predict_call(probe: str, file: str) -> ApiCall:
    """Return the call that predicts the label of an image."""
    call = f"client.probes.predict({probe!r}, [Path({file!r})])"
    return ApiCall("POST", f"{PROBES}/{quote(probe, safe='')}/predict", files=(("files", file),), call=call)


def export_path(probe: str) -> str:
    """Return the REST path of a probe's files."""
    return f"{PROBES}/{quote(probe, safe='')}/export"
