"""Names of a package that load with their first use, so that importing the package is light.

__getattr__, __dir__ = lazy_names(__name__, {"heads": ("ProjectionHead", "PredictionHead")})
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module


def lazy_names(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package.

    Args:
        package: its `__name__`.
        homes: names by the module of the package that defines them.
    """
    modules = {name: module for module, names in homes.items() for name in names}
    namespace = vars(sys.modules[package])

    def load(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        namespace[name] = getattr(import_module(f"{package}.{modules[name]}"), name)
        return namespace[name]

    return load, lambda: sorted({*namespace, *modules})
