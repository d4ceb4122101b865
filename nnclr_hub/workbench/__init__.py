"""What the command line, REST and the apps share: one object over encoders and a store.

Importing this package is light, because the HTTP client uses a few of its modules and needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

# public name -> the module that defines it
_HOME = {
    "Adding": "nnclr_hub.workbench.adding",
    "Encoders": "nnclr_hub.workbench.models",
    "IndexReport": "nnclr_hub.workbench.folder_changes",
    "Models": "nnclr_hub.workbench.models",
    "NewImage": "nnclr_hub.workbench.adding",
    "Workbench": "nnclr_hub.workbench.workbench",
}

__all__ = ["Adding", "Encoders", "IndexReport", "Models", "NewImage", "Workbench"]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


if TYPE_CHECKING:
    from nnclr_hub.workbench.adding import Adding, NewImage
    from nnclr_hub.workbench.folder_changes import IndexReport
    from nnclr_hub.workbench.models import Encoders, Models
    from nnclr_hub.workbench.workbench import Workbench
