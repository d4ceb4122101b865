"""nnclr serve, demo, space."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from nnclr_hub.cli.options import DEFAULT_STORE
from nnclr_hub.cli.programs import load_program, require_packages
from nnclr_hub.cli.verbs import Backend, Model, bar, err, out
from nnclr_hub.errors import InvalidRequest, PortInUse

Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on.")]
ReadOnly = Annotated[bool, typer.Option("--read-only", help="Refuse every write.")]
Runs = Annotated[Path | None, typer.Option("--runs", help="Folder of pretraining runs, to show their reports.")]
DEMO_ORIGINALS = 1_000_000_000  # bytes of uploaded image files that the demo keeps
DEMO_COLLECTION = "gallery"


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command()(serve)
    app.command()(demo)
    app.command()(space)


def serve(
    store: Annotated[
        str, typer.Option("--store", envvar="NNCLR_STORE", help="Folder of the vector store, or milvus://HOST:PORT.")
    ] = DEFAULT_STORE,
    model: Annotated[
        str | None,
        typer.Option("--model", envvar="NNCLR_MODEL", help="Encoder: a name of `nnclr models`, ..."),
    ] = None,
    port: Annotated[int | None, typer.Option("--port", help="Port to listen on. Default: NNCLR_PORT, or 8000.")] = None,
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on. Without keys: 127.0.0.1.")] = None,
    keys: Annotated[
        Path | None,
        typer.Option("--keys", help="File of API keys, if the environment sets none; created if missing."),
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Listen on other addresses without API keys.")] = False,
    page: Annotated[bool, typer.Option("--page/--no-page", help="Serve the web app at /.")] = True,
    runs: Runs = None,
    originals: Annotated[
        str | None,
        typer.Option("--originals", help="Keep up to this much of uploaded image files, such as 10GB. Default: none."),
    ] = None,
    read_only: ReadOnly = False,
    backend: Backend = "auto",
    gradio_port: Annotated[
        int | None, typer.Option("--gradio-port", min=1, max=65535, help="Also start the Gradio demo on this port.")
    ] = None,
    replicas: Annotated[
        int | None, typer.Option("--replicas", min=1, help="Number of processes on a Ray cluster.")
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(
            "--ray-address",
            envvar="RAY_ADDRESS",
            help="Address of the Ray cluster. Default: a new one.",
        ),
    ] = None,
) -> None:
    """Serve embeddings and search over REST, with the web app at /.

    Example: nnclr serve --store nnclr-store --port 8000
    """
    flags: dict[str, Any] = {"host": host, "port": port, "keys_file": _keys(keys)}
    flags |= {"insecure": insecure or None, "read_only": read_only or None, "runs": runs, "originals_bytes": originals}
    flags = {name: value for name, value in flags.items() if value is not None} | {"backend": backend}
    if replicas is not None and gradio_port is not None:
        raise InvalidRequest("The Gradio demo needs a server without --replicas; leave out one of the two options.")
    if replicas is None:
        _serve(store, model, flags, page=page, gradio_port=gradio_port)
    else:
        _serve_replicas(store, model, flags, replicas, ray_address, page=page)


def demo(
    images: Annotated[Path | None, typer.Option("--images", help="Folder of images for the gallery.")] = None,
    store: Annotated[Path | None, typer.Option("--store", help="Folder of the store. Default: a cache folder.")] = None,
    model: Model = None,
    port: Port = 8000,
    runs: Runs = None,
    read_only: ReadOnly = False,
    backend: Backend = "auto",
    gradio: Annotated[bool, typer.Option("--gradio/--no-gradio", help="Also start the Gradio demo.")] = True,
    gradio_port: Annotated[
        int | None, typer.Option("--gradio-port", min=1, max=65535, help="Its port. Default: the one after --port.")
    ] = None,
) -> None:
    """Index and inspect a gallery of images, and serve the web app and the Gradio demo on it.

    Each start synchronizes the gallery with its folder, so items that were deleted only in the app return.

    Example: nnclr demo --images photos
    """
    from nnclr_hub.cache import cache_folder
    from nnclr_hub.store import open_store
    from nnclr_hub.workbench import FolderRequest
    from nnclr_hub.workbench.folder_changes import check_images
    from nnclr_hub.workbench.models import check_model

    # errors are reported before anything is loaded, and leave no empty store behind
    _check_port(os.environ.get("NNCLR_HOST", "127.0.0.1"), port)
    if gradio_port is not None:
        _check_port("127.0.0.1", gradio_port)
    elif port:  # the demo needs the API's port before the API runs
        gradio_port = _next_free_port(port + 1)
    check_model(model, backend)
    # a missing package is reported before anything is rendered
    require_packages("app", *(["gradio"] if gradio else []), *(["skimage"] if images is None else []))
    load_program("serving", "settings")
    gallery = load_program("app", "gallery")
    if images is not None:
        folder, message = images, f"gallery: {images}"
    else:
        with bar("rendering the gallery") as advance:
            folder, message = gallery.default_gallery(cache_folder() / "demo", advance)
    request = FolderRequest(folder, model, prune=True)
    check_images(request)
    err.print(message, soft_wrap=True)
    from nnclr_hub.workbench import Encoders, Workbench

    where = store or cache_folder() / "demo" / f"store-{gallery.key_of(folder)}"
    if store is None:
        where.parent.mkdir(parents=True, exist_ok=True)  # its error names NNCLR_CACHE
    with open_store(str(where)) as opened:
        bench = Workbench(Encoders(model, backend=backend), opened)
        with bar("indexing") as advance:
            bench.index_folder(DEMO_COLLECTION, request, progress=advance)
        _inspect_first(bench)
    flags = {"port": port, "backend": backend, "source_folders": [folder.resolve()], "originals_bytes": DEMO_ORIGINALS}
    flags |= ({"read_only": True} if read_only else {}) | ({"runs": runs} if runs else {})
    _serve(str(where), model, flags, page=True, gradio_port=gradio_port if gradio else None)


def space(
    folder: Annotated[Path, typer.Argument(help="A new folder to write.")],
    collection: Annotated[str, typer.Option("--collection", help="Your collection.")],
    store: Annotated[
        str, typer.Option("--store", envvar="NNCLR_STORE", help="The collection's store.")
    ] = DEFAULT_STORE,
    model: Annotated[
        str | None, typer.Option("--model", help="Its encoder. Default: the one it was indexed by.")
    ] = None,
) -> None:
    """Write a read-only Hugging Face Space of the Gradio demo, ready to push.

    Example: nnclr space my-space --collection photos --model runs/first/encoder
    """
    require_packages("app", "gradio")
    written = load_program("app", "space").write_space(folder, collection, store, model)
    out.print(f"Wrote {folder} ({written / 1e6:.0f} MB). Try it: python {folder / 'app.py'}")


def _inspect_first(bench: Any) -> None:
    from nnclr_hub.workbench.inspection.findings import InspectionRequest
    from nnclr_hub.workbench.inspections import list_inspections

    collection = bench.collection(DEMO_COLLECTION)
    if collection.count() >= 2 and not list_inspections(bench.store.records, collection):
        with bar("inspecting") as advance:
            bench.run("inspection", InspectionRequest(DEMO_COLLECTION, write_fields=True), advance)


def _keys(file: Path | None) -> Path | None:
    """Return the file of keys, unless the environment sets keys; print the key of a new file once."""
    if file is None or any(os.environ.get(f"NNCLR_{name}") for name in ("API_KEYS", "WRITE_KEYS", "KEYS_FILE")):
        return None
    key = load_program("serving", "keys").create_keys_file(file)
    if key is not None:
        err.print(
            f"Created an API key that may read and write: {key}\nIt is shown only once and stored in {file}. Send it "
            "as Authorization: Bearer KEY.",
            soft_wrap=True,
        )
    return file


def _serve(store: str, model: str | None, flags: dict[str, Any], *, page: bool, gradio_port: int | None = None) -> None:
    settings = _settings(store, model, flags)
    with load_program("serving", "api").opened_app(settings, store, model) as app:
        if page:
            mount_web_app(app)
        err.print(_addresses(settings, page=page), soft_wrap=True)
        with _gradio_demo(settings, gradio_port):
            load_program("serving", "run").run(app, settings)


def mount_web_app(app: Any) -> None:
    """Add the web app to the API's app; also in the processes of replicas, which import this function."""
    load_program("app", "web_app").mount_web_app(app)


