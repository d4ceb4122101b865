"""What stands around every handler."""

import logging
from types import SimpleNamespace

import gradio as gr
import pytest
from starlette.authentication import AuthCredentials

from app.actions import Action
from app.handlers import did, handled
from nnclr_hub.errors import InvalidRequest


def request(*scopes: str, **state) -> gr.Request:
    scope = {"auth": AuthCredentials(list(scopes)), "state": state}
    return gr.Request(request=SimpleNamespace(scope=scope))  # type: ignore[arg-type]


def test_a_sentence_is_shown_without_a_path_of_this_machine(tmp_path):
    def fails() -> None:
        raise InvalidRequest(f"{tmp_path}/catalog.sqlite is damaged: repair it.")

    with pytest.raises(gr.Error) as shown:
        handled(fails, 1, writes=False)(request("read"))
    assert shown.value.message == "catalog.sqlite is damaged: repair it."
    assert shown.value.print_exception is False


def test_what_a_stranger_wrote_is_shown_as_text():
    def fails() -> None:
        raise InvalidRequest("There is no <a href='https://elsewhere.example'>Log in</a> & more: name another.")

    with pytest.raises(gr.Error) as shown:
        handled(fails, 1, writes=False)(request("read"))
    assert "<" not in shown.value.message
    assert "&lt;a href='https://elsewhere.example'&gt;Log in&lt;/a&gt; &amp; more" in shown.value.message


def test_what_nobody_thought_of_is_a_general_sentence_and_stands_in_the_log(caplog):
    def fails() -> None:
        raise KeyError("secret")

    with caplog.at_level(logging.ERROR), pytest.raises(gr.Error) as shown:
        handled(fails, 1, writes=False)(request("read"))
    assert "secret" not in str(shown.value.message)
    mark = str(shown.value.message).rpartition(" ")[2].rstrip(".")
    assert mark in caplog.text
    assert "KeyError" in caplog.text


def test_what_writes_asks_for_the_scope():
    written = []
    handler = handled(lambda: written.append(1), 0, writes=True)
    with pytest.raises(gr.Error, match="may read but not write"):
        handler(request("read"))
    assert written == []
    handler(request("read", "write"))
    handler(gr.Request(request=SimpleNamespace(scope={})))  # type: ignore[arg-type]  # no door, no keys
    assert written == [1, 1]


def test_the_caller_is_entered_and_the_action_noted():
    entered = []
    action = Action("GET", "/api/v1/collections")

    def works(value: int) -> tuple[int, int]:
        did(action)
        return value, value + 1

    assert handled(works, 2, writes=False)(request("read", enter=lambda: entered.append(1)), 3) == (3, 4, action)
    assert entered == [1]
    [none, skipped] = handled(lambda: None, 1, writes=False)(request("read"))
    assert none is None
    assert skipped == gr.skip()
    assert handled(gr.skip, 3, writes=False)(request("read")) == (gr.skip(),) * 4


@pytest.mark.parametrize(("outputs", "gives"), [(0, None), (1, "one"), (2, ("one", "two"))])
def test_the_noted_action_is_the_last_output_also_where_it_is_the_only_one(outputs, gives):
    """Gradio takes a tuple for the value of an only output."""
    action = Action("GET", "/healthz")

    def handler():
        did(action)
        return gives

    shown = handled(handler, outputs, writes=False)(request("read"))
    others = {0: (), 1: ("one",), 2: ("one", "two")}[outputs]
    assert shown == ((*others, action) if others else action)
