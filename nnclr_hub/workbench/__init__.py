"""What the command line, REST and the apps share: a Workbench over encoders and a store.

Importing this package is light: torch comes with the first use of a name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnclr_hub.lazy_names import lazy_names

NAMES = {
    "folder_changes": ("IndexReport",),
    "models": ("Encoders", "Models"),
    "requests": ("AddRequest", "FolderRequest", "NewCollection", "NewImage"),
    "search_query": ("Example", "SearchQuery"),
    "workbench": ("Workbench",),
}
__all__ = [
    "AddRequest",
    "Encoders",
    "Example",
    "FolderRequest",
    "IndexReport",
    "Models",
    "NewCollection",
    "NewImage",
    "SearchQuery",
    "Workbench",
]
__getattr__, __dir__ = lazy_names(__name__, NAMES)

if TYPE_CHECKING:
    from nnclr_hub.workbench.folder_changes import IndexReport
    from nnclr_hub.workbench.models import Encoders, Models
    from nnclr_hub.workbench.requests import AddRequest, FolderRequest, NewCollection, NewImage
    from nnclr_hub.workbench.search_query import Example, SearchQuery
    from nnclr_hub.workbench.workbench import Workbench
