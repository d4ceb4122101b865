"""The page as an ASGI app, with the parts of a mounted Gradio app that are open by default closed.

1. Gradio rejects server paths from clients only after `launch()`. Mounting does not call it, so `has_launched` is set
   here.
2. Gradio can fetch web addresses for clients, and offers more routes than the page needs. The functions that fetch are
   replaced, and only the routes in OPEN_ROUTES are reachable. It is an allow list because each Gradio version adds
   routes.
3. Gradio keeps uploads forever. `uploads.py` replaces its folder with one that has a size limit and an age limit.
4. Each event is an HTTP endpoint, whatever its visibility setting. `handlers.py` checks the scopes that REST requires,
   and a read-only page has no event that writes.
"""

from __future__ import annotations

import os
import re
from typing import Any, NoReturn
from urllib.parse import unquote

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # read when gradio is imported
# Otherwise Gradio builds a pandas table of all events after each event
os.environ.setdefault("GRADIO_ANALYTICS_CACHE_FREQUENCY", "1000000")

import gradio as gr
import gradio.processing_utils
import gradio.routes
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from gradio.blocks import BlocksConfig
from starlette.types import ASGIApp, Receive, Scope, Send

from .page import Page
from .tabs.api import ApiTab
from .tabs.attention import AttentionTab
from .tabs.collections import CollectionsTab
from .tabs.probe import ProbeTab
from .tabs.search import SearchTab
from .tabs.training import TrainingTab
from .theme import HEAD, THEME, css
from .uploads import UploadFolder

# label of the tab -> its class, in display order
TABS = {
    "Search": SearchTab,
    "Attention": AttentionTab,
    "Collections": CollectionsTab,
    "Probe": ProbeTab,
    "Training": TrainingTab,
    "API": ApiTab,
}
HEADER = """
<header><h1>nnclr_hub</h1><p>Search images by visual similarity.</p>
<nav aria-label="Links"><a href="/docs">REST API</a></nav></header>
"""
# `file=` returns an upload to the session that sent it
OPEN_ROUTES = re.compile(
    r"/?|/(config/?|theme\.css|favicon\.ico|robots\.txt|(static|assets|svelte)/.*)"
    r"|/gradio_api/(queue/(join|data)|(run|api|call)/.*|cancel|reset/?|heartbeat/[^/]*|info/?|app_id/?|startup-events"
    r"|theme\.css|upload|upload_progress|file=(?!.*://).*)"
)


def build_demo(page: Page) -> gr.Blocks:
    """Build all tabs as one gr.Blocks."""
    with gr.Blocks(title="nnclr_hub", analytics_enabled=False) as demo:
        page.open(demo)
        gr.HTML(html_template=HEADER, elem_id="header")
        with gr.Tabs(elem_id="tabs"):
            for name, tab in TABS.items():
                with gr.Tab(name, id=name.lower()) as page.tab:
                    tab(page)
    return demo


def build_site(page: Page, path: str) -> FastAPI:
    """Return an app that contains only the page; its lifespan is that of the upload folder.

    Args:
        path: the path under which the parent app will mount the page.
    """
    _replace(gradio.processing_utils, "async_ssrf_protected_download", _refuse_async)
    _replace(gradio.processing_utils, "ssrf_protected_download", _refuse)
    _replace(gradio.routes, "secure_url_stream_response", _refuse_async)
    _replace(BlocksConfig, "config_for_block", staticmethod(_describe_layout))
    uploads = UploadFolder()
    demo = build_demo(page)
    demo.has_launched = True
    demo.max_threads = 4  # a separate pool, so that a busy page leaves the API's threads free
    demo.queue(default_concurrency_limit=2, max_size=64)
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, lifespan=lambda _: uploads.lifespan())
    gr.mount_gradio_app(
        app,
        demo,
        path=path,
        ssr_mode=False,
        show_error=False,
        footer_links=[],
        run_history=False,
        max_file_size=page.settings.max_bytes,
        theme=THEME,
        css=css(),
        head=HEAD,
    )
    (mounted,) = app.router.routes
    mounted.app = _only_open_routes(uploads.limit(mounted.app))  # type: ignore[attr-defined]
    return app


def is_open(path: str) -> bool:
    """Return whether the page uses a path, also when the path is percent-encoded once more."""
    return all(OPEN_ROUTES.fullmatch(one) is not None for one in (path, unquote(path)))


def _only_open_routes(app: ASGIApp) -> ASGIApp:
    """Wrap Gradio's app: answer 404 to each route that the page does not use."""

    async def filtered(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not is_open(scope["path"].removeprefix(scope.get("root_path", ""))):
            await PlainTextResponse("Not found.", 404)(scope, receive, send)
            return
        await app(scope, receive, send)

    return filtered


def _replace(module: Any, name: str, replacement: Any) -> None:
    """Replace a function of Gradio for the whole process."""
    if not hasattr(module, name):
        raise RuntimeError(f"gradio {gradio.__version__} has no {name}; install the version that nnclr_hub requires.")
    setattr(module, name, replacement)


_describe = BlocksConfig.config_for_block


def _describe_layout(_id: int, rendered_ids: list[int], block: Any, renderable: Any = None) -> dict[str, Any]:
    """Describe a component for the initial page, and return nothing for the copy that each session keeps.

    Gradio describes all components for each new session, on the event loop, which delays REST. It needs the
    descriptions only for links to a session's state, and this page has no such links.
    """
    return _describe(_id, rendered_ids, block, renderable) if rendered_ids else {}


def _refuse(*_: Any) -> NoReturn:
    raise gr.Error("This server does not fetch web addresses; upload the image file instead.", print_exception=False)


async def _refuse_async(*_: Any) -> NoReturn:
    _refuse()
