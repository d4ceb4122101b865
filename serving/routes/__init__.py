"""The routes with their bodies, one file per resource; `schemas` has the types that several of them use."""

from __future__ import annotations

from fastapi import APIRouter

from . import attention, collections, embed, imports, inspections, items, jobs, probes, search, server

# in the order of the OpenAPI document
ROUTERS: tuple[APIRouter, ...] = (
    server.router,
    embed.openai,
    embed.tei,
    embed.router,
    attention.router,
    collections.router,
    collections.aliases,
    items.router,
    search.router,
    jobs.router,
    *jobs.starting.values(),
    imports.router,
    probes.router,
    inspections.router,
    server.runs,
)
PAGES: tuple[APIRouter, ...] = (server.docs, server.pages)  # which OpenAPI does not describe
