"""Random metadata, random filters, and their plain reading, independent of the code that evaluates them."""

import math
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import numpy as np

SCALARS: list[Any] = [
    None, True, False, 0, 1, 1.0, 2, -3, 0.5, 2.5, -1.0, 2**53 + 1, 2**62, 2**63, "", "a", "ab", "b'x", "é", "1",
    "[]", "{}", '["a"]', "true", "7", 7,
    "x" * 130, "x" * 130 + "y", "2024-02-29", "2024-02-29T12:00:00Z", "2024-02-29T13:00:00.000001+01:00", "2024-13-01",
]  # fmt: skip
NUMBERS = [0, 1, 1.0, 2, -3, 0.5, 2.5, 2**53 + 1, 2**62]
TEXTS = ["", "a", "ab", "b", "é", "x" * 129, "x" * 131]
DATES = ["2024-02-29", "2024-02-29T12:00:00Z", "2024-02-29T12:00:00.000002Z", "2024-03-01T00:30:00+01:00"]
KEYS = ["label", "n", "odd key'", "tags", "camera", "camera.model", "camera.lens.mm", "a.b", "place", "new\nline"]
COMPARE = {
    "gt": lambda a, b: a > b,
    "gte": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "lte": lambda a, b: a <= b,
}
ABSENT = object()


class Dice:
    """Draws metadata and filters.

    Args:
        seed: of the draws.
    """

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def below(self, n: int) -> int:
        return int(self.rng.integers(n))

    def one(self, values: list[Any]) -> Any:
        return values[self.below(len(values))]

    def some(self, values: list[Any], most: int = 3) -> list[Any]:
        return [self.one(values) for _ in range(self.below(most + 1))]

    def value(self) -> Any:
        kind = self.below(10)
        if kind < 6:
            return self.one(SCALARS)
        if kind < 8:
            return self.some([*SCALARS, [], {}, ["a"]])
        return {} if kind == 8 else {"b": self.one(SCALARS), "model": self.one(["x1", "x2", 5])}

    def metadata(self) -> dict[str, Any]:
        made: dict[str, Any] = {
            key: self.value() for key in self.some(["label", "n", "odd key'", "a.b", "a", "new\nline"])
        }
        if self.below(2):
            made["tags"] = self.some(["a", "ab", "b'x", 1, 2, None])
        if self.below(2):
            made["camera"] = {"model": self.one(["x1", "x2", "é", 5]), "lens": {"mm": self.one(NUMBERS)}}
        if self.below(3) == 0:
            made["place"] = {"lat": self.below(17) * 10 - 80, "lon": self.one([*range(-180, 181, 30), "west"])}
        return made

    def bounds(self, values: list[Any]) -> dict[str, Any]:
        return {self.one(list(COMPARE)): self.one(values) for _ in range(1 + self.below(2))}

    def condition(self, ids: list[str]) -> dict[str, Any]:
        scalars = [one for one in SCALARS if one != 2**63]
        values: dict[str, Any] = {
            "match": self.one(scalars),
            "in": self.some(scalars, 12),
            "range": self.bounds(self.one([NUMBERS, TEXTS])),
            "exists": bool(self.below(2)),
            "prefix": self.one(TEXTS),
            "contains": self.one(scalars),
            "contains_any": self.some(scalars),
            "contains_all": self.some(["a", "ab", 1, None], 2),
            "length": self.one([0, 1, {"gte": 2}, {"gt": 0, "lt": 2.5}]),
            "date": self.bounds(DATES),
            "geo": {
                "lat": self.below(17) * 10 - 80,
                "lon": self.below(36) * 10 - 180,
                "radius": self.one([1e-3, 777_777, 3e6, 3e7]),
            },
            "ids": self.some([*ids, "absent"]),
        }  # fmt: skip
        kind = self.one(list(values))
        if kind == "ids":
            return {"ids": values["ids"]}
        return {"key": "place" if kind == "geo" else self.one(KEYS), kind: values[kind]}

    def where(self, ids: list[str], depth: int = 3) -> dict[str, Any]:
        def node() -> dict[str, Any]:
            # an empty object is not a condition
            return (self.where(ids, depth - 1) if depth > 1 and self.below(4) == 0 else {}) or self.condition(ids)

        chosen = {name: [node() for _ in range(self.below(3))] for name in ("must", "should", "must_not")}
        if not chosen["should"] and self.below(4):  # an empty one matches nothing
            del chosen["should"]
        return {name: nodes for name, nodes in chosen.items() if nodes or self.below(2)}


