"""Items that cannot be embedded anew, and what the refusal of a re-embedding says of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nnclr_hub.errors import StoreError

NAMED = 5  # items that a refusal names before it only counts


@dataclass(frozen=True)
class LeftOut:
    """An item's metadata, and why there is no image of it."""

    metadata: Mapping[str, Any]
    reason: str


def called(id: str, metadata: Mapping[str, Any]) -> str:
    """An item as a person knows it."""
    return str(metadata.get("path", id))


def refusal(name: str, model: str, count: int, left_out: Mapping[str, LeftOut], *, locked: bool) -> StoreError:
    """What is said where some of a collection's items cannot be embedded.

    Args:
        locked: `nnclr index`, another process, cannot write to the collection until it has moved.
    """
    again = f"`nnclr store reembed {name} --model {model} --skip-missing`"
    if locked:
        ways = f" and call again; or leave these out with {again}, and then {_take_up(name)}."
    else:
        ways = f", or {_take_up(name)}, and call again; or leave these out with {again}."
    return StoreError(
        f"{len(left_out)} of the {count} items of {name!r} cannot be embedded anew ({_some(left_out)}): put the "
        f"files back{ways} What is done is kept, until `nnclr store reembed {name} --abandon`."
    )


def refusal_of_all(name: str, model: str, left_out: Mapping[str, LeftOut]) -> StoreError:
    """What is said where not one can be, and nothing was built."""
    if any(Path(str(one.metadata.get("root", ""))).is_absolute() for one in left_out.values()):
        ways = f", or {_take_up(name)}, and call again."
    else:
        ways = (
            " and call again; or, where they are another machine's or nobody's, index the images with "
            f"--model {model} into a collection of another name."
        )
    return StoreError(
        f"Not one of the {len(left_out)} items of {name!r} can be embedded anew ({_some(left_out)}), and it is as it "
        f"was: put the files back{ways}"
    )


def _take_up(name: str) -> str:
    return f"take up what changed with `nnclr index FOLDER --collection {name}` (--prune for what is gone)"


def _some(left_out: Mapping[str, LeftOut]) -> str:
    some = [f"{called(id, one.metadata)}: {one.reason}" for id, one in sorted(left_out.items())[:NAMED]]
    return "; ".join(some) + (f"; and {len(left_out) - NAMED} more" if len(left_out) > NAMED else "")
