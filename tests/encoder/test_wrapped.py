"""Networks of other libraries and plain functions as encoders."""

from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
import torchvision
from PIL import Image
from tiny_runs import nnclr
from torch import nn
from torch.nn import functional as F
from torchvision.transforms import v2

from nnclr_hub import CollectionSpec, Point, SearchQuery, load_encoder, open_store, wrap_encoder
from nnclr_hub.errors import FingerprintMismatch, InvalidRequest, UnknownModel
from nnclr_hub.probe.linear import fit_linear_probe
from nnclr_hub.workbench import Workbench

DIM = 12


def pipeline(side: int = 32) -> v2.Compose:
    return v2.Compose(
        [
            v2.PILToTensor(),
            v2.Resize(side, antialias=True),
            v2.CenterCrop(side),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize((0.5,) * 3, (0.25,) * 3),
        ]
    )


@pytest.fixture(scope="module")
def tower() -> nn.Module:
    torch.manual_seed(0)
    return torchvision.models.mobilenet_v3_small(num_classes=DIM)


def test_vectors_are_those_of_the_network_and_transform(tower, image_files):
    encoder = wrap_encoder(tower, pipeline(), "mobile", DIM)
    inputs = torch.stack([pipeline()(Image.open(path).convert("RGB")) for path in image_files[:3]])
    with torch.inference_mode():
        expected = F.normalize(tower.eval()(inputs)).numpy()
    assert encoder.embed(image_files[:3]) == pytest.approx(expected, abs=1e-5)


def test_a_timm_network_equals_its_encoder(image_files):
    reference = load_encoder("random:test_resnet@3")
    preprocessing = reference.transform.preprocessing
    wrapped = wrap_encoder(reference.backbone, preprocessing, "mine", reference.embed_dim)
    assert wrapped.embed(image_files[:2]) == pytest.approx(reference.embed(image_files[:2]), abs=1e-6)
    assert wrapped.tokens(image_files[:1]).shape == reference.tokens(image_files[:1]).shape
    assert wrapped.attention(image_files[0], Point(20, 20)).values == pytest.approx(
        reference.attention(image_files[0], Point(20, 20)).values, abs=1e-5
    )


def colors(x: torch.Tensor) -> np.ndarray:
    """Return (B, 6) float64: mean and spread of each channel."""
    return np.concatenate([x.mean((2, 3)).numpy(), x.std((2, 3)).numpy()], axis=1).astype(float)


def test_a_function_can_be_indexed_searched_and_refused(photos, image_files, tmp_path):
    encoder = wrap_encoder(colors, pipeline(), "colors", 6)

    class Models:
        def get(self, source=None):
            return encoder

        def by_fingerprint(self, fingerprint):
            return encoder if fingerprint == encoder.fingerprint else None

    with open_store(tmp_path) as store:
        bench = Workbench(Models(), store)
        bench.index_folder("photos", photos)
        match, *_ = bench.search("photos", SearchQuery.of(image=image_files[4], k=3))
        assert match.score == pytest.approx(1, abs=1e-5)
        other = wrap_encoder(colors, pipeline(), "other colors", 6)
        with pytest.raises(FingerprintMismatch):
            store.get("photos").check(other)


def test_fingerprints_follow_weights_input_and_name():
    torch.manual_seed(0)
    make = lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 4))  # noqa: E731
    network = make()
    one = wrap_encoder(network, pipeline(16), "a", 4).fingerprint
    assert wrap_encoder(network, pipeline(16), "renamed", 4).fingerprint == one
    assert wrap_encoder(make(), pipeline(16), "a", 4).fingerprint != one, "other weights"
    shifted = v2.Compose([pipeline(16), v2.Normalize((1.0,) * 3, (1.0,) * 3)])
    assert wrap_encoder(network, shifted, "a", 4).fingerprint != one, "another normalization"
    assert wrap_encoder(colors, pipeline(), "a", 6).fingerprint != wrap_encoder(colors, pipeline(), "b", 6).fingerprint
    assert wrap_encoder(colors, pipeline(), "a", 6, fingerprint="mine").fingerprint == "mine"


