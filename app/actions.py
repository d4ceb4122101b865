"""Action: what a person did on the page, as the REST call that does the same.

    page.did(Action("POST", f"/api/v1/collections/{name}/search", form={"query": {"k": 12}},
                    files=(("image", "cat.jpg"),), call='client.search("photos", image=Path("cat.jpg"), k=12)'))

The API tab shows the last one as curl and as Python.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote


@dataclass(frozen=True)
class Action:
    """One REST call.

    method: GET, POST, PUT or DELETE.
    path: below the server's address, quoted as it is sent, with its query; "" where it takes several calls.
    json: the body, if it is JSON.
    body: in place of that, JSON whose `$(...)` the shell fills in.
    form: JSON parts of a multipart form, by field.
    files: of a multipart form: the field and the name of a file at the person's side.
    fetched: of these files, the names of those that the server has, and their paths there.
    call: the same with nnclr_hub.Client: an expression over `client`, in which Path, Point and Box are imported.
    program: in place of that, statements over `client`; `imports` are the lines that import what they use.
    where: a sentence on the folder to run it in; "" where any will do, or the files say it.
    """

    method: str
    path: str
    json: Any = None
    body: str = ""
    form: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[tuple[str, str], ...] = ()
    fetched: tuple[tuple[str, str], ...] = ()
    call: str = ""
    program: str = ""
    imports: tuple[str, ...] = ()
    where: str = ""

    def __hash__(self) -> int:
        """Of its text: Gradio hashes states to see whether they have changed, and a body is a dict."""
        return hash(repr(self))


def collection_path(name: str) -> str:
    """Where REST has a collection."""
    return f"/api/v1/collections/{quote(name, safe='')}"


def deletion(collection: str, ids: Sequence[str]) -> Action:
    """The call that deletes items; REST takes one at a time, so several are a program."""
    one = f"{collection_path(collection)}/items/{quote(ids[0], safe='')}" if len(ids) == 1 else ""
    return Action("DELETE", one, call=f"client.collection({collection!r}).delete({list(ids)!r})")


def attention_call(image: str, targets: Sequence[str], query: Mapping[str, Any]) -> str:
    """The call that draws maps of attention into files.

    Args:
        image, targets: names of files.
        query: of REST.
    """
    asked = [f"Path({image!r})"]
    asked += [f"Point(*{query['point']})"] if "point" in query else [f"Box(*{query['box']})"] if "box" in query else []
    asked += [f"target=[{', '.join(f'Path({name!r})' for name in targets)}]"] if targets else []
    asked += [f"{name}={value!r}" for name, value in query.items() if name not in ("point", "box")]
    call = f"client.attention({', '.join(asked)})"
    if not targets:
        return f"{call}.overlay().save('map.png')"
    return f"[one.overlay().save(f'map-{{i}}.png') for i, one in enumerate({call})]"


def original_path(collection: str, id: str) -> str:
    """Where REST has an item's own image."""
    return f"/api/v1/collections/{quote(collection, safe='')}/items/{quote(id, safe='')}/original"