@contextmanager
def _gradio_demo(settings: Any, port: int | None) -> Iterator[None]:
    """Run the Gradio demo in its own process, which waits for the API."""
    if port is None:
        yield
        return
    url = f"http://{_browser_host(settings.host)}:{settings.port}"
    host = os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1")
    # its standard input ends with this process, also after a `kill -9`
    start = "import os, sys, threading\nfrom nnclr_hub.cli.programs import load_program\n"
    start += "threading.Thread(target=lambda: os._exit(len(sys.stdin.read())), daemon=True).start()\n"
    runs = f"Path({str(settings.runs)!r})" if settings.runs else None
    start += f"from pathlib import Path\nload_program('app', 'gradio_demo').serve({url!r}, {port}, {host!r}, {runs})"
    running = subprocess.Popen([sys.executable, "-c", start], stdin=subprocess.PIPE)
    err.print(f"Gradio demo: http://{_browser_host(host)}:{port}", soft_wrap=True)
    try:
        yield
    finally:
        running.terminate()
        running.wait()


def _serve_replicas(
    store: str, model: str | None, flags: dict[str, Any], replicas: int, address: str | None, *, page: bool
) -> None:
    """Run the API in several processes of Ray until a signal arrives."""
    settings = _settings(store, model, flags)
    ray_serve = load_program("serving", "ray_serve")
    cluster = f"the Ray cluster at {address}" if address else "a new Ray cluster on this machine"
    err.print(f"starting {replicas} replica{'s' * (replicas > 1)} on {cluster} ...", soft_wrap=True)
    mount = {"mount": mount_web_app} if page else {}
    with ray_serve.deployed(settings, store, model, replicas=replicas, address=address, **mount):
        err.print(f"{_addresses(settings, page=page)}   replicas: {replicas}", soft_wrap=True)
        ray_serve.wait_for_signal()


