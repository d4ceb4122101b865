"""What is asked of the encoder at checkpoints, and at the end: whether it is any better than pixels."""

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from nnclr_hub.encoder.preprocess import Preprocessing
from training.evaluation import Evaluation
from training.recipes import find_recipe

COLORS = {"red": (220, 30, 30), "green": (30, 180, 30)}


@pytest.fixture
def evaluation_of(tmp_path):
    """The evaluation of a folder with images of two classes, 12 to learn from and 6 to score each."""

    def made(name: str, picture) -> Evaluation:
        for split, count in (("train", 12), ("test", 6)):
            for label in COLORS:
                (tmp_path / name / split / label).mkdir(parents=True)
                for number in range(count):
                    Image.fromarray(picture(label)).save(tmp_path / name / split / label / f"{number}.png")
        return Evaluation(
            [tmp_path / name], Preprocessing(32), find_recipe("small_cpu"), torch.device("cpu"), Console(stderr=True)
        )

    return made


def test_an_encoder_that_is_no_better_than_pixels_is_told(evaluation_of, capsys):
    """Of images in one color each, where pixels are always right."""
    evaluation = evaluation_of("colors", lambda label: np.full((32, 32, 3), COLORS[label], np.uint8))
    for value in (0.5, 1.0):
        evaluation.warn_if_no_better_than_pixels({"knn20/colors": value})
        said = " ".join(capsys.readouterr().err.split())
        assert f"knn20/colors is {value:.3f}, no better than raw pixels (1.000)" in said
        assert "--init" in said


def test_an_encoder_that_is_better_than_pixels_is_not(evaluation_of, capsys):
    """Of noise, whose pixels say nothing of its class; and of what was not scored."""
    rng = np.random.default_rng(0)
    evaluation = evaluation_of("noise", lambda label: rng.integers(0, 256, (32, 32, 3), np.uint8))
    capsys.readouterr()
    evaluation.warn_if_no_better_than_pixels({"knn20/noise": 0.99})
    evaluation.warn_if_no_better_than_pixels({})
    assert "warning" not in capsys.readouterr().err
