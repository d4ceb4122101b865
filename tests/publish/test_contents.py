"""A checkpoint that holds more than one network, or numbers in another form, is refused and never guessed at."""

from pathlib import Path

import pytest
import torch
from publish import foreign

from nnclr_hub import convert_checkpoint
from nnclr_hub.errors import InvalidRequest, NNCLRHubError, WeightsMismatch


def converted(state: object, folder: Path, **options):
    torch.save(state, folder / "file.pth")
    return convert_checkpoint(folder / "file.pth", folder / "model", **options)


@pytest.fixture(scope="module")
def networks() -> tuple[dict, dict]:
    return foreign.resnet(0).state_dict(), foreign.resnet(1).state_dict()


@pytest.mark.parametrize(
    "laid_out",
    [
        lambda one, two: {"state_dict": one, "model": two},
        lambda one, two: {**one, "model": two},
        lambda one, two: one | {f"_orig_mod.{key}": value for key, value in two.items()},
    ],
    ids=["two containers", "one above", "one compiled"],
)
def test_a_checkpoint_with_two_networks_needs_a_choice(laid_out, networks, tmp_path):
    with pytest.raises(InvalidRequest):
        converted(laid_out(*networks), tmp_path)
    assert not (tmp_path / "model").exists()


def test_averaged_weights_are_reported_with_their_number(networks, tmp_path):
    """Keep them apart as torchvision's script does, under a separate name."""
    done = converted({"model": networks[0], "model_ema": networks[1], "epoch": 3}, tmp_path)
    assert done.dropped == {"epoch": 0, "model_ema": 120}


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("conv1.weight", lambda value: (value * 100).to(torch.int8)),
        ("conv1.weight", lambda value: value.to(torch.complex64)),
        ("bn1.weight", torch.Tensor.to_sparse),
        ("bn1.weight", lambda value: value.to("meta")),
    ],
    ids=["integers", "complex", "sparse", "without values"],
)
def test_weights_that_are_not_plain_numbers_are_refused(key, change, networks, tmp_path):
    with pytest.raises(WeightsMismatch, match=key):
        converted({**networks[0], key: change(networks[0][key])}, tmp_path)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    "state",
    [
        {"conv1.weight": torch.zeros(())},
        {"patch_embed.proj.weight": torch.zeros(192, 3, 16, 16), "pos_embed": torch.zeros(1, 0, 192)},
        {"patch_embed.proj.weight": torch.zeros(5), "pos_embed": torch.zeros(1, 197, 192)},
        {"patch_embed.proj.weight": torch.zeros(384, 3, 16, 16), "pos_embed": torch.zeros(384)},
    ],
    ids=["stem", "no positions", "patches", "positions"],
)
def test_tensors_of_impossible_shapes_are_refused_in_one_line(state, tmp_path):
    with pytest.raises(NNCLRHubError):
        converted(state, tmp_path)


def test_an_argument_may_not_bring_other_weights(networks, tmp_path):
    torch.save(networks[1], tmp_path / "other.pth")
    with pytest.raises(InvalidRequest, match="checkpoint_path"):
        converted(networks[0], tmp_path, model_args={"checkpoint_path": str(tmp_path / "other.pth")})
