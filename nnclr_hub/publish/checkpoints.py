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

_NAMED = 3  # classes in the sentence that refuses them
_GLOBAL = re.compile(r"GLOBAL ([\w.]+)")


def read_checkpoint(path: Path) -> Any:
    """What a checkpoint holds, tensors on the CPU.

    Args:
        path: a .safetensors, or whatever torch.save wrote.

    Raises:
        ModelFilesMissing: no such file.
        InvalidRequest: it holds an object of a class that is not let in; the sentence names it, and nothing was run.
        WeightsMismatch: it is damaged, or no checkpoint.
    """
    if (path / CONFIG).is_file():
        raise InvalidRequest(f"{path} is a model folder already, which every door loads: there is nothing to convert.")
    if not path.is_file():
        raise ModelFilesMissing(f"{path} is not a file; expected a checkpoint: .pth, .ckpt or .safetensors.")
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    try:
        with torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about formats that torch itself wrote long ago
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        names = _not_let_in(path, error)
        if not names:
            raise _no_checkpoint(path) from error
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        raise InvalidRequest(
            f"{path} holds {', '.join(names[:_NAMED])}{more}, and to read that would run code of the file, so nothing "
            "of it was: if you trust where it is from, load it there and save its tensors alone, by "
            "torch.save(checkpoint['state_dict'], FILE), or of a whole network its state_dict()."
        ) from error
    except PermissionError:
        raise
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, IndexError, AttributeError, TypeError) as error:
        raise _no_checkpoint(path) from error


def _read_safetensors(path: Path) -> Any:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise _damaged(path, error) from error


def _not_let_in(path: Path, error: Exception) -> list[str]:
    """Return the classes and functions that the file names, beyond what is let in."""
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            found = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except (RuntimeError, ValueError, OSError, pickle.UnpicklingError):  # a file of torch before 1.6
        found = []
    return sorted(found) or _GLOBAL.findall(str(error))[:1]


def _no_checkpoint(path: Path) -> WeightsMismatch:
    """Without torch's own reason, which speaks of its options and of no file."""
    if path.stat().st_size == 0:
        return WeightsMismatch(f"{path} is empty: fetch it again.")
    return WeightsMismatch(
        f"{path} is not a checkpoint of torch.save, or is damaged; download it again, or use another one."
    )


def _damaged(path: Path, error: Exception) -> WeightsMismatch:
    reason = " ".join(str(error).split())[:120] or type(error).__name__
    return WeightsMismatch(f"{path} cannot be read as a checkpoint ({reason}): fetch it again.")
