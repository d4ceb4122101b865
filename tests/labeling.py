"""What tests label: items of the collection `photos`."""

from typing import Any


def ids_of(served: Any, name: str, number: int) -> list[str]:
    items = served.bench.collection("photos").scroll(limit=60).items
    return [item.id for item in items if item.metadata["label"] == name][:number]
