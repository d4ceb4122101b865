"""The verbs of `nnclr`, put together."""

from __future__ import annotations

from nnclr_hub.cli import (
    attention,
    collections,
    embedding,
    evaluation,
    inspection,
    models,
    pretraining,
    probes,
    publishing,
    service,
    store,
)
from nnclr_hub.cli.verbs import new_app

PANELS = {
    "Encoders": (models, embedding, publishing),
    "Collections": (collections, store),
    "Look and label": (inspection, attention, probes),
    "Training and evaluation": (pretraining, evaluation),
    "Services": (service,),
}
app = new_app()
for panel, groups in PANELS.items():
    for group in groups:
        group.register(app)
    for verb in (*app.registered_commands, *app.registered_groups):
        if not isinstance(verb.rich_help_panel, str):
            verb.rich_help_panel = panel
