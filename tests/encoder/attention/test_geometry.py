"""The input size of an image; cell positions, measured by gradients; cells of a query; upsampling of a map."""

import numpy as np
import pytest
import torch
from conftest import NARROW
from hypothesis import given
from hypothesis import strategies as st

from nnclr_hub import Box, Point
from nnclr_hub.encoder.attention.extractor import traits_of
from nnclr_hub.encoder.attention.geometry import Axis, Grid, input_size
from nnclr_hub.encoder.backbones import create_backbone
from nnclr_hub.encoder.network_output import feature_map
from nnclr_hub.errors import InvalidRequest

WIDE = Grid(Axis(3, 0.5, 32, 96, 192), Axis(4, 0.5, 32, 128, 256))  # a ResNet's, of an image twice as large


def centroid(backbone, x, row, column):
    """Return the centroid x, y of the input pixels that a cell depends on, weighted by gradient."""
    x = x.clone().requires_grad_()
    feature_map(backbone.requires_grad_(False), x)[:, row, column].square().sum().backward()
    weight = x.grad.square().sum((0, 1)).double()
    down, across = (torch.arange(side) + 0.5 for side in x.shape[2:])
    return float((weight.sum(0) * across).sum() / weight.sum()), float((weight.sum(1) * down).sum() / weight.sum())


def flattened(backbone):
    """Make every kernel flat and every norm the identity, so that a centroid shows geometry and not random weights."""
    for module in backbone.modules():
        if isinstance(module, torch.nn.Conv2d):
            torch.nn.init.constant_(module.weight, 1 / module.weight[0].numel())
        elif isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.ones_(module.weight)
    return backbone.eval()