def _settings(store: str, model: str | None, flags: dict[str, Any]) -> Any:
    """Return the server's settings, after all checks that load nothing."""
    from nnclr_hub.store import open_store
    from nnclr_hub.workbench.models import check_model

    settings = load_program("serving", "settings").Settings.read(**flags)
    # port 0 means any: it is chosen here, because the addresses are printed before the server listens
    settings = settings.model_copy(update={"port": _check_port(settings.host, settings.port)})
    check_model(model, flags["backend"])  # a wrong model must end the program; a server would never become ready
    if settings.read_only and "://" not in store:
        open_store(store, read_only=True).close()
    err.print("loading the libraries ...")
    return settings


def _addresses(settings: Any, *, page: bool = False) -> str:
    address = f"http://{_browser_host(settings.host)}:{settings.port}"
    return (
        (f"web app: {address}/   " if page else "")
        + f"API: {address}/api/v1   docs: {address}/docs   ready: {address}/readyz"
        + ("   read-only" if settings.read_only else "")
    )


def _browser_host(host: str) -> str:
    # 0.0.0.0 is not an address that a browser opens
    host = {"": "127.0.0.1", "0": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]" if ":" in host else host


def _next_free_port(port: int) -> int:
    for one in range(port, port + 20):
        with suppress(PortInUse):
            _check_port("127.0.0.1", one)
            return one
    return port


def _check_port(host: str, port: int) -> int:
    """Refuse a port that is in use, before anything is loaded. Return it, or a free one for 0."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            return probe.getsockname()[1]
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                hint = "stop the program that uses it, or choose another --port"
            else:
                hint = "set --host to an address of this machine (0.0.0.0 for all), and --port to one that you may use"
            raise PortInUse(f"Port {port} on {host} cannot be used ({error.strerror}); {hint}.") from error
