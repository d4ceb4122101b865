"""The checks around each event handler of the page, since each handler is an endpoint that anyone can call.

An error of the library is shown as a toast, without paths of this machine. Any other error becomes a general message,
and the log contains its traceback. Rate limits and scopes are those of the HTTP request, as in REST.
"""

from __future__ import annotations

import html
import inspect
import logging
import re
import secrets
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any, get_type_hints

import gradio as gr

from nnclr_hub.client.call_examples import ApiCall
from nnclr_hub.errors import NNCLRHubError
from nnclr_hub.workbench.privacy import without_paths

log = logging.getLogger(__name__)
Handler = Callable[..., Any]
_call: ContextVar[ApiCall | None] = ContextVar("call", default=None)


def note_call(call: ApiCall) -> None:
    """Record what the running handler does."""
    _call.set(call)


def guard(handler: Handler, outputs: int, *, writes: bool) -> Handler:
    """Wrap a handler for Gradio; the result has one more output, the recorded REST call.

    Args:
        handler: may take `gr.Request` and `gr.EventData` by annotation. It returns one value per output, or a single
            gr.skip() for all outputs.
        writes: whether the caller needs a key that can write.
    """

    @wraps(handler)
    def guarded(request: gr.Request, *args: Any) -> Any:
        try:
            _enter(request, writes)
            _call.set(None)
            values = _values(handler(*args), outputs)
        except NNCLRHubError as error:
            raise gr.Error(error_text(error), title="Error", print_exception=False) from error
        except gr.Error:
            raise
        except Exception as error:
            reference = secrets.token_hex(3)
            log.exception("the page failed in %s (%s)", handler.__name__, reference)
            message = f"Internal error. The server's log has the details under {reference}."
            raise gr.Error(message, title="Error", print_exception=False) from error
        noted = gr.skip() if (call := _call.get()) is None else call
        return (*values, noted) if values else noted  # for a single output, Gradio would take a tuple as its value

    _set_signature(guarded, handler)
    return guarded


def error_text(error: NNCLRHubError) -> str:
    """Return the message for a toast. Toasts render HTML, and the message may quote text of another user."""
    return html.escape(without_paths(str(error)), quote=False)


def escape_markdown(text: str) -> str:
    """Escape text so that Markdown shows it unchanged."""
    return re.sub(r"([\\`*_{}\[\]<>()#+.!|~&$-])", r"\\\1", text)


def _values(result: Any, outputs: int) -> tuple[Any, ...]:
    if outputs == 0:
        return ()
    if isinstance(result, tuple) and outputs > 1:
        return result
    return (result,) * outputs if outputs > 1 else (result,)  # one gr.skip() for all


def _enter(request: gr.Request, writes: bool) -> None:
    """Check the scope, and make this thread count toward the limits of the HTTP request.

    The server's access control stores both in the ASGI scope; without a server there is neither.
    """
    scope = getattr(request.request, "scope", {})
    if writes and "auth" in scope and "write" not in scope["auth"].scopes:
        raise gr.Error(
            "This key can read but not write. Log in at /login with a key that can write.",
            title="Permission denied",
            print_exception=False,
        )
    enter = scope.get("state", {}).get("enter")
    if enter is not None:
        enter()


def _set_signature(guarded: Handler, handler: Handler) -> None:
    """Give the wrapper the signature that Gradio inspects: the request first, then the handler's parameters."""
    own = inspect.signature(handler)
    first = inspect.Parameter("request", inspect.Parameter.POSITIONAL_ONLY, annotation=gr.Request)
    # renamed, so that a handler's parameter cannot collide with "request"
    names = [one.replace(name=f"input_{one.name}", kind=one.POSITIONAL_ONLY) for one in own.parameters.values()]
    hints = {f"input_{name}": hint for name, hint in get_type_hints(handler).items() if name != "return"}
    del guarded.__wrapped__  # type: ignore[attr-defined]
    guarded.__annotations__ = {"request": gr.Request, **hints}
    guarded.__signature__ = own.replace(  # type: ignore[attr-defined]
        parameters=[first, *names], return_annotation=inspect.Signature.empty
    )
