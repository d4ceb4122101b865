"""The verbs of `nnclr`, put together."""

from __future__ import annotations

from nnclr_hub.cli import models, pictures, pretraining, service
from nnclr_hub.cli.verbs import new_app

app = new_app()
for group in (models, pictures, pretraining, service):
    group.register(app)
