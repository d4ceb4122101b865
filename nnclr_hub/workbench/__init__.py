"""What the command line, REST and the apps share: a Workbench over encoders and a store.

Importing this package is light: torch comes with the first use of a name.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

# public name -> the module that defines it
_HOME = {
    "AddRequest": "add_request",
    "Encoders": "models",
    "Example": "search_query",
    "IndexReport": "folder_changes",
    "Ingestion": "ingestion",
    "Models": "models",
    "NewImage": "add_request",
    "SearchQuery": "search_query",
    "Workbench": "workbench",
}

__all__ = [
    "AddRequest",
    "Encoders",
    "Example",
    "IndexReport",
    "Ingestion",
    "Models",
    "NewImage",
    "SearchQuery",
    "Workbench",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


if TYPE_CHECKING:
    from nnclr_hub.workbench.add_request import AddRequest, NewImage
    from nnclr_hub.workbench.folder_changes import IndexReport
    from nnclr_hub.workbench.ingestion import Ingestion
    from nnclr_hub.workbench.models import Encoders, Models
    from nnclr_hub.workbench.search_query import Example, SearchQuery
    from nnclr_hub.workbench.workbench import Workbench
