"""What the command line, REST and the page share: one object over encoders and a store."""

from nnclr_hub.encoder.folder_changes import IndexReport
from nnclr_hub.workbench.adding import Adding, NewImage
from nnclr_hub.workbench.models import Encoders, Models
from nnclr_hub.workbench.workbench import Workbench

__all__ = ["Adding", "Encoders", "IndexReport", "Models", "NewImage", "Workbench"]
