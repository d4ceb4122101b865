"""Write a Hugging Face Space of the Gradio demo: a folder that can be pushed unchanged.

    write_space(Path("my-space"), "photos", "nnclr-store")

The folder contains the package's source, laid out as in a wheel, the encoder, and a store with one collection: vectors,
thumbnails and metadata, without the paths of this machine. Its `app.py` is `nnclr serve` with the Gradio demo: the API
is read-only and answers only the demo.
"""

from __future__ import annotations

import re
import shutil
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import requires, version
from pathlib import Path

import nnclr_hub
from nnclr_hub.errors import InvalidRequest, NNCLRHubError
from nnclr_hub.hub.layout import read_config
from nnclr_hub.hub.sources import recorded_source, resolve
from nnclr_hub.store import open_store
from nnclr_hub.workbench import Encoders, Workbench
from nnclr_hub.workbench.privacy import INDEXED
from nnclr_hub.workbench.probes import FitOptions, fit_on_collection, keep_probe

IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc", "*.pyi", "weights")
PRIVATE = INDEXED - {"path"}  # about this machine
README = """---
title: nnclr_hub
sdk: gradio
sdk_version: {gradio}
python_version: "3.11"
app_file: app.py
license: {license}
---

Click an image of {collection}, or upload one, to find similar images. The encoder was trained without labels. This
Space is read-only. The library is under Apache-2.0, and `encoder/README.md` has the terms of the encoder.

To run it locally, `pip install -r requirements.txt`, then `python app.py`, and open port 7860.
"""
APP = '''"""Run this Space with the library, the encoder and the store in this folder."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PORT = int(os.environ.get("GRADIO_SERVER_PORT", "7860"))
os.environ.setdefault("GRADIO_SERVER_NAME", "0.0.0.0" if "SPACE_ID" in os.environ else "127.0.0.1")
os.environ.setdefault("NNCLR_CACHE", str(HERE / ".cache"))
os.environ["NNCLR_HOST"] = "127.0.0.1"  # the API answers only this program
sys.path.insert(0, str(HERE))
os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # of the demo's process
sys.argv = ["nnclr", "serve", "--store", str(HERE / "store"), "--model", str(HERE / "encoder"), "--backend", "torch"]
sys.argv += ["--read-only", "--no-page", "--port", str(PORT + 1), "--gradio-port", str(PORT)]
from nnclr_hub.cli import main  # noqa: E402

main()
'''


def write_space(folder: Path, collection: str, store: str, model: str | None = None) -> int:
    """Write the Space and return its size in bytes.

    Args:
        folder: must not exist, or be empty.
        model: source of the encoder; None: the one that the collection was indexed by.

    Raises:
        InvalidRequest: the folder is not empty, or the encoder has no files.
        CollectionNotFound, FingerprintMismatch: as for a search.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidRequest(f"{folder} is not empty. Name a new folder.")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _copy_collection(folder, collection, store, model)
        library = Path(nnclr_hub.__file__).resolve().parent
        shutil.copytree(library, folder / "nnclr_hub", ignore=IGNORED)
        for program in ("serving", "app"):
            part = Path(__file__).resolve().parents[1] / program  # a sibling, in a checkout and in a wheel
            shutil.copytree(part, folder / "nnclr_hub" / program, ignore=IGNORED, dirs_exist_ok=True)
        license = read_config(folder / "encoder").nnclr.get("license") or "other"
        about = README.format(gradio=version("gradio"), collection=collection, license=license)
        (folder / "README.md").write_text(about, encoding="utf-8")
        (folder / "app.py").write_text(APP, encoding="utf-8")
        (folder / "requirements.txt").write_text("\n".join(_pinned()), encoding="utf-8")
        (folder / ".gitignore").write_text(".cache/\n__pycache__/\n", encoding="utf-8")
        large = "*.safetensors filter=lfs diff=lfs merge=lfs -text\n*.sqlite filter=lfs diff=lfs merge=lfs\n"
        (folder / ".gitattributes").write_text(large, encoding="utf-8")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _copy_collection(folder: Path, name: str, store: str, model: str | None) -> None:
    """Copy the encoder and the collection, and fit a probe on its labels."""
    with open_store(store, read_only=True) as source, open_store(str(folder / "store")) as copy:
        collection = source.get(name)
        model = model or recorded_source(collection.spec.model, "this collection")
        collection.check(Workbench(Encoders(model, device="cpu"), source).models.get(model))
        encoder = resolve(model).folder
        if encoder is None:
            raise InvalidRequest(f"{model!r} has no files to copy; export it with `nnclr export` and name that folder.")
        shutil.copytree(encoder, folder / "encoder")
        target = copy.create(name, collection.spec)
        for items in collection.read_all():
            public = [{key: value for key, value in item.metadata.items() if key not in PRIVATE} for item in items]
            target.upsert([replace(item, metadata=one) for item, one in zip(items, public, strict=True)])
        target.snapshot()
        with suppress(NNCLRHubError):  # there are too few labels, so the demo has three acts
            fitted = fit_on_collection(target, "label", None, FitOptions())
            keep_probe(copy.records, fitted.kept("demo"), replace=False)


def _pinned() -> list[str]:
    """Return what the server needs, at the installed versions; the Space installs gradio itself."""
    lines = [one for one in requires("nnclr_hub") or () if "extra ==" not in one or re.search("'(serve|torch)'", one)]
    names = {re.split(r"[^\w-]", one)[0] for one in lines}
    return sorted(f"{name}=={version(name).partition('+')[0]}" for name in names)
