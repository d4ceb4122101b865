"""The programs `training`, `serving` and `app`, loaded when their verb is called.

A wheel holds them inside nnclr_hub; a checkout beside it. Both are imported as nnclr_hub.<program>,
from their own path: whatever else is called `app` on sys.path is never taken.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import nnclr_hub
from nnclr_hub.errors import MissingDependency

EXTRAS = {"training": "train", "serving": "serve", "app": "demo"}


def load_program(program: str, module: str) -> ModuleType:
    """The module nnclr_hub.<program>.<module>.

    Raises:
        MissingDependency: a package of the program's extra is not installed.
    """
    try:
        return importlib.import_module(f"{_found(program)}.{module}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("nnclr_hub"):
            raise
        raise MissingDependency(
            f"This needs the package {error.name}, which is not installed: pip install 'nnclr_hub[{EXTRAS[program]}]'."
        ) from error


def find_serving() -> None:
    """From now on `import nnclr_hub.serving` works, as others' processes need it that are told to import by name."""
    _found("serving")


def _found(program: str) -> str:
    package = f"nnclr_hub.{program}"
    if package not in sys.modules and importlib.util.find_spec(package) is None:
        _adopt(package, Path(nnclr_hub.__file__).resolve().parents[1] / program)
    return package


def _adopt(package: str, folder: Path) -> None:
    """Makes the checkout's folder the package of that name."""
    spec = importlib.util.spec_from_file_location(
        package, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None or not folder.is_dir():
        raise MissingDependency(f"{folder} is not there: work in a full checkout, or install the nnclr_hub wheel.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[package] = module
    spec.loader.exec_module(module)
