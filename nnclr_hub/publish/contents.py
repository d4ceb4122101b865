"""The parts of a checkpoint of another project: tensors by container, without the prefixes of wrappers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, strided

from nnclr_hub.errors import InvalidRequest

State = dict[str, Tensor]
CONTAINERS = ("state_dict", "teacher", "student", "model")


@dataclass(frozen=True)
class Contents:
    """The parts of a checkpoint.

    keys: keys of the outermost dictionary that are not tensors, with the number of tensors in each value.
    sections: tensors by container, without the prefixes of wrappers; "" is the top level.
    """

    keys: Mapping[str, int]
    sections: Mapping[str, State]

    def groups(self, section: str) -> set[str]:
        """Return the first parts of the names in a section."""
        return {key.partition(".")[0] for key in self.sections.get(section, ())}

    @property
    def main(self) -> str:
        """The first container with tensors, which contains the weights unless a layout says otherwise."""
        return next(iter(self.sections), "")


def contents_of(checkpoint: Any, origin: str) -> Contents:
    """Sort a checkpoint's tensors by container.

    Raises:
        InvalidRequest: there are no tensors, or several containers hold networks.
    """
    if not isinstance(checkpoint, Mapping):
        raise InvalidRequest(
            f"{origin} contains a {type(checkpoint).__name__} instead of a dictionary of tensors; use another file."
        )
    sections = {name: _tensors(checkpoint[name]) for name in CONTAINERS if isinstance(checkpoint.get(name), Mapping)}
    sections |= {"": _tensors(checkpoint)}
    sections = {name: _unwrapped(state, origin) for name, state in sections.items() if state}
    if not sections and "classy_state_dict" not in checkpoint:
        raise InvalidRequest(
            f"{origin} has no tensors under {', '.join(CONTAINERS)} or at the top level; use another file."
        )
    networks = [name or "the top level" for name, state in sections.items() if _is_network(state)]
    if len(networks) > 1 and set(networks) != {"teacher", "student"}:
        raise InvalidRequest(
            f"{origin} contains networks under {' and '.join(networks)}; save only the one to convert."
        )
    others = {str(key): value for key, value in checkpoint.items() if not isinstance(value, Tensor)}
    counts = {key: len(_tensors(value)) if isinstance(value, Mapping) else 0 for key, value in others.items()}
    return Contents(counts, sections)


def _tensors(value: Mapping[Any, Any]) -> State:
    """Return the dense tensors with values; quantized and sparse tensors need other code."""
    return {
        str(key): tensor
        for key, tensor in value.items()
        if isinstance(tensor, Tensor) and tensor.layout is strided and not (tensor.is_meta or tensor.is_quantized)
    }


def _is_network(state: State) -> bool:
    """Return whether there are convolutions; a backbone has them and a head does not."""
    return any(value.ndim == 4 for value in state.values())


def _unwrapped(state: State, origin: str) -> State:
    """Return the tensors without the prefixes that torch.compile and data parallel training add."""
    names = {key: ".".join(part for part in key.split(".") if part != "_orig_mod") for key in state}
    if len(set(names.values())) < len(names):
        raise InvalidRequest(f"{origin} contains a network twice, compiled and not compiled; save only one.")
    state = {names[key]: value for key, value in state.items()}
    while state and all(key.startswith("module.") for key in state):
        state = {key.removeprefix("module."): value for key, value in state.items()}
    return state
