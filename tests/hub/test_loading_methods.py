"""Every loading method gives equal outputs for one folder, in processes whose Hub is a stand-in.

The networks have random norms, biases and statistics. In a fresh ResNet of timm the residual branches are zero, so an
error in one would have no effect.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from hub.conftest import FETCHED, ROOT
from hub.loading_methods import inputs
from hub_server import TAG, running_hub

from nnclr_hub import load_encoder
from nnclr_hub.publish.export import export_run

VIT = {"embed_dim": 48, "depth": 4, "num_heads": 3, "img_size": 64}
NAMES = ("resnet", "vit", "resnet-half")
TIMMS = ("torch.hub", "torch.hub cache", "torch.hub cache, hf-hub:", "timm local-dir:", "timm hf-hub:")
WHOLE = (*TIMMS, "transformers", "transformers from the Hub")


@pytest.fixture(scope="module")
def folders(model, make_model, tmp_path_factory) -> dict[str, Path]:
    made = {"resnet": model, "vit": make_model("vit_small_patch16_224", VIT, 64)}
    return made | {
        "resnet-half": export_run(model, tmp_path_factory.mktemp("half") / "model", dtype="fp16", graph=False)
    }


@pytest.fixture(scope="module")
def outputs(folders, image_files, torch_home, tmp_path_factory) -> dict[str, np.ndarray]:
    """Return MODEL|METHOD|OUTPUT -> array; see loading_methods.py."""
    work = tmp_path_factory.mktemp("methods")
    command: list[object] = [sys.executable, Path(__file__).with_name("loading_methods.py")]
    for number, more in enumerate(({"root": str(ROOT)}, {"cached": FETCHED})):
        jobs = work / f"{number}.json"
        jobs.write_text(json.dumps({name: job(name, folders[name], image_files[0]) | more for name in NAMES}))
        command += [jobs, work / f"{number}.npz"]
    with running_hub({f"org/{name}": folder for name, folder in folders.items()}) as hub:
        environment = hub.environment(work, TORCH_HOME=str(torch_home), PYTHONPATH="", OMP_NUM_THREADS="1")
        done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    return dict(np.load(work / "0.npz")) | dict(np.load(work / "1.npz"))


def job(name: str, folder: Path, image: Path) -> dict[str, object]:
    vit = name.startswith("vit")
    return {
        "folder": str(folder),
        "hub": f"org/{name}@{TAG}",
        "entry": "nnclr_vit_small" if vit else "nnclr_resnet18_free_starter",
        "size": 64 if vit else 48,
        "sized": vit,
        "jpeg": str(image),
    }


@pytest.fixture(scope="module", params=NAMES)
def opened(request, folders):
    """Name, our encoder, the tolerance of equality."""
    encoder = load_encoder(folders[request.param], device="cpu")
    return request.param, encoder, 1e-5


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def tensor(encoder) -> torch.Tensor:
    return inputs(encoder.transform.preprocessing.input_size)


@pytest.mark.parametrize("method", WHOLE)
def test_one_tensor_gives_the_same_unit_vectors(outputs, opened, method):
    name, encoder, tolerance = opened
    want = encoder.embed(tensor(encoder))
    np.testing.assert_allclose(unit(outputs[f"{name}|{method}|x"]), want, atol=tolerance, rtol=0)
    assert np.abs(want[0] - want[1]).max() > 10 * tolerance  # the network tells inputs apart


@pytest.mark.parametrize("method", [*WHOLE, "transformers tasks"])
def test_one_jpeg_through_the_method_own_preprocessing(outputs, opened, image_files, method):
    name, encoder, _ = opened
    assert unit(outputs[f"{name}|{method}|jpeg"])[0] @ encoder.embed([image_files[0]])[0] >= 0.9995


@pytest.mark.parametrize("method", [*TIMMS, "transformers tasks"])
def test_a_classifier_of_ten_classes_has_the_same_features(outputs, opened, method):
    name, encoder, tolerance = opened
    got = unit(outputs[f"{name}|{method}|classes"])
    np.testing.assert_allclose(got, encoder.embed(tensor(encoder)), atol=tolerance, rtol=0)


@pytest.mark.parametrize("method", TIMMS)
def test_gray_images_are_as_the_same_gray_in_three_channels(outputs, opened, method):
    name, encoder, tolerance = opened
    if name.endswith("half"):
        tolerance = 1e-3  # timm sums the first weights over channels in the precision of the file
    want = encoder.embed(tensor(encoder)[:, :1].expand(-1, 3, -1, -1))
    np.testing.assert_allclose(unit(outputs[f"{name}|{method}|gray"]), want, atol=tolerance, rtol=0)


@pytest.mark.parametrize("method", TIMMS)
def test_feature_maps_are_the_networks_own(outputs, opened, method):
    name, encoder, tolerance = opened
    with torch.inference_mode():
        maps = encoder.backbone.forward_intermediates(tensor(encoder), intermediates_only=True)  # type: ignore[operator]
    want = unit(maps[-1].mean((2, 3)).numpy())
    np.testing.assert_allclose(unit(outputs[f"{name}|{method}|map"]), want, atol=tolerance, rtol=0)


@pytest.mark.parametrize("method", TIMMS)
def test_another_input_size_resamples_positions(outputs, opened, method, folders):
    """As timm's dynamic_img_size does it at each forward pass."""
    name, encoder, tolerance = opened
    dynamic = {"dynamic_img_size": True} if name.startswith("vit") else {}
    backbone = timm.create_model(f"local-dir:{folders[name]}", pretrained=True, **dynamic).eval()
    with torch.inference_mode():
        want = backbone(inputs(encoder.transform.preprocessing.input_size + 32)).numpy()
    np.testing.assert_allclose(unit(outputs[f"{name}|{method}|larger"]), unit(want), atol=tolerance, rtol=0)
