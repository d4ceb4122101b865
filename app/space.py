"""Write a Hugging Face Space of the Gradio demo: a folder that can be pushed unchanged.

    write_space(Path("my-space"))                                           # crops of scikit-image's photos
    write_space(Path("my-space"), collection="photos", store="nnclr-store") # your images and your encoder

The folder contains the package's source, laid out as in a wheel, the encoder, and a store with one collection: vectors,
thumbnails and metadata, without the paths of this machine. Its `app.py` serves the store, read-only and only to itself,
and the Gradio demo to everybody.
"""

from __future__ import annotations

import shutil
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import nnclr_hub
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.hub.layout import read_config
from nnclr_hub.hub.sources import recorded_source, resolve
from nnclr_hub.store import open_store
from nnclr_hub.store.base import Collection, Item, VectorStore
from nnclr_hub.workbench import Encoders, FolderRequest, Workbench
from nnclr_hub.workbench.privacy import INDEXED

from .gallery import photo_crops

STARTER = "nnclr_resnet18_free_starter"  # a Space is public, so the encoder is trained only on freely licensed images
COLLECTION = "gallery"
PROGRAMS = ("serving", "app")
IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc", "*.pyi")
PRIVATE = INDEXED - {"path"}  # of this machine
REQUIREMENTS = (
    *("torch", "torchvision", "timm", "matplotlib", "numpy", "pillow", "safetensors", "huggingface-hub", "httpx"),
    *("faiss-cpu", "fsspec", "onnxruntime"),
    *("typer", "rich", "fastapi", "uvicorn", "uvloop", "httptools", "orjson", "pydantic-settings"),
    *("python-multipart", "prometheus-client", "itsdangerous", "asgi-correlation-id", "fastapi-offline"),
)
README = """---
title: nnclr_hub
emoji: 🔎
colorFrom: yellow
colorTo: red
sdk: gradio
sdk_version: {gradio}
python_version: "3.11"
app_file: app.py
pinned: false
license: {license}
short_description: Search images by visual similarity
---

# nnclr_hub

Click an image, or upload one, to find the most similar images. The encoder was trained without labels. Everything here
is read-only. The images: {images}.

The library is under Apache-2.0. `encoder/README.md` has the terms of the encoder.

To run it locally, `pip install -r requirements.txt`, then `python app.py`, and open port 7860.
"""
APP = '''"""Run this Space with the library, the encoder and the store in this folder."""

import os
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PORT = int(os.environ.get("GRADIO_SERVER_PORT", "7860"))
os.environ.setdefault("GRADIO_SERVER_NAME", "0.0.0.0" if "SPACE_ID" in os.environ else "127.0.0.1")
os.environ.setdefault("NNCLR_CACHE", str(HERE / ".cache"))
os.environ["NNCLR_HOST"] = "127.0.0.1"  # the API answers only this program
sys.path.insert(0, str(HERE))
from nnclr_hub.cli.programs import load_program  # noqa: E402

paths = repr(sys.path)
serve = ["serve", "--store", str(HERE / "store"), "--model", str(HERE / "encoder"), "--backend", "torch"]
serve += ["--read-only", "--no-page", "--port", str(PORT + 1)]
start = f"import sys; sys.path = {paths}; sys.argv = {['nnclr', *serve]!r}; from nnclr_hub.cli import main; main()"
api = subprocess.Popen([sys.executable, "-c", start])
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
try:
    load_program("app", "gradio_demo").serve(
        f"http://127.0.0.1:{PORT + 1}", None, PORT, os.environ["GRADIO_SERVER_NAME"]
    )
finally:
    api.terminate()
    api.wait()
'''


def write_space(
    folder: Path, *, collection: str | None = None, store: str = "nnclr-store", model: str | None = None
) -> int:
    """Write the Space and return its size in bytes.

    Args:
        folder: must not exist, or be empty.
        collection: its images are shown; None: crops of the photos in scikit-image.
        store: of the collection.
        model: source of its encoder; None: the one that the collection was indexed by.

    Raises:
        InvalidRequest: the folder is not empty, or the encoder has no files.
        CollectionNotFound, FingerprintMismatch: as for a search.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidRequest(f"{folder} is not empty. Name a new folder.")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if collection is None:
            with tempfile.TemporaryDirectory(prefix="nnclr_space_") as made, open_store(made) as source:
                crops = photo_crops(Path(made) / "images")
                Workbench(Encoders(STARTER, device="cpu"), source).index_folder(
                    COLLECTION, FolderRequest(crops, model=STARTER)
                )
                _write_parts(folder, source, source.get(COLLECTION), STARTER)
        else:
            with open_store(store, read_only=True) as source:
                found = source.get(collection)
                _write_parts(folder, source, found, model or recorded_source(found.spec.model, "this collection"))
        _write_texts(folder, "crops of the photos in scikit-image" if collection is None else collection)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _write_parts(folder: Path, source: VectorStore, collection: Collection, model: str) -> None:
    """Copy the library, the encoder and the collection."""
    collection.check(Workbench(Encoders(model, device="cpu"), source).models.get(model))
    encoder = resolve(model, whole=True).folder
    if encoder is None:
        raise InvalidRequest(f"{model!r} has no files to copy; export it with `nnclr export` and name that folder.")
    shutil.copytree(encoder, folder / "encoder")
    library = Path(nnclr_hub.__file__).resolve().parent
    shutil.copytree(library, folder / "nnclr_hub", ignore=IGNORED)
    for program in PROGRAMS:
        part = Path(__file__).resolve().parents[1] / program  # a sibling, in a checkout and in a wheel
        shutil.copytree(part, folder / "nnclr_hub" / program, ignore=IGNORED, dirs_exist_ok=True)
    shutil.rmtree(folder / "nnclr_hub" / "weights", ignore_errors=True)
    with open_store(str(folder / "store")) as copy:
        target = copy.create(collection.name, collection.spec)
        for items in collection.read_all():
            target.upsert([_public(item) for item in items])
        target.snapshot()


def _public(item: Item) -> Item:
    metadata = {key: value for key, value in item.metadata.items() if key not in PRIVATE}
    return Item(item.id, item.vector, metadata, item.thumbnail)


def _write_texts(folder: Path, images: str) -> None:
    license = read_config(folder / "encoder").nnclr.get("license")
    texts = {
        "README.md": README.format(gradio=version("gradio"), images=images, license=license or "other"),
        "app.py": APP,
        "requirements.txt": "".join(f"{line}\n" for line in _pinned()),
        ".gitattributes": "*.safetensors filter=lfs diff=lfs merge=lfs -text\n*.sqlite filter=lfs diff=lfs merge=lfs\n",
        ".gitignore": ".cache/\n__pycache__/\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def _pinned() -> list[str]:
    """Return the requirements at the installed versions; the Space installs gradio itself."""
    pinned = []
    for name in REQUIREMENTS:
        try:
            pinned.append(f"{name}=={version(name).partition('+')[0]}")
        except PackageNotFoundError:
            pinned.append(name)
    return pinned
