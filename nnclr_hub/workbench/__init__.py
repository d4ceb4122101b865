"""What the command line, REST and the apps share: a Workbench over encoders and a store.

Importing this package is light: torch comes with the first use of a name.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

# public name -> the module that defines it
_HOME = {
    "Adding": "adding",
    "Encoders": "models",
    "Example": "search_query",
    "IndexReport": "indexing",
    "Models": "models",
    "NewImage": "adding",
    "SearchQuery": "search_query",
    "Workbench": "workbench",
}

__all__ = ["Adding", "Encoders", "Example", "IndexReport", "Models", "NewImage", "SearchQuery", "Workbench"]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


if TYPE_CHECKING:
    from nnclr_hub.workbench.adding import Adding, NewImage
    from nnclr_hub.workbench.indexing import IndexReport
    from nnclr_hub.workbench.models import Encoders, Models
    from nnclr_hub.workbench.search_query import Example, SearchQuery
    from nnclr_hub.workbench.workbench import Workbench
