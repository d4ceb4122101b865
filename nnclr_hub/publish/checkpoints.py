"""Read checkpoints of other projects without running code in them.

A `.pth` or `.ckpt` file is a pickle, and a pickle can run code. torch's `weights_only` reader returns tensors and plain
containers only. The only other class allowed is `argparse.Namespace`, in which DINO stores its settings.
"""

from __future__ import annotations

import argparse
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import torch

from nnclr_hub.errors import InvalidRequest, ModelFilesMissing, WeightsMismatch
from nnclr_hub.hub.layout import CONFIG

_NAMED = 3  # classes that the error message names
_GLOBAL = re.compile(r"GLOBAL ([\w.]+)")


def read_checkpoint(path: Path) -> Any:
    """Return the contents of a checkpoint, with tensors on the CPU.

    Args:
        path: a .safetensors file, or any file that torch.save wrote.

    Raises:
        ModelFilesMissing: the file does not exist.
        InvalidRequest: it contains an object of a class that is not allowed. Its code is not run.
        WeightsMismatch: it is damaged, or not a checkpoint.
    """
    if (path / CONFIG).is_file():
        raise InvalidRequest(f"{path} is already a model folder; load it directly.")
    if not path.is_file():
        raise ModelFilesMissing(f"{path} is not a file; expected a checkpoint: .pth, .ckpt or .safetensors.")
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    try:
        with torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about its own old formats
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        names = _not_allowed(path, error)
        if not names:
            raise _not_a_checkpoint(path) from error
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        raise InvalidRequest(
            f"{path} contains {', '.join(names[:_NAMED])}{more}, and reading these would run code from the file. If "
            "you trust it, load it in its own project and save only its tensors, for example with "
            "torch.save(checkpoint['state_dict'], FILE)."
        ) from error
    except PermissionError:
        raise
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, IndexError, AttributeError, TypeError) as error:
        raise _not_a_checkpoint(path) from error


def _read_safetensors(path: Path) -> Any:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise _damaged(path, error) from error


def _not_allowed(path: Path, error: Exception) -> list[str]:
    """Return the classes and functions in the file that are not allowed."""
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            found = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except (RuntimeError, ValueError, OSError, pickle.UnpicklingError):  # a file of torch before 1.6
        found = []
    return sorted(found) or _GLOBAL.findall(str(error))[:1]


def _not_a_checkpoint(path: Path) -> WeightsMismatch:
    """Return the error without torch's message, which describes options of torch.load instead of the file."""
    if path.stat().st_size == 0:
        return WeightsMismatch(f"{path} is empty; download it again.")
    return WeightsMismatch(
        f"{path} is not a checkpoint of torch.save, or is damaged; download it again, or use another one."
    )


def _damaged(path: Path, error: Exception) -> WeightsMismatch:
    reason = " ".join(str(error).split())[:120] or type(error).__name__
    return WeightsMismatch(f"{path} cannot be read as a checkpoint ({reason}); download it again.")
