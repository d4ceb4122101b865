"""Images of several channels are trained on natively: from the pack to the exported encoder, in timm's convention."""

import numpy as np
import pytest
import tifffile
import timm
import torch
from image_views import make_view
from packed_batches import copy_in
from rich.console import Console

from nnclr_hub.encoder.loader import load_encoder
from nnclr_hub.errors import ImageError, InvalidRequest, UnknownSetting
from nnclr_hub.hub.layout import read_config
from training.data.batches import channel_statistics
from training.data.image_pack import PackedPixels, build_pack
from training.data.pixel_ops import adjust_hue, grayscale, jitter_all, jitter_rows
from training.data.views import AUGMENTATIONS, View
from training.network import adopt, build_learner, find_initial_encoder, load_initial_encoder
from training.pretrain import pretrain
from training.recipes import find_recipe

RNG = np.random.default_rng(0)
SETTINGS = ["epochs=1", "checkpoint_every=1", "image_size=32", "eval_size=32", "pack_size=32", "batch_size=4"]


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """Sixteen images of 5 channels of 16 bits."""
    folder = tmp_path_factory.mktemp("cells")
    for number in range(16):
        values = RNG.integers(0, 4096, (40, 36, 5), dtype=np.uint16)
        tifffile.imwrite(folder / f"{number:02}.tif", values, photometric="minisblack", planarconfig="contig")
    return folder


