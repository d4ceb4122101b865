"""The routes with their bodies, one file per resource; `bodies` has the types that several of them use."""

from __future__ import annotations

from fastapi import APIRouter

from . import (
    attention,
    changes,
    collections,
    comparisons,
    embed,
    health,
    imports,
    inspections,
    items,
    jobs,
    metadata,
    openai,
    predictions,
    probes,
    runs,
    search,
    session,
    tei,
    transfer,
)

ROUTERS: tuple[APIRouter, ...] = (
    health.router,
    openai.router,
    tei.router,
    embed.router,
    attention.router,
    collections.router,
    collections.aliases,
    transfer.router,
    changes.router,
    items.router,
    metadata.router,
    search.router,
    jobs.router,
    imports.router,
    probes.router,
    predictions.router,
    inspections.router,
    comparisons.router,
    runs.router,
    session.router,
)
