"""Options that several verbs share. Each decorator adds some to a verb, which gets them as one argument.

@group.command()
@on_store                   # --store, --server, --api-key-env -> place
@reads_images               # --channels, --page, --project, --scale -> reading
def embed(images: ..., *, place: Place, reading: ReadingOptions) -> None: ...
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from nnclr_hub.cli.verbs import err
from nnclr_hub.errors import InvalidRequest, NNCLRHubError, NotReady, Unauthorized

if TYPE_CHECKING:
    from nnclr_hub.client import Client
    from nnclr_hub.images.reading import ImageReading
    from nnclr_hub.images.tiles import Tiling
    from nnclr_hub.store.base import VectorStore
    from nnclr_hub.table_rows import LabelTable
    from nnclr_hub.workbench import Workbench

Verb = Callable[..., None]
START_S = 120.0  # maximum wait for a server that is starting and loads its model
DEFAULT_STORE = "nnclr-store"
PANEL = "Images of several pages or channels"
# in messages: a command of a verb that works on a store
_COMMAND = re.compile(r"`nnclr (store [a-z-]+|index|search|inspect)( [^`]+)?`(?! on the machine of the server)")
WITHOUT_ARGUMENTS = ("store repair", "store list")  # elsewhere a verb alone is only named
OF_BACKUPS = ("store backups", "store restore", "store verify-backup")
# name: (type, default, further arguments of typer.Option)
Options = Mapping[str, tuple[Any, Any, Mapping[str, Any]]]


def combined(argument: str, options: Options, combine: Callable[..., Any]) -> Callable[[Verb], Verb]:
    """Return a decorator that replaces an argument of a verb by options, of which `combine` makes it."""

    def decorate(verb: Verb) -> Verb:
        hints = {name: hint for name, hint in get_type_hints(verb, include_extras=True).items() if name != argument}
        made = {}
        for name, (kind, _, more) in options.items():
            flag = f"--{name.replace('_', '-')}"
            made[name] = Annotated[kind, typer.Option(*more.get("flags", [flag]), **_without(more, "flags"))]

        def with_options(**given: Any) -> None:
            value = combine(*(given.pop(name) for name in options))
            verb(**given, **{argument: value})

        with_options.__name__, with_options.__doc__ = verb.__name__, verb.__doc__
        with_options.__annotations__ = {**hints, **made}
        own = [one for one in inspect.signature(verb).parameters.values() if one.name != argument]
        parameters = [one.replace(annotation=hints.get(one.name, one.annotation)) for one in own]
        parameters += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=options[name][1], annotation=hint)
            for name, hint in made.items()
        ]
        with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return with_options

    return decorate


def _without(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}


# ---- where


@dataclass(frozen=True)
class Place:
    """A store or a server.

    address: as `open_bench` takes it.
    key: environment variable with the API key of a server.
    given: whether the caller chose it.
    """

    address: str
    key: str = "NNCLR_API_KEY"
    given: bool = False

    @property
    def is_server(self) -> bool:
        return self.address.startswith(("http://", "https://"))

    @property
    def name(self) -> str:
        """The address, with PASSWORD and TOKEN in the place of secrets."""
        return re.sub("([?&]token=)[^&]*", r"\1TOKEN", re.sub("(://[^/@:]*:)[^/@]*@", r"\1PASSWORD@", self.address))

    @property
    def words(self) -> str:
        """The options to append to a command that is to work in the same place."""
        if self.is_server:
            key = "" if self.key == Place.key else f" --api-key-env {quote(self.key)}"
            return f" --server {quote(self.name)}{key}"
        return "" if self.address == DEFAULT_STORE else f" --store {quote(self.name)}"

    def command(self, words: str) -> str:
        """Return a command that works in the same place, for a message."""
        return self.completed(f"`nnclr {words}`")

    def completed(self, message: str, collection: str | None = None) -> str:
        """Return a message whose commands work in the same place, on this collection, when they are copied."""

        def complete(match: re.Match[str]) -> str:
            verb, words = match[1], (match[2] or "").replace("COLLECTION", collection or "COLLECTION")
            if not words and verb not in WITHOUT_ARGUMENTS:
                return match[0]
            if self.is_server and verb == "store repair":
                return f"`nnclr {verb}{words}` on the machine of the server"
            has_place = verb in OF_BACKUPS or " --store " in words or " --server " in words
            return f"`nnclr {verb}{words}{'' if has_place else self.words}`"

        return _COMMAND.sub(complete, message)

    @property
    def exists(self) -> bool:
        """Whether there may be a store; only of a folder this is known."""
        return "://" in self.address or Path(self.address).exists()

    def require_folder(self, work: str) -> Path:
        """Return the folder of a store, or raise InvalidRequest: this work needs the files themselves."""
        if "://" in self.address or self.address.endswith(".db"):  # Milvus Lite
            raise InvalidRequest(f"{work} on the machine that has the store, with --store FOLDER.")
        return Path(self.address)

    @contextmanager
    def bench(
        self, model: str | None = None, backend: str | None = None, *, read_only: bool = False, create: bool = False
    ) -> Iterator[Workbench | Client]:
        """Open the store with the encoders of this machine, or connect to the server.

        Args:
            create: create the store if it does not exist, and delete it if it has no collection at the end. Otherwise
                it must exist, since a mistyped name must not create an empty one.
        """
        from nnclr_hub.client import open_bench
        from nnclr_hub.store import open_store

        if self.is_server:
            if model is not None:
                raise InvalidRequest(f"Give --model {model} or --server {self.name}; the server has its encoders.")
            with self._client() as client:
                yield client
            return
        if not (read_only or create) and "://" not in self.address:
            open_store(self.address, read_only=True).close()
        existed, unused = self.exists, False
        try:
            with open_bench(self.address, model=model, backend=backend, read_only=read_only) as bench:
                try:
                    yield bench
                finally:
                    with suppress(NNCLRHubError):
                        unused = not existed and not bench.store.list()
        finally:
            if unused:
                shutil.rmtree(self.address, ignore_errors=True)

    @contextmanager
    def opened(self, *, read_only: bool = False, create: bool = False) -> Iterator[VectorStore]:
        """Open the store, or that of the server; see `bench`."""
        with self.bench(read_only=read_only, create=create) as bench:
            yield bench.store

    @contextmanager
    def _client(self) -> Iterator[Client]:
        """Open a client of a ready server; if the server requires another key, say where to set it."""
        from nnclr_hub.client import Client

        key = os.environ.get(self.key)
        try:
            with Client(self.address, key) as client:
                is_ready = client.ready()
                if not is_ready:
                    err.print(f"The server at {self.name} is starting; waiting up to {START_S:.0f} s.")
                if not (is_ready or client.ready(wait=START_S)):
                    raise NotReady(f"The server at {self.name} is not ready; GET /readyz reports why.")
                yield client
        except Unauthorized as error:
            what = "requires an API key" if key is None else f"rejects the API key in {self.key}"
            raise Unauthorized(
                f"{self.name} {what}; set {self.key} to the key from its operator, or choose another variable with "
                "--api-key-env."
            ) from error


def _place(store: str | None, server: str | None, key: str) -> Place:
    if server is not None and store is not None:
        raise InvalidRequest("Give --store or --server, not both.")
    if server is not None and not server.startswith(("http://", "https://")):
        raise InvalidRequest(f"{server!r} is not a valid server URL; expected http://HOST:PORT.")
    return Place(server or store or DEFAULT_STORE, key, bool(server or store))


_with_place = combined(
    "place",
    {
        "store": (str | None, None, {"help": f"Folder of the store, or milvus://HOST:PORT. Default: {DEFAULT_STORE}."}),
        "server": (str | None, None, {"help": "Use the collections of `nnclr serve` at this URL."}),
        "api_key_env": (str, Place.key, {"help": "With --server: environment variable with the API key."}),
    },
    _place,
)


def on_store(verb: Verb) -> Verb:
    """Add the options of a store to a verb, which gets them as `place`; its errors name commands for the same place."""

    @wraps(verb)
    def with_commands(*, place: Place, **given: Any) -> None:
        try:
            verb(**given, place=place)
        except NNCLRHubError as error:
            named = next(filter(None, map(given.get, ("name", "collection", "names", "given"))), None)
            name = named[0] if isinstance(named, list) and len(named) == 1 else named
            error.args = (place.completed(str(error), name if isinstance(name, str) else None), *error.args[1:])
            raise

    return _with_place(with_commands)


# ---- how images are read


@dataclass(frozen=True)
class ReadingOptions:
    """The options as given; None where left out."""

    channels: tuple[int, ...] | None = None
    page: int | None = None
    project: str | None = None
    scale: str | None = None

    @property
    def given(self) -> bool:
        """Whether any of the options was given."""
        return self != ReadingOptions()

    def over(self, reading: ImageReading) -> ImageReading:
        """Return a reading with the given options instead of those that it has."""
        return reading.updated(**vars(self))

    def check(self, source: str, collection: str) -> None:
        """Raise InvalidRequest if a collection, whose encoder has this source, reads images differently."""
        from nnclr_hub.images.reading import ImageReading

        existing = ImageReading.of_source(source)
        if self.over(existing) != existing:
            raise InvalidRequest(
                f"Collection {collection!r} reads images with {existing if str(existing) else 'all channels'}; leave "
                "out --channels, --page, --project and --scale, or use another collection."
            )

    def within(self, model: str | None) -> str | None:
        """Return the source of an encoder that reads images in this way; without options, the source as it is."""
        if not self.given:
            return model
        from nnclr_hub.hub.registry import default_model
        from nnclr_hub.images.reading import ImageReading

        source = model or default_model()
        return self.over(ImageReading.of_source(source)).within(source)


def _reading(channels: str | None, *others: Any) -> ReadingOptions:
    try:
        chosen = None if channels is None else tuple(int(one) for one in channels.split(","))
    except ValueError as error:
        raise InvalidRequest(
            f"--channels must be numbers with commas between them, such as 0,2,1; got {channels}."
        ) from error
    return ReadingOptions(chosen, *others)


reads_images = combined(
    "reading",
    {
        name: (kind, None, {"rich_help_panel": PANEL, **more})
        for name, kind, more in (
            ("channels", str | None, {"help": "Channels, from 0: three as RGB, such as 0,2,1; one as gray."}),
            ("page", int | None, {"help": "Page to read, from 0.", "min": 0}),
            ("project", str | None, {"help": "max: the maximum over all pages."}),
            ("scale", str | None, {"help": "To 8 bits: depth, by the file's bit depth; or range, by its values."}),
        )
    },
    _reading,
)


def _tiling(side: int | None, overlap: int | None, skip_empty: bool) -> Tiling | None:
    if side is None:
        if overlap is not None or skip_empty:
            raise InvalidRequest("--overlap and --skip-empty need --tile, such as --tile 512.")
        return None
    from nnclr_hub.images.tiles import Tiling

    return Tiling(side, overlap or 0, skip_empty)


_tiles = combined(
    "tiling",
    {
        "tile": (
            int | None,
            None,
            {"rich_help_panel": PANEL, "help": "Cut large images into tiles of this side in pixels."},
        ),
        "overlap": (int | None, None, {"rich_help_panel": PANEL, "help": "Pixels that neighboring tiles share."}),
        "skip_empty": (
            bool,
            False,
            {"flags": ["--skip-empty"], "rich_help_panel": PANEL, "help": "Leave out tiles of background."},
        ),
    },
    _tiling,
)


def reads_tiles(verb: Verb) -> Verb:
    """Add the options of tiles to a verb, which gets them as `tiling`, and those of `reads_images`."""
    return reads_images(_tiles(verb))


def _table(labels: Path | None, *columns: Any) -> LabelTable | None:
    if labels is None:
        for name, value in zip(("root", "path-column", "label-column"), columns, strict=True):
            if value is not None:
                raise InvalidRequest(f"--{name} describes the table of --labels; give that, too.")
        return None
    from nnclr_hub.table_rows import LabelTable

    return LabelTable(labels, *columns)


reads_labels = combined(
    "labels",
    {
        "labels": (
            Path | None,
            None,
            {"exists": True, "help": "CSV with the columns path (or id) and label, used instead of folder names."},
        ),
        "root": (Path | None, None, {"exists": True, "help": "Folder to which the paths of --labels are relative."}),
        "path_column": (str | None, None, {"help": "Column of --labels with the paths."}),
        "label_column": (str | None, None, {"help": "Column of --labels with the labels."}),
    },
    _table,
)
