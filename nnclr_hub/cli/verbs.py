"""What all verbs share: options, error messages, exit codes, tables for people and JSON for programs.

Exit codes: 0 success; 1 failure; 2 wrong call.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from typer.core import TyperGroup

import nnclr_hub
from nnclr_hub.cache import is_in_cache
from nnclr_hub.errors import (
    ImageError,
    InvalidFilter,
    InvalidRequest,
    MissingDependency,
    NNCLRHubError,
    UnknownModel,
    missing_package,
)
from nnclr_hub.json_text import parse_json
from nnclr_hub.plural import counted
from nnclr_hub.terminal import PlainConsole, lines, show_warnings_safely

if TYPE_CHECKING:
    from nnclr_hub.store.base import Collection

SHOWN = 20  # broken files or keys that are listed
SAMPLED = 1000  # items whose keys are proposed instead of a misspelled one
UNCUT = 10_000  # columns of a pipe or file, so that paths and names are not cut


class _VerbConsole(PlainConsole):
    """A console whose tables, in a pipe or a file, have no spaces at the ends of lines; rich fills every cell."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as `Console.print` does."""
        if self.is_terminal or not any(isinstance(one, Table) for one in objects):
            super().print(*objects, **options)
            return
        with self.capture() as shown:
            super().print(*objects, **options)
        lines = shown.get().split("\n")  # not splitlines, which cuts a row at U+2028 and others
        text = "\n".join(line.rstrip(" ") for line in lines)
        super().print(text, end="", soft_wrap=True)


def _console(*, soft_wrap: bool = False, stderr: bool = False) -> PlainConsole:
    console = _VerbConsole(soft_wrap=soft_wrap, stderr=stderr)
    if not console.file.isatty():
        console.width = UNCUT
    return console