def value_at(metadata: dict[str, Any], key: str) -> Any:
    if key in metadata:
        return metadata[key]
    value: Any = metadata
    for step in key.split("."):
        if not isinstance(value, dict) or step not in value:
            return ABSENT
        value = value[step]
    return value if "." in key else ABSENT


def type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    return "number" if isinstance(value, int | float) else type(value).__name__


def same(a: Any, b: Any) -> bool:
    if isinstance(a, int) and abs(a) >= 2**63:
        a = float(a)
    return type_of(a) == type_of(b) and not isinstance(a, list | dict) and a == b


def moment(text: Any) -> datetime | None:
    try:
        read = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return read if read.tzinfo else read.replace(tzinfo=UTC)


def on_sphere(lat: float, lon: float) -> np.ndarray:
    lat, lon = math.radians(lat), math.radians(lon)
    return np.array([math.cos(lat) * math.cos(lon), math.cos(lat) * math.sin(lon), math.sin(lat)])


def is_near(value: Any, circle: dict[str, float]) -> bool:
    place = [value.get(name) for name in ("lat", "lon")] if isinstance(value, dict) else [None]
    if any(type_of(one) != "number" for one in place):
        return False
    a, b = on_sphere(*place), on_sphere(circle["lat"], circle["lon"])
    return math.atan2(np.linalg.norm(np.cross(a, b)), float(a @ b)) * 6_371_008.8 <= circle["radius"]


def holds(condition: dict[str, Any], id: str, metadata: dict[str, Any]) -> bool:
    """Read one condition literally."""
    if "ids" in condition:
        return id in condition["ids"]
    if "key" not in condition:
        return passes(condition, id, metadata)
    [(kind, wanted)] = [(name, value) for name, value in condition.items() if name != "key"]
    value = value_at(metadata, condition["key"])
    if kind == "exists":
        return (value is not ABSENT) == wanted
    if kind == "match":
        return same(value, wanted)
    if kind == "in":
        return any(same(value, one) for one in wanted)
    if kind == "prefix":
        return isinstance(value, str) and value.startswith(wanted)
    if kind == "range":
        return all(type_of(value) == type_of(bound) and COMPARE[name](value, bound) for name, bound in wanted.items())
    if kind == "date":
        read = moment(value)
        return read is not None and all(COMPARE[name](read, moment(bound)) for name, bound in wanted.items())
    if kind == "geo":
        return is_near(value, wanted)
    if not isinstance(value, list):
        return False
    if kind == "length":
        bounds = wanted if isinstance(wanted, dict) else {"gte": wanted, "lte": wanted}
        return all(COMPARE[name](len(value), bound) for name, bound in bounds.items())
    if kind == "contains":
        return any(same(one, wanted) for one in value)
    found = [any(same(one, other) for one in value) for other in wanted]
    return any(found) if kind == "contains_any" else all(found)


def passes(where: dict[str, Any], id: str, metadata: dict[str, Any]) -> bool:
    """Read a filter literally."""
    should = where.get("should")
    return (
        all(holds(one, id, metadata) for one in where.get("must", []))
        and (should is None or any(holds(one, id, metadata) for one in should))
        and not any(holds(one, id, metadata) for one in where.get("must_not", []))
    )


def counted(metadatas: list[dict[str, Any]], key: str) -> tuple[int, Counter[tuple[str, Any]]]:
    """Return how many have a key, and how often each of its scalars occurs, by type and value."""
    values = [value for one in metadatas if (value := value_at(one, key)) is not ABSENT]
    counts: Counter[tuple[str, Any]] = Counter()
    for value in values:
        each = value if isinstance(value, list) else [value]
        scalars = [float(one) if type_of(one) == "number" and abs(one) >= 2**63 else one for one in each]
        counts.update({(type_of(one), one) for one in scalars if not isinstance(one, list | dict)})
    return len(values), counts


def merged(target: Any, patch: Any) -> Any:
    """Apply a merge patch as RFC 7396 words it."""
    if not isinstance(patch, dict):
        return patch
    target = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            if name in target:
                del target[name]
        else:
            target[name] = merged(target.get(name), value)
    return target
