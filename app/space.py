"""A Hugging Face Space of the demo: a folder that is pushed as it stands.

    write_space(Path("my-space"))       # README.md, app.py, requirements.txt, nnclr_hub/, images/

The package's own source and a small starter travel with it, laid out as in a wheel, so nothing of ours has to be
installed there. The page is read-only; its images are scikit-image's own photos, cut into crops.
"""

from __future__ import annotations

import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import nnclr_hub
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.hub.sources import resolve

from .gallery import BESIDE, examples, offline_gallery

STARTER = "nnclr_resnet18_free_starter"  # a Space is public: its images were free
PROGRAMS = ("serving", "app")
UNWANTED = shutil.ignore_patterns("__pycache__", "*.pyc", "*.pyi")
REQUIREMENTS = (
    *("torch", "torchvision", "timm", "numpy", "pillow", "safetensors", "huggingface-hub", "httpx", "faiss-cpu"),
    *("typer", "rich", "fastapi", "uvicorn", "uvloop", "httptools", "orjson", "pydantic-settings"),
    *("python-multipart", "prometheus-client"),
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
license: apache-2.0
short_description: Find images by what they look like
---

# nnclr_hub

Give an image, or click one: the page finds those that look most like it, with an encoder that learned to see without
labels. Everything here is read-only. The images are photos that scikit-image carries, cut into crops.

It runs elsewhere too: `python app.py` after `pip install -r requirements.txt`, and the page is on port 7860.
"""
APP = '''"""The page of this Space: the library lies beside this file, with the weights of an encoder."""

import json
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
host = os.environ.get("GRADIO_SERVER_NAME", "0.0.0.0" if "SPACE_ID" in os.environ else "127.0.0.1")
os.environ["NNCLR_HOST"] = host
os.environ["NNCLR_INSECURE"] = "1"  # anybody may look, and nobody can write
names = [name for name in os.environ.get("SPACE_HOST", "").split(",") if name]
os.environ["NNCLR_ALLOWED_HOSTS"] = json.dumps(names)
if names:
    os.environ["NNCLR_TRUSTED_PROXIES"] = '["*"]'  # nothing but the Space's own proxy reaches this machine
    os.environ["NNCLR_FRAME_ANCESTORS"] = '["https://huggingface.co"]'
os.environ.setdefault("NNCLR_CACHE", str(HERE / ".cache"))

from nnclr_hub.cli import main  # noqa: E402

sys.argv = ["nnclr", "demo", "--images", str(HERE / "images"), "--store", str(HERE / ".store"), "--read-only"]
sys.argv += ["--model", "{starter}", "--port", os.environ.get("GRADIO_SERVER_PORT", "7860"), "--backend", "torch"]
main()
'''


def write_space(folder: Path) -> int:
    """Writes the Space; returns its bytes.

    Args:
        folder: new, or empty.

    Raises:
        InvalidRequest: there is something in it.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidRequest(f"{folder} is there and not empty: give a folder that is new, and push that.")
    folder.mkdir(parents=True, exist_ok=True)
    library = Path(nnclr_hub.__file__).resolve().parent
    shutil.copytree(library, folder / "nnclr_hub", ignore=UNWANTED, dirs_exist_ok=True)
    for program in PROGRAMS:
        place = Path(__file__).resolve().parents[1] / program  # beside us, in a checkout as in a wheel
        shutil.copytree(place, folder / "nnclr_hub" / program, ignore=UNWANTED, dirs_exist_ok=True)
    weights = folder / "nnclr_hub" / "weights" / STARTER
    starter = resolve(STARTER).folder
    assert starter is not None  # it is no network without weights
    shutil.copytree(starter, weights, dirs_exist_ok=True)
    offline_gallery(folder / "pictures")
    _copy_examples(folder / "nnclr_hub" / "app" / BESIDE.name)
    (folder / "README.md").write_text(README.format(gradio=version("gradio")), encoding="utf-8")
    (folder / "app.py").write_text(APP.replace("{starter}", STARTER), encoding="utf-8")
    (folder / "requirements.txt").write_text("".join(f"{line}\n" for line in _pinned()), encoding="utf-8")
    (folder / ".gitattributes").write_text("*.safetensors filter=lfs diff=lfs merge=lfs -text\n", encoding="utf-8")
    (folder / ".gitignore").write_text(".cache/\n.store/\n__pycache__/\n", encoding="utf-8")
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _copy_examples(folder: Path) -> None:
    """The photos to try, which else come from scikit-image, and that is not installed there."""
    folder.mkdir(exist_ok=True)
    for path in examples().values():
        shutil.copyfile(path, folder / path.name)


def _pinned() -> list[str]:
    """What it needs, as it is here; gradio itself is the Space's to install."""
    found = []
    for name in REQUIREMENTS:
        try:
            found.append(f"{name}=={version(name).partition('+')[0]}")
        except PackageNotFoundError:
            found.append(name)
    return found