out = _console(soft_wrap=True)
err = _console(stderr=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Model = Annotated[
    str | None, typer.Option("--model", help="Encoder: a name from `nnclr models`, a folder, hf-hub:..., ...")
]
Backend = Annotated[
    str,
    typer.Option(
        "--backend",
        envvar="NNCLR_BACKEND",
        help="Runtime of the network: torch, openvino, openvino-bf16, onnx, ...; auto: OpenVINO where installed, else "
        "ONNX Runtime or torch, with vectors that agree with torch's.",
    ),
]
# verbs that keep finished work, and how to continue them
CONTINUE = {
    **dict.fromkeys(
        ("index", "inspect", "ablate", "eval", "publish", "download"), "run the same command again to continue"
    ),
    "embed": "with --out, run the same command again to continue after the last complete shard",
    "pretrain": "continue with --resume",
}


UsageError: Any = typer.BadParameter.__base__  # of the click that Typer uses; later versions have their own
LOGGED = ("serve", "demo", "pretrain", "ablate", "eval")  # verbs that print what they do
MISMATCH = "The installed torch and torchvision are not made for each other."


class ErrorMessages(TyperGroup):
    """Prints the message of a library error instead of its traceback; with --json, also as JSON."""

    def invoke(self, ctx: Any) -> Any:
        as_json = "--json" in ctx.args

        def state() -> str:
            name = ctx.invoked_subcommand
            return "" if name is None or name in LOGGED else f"nnclr {name} is running ..."

        show_warnings_safely()
        try:
            # in a pipe, so that nobody takes a verb that loads a large library for one that hangs
            with nullcontext() if err.is_terminal else lines(err, state):
                return super().invoke(ctx)
        except (KeyboardInterrupt, typer.Abort) as error:  # Abort: the answer to a question is no
            hint = CONTINUE.get(ctx.invoked_subcommand)
            text = f"Interrupted; {hint}." if hint else "Interrupted."
            if as_json:
                print_json({"error": {"code": "interrupted", "detail": text}})
            if isinstance(error, typer.Abort):
                raise
            err.print(text, soft_wrap=True)
            raise typer.Exit(130) from None
        except UsageError as error:  # which Typer prints
            if as_json:
                print_json({"error": {"code": InvalidRequest.code, "detail": error.format_message()}})
            raise
        except BrokenPipeError:  # the reader of the output closed it, as `| head` does
            raise typer.Exit(1) from None
        except Exception as error:
            if (known := _of_the_library(error)) is None:
                raise
            fail(known, as_json=as_json)


def fail(*errors: NNCLRHubError, as_json: bool = False) -> None:
    """Print the message of each error, and with `as_json` the first one as JSON; then exit.

    Raises:
        typer.Exit: 2 if the first error is a wrong call, otherwise 1.
    """
    if as_json:
        print_json({"error": described(errors[0])})
    prefix = _process_prefix()
    for error in errors:
        err.print(f"{prefix}Error: {error}", style="red", soft_wrap=True)
    raise typer.Exit(2 if isinstance(errors[0], InvalidRequest | UnknownModel) else 1)


def described(error: NNCLRHubError) -> dict[str, str]:
    """Return an error as JSON."""
    return {"code": error.code, "detail": str(error)}


def _of_the_library(error: Exception) -> NNCLRHubError | None:
    if isinstance(error, OSError):  # a full disk or missing permissions, wherever they occur
        return _of_the_system(error)
    if isinstance(error, ImportError):  # a package of an extra, wherever it is imported
        return missing_package(error)
    if isinstance(error, RuntimeError) and "torchvision::" in str(error):
        return MissingDependency(f"{MISMATCH} Install both from one source, in one command.")
    return error if isinstance(error, NNCLRHubError) else None


def _of_the_system(error: OSError) -> NNCLRHubError:
    """Return the library error of an operating system error."""
    if isinstance(error, shutil.Error):  # copytree gives a list of (source, destination, reason)
        source, copy, reason = error.args[0][0]
        return NNCLRHubError(f"{source} cannot be copied to {copy} ({reason}); check the disk and its permissions.")
    reason = error.strerror or " ".join(str(error).split()) or type(error).__name__
    place = f"{error.filename} cannot be read or written" if error.filename else "A file cannot be read or written"
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    hint = "free some space, or use another disk" if full else "check its path and permissions"
    if error.errno == errno.ENOENT and error.filename:
        place, reason, hint = f"{error.filename} does not exist", "", "check its path"
    if is_in_cache(error.filename):
        hint = f"set NNCLR_CACHE to a folder {'on another disk' if full else 'that can be written'}"
    elif "huggingface" in str(error.filename):
        hint = "set HF_HOME to a folder that can be written"
    return NNCLRHubError(f"{place}{reason and f' ({reason})'}; {hint}.")


def _process_prefix() -> str:
    """Return the prefix of error messages of a torchrun process.

    All processes usually stop for the same reason, and torchrun kills the others when one has exited. So the others
    wait; a process that is still alive afterwards has a different error, and prints its rank.
    """
    rank = os.environ.get("RANK", "0")
    if rank == "0" or "TORCHELASTIC_RUN_ID" not in os.environ:
        return ""
    time.sleep(2)
    return f"process {rank}: "


def _version(wanted: bool) -> None:
    if wanted:
        out.print(nnclr_hub.__version__)
        raise typer.Exit


def new_app() -> typer.Typer:
    """Return an empty command line with --version."""
    app = typer.Typer(
        cls=ErrorMessages,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="NNCLR encoders: pretrain, embed, index, search, serve.",
    )

    @app.callback()
    def root(
        version: Annotated[
            bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
        ] = False,
    ) -> None: ...

    return app


def bar(title: str, unit: str = "images") -> AbstractContextManager[Callable[[int, int], None]]:
    """Show the progress of work; see `progress.bar`."""
    from nnclr_hub import progress  # which takes a while to import

    return progress.bar(err, title, unit=unit)


@contextmanager
def megabytes(title: str) -> Iterator[Callable[[int, int], None]]:
    """Show the progress of work that counts bytes."""
    from nnclr_hub.progress import in_megabytes

    with bar(title, "MB") as advance:
        yield in_megabytes(advance)


def parse_numbers(option: str, text: str, form: str) -> list[float]:
    """Return the numbers of an option such as --box X0,Y0,X1,Y1.

    Raises:
        InvalidRequest: if the text does not have this form.
    """
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    count = form.count(",") + 1
    if len(numbers) != count:
        several = f", {count} numbers with commas between them" if count > 1 else ""
        raise InvalidRequest(f"{option} must be {form}{several}; got {text}.")
    return numbers


def parse_where(text: str | None) -> dict[str, Any] | None:
    """Return the filter of the option --where.

    Raises:
        InvalidFilter: it is not JSON.
    """
    try:
        return parse_json(text) if text else None
    except ValueError as error:
        raise InvalidFilter(
            f'--where is not valid: {error}. Write it like \'{{"must": [{{"key": "label", "match": "cat"}}]}}\'.'
        ) from error


def confirm(question: str) -> None:
    """Ask a person; stop unless the answer is yes.

    Raises:
        InvalidRequest: nobody can answer, as in a script.
        typer.Abort: the answer is no.
    """
    try:
        agreed = typer.confirm(question, err=True)
    except (typer.Abort, RuntimeError):  # no line to read, Ctrl-C, or a closed standard input
        if sys.stdin is None or not sys.stdin.isatty():
            err.print()  # ends the line of the question
            raise InvalidRequest("Nothing was changed, because the question has no answer; add --yes.") from None
        raise
    if not agreed:
        raise typer.Abort


def print_json(value: Any) -> None:
    """Print one JSON document."""
    typer.echo(json.dumps(value, indent=2))  # ASCII: file names may hold characters that the terminal cannot print


def show(as_json: bool, value: Any, *lines: Any) -> None:
    """Print JSON for programs, or lines and tables for people; empty lines are left out."""
    if as_json:
        print_json(value)
        return
    for line in filter(None, lines):
        out.print(line)


def new_table(*headings: str, right: Container[str] = (), rows: Iterable[Sequence[Any]] = (), **options: Any) -> Table:
    """Return a table whose cells are folded and never cut."""
    table = Table(box=None, header_style="bold", **options)
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(str, row))
    return table