@pytest.fixture(scope="module")
def run(cells, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "four"
    recipe = find_recipe("small_cpu").with_settings(["reading=channels=3,0,1,4", *SETTINGS])
    assert pretrain(recipe, [cells], out, device="cpu").finished
    return out


def test_a_pack_has_the_chosen_channels(cells, tmp_path):
    paths = sorted(cells.iterdir())
    recipe = find_recipe("small_cpu").with_settings(["reading=channels=3,0,1,4"])
    assert recipe.in_chans == 4
    pack = build_pack(paths, 32, reading=recipe.preprocessing.reading, channels=4, cache=tmp_path)
    images = np.stack([copy_in(pack, row) for row in range(16)])
    assert images.shape[3] == pack.channels == 4
    mean, std = channel_statistics(PackedPixels(pack, torch.device("cpu")))
    np.testing.assert_allclose(mean, images.mean((0, 1, 2)) / 255, atol=5e-3)
    np.testing.assert_allclose(std, images.std((0, 1, 2)) / 255, rtol=0.2)
    other = build_pack(paths, 32, reading=recipe.preprocessing.reading.parse("channels=0"), cache=tmp_path)
    assert copy_in(other, 0).shape[2] == 3
    with pytest.raises(UnknownSetting):
        find_recipe("small_cpu").with_settings(["reading=channels=0,1", "in_chans=4"])


@pytest.mark.parametrize("channels", [1, 2, 4, 7])
@pytest.mark.parametrize("augmentation", AUGMENTATIONS)
def test_every_augmentation_takes_any_number_of_channels(channels, augmentation):
    images = torch.from_numpy(RNG.integers(0, 256, (6, 24, 24, channels), dtype=np.uint8))
    for view in AUGMENTATIONS[augmentation]:
        shape = View(**{**vars(view), "size": 16, "mean": (0.5,) * channels, "std": (0.2,) * channels})
        x = make_view(images, torch.ones(6), shape, torch.Generator().manual_seed(0))
        assert x.shape == (6, channels, 16, 16)
        assert x.isfinite().all()


@pytest.mark.parametrize("channels", [2, 4])
def test_gray_is_the_mean_of_the_channels_and_hue_stays(channels):
    images = torch.from_numpy(RNG.random((5, channels, 6, 6), dtype=np.float32))
    torch.testing.assert_close(grayscale(images), images.mean(1, keepdim=True).expand_as(images))
    torch.testing.assert_close(adjust_hue(images, torch.full((5,), 0.3)), images)
    turns = torch.stack([torch.randperm(4) for _ in range(5)])
    amounts = torch.tensor([[1.2, 0.7, 1.3, 0.2]]).repeat(5, 1)
    torch.testing.assert_close(jitter_all(images, turns, amounts), jitter_rows(images.clone(), turns, amounts))


def test_a_run_exports_an_encoder_that_timm_and_this_library_load(run, cells):
    config = read_config(run / "encoder")
    assert config.model_args["in_chans"] == 4
    assert config.pretrained_cfg["input_size"] == [4, 32, 32]
    assert len(config.pretrained_cfg["mean"]) == len(config.pretrained_cfg["std"]) == 4
    encoder = load_encoder(run / "encoder", device="cpu")
    assert encoder.reading.channels == (3, 0, 1, 4)  # as in training
    path = cells / "00.tif"
    x = encoder.transform(path)[None]
    assert x.shape == (1, 4, 32, 32)
    network = timm.create_model(f"local-dir:{run / 'encoder'}", pretrained=True, num_classes=0).eval()
    with torch.no_grad():
        expected = torch.nn.functional.normalize(network(x)).numpy()
    values = tifffile.imread(path)[..., [3, 0, 1, 4]]
    array = np.rint(values / 4095 * 255).astype(np.uint8)
    for images in ([path], [path.read_bytes()], [array], x):
        np.testing.assert_allclose(encoder.embed(images), expected, atol=1e-5)
    assert encoder.tokens([path]).shape[-1] == encoder.embed_dim
    assert encoder.attention(path).values.ndim == 2


@pytest.mark.parametrize("backend", [pytest.param("onnx", marks=pytest.mark.slow), "openvino"])
def test_exported_networks_take_the_channels(run, cells, backend):
    wanted = load_encoder(run / "encoder", device="cpu").embed([cells / "01.tif"])
    for _ in range(2):  # the second one loads the cached network
        found = load_encoder(run / "encoder", device="cpu", backend=backend).embed([cells / "01.tif"])
        np.testing.assert_allclose(found, wanted, atol=1e-3)


def test_images_of_another_number_of_channels_are_refused(run, cells, model):
    rgb = np.zeros((20, 20, 3), np.uint8)
    encoder = load_encoder(run / "encoder", device="cpu")
    for images in ([rgb], [np.zeros((20, 20), np.uint8)]):
        with pytest.raises(ImageError):
            encoder.embed(images)
    with pytest.raises(InvalidRequest):
        encoder.embed(torch.zeros(1, 3, 32, 32))
    with pytest.raises(ImageError):
        load_encoder(model, device="cpu").embed([cells / "00.tif"])


def test_weights_for_rgb_are_a_start_for_more_channels(run, cells, model, tmp_path):
    settings = ["reading=channels=3,0,1,4", *SETTINGS]
    recipe = find_recipe("small_cpu").with_settings(settings)
    out = tmp_path / "from_rgb"
    assert pretrain(recipe, [cells], out, init=str(model), device="cpu").finished
    config = read_config(out / "encoder")
    parent = read_config(model).pretrained_cfg
    assert config.pretrained_cfg["mean"] == [*parent["mean"], parent["mean"][0]]
    start = find_initial_encoder(str(run / "encoder"))
    adopted = adopt(find_recipe("small_cpu").with_settings(SETTINGS), start, Console(quiet=True))
    assert (adopted.in_chans, adopted.reading) == (4, "channels=3,0,1,4")
    learner = build_learner(adopted)
    load_initial_encoder(learner, start, Console(quiet=True), adopted.in_chans)
    for key, value in load_encoder(run / "encoder", device="cpu").backbone.state_dict().items():
        torch.testing.assert_close(learner.backbone.state_dict()[key], value)
    five = find_recipe("small_cpu").with_settings(["in_chans=5", *SETTINGS])
    with pytest.raises(InvalidRequest):
        pretrain(five, [cells], tmp_path / "x", init=str(run / "encoder"), device="cpu")
