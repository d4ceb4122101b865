"""Where cells lie: measured by gradients; which of them a query means; the map brought to the image's size."""

import numpy as np
import pytest
import torch
from conftest import NARROW

from nnclr_hub import Box, Point
from nnclr_hub.encoder.attention.anatomy import anatomy_of
from nnclr_hub.encoder.attention.geometry import Axis, Grid
from nnclr_hub.encoder.backbones import create_backbone
from nnclr_hub.encoder.outputs import feature_map
from nnclr_hub.errors import InvalidRequest

WIDE = Grid(Axis(3, 0.5, 32, 96, 192), Axis(4, 0.5, 32, 128, 256))  # a ResNet's, of an image twice as large


def centroid(backbone, x, row, column):
    """x, y of the input pixels that a cell depends on, each weighted by how much."""
    x = x.clone().requires_grad_()
    feature_map(backbone.requires_grad_(False), x)[:, row, column].square().sum().backward()
    weight = x.grad.square().sum((0, 1)).double()
    down, across = (torch.arange(side) + 0.5 for side in x.shape[2:])
    return float((weight.sum(0) * across).sum() / weight.sum()), float((weight.sum(1) * down).sum() / weight.sum())


def levelled(backbone):
    """Every kernel flat and every norm nothing: then a centroid is one of geometry, and not of the weights' chance."""
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
        ("resnet50d", {"channels": [2, 2, 2, 2]}, 448, 7, 32),  # its shortcuts average over 2 x 2 pixels,
        ("resnet50d", {"channels": [2, 2, 2, 2], "output_stride": 16}, 448, 14, 16),
        ("resnetaa50", {"channels": [2, 2, 2, 2]}, 448, 7, 32),  # here it is the other branch,
        ("resnetaa50d", {"channels": [2, 2, 2, 2]}, 448, 7, 32),  # and here both
        ("resnest50d", {"channels": [2, 2, 2, 2]}, 448, 7, 32),
    ],
)
def test_a_resnets_cells_are_where_their_gradients_are(architecture, arguments, side, cell, stride):
    backbone = levelled(create_backbone(architecture, model_args=arguments))
    found = anatomy_of(backbone)
    grid = found.grid((side // stride, side // stride), (side, side), (side, side))
    torch.manual_seed(0)
    x, y = centroid(backbone, torch.rand(1, 3, side, side), cell, cell - 1)  # of even color, a pool takes its corner
    assert found.stride == (stride, stride)
    assert abs(x - grid.across.centers[cell - 1]) < 2
    assert abs(y - grid.down.centers[cell]) < 2


def test_a_patch_is_where_its_embedding_looks():
    """In the embedding alone: attention mixes all patches."""
    backbone = create_backbone("vit_tiny_patch16_224", model_args={"depth": 1, "embed_dim": 24})
    x = torch.randn(4, 3, 224, 224, requires_grad=True)
    backbone.patch_embed(x).unflatten(1, (14, 14))[:, 3, 8].square().sum().backward()
    weight = x.grad.square().sum((0, 1))
    places = torch.arange(224) + 0.5
    grid = anatomy_of(backbone).grid((14, 14), (224, 224), (224, 224))
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
        (Box(60, 2, 90, 60), [0], [1]),  # holds a column of centers but no row: the cell nearest its middle
        (Box(70, 70, 71, 71), [1], [1]),
    ],
)
def test_what_a_query_means(query, rows, columns):
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


def test_a_patch_grid_is_upsampled_as_torch_does():
    """Cells that are centerd in equal parts of the image: the one case that torch knows."""
    values = np.random.default_rng(1).normal(size=(5, 6)).astype(np.float32)
    found = Grid(Axis(5, 8, 16, 80, 80), Axis(6, 8, 16, 96, 96)).upsampled(values)
    expected = torch.nn.functional.interpolate(torch.from_numpy(values)[None, None], size=(80, 96), mode="bilinear")
    np.testing.assert_allclose(found, expected[0, 0], atol=1e-5)


def test_a_single_cell_is_spread_over_the_image():
    grid = Grid(Axis(1, 0.5, 32, 20, 40), Axis(2, 0.5, 32, 50, 100))
    found = grid.upsampled(np.array([[1.0, 3.0]]))
    assert found.shape == (40, 100)
    assert (found[0] == found[-1]).all()
    assert (found[0, 0], found[0, -1]) == (1, 3)


@pytest.mark.parametrize("architecture", ["test_convnext", "mixer_s32_224", "resnetblur18", "skresnet18"])
def test_other_networks_are_refused_by_name(architecture):
    backbone = create_backbone(architecture)
    with pytest.raises(InvalidRequest, match=f"{architecture} is not a ResNet or a vision transformer"):
        anatomy_of(backbone)
