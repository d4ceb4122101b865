"""The verbs of `nnclr`, put together."""

from __future__ import annotations

from nnclr_hub.cli import (
    attending,
    embedding,
    evaluation,
    models,
    pictures,
    pretraining,
    probes,
    publishing,
    service,
    store_contents,
    stores,
)
from nnclr_hub.cli.verbs import new_app

app = new_app()
for group in (models, embedding, pictures, attending, pretraining, evaluation, publishing, probes, stores, service):
    group.register(app)
store_contents.register(stores.group)
