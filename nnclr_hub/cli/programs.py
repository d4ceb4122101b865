"""The programs `training`, `serving` and `app`, loaded when their verb is called."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from nnclr_hub.errors import MissingDependency

EXTRAS = {"training": "train", "serving": "serve", "app": "demo"}


def load_program(program: str, module: str) -> ModuleType:
    """Return the module nnclr_hub.<program>.<module>.

    Raises:
        MissingDependency: the program, or a package of its extra, is not installed.
    """
    package = f"nnclr_hub.{program}"
    try:
        return importlib.import_module(f"{package}.{module}")
    except ModuleNotFoundError as error:
        if error.name == package:
            raise MissingDependency(f"{package} is missing; use a full checkout, or install the wheel.") from error
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