def check_folder(to: Path, *marks: str, inputs: Iterable[Path] = ()) -> None:
    """Raise InvalidRequest if --out is a file, a folder of the input, or a folder with files of another origin.

    Args:
        marks: patterns of files of which an earlier call of the verb wrote at least one.
        inputs: files and folders that the verb reads.
    """
    if to.exists() and not to.is_dir():
        raise InvalidRequest(f"--out {to} is a file; name a folder.")
    for one in inputs:
        if to.exists() and one.exists() and to.samefile(one):
            raise InvalidRequest(f"--out {to} is the folder of the images; name another one, which may be in it.")
    held = sorted(one.name for one in to.iterdir() if not one.name.startswith(".")) if to.exists() else []
    if held and not any(any(to.glob(mark)) for mark in marks):
        raise InvalidRequest(f"--out {to} holds other files, such as {held[0]}; name a new or an empty folder.")


def check_file(to: Path, *starts: bytes) -> None:
    """Raise InvalidRequest if --out is a file that does not start as a result of the verb does."""
    if to.is_file() and to.stat().st_size:
        with to.open("rb") as file:
            head = file.read(max(map(len, starts)))
        if not head.startswith(starts):
            raise InvalidRequest(f"--out {to} is a file of another origin; name another file, or delete it.")


def place_of(id: str, metadata: Mapping[str, Any]) -> tuple[str, str]:
    """Return the folder that an item was indexed from and its path there; or "" and its id."""
    if "path" not in metadata:
        return "", id
    box = metadata.get("box")  # a tile has one
    part = f"#{','.join(map(str, box))}" if isinstance(box, list) else ""
    return str(metadata.get("root", "")), f"{metadata['path']}{part}"


def none_read(count: int) -> ImageError:
    """Return the error of a call whose images could not be read; `list_broken` has listed them."""
    return ImageError(f"None of {counted(count, 'image')} could be read; the reason is shown next to each file above.")


def note_unknown_keys(collection: Collection, where: Mapping[str, Any] | None, *keys: str | None) -> None:
    """Name the metadata keys, given or in a filter, that no item has; a misspelled one looks like an empty result.

    Conditions on whether a key exists are left out, since they are about items without it.
    """
    from difflib import get_close_matches

    from nnclr_hub.store.where import parse

    conditions = (one.key for one in parse(where).conditions() if one.kind != "exists")
    for key in dict.fromkeys(filter(None, (*keys, *conditions))):
        try:
            if collection.scroll(None, 1, {"must": [{"key": key, "exists": True}]}, with_vector=False).items:
                continue
            if not (sample := collection.scroll(None, SAMPLED, None, with_vector=False).items):
                return
        except NNCLRHubError:  # Milvus filters by some keys only, and a server has a deadline
            continue
        known = sorted({known for item in sample for known in _keys_of(item.metadata)})
        near = get_close_matches(key, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"existing keys: {', '.join(known[:SHOWN]) or 'none'}."
        err.print(f"No item of {collection.name} has the key {key!r}; {hint}", style="yellow", soft_wrap=True)


def _keys_of(metadata: Mapping[str, Any]) -> Iterator[str]:
    for key, value in metadata.items():
        yield key
        if isinstance(value, Mapping):
            yield from (f"{key}.{inner}" for inner in _keys_of(value))


def list_broken(broken: Sequence[tuple[str, str]], count: int | None = None) -> None:
    """List the files that could not be read, on standard error; `count` if a server listed fewer than there are."""
    for path, reason in broken[:SHOWN]:
        err.print(f"skipped {path}: {reason}", style="yellow", soft_wrap=True)
    if (more := (len(broken) if count is None else count) - SHOWN) > 0:
        err.print(f"... and {more} more", style="yellow")
