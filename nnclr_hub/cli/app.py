"""The verbs of `nnclr`, put together."""

from __future__ import annotations

from nnclr_hub.cli import (
    attention,
    embedding,
    evaluation,
    index,
    models,
    pretraining,
    probes,
    publishing,
    search,
    service,
    store_contents,
    stores,
)
from nnclr_hub.cli.verbs import new_app

app = new_app()
for group in (
    models,
    embedding,
    index,
    search,
    attention,
    pretraining,
    evaluation,
    publishing,
    probes,
    stores,
    service,
):
    group.register(app)
store_contents.register(stores.group)
