"""Write a Hugging Face Space of the demo: a folder that can be pushed unchanged.

    write_space(Path("my-space"))       # README.md, app.py, requirements.txt, nnclr_hub/, images/

The folder contains the package's source and a small starter encoder, laid out as in a wheel, so the Space does not have
to install nnclr_hub. The page is read-only; its images are crops of the photos in scikit-image.
"""

from __future__ import annotations

import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import nnclr_hub
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.hub.sources import resolve

from .gallery import BUNDLED, examples, photo_crops

STARTER = "nnclr_resnet18_free_starter"  # a Space is public, so the encoder is trained only on freely licensed images
PROGRAMS = ("serving", "app")
IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc", "*.pyi")
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
short_description: Search images by visual similarity
---

# nnclr_hub

Upload an image or click one to find the most similar images. The encoder was trained without labels. Everything here
is read-only. The images are crops of the photos in scikit-image.

To run it locally, `pip install -r requirements.txt`, then `python app.py`, and open port 7860.
"""
APP = '''"""Run the page of this Space with the library and the encoder in this folder."""

import json
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
host = os.environ.get("GRADIO_SERVER_NAME", "0.0.0.0" if "SPACE_ID" in os.environ else "127.0.0.1")
os.environ["NNCLR_HOST"] = host
os.environ["NNCLR_INSECURE"] = "1"  # everybody can read, nobody can write
names = [name for name in os.environ.get("SPACE_HOST", "").split(",") if name]
os.environ["NNCLR_ALLOWED_HOSTS"] = json.dumps(names)
if names:
    os.environ["NNCLR_TRUSTED_PROXIES"] = '["*"]'  # only the Space's own proxy reaches this machine
    os.environ["NNCLR_FRAME_ANCESTORS"] = '["https://huggingface.co"]'
os.environ.setdefault("NNCLR_CACHE", str(HERE / ".cache"))

from nnclr_hub.cli import main  # noqa: E402

sys.argv = ["nnclr", "demo", "--images", str(HERE / "images"), "--store", str(HERE / ".store"), "--read-only"]
sys.argv += ["--model", "{starter}", "--port", os.environ.get("GRADIO_SERVER_PORT", "7860"), "--backend", "torch"]
main()
'''


def write_space(folder: Path) -> int:
    """Write the Space and return its size in bytes.

    Args:
        folder: must not exist, or be empty.

    Raises:
        InvalidRequest: the folder is not empty.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidRequest(f"{folder} is not empty. Name a new folder.")
    folder.mkdir(parents=True, exist_ok=True)
    library = Path(nnclr_hub.__file__).resolve().parent
    shutil.copytree(library, folder / "nnclr_hub", ignore=IGNORED, dirs_exist_ok=True)
    for program in PROGRAMS:
        source = Path(__file__).resolve().parents[1] / program  # a sibling, in a checkout and in a wheel
        shutil.copytree(source, folder / "nnclr_hub" / program, ignore=IGNORED, dirs_exist_ok=True)
    weights = folder / "nnclr_hub" / "weights" / STARTER
    starter = resolve(STARTER).folder
    assert starter is not None  # the registry has weights for this name
    shutil.copytree(starter, weights, dirs_exist_ok=True)
    photo_crops(folder / "images")
    _copy_examples(folder / "nnclr_hub" / "app" / BUNDLED.name)
    (folder / "README.md").write_text(README.format(gradio=version("gradio")), encoding="utf-8")
    (folder / "app.py").write_text(APP.replace("{starter}", STARTER), encoding="utf-8")
    (folder / "requirements.txt").write_text("".join(f"{line}\n" for line in _pinned()), encoding="utf-8")
    (folder / ".gitattributes").write_text("*.safetensors filter=lfs diff=lfs merge=lfs -text\n", encoding="utf-8")
    (folder / ".gitignore").write_text(".cache/\n.store/\n__pycache__/\n", encoding="utf-8")
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _copy_examples(folder: Path) -> None:
    """Copy the example photos, since scikit-image is not installed in the Space."""
    folder.mkdir(exist_ok=True)
    for path in examples().values():
        shutil.copyfile(path, folder / path.name)


def _pinned() -> list[str]:
    """Return the requirements at the installed versions; the Space installs gradio itself."""
    pinned = []
    for name in REQUIREMENTS:
        try:
            pinned.append(f"{name}=={version(name).partition('+')[0]}")
        except PackageNotFoundError:
            pinned.append(name)
    return pinned