@pytest.mark.parametrize(
    ("network", "transform", "dim"),
    [
        (colors, pipeline(), 7),
        (colors, lambda image: np.asarray(image), 6),
        (colors, v2.Compose([v2.PILToTensor(), v2.ToDtype(torch.float32), v2.Resize((16, 24))]), 6),
        (lambda x: x.mean(), pipeline(), 1),
        (lambda x: np.full((len(x), 2), np.nan), pipeline(), 2),
        (colors, pipeline(), 0),
    ],
)
def test_networks_and_transforms_that_do_not_fit_are_refused(network, transform, dim):
    with pytest.raises(InvalidRequest):
        wrap_encoder(network, transform, "x", dim)


def test_what_a_function_cannot_do_is_refused(image_files):
    encoder = wrap_encoder(colors, pipeline(), "colors", 6)
    for call in (lambda: encoder.tokens(image_files[:1]), lambda: encoder.attention(image_files[0], Point(1, 1))):
        with pytest.raises(InvalidRequest):
            call()


FILE = """
import timm
import torch
from nnclr_hub import wrap_encoder
from nnclr_hub.encoder.preprocessing import Preprocessing

def tower():
    torch.manual_seed(0)
    return wrap_encoder(timm.create_model("test_resnet", num_classes=0), Preprocessing(32), "tower", 384)

other = 3
"""


def test_an_encoder_can_come_from_a_file(tmp_path, image_files):
    file = tmp_path / "mine.py"
    file.write_text(FILE)
    dim = timm.create_model("test_resnet", num_classes=0).num_features
    file.write_text(FILE.replace("384", str(dim)))
    encoder = load_encoder(f"python:{file}:tower")
    assert encoder.embed(image_files[:1]).shape == (1, dim)
    assert encoder.name == f"python:{file}:tower"
    collection = ("--store", tmp_path / "store", "--collection", "photos")
    code, _, err = nnclr("index", image_files[0].parent, *collection, "--model", encoder.name)
    assert code == 0, err
    code, _, err = nnclr("search", image_files[0], *collection, "--model", encoder.name, "--json")
    assert code == 0, err
    assert nnclr("search", image_files[0], *collection)[0] == 1, "the collection does not choose code to run"
    for bad, error in (
        ("nothing.py:tower", UnknownModel),
        ("mine.py:other", InvalidRequest),
        ("mine.py:missing", UnknownModel),
    ):
        with pytest.raises(error):
            load_encoder(f"python:{tmp_path / bad}")
    file.write_text("1 / 0")
    with pytest.raises(InvalidRequest):
        load_encoder(f"python:{file}:tower")


def test_no_probe_and_no_reading_of_a_collection_chooses_code_to_run(tmp_path, image_files):
    """A probe and a collection may come from elsewhere; their sources are names of files on this machine."""
    trap = tmp_path / "trap.py"
    trap.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    source = f"python:{trap}:encoder"
    with open_store(tmp_path / "store") as store:
        store.create("photos", CollectionSpec(dim=6, fingerprint="0" * 32, model=source))
    fitted = fit_linear_probe(np.eye(4, 6, dtype=np.float32), ["a", "b", "a", "b"], l2=1.0)
    replace(fitted, fingerprint="0" * 32, model=source).save(tmp_path / "probe")
    for call in (
        ("probe", "predict", image_files[0], "--probe", tmp_path / "probe"),
        ("index", image_files[0].parent, "--store", tmp_path / "store", "--collection", "photos"),
        ("space", tmp_path / "space", "--store", tmp_path / "store", "--collection", "photos"),
    ):
        code, _, err = nnclr(*call)
        assert code == 1, call
        assert "name it" in err
        assert not (tmp_path / "ran").exists()
