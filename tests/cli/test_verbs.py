"""What all verbs share: output to a pipe, interrupts, and errors of the operating system."""

import errno
import json
import os
import re
import socket
import subprocess
import sys

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from nnclr_hub.cli.app import PANELS, app
from nnclr_hub.cli.programs import load_program
from nnclr_hub.cli.verbs import CONTINUE, new_app
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec


def test_help_has_a_panel_for_each_purpose():
    shown = CliRunner().invoke(app, ["--help"]).stdout
    assert [shown.index(panel) for panel in PANELS] == sorted(shown.index(panel) for panel in PANELS)
    verbs = (*app.registered_commands, *app.registered_groups)
    assert {verb.rich_help_panel for verb in verbs} == set(PANELS)


def test_every_command_has_an_example_in_its_help():
    """And explains each of its options."""
    commands = [("nnclr", get_command(app))]
    for name, command in commands:
        for verb, child in getattr(command, "commands", {}).items():
            commands.append((f"{name} {verb}", child))
        if not hasattr(command, "commands") and command.params:
            assert f"Example: {name}" in " ".join((command.help or "").split()) or name == "nnclr models", name
            assert [one.name for one in command.params if not getattr(one, "help", None)] == [], name


def verbs_with_json() -> list[tuple[str, list[str]]]:
    """Return the words of each verb that has --json, and arguments that it refuses."""
    commands, found = [("", get_command(app))], []
    for name, command in commands:
        commands += [(f"{name} {verb}".strip(), child) for verb, child in getattr(command, "commands", {}).items()]
        if any("--json" in one.opts for one in command.params):
            options = {one.opts[0] for one in command.params}
            words = [word for one in command.params if one.required for word in (*required(one), "no/where")]
            found.append((name, [*words, *(["--store", "missing"] if "--store" in options else [])]))
    return found


def required(option) -> list[str]:
    return [option.opts[0]] if option.param_type_name == "option" else []


@pytest.mark.parametrize(("verb", "words"), verbs_with_json(), ids=lambda value: str(value))
def test_every_verb_with_json_reports_a_failure_as_json(verb, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for more in (words, ["--misspelled"]):
        result = CliRunner().invoke(app, [*verb.split(), *more, "--json"])
        if verb in ("models",) and more is words:
            continue
        assert result.exit_code in (1, 2), (result.stdout, result.stderr)
        error = json.loads(result.stdout)["error"]
        assert error["code"]
        assert error["detail"]
        assert result.stderr


def ended(verb: str, error: BaseException) -> tuple[int, str]:
    """Exit code and standard error of a verb that raises."""
    line = new_app()

    @line.command(verb)
    def stop() -> None:
        raise error

    @line.command("another")
    def another() -> None: ...

    result = CliRunner().invoke(line, [verb])
    return result.exit_code, result.stderr.strip()


@pytest.mark.parametrize(
    ("verb", "sentence"),
    [
        ("index", "Interrupted; run the same command again to continue."),
        ("pretrain", "Interrupted; continue with --resume."),
        ("verify", "Interrupted."),
    ],
)
def test_an_interrupt_reports_how_to_continue(verb, sentence):
    assert ended(verb, KeyboardInterrupt()) == (130, sentence)


def test_the_verbs_that_can_continue_exist():
    assert set(CONTINUE) <= set(get_command(app).commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("code", "hint"), [(errno.ENOSPC, "space"), (errno.EACCES, "permissions")])
def test_an_operating_system_error_names_the_file(code, hint):
    exit_code, sentence = ended("export", OSError(code, os.strerror(code), "models/x"))
    assert exit_code == 1
    assert sentence.startswith(f"Error: models/x cannot be read or written ({os.strerror(code)})")
    assert hint in sentence


def test_a_missing_file_is_not_one_that_cannot_be_created(tmp_path):
    missing = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(tmp_path / "x"))
    assert ended("export", missing) == (1, f"Error: {tmp_path}/x does not exist; check its path.")


def test_a_piped_table_is_not_truncated(tmp_path):
    """Run a separate process, since only its output is a pipe instead of a terminal."""
    model = "/" + "/".join(["a-folder-of-a-long-name"] * 12)
    with open_store(str(tmp_path / "store")) as store:
        store.create("c", CollectionSpec(2, model=model))
        store.create("d", CollectionSpec(2, model="m", fingerprint="0123456789abcdef"))
    command = [sys.executable, "-m", "nnclr_hub.cli", "store", "list", "--store", str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "80"}, check=True)
    assert [line.split()[-1] for line in done.stdout.splitlines()] == ["model", model, "(01234567)"]


@pytest.mark.parametrize(
    ("listened", "opened"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("0", "127.0.0.1"), ("::", "[::1]"), ("::1", "[::1]")],
)
def test_serve_prints_an_address_that_a_browser_opens(listened, opened, model, tmp_path, monkeypatch):
    if ":" in listened:
        try:
            socket.create_server((listened, 0), family=socket.AF_INET6).close()
        except OSError:
            pytest.skip("this machine has no IPv6")
    monkeypatch.setattr(load_program("serving", "run"), "run", lambda app, settings: None)
    flags = ("--host", listened, "--insecure", "--port", "0", "--store", str(tmp_path / "store"), "--model", str(model))
    result = CliRunner().invoke(app, ["serve", *flags])
    assert result.exit_code == 0, result.stderr
    assert re.search(rf"web app: http://{re.escape(opened)}:[1-9]\d*/ ", result.stderr), result.stderr
