"""Inspections of a server's collections: what was found, and where new items belong. `jobs.inspect` starts one."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnclr_hub.client.collections import path_of
from nnclr_hub.client.steps import Answer, Call, Steps, perform
from nnclr_hub.workbench.inspections import KeptInspection, Placements

LATEST = "latest"


def numbers(name: str) -> Steps[list[int]]:
    """Return the numbers of the inspections that are kept, the newest first."""
    return perform(Call("GET", f"{path_of(name)}/inspections", lambda answer: answer.json()["inspections"]))


def get(name: str, number: int | None = None) -> Steps[KeptInspection]:
    """Return an inspection of a collection; without a number, the newest.

    Its `log` is empty; `is_current` compares it with the collection.

    Raises:
        InspectionNotFound: it does not exist.
    """
    about = yield from perform(Call("GET", _path(name, number), Answer.json))
    path = _path(name, about["number"])  # another inspection may become the newest
    ids = yield from perform(Call("GET", f"{path}/ids", lambda answer: answer.json()["ids"]))
    arrays: dict[str, np.ndarray] = {}
    for values in ("coordinates", "clusters", "outlier_scores", "labels", "predicted"):
        answer = yield from perform(Call("GET", f"{path}/{values}", lambda answer: answer.body))
        arrays[values] = np.frombuffer(answer, "<f4" if values in ("coordinates", "outlier_scores") else "<i4")
    coordinates = arrays.pop("coordinates").reshape(-1, 2)
    known: dict[str, Any] = {key: about[key] for key in ("number", "made", "seq", "findings", "fields_seq")}
    return KeptInspection(collection=name, ids=tuple(ids), coordinates=coordinates, **arrays, **known)


def placements(name: str, number: int | None = None, cursor: str | None = None, limit: int = 1000) -> Steps[Placements]:
    """Place items that were added after an inspection on its map and in its clusters; see `inspections.place_new`.

    Args:
        number: of the inspection; None: the newest.
        cursor: of the previous answer; None: from the first.
        limit: 1 to 1000.

    Raises:
        InspectionNotFound: it does not exist.
    """
    params = {"limit": str(limit)} | ({} if cursor is None else {"cursor": cursor})

    def read(answer: Answer) -> Placements:
        body = answer.json()
        items = body["items"]
        points = np.array([(one["x"], one["y"]) for one in items], np.float32).reshape(-1, 2)
        clusters = np.array([one["cluster"] for one in items], np.int32)
        return Placements(tuple(one["id"] for one in items), points, clusters, body["cursor"])

    return perform(Call("GET", f"{_path(name, number)}/placements", read, params=params))


def _path(name: str, number: int | None) -> str:
    return f"{path_of(name)}/inspections/{LATEST if number is None else number}"
