"""A simulated GPU: tensors on "cuda" have shapes, types and a device, but no content.

    with PretendedGPU() as gpu:
        x = torch.zeros(2, device="cuda")
        x + torch.ones(2)                   # raises: found two different devices
        x.sum().item()                      # raises: the tensor has no content
        torch.ones(2).to("cuda")            # runs; gpu.waits records the line

Tensors on the CPU are real. A training step therefore runs as on a GPU, without results. A tensor on the wrong device
is an error, and so is reading a value, which would make a real GPU wait. A copy to the device that makes the program
wait is recorded. While gpu.recording() is active, every use of a tensor of the CPU is an error, as it is while a CUDA
graph is recorded. The backward pass is skipped, because torch needs a driver for it: every parameter that the loss
depends on gets a gradient of its shape.
"""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ROOT = Path(__file__).parents[1]
COPIES = ("aten._to_copy.default", "aten.copy_.default")


class PretendedGPU(TorchDispatchMode):
    """See above. `waits` has a line "file:line" for each copy to the device that would make the program wait."""

    def __init__(self) -> None:
        super().__init__()
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.waits: list[str] = []
        self._recording = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        there = [isinstance(one, FakeTensor) for one in tensors]
        arrives = kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cuda"
        if not any(there) and not arrives:
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        if self._recording and any(one.dim() for one, is_there in zip(tensors, there, strict=True) if not is_there):
            raise RuntimeError(f"a tensor of the CPU in a recorded step: {_place()}")
        if str(func) in COPIES and not all(there) and not self._waits_not(func, args, kwargs):
            self.waits.append(_place())
        return func(*args, **kwargs)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Treat the operations of the block as recorded ones."""
        self._recording = True
        try:
            yield
        finally:
            self._recording = False

    @staticmethod
    def place(module: nn.Module) -> nn.Module:
        """Move a module to "cuda", which `module.to` does not support for such tensors."""
        for part in module.modules():
            for name, one in part._parameters.items():
                if one is not None:
                    part._parameters[name] = nn.Parameter(one.detach().to("cuda"), one.requires_grad)
            for name, one in part._buffers.items():
                if one is not None:
                    part._buffers[name] = one.to("cuda")
        return module

    def __enter__(self) -> "PretendedGPU":
        self._fake.__enter__()  # below this one; torch needs no driver while it is active
        self._backward, Tensor.backward = Tensor.backward, _leave_gradients  # type: ignore[method-assign]
        return super().__enter__()

    def __exit__(self, *error) -> None:
        super().__exit__(*error)
        Tensor.backward = self._backward  # type: ignore[method-assign]
        self._fake.__exit__(*error)

    @staticmethod
    def _waits_not(func, args, kwargs) -> bool:
        return bool(kwargs.get("non_blocking") or (str(func) == COPIES[1] and len(args) > 2 and args[2]))


def _leave_gradients(loss: Tensor) -> None:
    """Set gradients like backward(), without values."""
    seen, waiting = set(), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            node.variable.grad = torch.empty_like(node.variable)
        waiting += [following for following, _ in node.next_functions]


def _place() -> str:
    """Return the line of the project that requested the operation."""
    for frame in reversed(traceback.extract_stack()):
        path = Path(frame.filename)
        if path.is_relative_to(ROOT) and path.name != Path(__file__).name and ".venv" not in path.parts:
            return f"{path.relative_to(ROOT)}:{frame.lineno} {frame.line}"
    return "torch"
