"""Both implementations of color jitter equal torchvision's operations in every order."""

from itertools import permutations

import pytest
import torch
import torchvision.transforms.functional as reference

from training.data.pixel_ops import jitter_all, jitter_rows

OPERATIONS = (  # by number
    reference.adjust_brightness,
    reference.adjust_contrast,
    reference.adjust_saturation,
    reference.adjust_hue,
)
ORDERS = [*permutations(range(4)), (-1, -1, -1, -1)]  # every order, and no jitter


@pytest.fixture
def draws() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images (100, 3, 24, 24) with gray and black ones among them, four of each order, and strong amounts."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(100, 3, 24, 24, generator=generator)
    images[::10], images[5::10] = images[::10, :1].expand(-1, 3, -1, -1), 0.0
    amounts = torch.rand(100, 4, generator=generator) * 2  # 0 removes all contrast, 2 exceeds the range
    amounts[:, 3] = amounts[:, 3] / 2 - 0.5
    return images, torch.tensor(ORDERS).repeat(4, 1), amounts


def torchvisions(image: torch.Tensor, turns: list[int], amounts: list[float]) -> torch.Tensor:
    """Apply torchvision's operations to one image in their order."""
    for number in sorted(range(4), key=turns.__getitem__):
        if turns[number] >= 0:
            image = OPERATIONS[number](image, amounts[number])
    return image


@pytest.mark.parametrize("jitter", [jitter_rows, jitter_all])
def test_every_order_equals_torchvision(draws, jitter):
    images, turns, amounts = draws
    rows = zip(images, turns.tolist(), amounts.tolist(), strict=True)
    want = torch.stack([torchvisions(*row) for row in rows])
    torch.testing.assert_close(jitter(images.clone(), turns, amounts), want, atol=2e-5, rtol=0)


def test_the_order_of_the_operations_matters(draws):
    """Otherwise the test above would pass for any order."""
    images, turns, _ = draws
    same = images[1:2].expand(len(turns), -1, -1, -1)
    made = jitter_all(same, turns, torch.tensor([1.4, 1.3, 0.5, 0.1]).expand(len(turns), -1))
    none = (turns < 0).all(dim=1)
    assert torch.equal(made[none], same[none])
    assert len(made.flatten(1).mul(1e3).round().unique(dim=0)) == len(ORDERS)
