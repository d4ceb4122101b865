"""The routes, one file per resource."""

from __future__ import annotations

from fastapi import APIRouter

from . import aliases, attention, collections, embed, health, items, jobs, openai, probes, runs, search

ROUTERS: tuple[APIRouter, ...] = tuple(
    resource.router
    for resource in (health, openai, embed, attention, collections, aliases, items, search, jobs, probes, runs)
)
