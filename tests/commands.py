"""Run `nnclr` in this process, or in one under other conditions."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import typer.testing
from typer.testing import CliRunner

from nnclr_hub.cli.app import app

ROOT = Path(__file__).parents[1]
# CliRunner builds the command line again for each call, which takes 0.1 s
typer.testing._get_command = functools.cache(typer.testing._get_command)


def nnclr(*words: object, typed: str | None = None) -> tuple[int, str, str]:
    """Return exit code, standard output and standard error; an exception that a user would see is raised."""
    result = CliRunner().invoke(app, [str(word) for word in words], input=typed)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def output_of(*words: object) -> str:
    """Return the standard output of a command that succeeds."""
    code, out, err = nnclr(*words)
    assert code == 0, err
    return out


def refused(*words: object, code: int) -> str:
    """Return the one error line of a command that fails with this exit code."""
    return error_line(nnclr(*words), code)


def error_line(answer: tuple[int, str, str], code: int) -> str:
    """Return the one error line of an answer of `nnclr` with this exit code."""
    exit_code, _, err = answer
    assert exit_code == code, err
    (line,) = [line for line in err.splitlines() if line.startswith("Error: ")]
    return line


def in_another_process(calls: list[list[str]], prelude: str, **environment: str) -> list[tuple[int, str, str]]:
    """Return what `nnclr` returns for each call, in one process that runs `prelude` before it imports nnclr_hub."""
    code = f"import json, sys\n{prelude}\nfrom commands import nnclr\n"
    code += "print(json.dumps([nnclr(*call) for call in json.load(sys.stdin)]))"
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]), "COLUMNS": "500"}
    inherited = {name: value for name, value in os.environ.items() if name != "HF_TOKEN"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(calls),
        capture_output=True,
        text=True,
        env=inherited | paths | environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return [tuple(answer) for answer in json.loads(done.stdout.splitlines()[-1])]
