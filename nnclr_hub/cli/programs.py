"""The programs `training`, `serving` and `app`, loaded when their verb is called.

A wheel contains them inside nnclr_hub, a checkout next to it. Both are imported as nnclr_hub.<program> from their own
path, so another module named `app` on sys.path is never imported.
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
    """Return the module nnclr_hub.<program>.<module>.

    Raises:
        MissingDependency: if a package of the program's extra is not installed.
    """
    try:
        return importlib.import_module(f"{_package(program)}.{module}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("nnclr_hub"):
            raise
        raise _missing(error.name, program) from error


def require_packages(program: str, *packages: str) -> None:
    """Check that packages of a program's extra are installed, without importing them.

    Raises:
        MissingDependency: names the first that is not.
    """
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise _missing(package, program)


def _missing(package: str, program: str) -> MissingDependency:
    return MissingDependency(
        f"This needs the package {package}, which is not installed; pip install 'nnclr_hub[{EXTRAS[program]}]'."
    )


def find_serving() -> None:
    """Make `import nnclr_hub.serving` work, for processes that import it by name."""
    _package("serving")


def _package(program: str) -> str:
    package = f"nnclr_hub.{program}"
    if package not in sys.modules and importlib.util.find_spec(package) is None:
        _adopt(package, Path(nnclr_hub.__file__).resolve().parents[1] / program)
    return package


def _adopt(package: str, folder: Path) -> None:
    """Make the checkout's folder the package of that name."""
    spec = importlib.util.spec_from_file_location(
        package, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None or not folder.is_dir():
        raise MissingDependency(f"{folder} does not exist; use a full checkout, or install the nnclr_hub wheel.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[package] = module
    spec.loader.exec_module(module)
