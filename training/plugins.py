"""Plug-ins: a user's own parts of a run, registered under names that `--set` accepts.

    nnclr pretrain small --data PHOTOS --out RUN --plugin recent.py --set support_set=recent

A plug-in is a Python file that adds entries to METHODS, SUPPORT_SETS, OBJECTIVES and LEARNERS of `nnclr_hub.method`,
and to AUGMENTATIONS and CALLBACKS of `nnclr_hub`. `pretrain(support_set=Recent)` does the same from Python.
examples/starters.py also replaces the order of the images, by an entry of BATCHES.
"""

from __future__ import annotations

import hashlib
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.method import LEARNERS, OBJECTIVES, SUPPORT_SETS, Learner, Objective, SupportSet

from .data.views import AUGMENTATIONS, View
from .recipes import Recipe

BUILT_IN = {
    "learner": set(LEARNERS),
    "support_set": set(SUPPORT_SETS),
    "objective": {"method", *OBJECTIVES},
    "augmentation": set(AUGMENTATIONS),
}


def load_plugins(files: Sequence[Path]) -> dict[str, str]:
    """Run plug-ins, so that they register their parts; return {file name: sha256} for the run's record.

    Raises:
        InvalidRequest: a file that does not exist, has the name of another, or raises an exception; with its line.
    """
    digests: dict[str, str] = {}
    for file in files:
        if not file.is_file():
            raise InvalidRequest(f"--plugin {file} does not exist; name a Python file.")
        if file.name in digests:
            raise InvalidRequest(f"Two plug-ins are named {file.name}; rename one of them.")
        digests[file.name] = digest = hashlib.sha256(file.read_bytes()).hexdigest()
        if (name := f"nnclr_plugin_{file.stem}_{digest[:8]}") not in sys.modules:  # once in a process
            _run(file, name)
    return digests


def _run(file: Path, name: str) -> None:
    spec = spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise InvalidRequest(f"--plugin {file} is not a Python file.")
    module = module_from_spec(spec)
    sys.modules[name] = module  # as dataclasses and pickling need
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        frames = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
        line = error.lineno if isinstance(error, SyntaxError) else frames[-1] if frames else None
        where = f" at line {line}" if line else ""
        raise InvalidRequest(f"The plug-in {file} failed{where}: {type(error).__name__}: {error}") from error


def with_parts(
    recipe: Recipe,
    learner: Callable[..., Learner] | None,
    support_set: Callable[..., SupportSet] | None,
    objective: Objective | None,
    augmentation: tuple[View, View] | None,
) -> Recipe:
    """Return the recipe with a caller's own parts, each registered under its name.

    Raises:
        InvalidRequest: a part without a name, or with that of a built-in one.
    """
    given: dict[str, tuple[dict[str, Any], Any]] = {
        "learner": (LEARNERS, learner),
        "support_set": (SUPPORT_SETS, support_set),
        "objective": (OBJECTIVES, objective),
        "augmentation": (AUGMENTATIONS, augmentation),
    }
    names = {}
    for setting, (registry, part) in given.items():
        if part is not None:
            names[setting] = name = getattr(part, "__name__", "custom")
            if name in BUILT_IN[setting] or name == "<lambda>":
                raise InvalidRequest(f"{setting}={name} is taken, or no name to resume by; give the part another name.")
            registry[name] = part
    return replace(recipe, **names)
