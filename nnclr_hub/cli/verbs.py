"""What all verbs share: errors as one sentence, exit codes, tables for people and JSON for programs.

Exit codes: 0 done; 1 it could not be done; 2 the call was wrong.
"""

from __future__ import annotations

import errno
import json
import os
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

import nnclr_hub
from nnclr_hub.errors import InvalidRequest, NNCLRHubError, UnknownModel

if TYPE_CHECKING:
    from nnclr_hub.encoder.encoder import Encoder

UNCUT = 10_000  # columns of what is no terminal: whoever reads a pipe or a file wants paths and names whole


def _console(*, soft_wrap: bool = False, stderr: bool = False) -> Console:
    console = Console(highlight=False, soft_wrap=soft_wrap, stderr=stderr)
    if not console.file.isatty():
        console.width = UNCUT
    return console


out = _console(soft_wrap=True)
err = _console(stderr=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Store = Annotated[str, typer.Option("--store", help="Folder of the vector store, or milvus://HOST:PORT.")]
Model = Annotated[
    str | None, typer.Option("--model", help="Encoder: a name of `nnclr models`, a folder, hf-hub:..., ...")
]
Backend = Annotated[
    str,
    typer.Option(
        "--backend",
        envvar="NNCLR_BACKEND",
        help="What runs the network: torch, openvino, openvino-bf16, onnx, ...; auto: the fastest here that agrees "
        "with torch.",
    ),
]
DEFAULT_STORE = "nnclr-store"
# verbs that keep what they have done, and how the next call takes it up
GO_ON = {
    **dict.fromkeys(("index", "ablate", "eval", "publish", "download"), "run the same command again to go on"),
    "embed": "with --out, run the same command again to go on behind the last whole shard",
    "pretrain": "go on with --resume",
}


class OneSentence(TyperGroup):
    """Ends with the sentence of a library error instead of its traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except NNCLRHubError as error:
            fail(error)
        except KeyboardInterrupt:
            way_on = GO_ON.get(ctx.invoked_subcommand)
            err.print(f"Interrupted: {way_on}." if way_on else "Interrupted.", soft_wrap=True)
            raise typer.Exit(130) from None
        except BrokenPipeError:  # the reader of our output went away, as `| head` does
            raise typer.Exit(1) from None
        except OSError as error:  # a full disk or a folder of somebody else's, wherever it is met
            fail(_of_the_system(error))


def fail(*errors: NNCLRHubError) -> None:
    """Prints the sentence of each error and ends the program.

    Raises:
        typer.Exit: 2 for a wrong call, as the first error has it, else 1.
    """
    speaker = _speaker()
    for error in errors:
        err.print(f"{speaker}Error: {error}", style="red", markup=False, soft_wrap=True)
    raise typer.Exit(2 if isinstance(errors[0], InvalidRequest | UnknownModel) else 1)


def _of_the_system(error: OSError) -> NNCLRHubError:
    """What the operating system refuses, as one sentence."""
    reason = error.strerror or " ".join(str(error).split()) or type(error).__name__
    place = f"{error.filename} cannot be read or written" if error.filename else "A file cannot be read or written"
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    way_on = "make room, or name a place on another disk" if full else "check its path and whether it is yours"
    return NNCLRHubError(f"{place} ({reason}): {way_on}.")


def _speaker() -> str:
    """Of torchrun's processes, those after the first wait: they mostly stop for the same reason, and torchrun ends them
    as soon as one has ended. Whoever is still there has a reason of its own, and says who it is."""
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
    """An empty command line with --version."""
    app = typer.Typer(
        cls=OneSentence,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="NNCLR encoders: pretrain, embed, index, search, serve.",
    )

    @app.callback()
    def root(
        version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
    ) -> None: ...

    return app


def chosen_model(model: str | None, backend: str = "torch") -> str:
    """The source of the encoder to use, the default if none is named, once all has been looked at that needs no torch:
    a wrong name or a damaged folder is told before seconds of imports.

    Args:
        backend: of --backend; torch where the verb has none.

    Raises:
        ModelError: it cannot be had; see `nnclr_hub.hub.sources.resolve`.
        InvalidRequest: there is no such backend.
    """
    from nnclr_hub.encoder.backends import parse_backend
    from nnclr_hub.hub.registry import default_model
    from nnclr_hub.hub.sources import resolve

    parse_backend(backend)
    source = model or default_model()
    resolve(source)
    return source


def loaded_encoder(model: str | None, backend: str = "torch") -> Encoder:
    """The encoder of `chosen_model`."""
    source = chosen_model(model, backend)
    from nnclr_hub.encoder.encoder import load_encoder

    return load_encoder(source, backend=backend)


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    typer.echo(json.dumps(value, indent=2))  # ASCII: a file's name may hold what no terminal can print
