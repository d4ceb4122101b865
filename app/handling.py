"""What stands around every handler of the page, since each is an endpoint that anyone may call.

An error of the library is its sentence, shown as a toast, without a path of this machine; any other error is a general
sentence, and the log says what. The caller counts as in REST: rates and scopes are those of the request that asked.
"""

from __future__ import annotations

import html
import inspect
import logging
import secrets
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any, get_type_hints

import gradio as gr

from nnclr_hub.errors import NNCLRHubError
from nnclr_hub.workbench.privacy import without_paths

from .actions import Action

log = logging.getLogger(__name__)
Handler = Callable[..., Any]
_did: ContextVar[Action | None] = ContextVar("did", default=None)


def did(action: Action) -> None:
    """Notes what the handler at work does."""
    _did.set(action)


def handled(handler: Handler, outputs: int, *, writes: bool) -> Handler:
    """The handler as Gradio gets it: it gives one output more, the action that was noted.

    Args:
        handler: may take `gr.Request` and `gr.EventData` by annotation; gives as many values as there are outputs, or
            one gr.skip() for all.
        outputs: how many.
        writes: whether who asks needs a key that may write.
    """

    @wraps(handler)
    def shielded(request: gr.Request, *args: Any) -> Any:
        try:
            _enter(request, writes)
            _did.set(None)
            values = _values(handler(*args), outputs)
        except NNCLRHubError as error:
            raise gr.Error(shown_text(error), title="That did not work", print_exception=False) from error
        except gr.Error:
            raise
        except Exception as error:
            mark = secrets.token_hex(3)
            log.exception("the page failed in %s (%s)", handler.__name__, mark)
            sentence = f"The page failed at this; the server's log says why, under {mark}."
            raise gr.Error(sentence, title="That did not work", print_exception=False) from error
        noted = gr.skip() if (action := _did.get()) is None else action
        return (*values, noted) if values else noted  # Gradio takes a tuple for the value of an only output

    _take_request_too(shielded, handler)
    return shielded


def shown_text(error: NNCLRHubError) -> str:
    """Its sentence for a toast, which shows HTML, while the sentence may quote what a stranger wrote."""
    return html.escape(without_paths(str(error)), quote=False)


def _values(result: Any, outputs: int) -> tuple[Any, ...]:
    if outputs == 0:
        return ()
    if isinstance(result, tuple) and outputs > 1:
        return result
    return (result,) * outputs if outputs > 1 else (result,)  # one gr.skip() for all


def _enter(request: gr.Request, writes: bool) -> None:
    """Makes the request in work that of this thread, and asks for its scope.

    The door of the server, where there is one, has left both in the request.
    """
    scope = getattr(request.request, "scope", {})
    if writes and "auth" in scope and "write" not in scope["auth"].scopes:
        raise gr.Error(
            "This key may read but not write: log in at /login with one that writes.",
            title="Not with this key",
            print_exception=False,
        )
    enter = scope.get("state", {}).get("enter")
    if enter is not None:
        enter()


def _take_request_too(shielded: Handler, handler: Handler) -> None:
    """Gradio looks at the signature to see what to pass: the request first, then what the handler itself takes."""
    own = inspect.signature(handler)
    first = inspect.Parameter("request", inspect.Parameter.POSITIONAL_ONLY, annotation=gr.Request)
    names = [one.replace(name=f"given_{one.name}", kind=one.POSITIONAL_ONLY) for one in own.parameters.values()]
    hints = {f"given_{name}": hint for name, hint in get_type_hints(handler).items() if name != "return"}
    del shielded.__wrapped__  # type: ignore[attr-defined]
    shielded.__annotations__ = {"request": gr.Request, **hints}
    shielded.__signature__ = own.replace(  # type: ignore[attr-defined]
        parameters=[first, *names], return_annotation=inspect.Signature.empty
    )