@pytest.mark.parametrize(
    ("architecture", "arguments", "side", "cell", "stride"),
    [
        ("resnet18", NARROW, 448, 7, 32),
        ("resnet18", {**NARROW, "output_stride": 16}, 448, 14, 16),
        ("resnet50", {"channels": [2, 2, 2, 2]}, 448, 7, 32),
        ("nnclr_resnet18_cifar", NARROW, 112, 7, 8),
        ("resnet50d", {"channels": [2, 2, 2, 2]}, 448, 7, 32),  # its shortcuts average over 2 x 2 pixels
        ("resnet50d", {"channels": [2, 2, 2, 2], "output_stride": 16}, 448, 14, 16),
        ("resnetaa50", {"channels": [2, 2, 2, 2]}, 448, 7, 32),  # the other branch does
        ("resnetaa50d", {"channels": [2, 2, 2, 2]}, 448, 7, 32),  # both branches do
        ("resnest50d", {"channels": [2, 2, 2, 2]}, 448, 7, 32),
    ],
)
def test_a_resnets_cells_are_where_their_gradients_are(architecture, arguments, side, cell, stride):
    backbone = flattened(create_backbone(architecture, model_args=arguments))
    found = traits_of(backbone)
    grid = found.grid((side // stride, side // stride), (side, side), (side, side))
    torch.manual_seed(0)
    # random, because max pooling of a constant image would select a corner
    x, y = centroid(backbone, torch.rand(1, 3, side, side), cell, cell - 1)
    assert found.stride == (stride, stride)
    assert abs(x - grid.across.centers[cell - 1]) < 2
    assert abs(y - grid.down.centers[cell]) < 2


def test_a_patch_is_where_its_embedding_depends_on_the_input():
    """Checked on the patch embedding only, because attention mixes all patches."""
    backbone = create_backbone("vit_tiny_patch16_224", model_args={"depth": 1, "embed_dim": 24})
    x = torch.randn(4, 3, 224, 224, requires_grad=True)
    backbone.patch_embed(x).unflatten(1, (14, 14))[:, 3, 8].square().sum().backward()
    weight = x.grad.square().sum((0, 1))
    places = torch.arange(224) + 0.5
    grid = traits_of(backbone).grid((14, 14), (224, 224), (224, 224))
    assert abs(float((weight.sum(0) * places).sum() / weight.sum()) - grid.across.centers[8]) < 1
    assert abs(float((weight.sum(1) * places).sum() / weight.sum()) - grid.down.centers[3]) < 1


@pytest.mark.parametrize(
    ("query", "rows", "columns"),
    [
        (Point(0, 0), [0], [0]),
        (Point(66, 191), [2], [1]),
        (Point(32.9, 33.1), [1], [0]),  # the border between cells 0 and 1 is at 33
        (Box(0, 0, 256, 192), [0, 1, 2], [0, 1, 2, 3]),
        (Box(60, 0, 130, 66), [0, 1], [1, 2]),
        (Box(60, 2, 90, 60), [0], [1]),  # contains centers of a column but of no row: the cell nearest its center
        (Box(70, 70, 71, 71), [1], [1]),
    ],
)
def test_the_cells_of_a_query(query, rows, columns):
    found = WIDE.cells(query)
    assert (found[0].tolist(), found[1].tolist()) == (rows, columns)


def test_upsampling_equals_a_loop_over_pixels():
    values = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    down, across = Axis(3, 8, 16, 48, 31), Axis(4, 8, 16, 64, 57)
    found = Grid(down, across).upsampled(values)
    assert found.shape == (31, 57)
    for i in range(31):
        for j in range(57):
            y = min(max(((i + 0.5) * 48 / 31 - 8) / 16, 0), 2)
            x = min(max(((j + 0.5) * 64 / 57 - 8) / 16, 0), 3)
            top, left = min(int(y), 1), min(int(x), 2)
            b, a = y - top, x - left
            expected = (1 - b) * ((1 - a) * values[top, left] + a * values[top, left + 1]) + b * (
                (1 - a) * values[top + 1, left] + a * values[top + 1, left + 1]
            )
            assert found[i, j] == pytest.approx(expected, abs=1e-5)


def test_a_single_cell_is_spread_over_the_image():
    grid = Grid(Axis(1, 0.5, 32, 20, 40), Axis(2, 0.5, 32, 50, 100))
    found = grid.upsampled(np.array([[1.0, 3.0]]))
    assert found.shape == (40, 100)
    assert (found[0] == found[-1]).all()
    assert (found[0, 0], found[0, -1]) == (1, 3)


@pytest.mark.parametrize("architecture", ["test_convnext", "mixer_s32_224", "resnetblur18", "skresnet18"])
def test_other_networks_are_refused(architecture):
    backbone = create_backbone(architecture)
    with pytest.raises(InvalidRequest, match=architecture):
        traits_of(backbone)


@given(st.integers(1, 5000), st.integers(1, 5000), st.sampled_from([2, 8, 14, 16, 32]), st.integers(32, 100_000))
def test_every_input_size_is_within_its_bounds(width, height, patch, max_side):
    found = input_size((width, height), (patch, patch), max_side, whole=True)
    cells = [side // patch for side in found]
    assert patch <= min(found) <= max(found) <= max_side
    assert [side % patch for side in found] == [0, 0]
    assert cells[0] * cells[1] <= 4096
    wide, down = input_size((width, height), (patch, patch), max_side)  # of a convolution, which takes any size
    assert -(-wide // patch) * -(-down // patch) <= 4096
    if (cells[0] + 1) * (cells[1] + 1) > 4096:
        return  # the maximum number of cells
    assert min(found) >= 224 - patch or max(found) > max_side - patch
    if min(width, height) >= 256 and max(width, height) <= max_side:
        assert abs(found[0] - width) <= max(patch / 2, width - max_side // patch * patch)


@pytest.mark.parametrize(
    ("size", "cell", "whole", "max_side", "expected"),
    [
        ((640, 480), 32, False, 1024, (640, 480)),
        ((640, 480), 16, True, 1024, (640, 480)),
        ((451, 300), 16, True, 1024, (448, 304)),
        ((4000, 3000), 32, False, 1024, (1024, 768)),
        ((3000, 4000), 16, True, 1024, (768, 1024)),
        ((100, 100), 16, True, 1024, (224, 224)),
        ((64, 32), 32, False, 1024, (448, 224)),
        ((230, 1000), 32, True, 1024, (224, 992)),
        # at most 4096 cells
        ((1024, 1024), 16, True, 1024, (1024, 1024)),
        ((1024, 1024), 8, True, 1024, (512, 512)),
        ((4000, 3000), 8, True, 1024, (584, 440)),
        ((1024, 1024), 8, False, 1024, (512, 512)),
        ((100, 100), 2, True, 1024, (128, 128)),
        ((224, 1024), 4, True, 1024, (116, 544)),
        # another max_side
        ((640, 480), 16, True, 256, (256, 192)),  # less than 224
        ((1920, 1080), 32, True, 64, (64, 32)),
        ((3000, 400), 16, True, 1024, (1024, 144)),
        ((1, 1), 16, True, 1024, (224, 224)),
        ((1, 3000), 16, True, 1024, (16, 1024)),  # widened to one cell
    ],
)
def test_the_input_size_of_an_image(size, cell, whole, max_side, expected):
    assert input_size(size, (cell, cell), max_side, whole=whole) == expected


@pytest.mark.parametrize(("max_side", "cell"), [(31, 32), (1, 16)])
def test_a_max_side_below_one_cell_is_refused(max_side, cell):
    with pytest.raises(InvalidRequest):
        input_size((300, 300), (cell, cell), max_side, whole=cell != 32)
