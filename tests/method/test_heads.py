"""Projection and prediction heads have the layers of their papers."""

from torch import nn

from nnclr_hub.method import PREDICTIONS, PROJECTIONS, PredictionHead, ProjectionHead


def test_every_method_has_the_heads_of_its_paper():
    widths = {name: (p.layers, p.hidden_dim, p.out_dim, p.last_norm) for name, p in PROJECTIONS.items()}
    assert widths == {
        "nnclr": (3, 2048, 256, "affine"),
        "simclr": (2, 2048, 128, "affine"),
        "simsiam": (3, 2048, 2048, "plain"),
        "byol": (2, 4096, 256, "none"),
        "moco_v3": (2, 4096, 256, "plain"),
        "swav": (2, 2048, 128, "none"),
        "lejepa": (3, 2048, 64, "none"),
        "teacher": (1, 2048, 256, "none"),
    }
    assert PREDICTIONS == {"paper": 4096, "simsiam": 512}
    layers = [type(one).__name__ for one in ProjectionHead(64, 32, 16, layers=2, last_norm="none").layers]
    assert layers == ["Linear", "BatchNorm1d", "ReLU", "Linear"]
    last = ProjectionHead(64, 32, 16, last_norm="plain").layers[-1]
    assert isinstance(last, nn.BatchNorm1d)
    assert not last.affine


def test_heads_are_the_papers():
    """Projection [2048, 2048, 256], batch norm after each, ReLU on the first two; prediction [4096, 256]."""
    projection = [type(layer).__name__ for layer in ProjectionHead(2048).layers]
    assert projection == ["Linear", "BatchNorm1d", "ReLU"] * 2 + ["Linear", "BatchNorm1d"]
    assert [m.out_features for m in ProjectionHead(2048).layers if isinstance(m, nn.Linear)] == [2048, 2048, 256]
    assert [type(layer).__name__ for layer in PredictionHead().layers] == ["Linear", "BatchNorm1d", "ReLU", "Linear"]
    assert [m.out_features for m in PredictionHead().layers if isinstance(m, nn.Linear)] == [4096, 256]
    assert [m.bias is None for m in PredictionHead(8, 8).layers if isinstance(m, nn.Linear)] == [True, False]
    assert all(m.bias is None for m in ProjectionHead(8, 8, 8).layers if isinstance(m, nn.Linear))
