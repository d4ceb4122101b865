"""Plug-ins: a user's own parts of a run, registered under names that `--set` accepts.

    nnclr pretrain small --data PHOTOS --out RUN --plugin recent.py --set support_set=recent

A plug-in is a Python file that adds entries to METHODS, SUPPORT_SETS, OBJECTIVES and LEARNERS of `nnclr_hub.method`,
and to AUGMENTATIONS and CALLBACKS of `nnclr_hub`. A program that calls `pretrain` adds them itself.
examples/starters.py also replaces the order of the images, by an entry of BATCHES.
"""

from __future__ import annotations

import hashlib
import sys
import traceback
from collections.abc import Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from nnclr_hub.errors import InvalidRequest


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
