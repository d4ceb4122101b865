"""The checks around each handler."""

import logging
from types import SimpleNamespace

import gradio as gr
import pytest
from starlette.authentication import AuthCredentials

from app.handlers import guard, note_call
from nnclr_hub.client.call_examples import ApiCall
from nnclr_hub.errors import InvalidRequest


def request(*scopes: str, **state) -> gr.Request:
    scope = {"auth": AuthCredentials(list(scopes)), "state": state}
    return gr.Request(request=SimpleNamespace(scope=scope))  # type: ignore[arg-type]


def message_of(error: Exception) -> str:
    """Return what a toast shows when a handler raises the error."""

    def fails() -> None:
        raise error

    with pytest.raises(gr.Error) as shown:
        guard(fails, 1, writes=False)(request("read"))
    assert shown.value.print_exception is False
    return shown.value.message


def test_a_message_has_no_path_of_this_machine_and_no_html(tmp_path):
    assert message_of(InvalidRequest(f"{tmp_path}/catalog.sqlite is damaged.")) == "catalog.sqlite is damaged."
    assert (
        message_of(InvalidRequest("<a href='x'>Log in</a> & more")) == "&lt;a href='x'&gt;Log in&lt;/a&gt; &amp; more"
    )


def test_an_unexpected_error_is_in_the_log_only(caplog):
    with caplog.at_level(logging.ERROR):
        message = message_of(KeyError("secret"))
    assert "secret" not in message
    assert message.rpartition(" ")[2].rstrip(".") in caplog.text
    assert "KeyError" in caplog.text


def test_a_handler_that_writes_requires_the_scope():
    written = []
    handler = guard(lambda: written.append(1), 0, writes=True)
    with pytest.raises(gr.Error, match="can read but not write"):
        handler(request("read"))
    assert written == []
    handler(request("read", "write"))
    handler(gr.Request(request=SimpleNamespace(scope={})))  # type: ignore[arg-type]  # a server without keys
    assert written == [1, 1]


@pytest.mark.parametrize(("outputs", "result"), [(0, None), (1, "one"), (2, ("one", "two"))])
def test_the_recorded_call_is_the_last_output(outputs, result):
    entered, call = [], ApiCall("GET", "/healthz")

    def handler():
        note_call(call)
        return result

    shown = guard(handler, outputs, writes=False)(request("read", enter=lambda: entered.append(1)))
    others = {0: (), 1: ("one",), 2: ("one", "two")}[outputs]
    assert shown == ((*others, call) if others else call), "for a single output, Gradio takes a tuple as its value"
    assert entered == [1]
    assert guard(lambda: None, 1, writes=False)(request("read")) == (None, gr.skip())
    assert guard(gr.skip, 3, writes=False)(request("read")) == (gr.skip(),) * 4
