"""Shared fixtures: images from scikit-image, data packs, and a small model folder."""

import gc
import os
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

# containers often set this; then every process compiles torch and timm again, which takes 6 s of CPU time
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# before torch is imported: threads do not help tiny networks, and slow them down on a busy machine
os.environ.setdefault("OMP_NUM_THREADS", "1")
# most tests compare vectors with torch to 1e-5; tests of other backends select them
os.environ.setdefault("NNCLR_BACKEND", "torch")
# httpx would read the certificates of all authorities for each client, which takes 25 ms; no test needs them
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = os.devnull
# a separate cache, so tests neither read nor fill the user's
os.environ["MPLCONFIGDIR"] = os.environ.get("MPLCONFIGDIR", "/tmp/nnclr-hub-tests-mpl")

import numpy as np
import pytest
from PIL import Image

if TYPE_CHECKING:  # xdist's main process needs no torch
    from torch import nn

sys.dont_write_bytecode = False  # this process has read the variable
gc.disable()  # until all tests are collected: imports leave no garbage
NARROW = {"channels": [8, 16, 24, 32]}


GPU_TESTS = Path(__file__).parent / "gpu"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Collect only tests/gpu for `pytest -m gpu`, because it needs only the packages for training."""
    asked_for_gpu = config.option.markexpr == "gpu"
    within = GPU_TESTS in (collection_path, *collection_path.parents) or collection_path in GPU_TESTS.parents
    return True if asked_for_gpu and not within else None


def pytest_collection_finish() -> None:
    """Exempt what all tests share from garbage collection: a million objects, which each full collection visits."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Undo it: otherwise libraries report frozen objects as leaks at exit."""
    gc.unfreeze()


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory) -> Iterator[None]:
    """Keep tests and fixtures of every scope out of the user's cache folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NNCLR_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        yield


@pytest.fixture
def without_graphs(monkeypatch) -> None:
    """Simulate a machine without the packages for network.onnx, whose export takes seconds."""
    from nnclr_hub.publish import export

    monkeypatch.setattr(export, "GRAPH_NEEDS", ("no_such_package",))


@pytest.fixture(scope="session")
def photos(tmp_path_factory) -> Path:
    """Write 60 small images in three class folders, crops of three photos from scikit-image."""
    from skimage import data

    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for name in ("astronaut", "coffee", "cat"):
        photo = Image.fromarray(getattr(data, name)())
        (folder / name).mkdir()
        for i in range(20):
            left, top = (int(rng.integers(0, side - 160)) for side in photo.size)
            crop = photo.crop((left, top, left + 160, top + 160)).resize((64, 64))
            crop.save(folder / name / f"{i:02}.jpg", quality=90)
    return folder


@pytest.fixture(scope="session")
def image_files(photos) -> list[Path]:
    """Return the files of `photos`, sorted."""
    return sorted(photos.rglob("*.jpg"))


@pytest.fixture(scope="session")
def data(photos, tmp_path_factory) -> Path:
    """Return the photos as train/ and test/ with classes; copy the folder before changing it."""
    folder = tmp_path_factory.mktemp("data")
    for path in sorted(photos.rglob("*.jpg")):
        split = "train" if int(path.stem) < 14 else "test"
        (folder / split / path.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / split / path.parent.name)
    return folder


def randomized(backbone: "nn.Module", seed: int = 0) -> "nn.Module":
    """Randomize norms, biases and statistics, because the residual branches of a fresh ResNet are zero."""
    import torch
    from torch import nn

    generator = torch.Generator().manual_seed(seed)
    for module in backbone.modules():
        if isinstance(module, nn.BatchNorm2d | nn.LayerNorm):
            with torch.no_grad():
                module.weight.uniform_(0.5, 1.5, generator=generator)
                module.bias.normal_(0, 0.3, generator=generator)
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.3, generator=generator)
                module.running_var.uniform_(0.5, 1.5, generator=generator)
    return backbone.eval()


@pytest.fixture(scope="session")
def make_model(tmp_path_factory) -> Callable[..., Path]:
    """Return a function that makes a model folder of random weights."""
    import torch

    from nnclr_hub.encoder.backbones import create_backbone
    from nnclr_hub.encoder.preprocessing import Preprocessing
    from nnclr_hub.publish.export import export_model

    def make(architecture="resnet18", model_args=NARROW, input_size=48, dtype="fp32", seed=0) -> Path:
        torch.manual_seed(seed)
        backbone = randomized(create_backbone(architecture, model_args=model_args), seed)
        return export_model(
            backbone,
            tmp_path_factory.mktemp("model") / architecture,
            architecture=architecture,
            model_args=model_args,
            preprocessing=Preprocessing(input_size),
            provenance={"metrics": {"knn20/made_up": 0.5}, "license": "apache-2.0", "data": "none"},
            dtype=dtype,
            graph=False,
        )

    return make


@pytest.fixture(scope="session")
def model(make_model) -> Path:
    """Make a narrow ResNet-18 at 48 pixels."""
    return make_model()


@pytest.fixture(scope="session")
def encoder(model):
    """Load the encoder of the model folder."""
    from nnclr_hub import load_encoder

    return load_encoder(model, device="cpu")


@pytest.fixture
def folder(photos, tmp_path) -> Path:
    """Return a copy of the photos that a test may change."""
    return shutil.copytree(photos, tmp_path / "photos")


@pytest.fixture
def store(tmp_path) -> Iterator:
    """Open a new store."""
    from nnclr_hub import open_store

    with open_store(str(tmp_path / "store")) as opened:
        yield opened


@pytest.fixture
def bench(model, store):
    """Return a workbench over the new store."""
    from nnclr_hub.workbench import Encoders, Workbench

    return Workbench(Encoders(str(model), device="cpu"), store)


@pytest.fixture(scope="session")
def pack(tmp_path_factory) -> Callable[[str], Path]:
    """Return a function that unpacks a data pack; it skips without the packs, or fails if they are required."""

    def unpack(name: str) -> Path:
        source = Path(os.environ.get("NNCLR_TEST_DATA", "")) / name
        if "NNCLR_TEST_DATA" not in os.environ or not source.is_file():
            message = f"{name} is not in the folder that NNCLR_TEST_DATA names"
            if os.environ.get("NNCLR_REQUIRE_DATA") == "1":
                pytest.fail(message)
            pytest.skip(message)
        folder = tmp_path_factory.mktemp(name.split(".")[0])
        with tarfile.open(source) as tar:
            tar.extractall(folder, filter="data")
        return folder

    return unpack


@pytest.fixture(scope="session")
def serve() -> Callable:
    """Return start(model, store, page=False, **settings), a generator that yields the running server."""
    from running_server import start

    return start
