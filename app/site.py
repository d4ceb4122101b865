"""The page as an app, with what a mounted Gradio app leaves open closed.

1. Gradio refuses server paths from clients only once a page counts as launched, which mounting does
   not say: we say it.
2. It fetches web addresses for clients, and offers more than a page needs: the functions that fetch are
   replaced, and only the routes in use are open (entrances.py).
3. It keeps uploads for ever: its folder is our own, with a limit and an end (uploads.py).
4. Every event is an endpoint, whatever it says of its visibility: what stands around handlers asks for
   the scopes that REST asks for (handling.py), and a read-only page has no event that writes.
"""

from __future__ import annotations

import os
from typing import Any, NoReturn

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # read when gradio is imported
os.environ.setdefault("GRADIO_ANALYTICS_CACHE_FREQUENCY", "1000000")  # else a pandas table of all events, at each event

import gradio as gr
import gradio.processing_utils
import gradio.routes
from fastapi import FastAPI
from gradio.blocks import BlocksConfig

from .demo import build_demo
from .entrances import Entrances
from .page import Page
from .theme import HEAD, THEME, css
from .uploads import UploadFolder


def build_site(page: Page, path: str) -> FastAPI:
    """An app with nothing but the page, mounted at a path; its lifespan is the page's.

    Args:
        path: where the app's own parent will have the page.
    """
    _replace(gradio.processing_utils, "async_ssrf_protected_download", _refuse_async)
    _replace(gradio.processing_utils, "ssrf_protected_download", _refuse)
    _replace(gradio.routes, "secure_url_stream_response", _refuse_async)
    _replace(BlocksConfig, "config_for_block", staticmethod(_describe_the_layout))
    uploads = UploadFolder()
    demo = build_demo(page)
    demo.has_launched = True
    demo.max_threads = 4  # threads of its own, so that a busy page leaves the API's alone
    demo.queue(default_concurrency_limit=2, max_size=64)
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, lifespan=lambda _: uploads.kept())
    gr.mount_gradio_app(
        app,
        demo,
        path=path,
        ssr_mode=False,
        show_error=False,
        footer_links=[],
        run_history=False,
        max_file_size=page.terms.max_bytes,
        theme=THEME,
        css=css(),
        head=HEAD,
    )
    (mounted,) = app.router.routes
    mounted.app = Entrances(uploads.guarded(mounted.app))  # type: ignore[attr-defined]
    return app


def _replace(place: Any, name: str, by: Any) -> None:
    """Puts ours in place of Gradio's, for the whole process.

    Raises:
        RuntimeError: this version of Gradio has no such thing, so what it was replaced for may be open.
    """
    if not hasattr(place, name):
        raise RuntimeError(f"gradio {gradio.__version__} has no {name}: install the version that nnclr_hub asks for.")
    setattr(place, name, by)


_describe = BlocksConfig.config_for_block


def _describe_the_layout(_id: int, rendered_ids: list[int], block: Any, renderable: Any = None) -> dict[str, Any]:
    """What a component is, for the page as it is sent; nothing, for what a session keeps of it.

    Gradio describes all components for each new session, on the event loop, where that holds up REST; it needs the
    descriptions for links to what a session shows, of which this page has none.
    """
    return _describe(_id, rendered_ids, block, renderable) if rendered_ids else {}


def _refuse(*_: Any) -> NoReturn:
    raise gr.Error("This server fetches no web addresses: upload the image itself.", print_exception=False)


async def _refuse_async(*_: Any) -> NoReturn:
    _refuse()
