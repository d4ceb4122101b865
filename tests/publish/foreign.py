"""Write checkpoints like other projects, each of a known network.

The code of torchvision, timm and lightly writes their files; the others follow the documented names.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from conftest import randomized
from torch import nn

Written = tuple[Path, nn.Module]  # the file, and the network whose output the converted one must give


def resnet(seed: int = 0) -> nn.Module:
    """Return torchvision's ResNet-18 without classifier: (B, 3, H, W) -> (B, 512)."""
    torch.manual_seed(seed)
    network = randomized(torchvision.models.resnet18(), seed)
    network.fc = nn.Identity()
    return network


def vit(seed: int = 0, name: str = "vit_tiny_patch16_224", **arguments: Any) -> nn.Module:
    """Return timm's ViT without classifier, which is equal to those of DINO and MoCo v3."""
    torch.manual_seed(seed)
    return randomized(timm.create_model(name, num_classes=0, **arguments), seed)


def fixed_positions(network: nn.Module) -> None:
    """Set MoCo v3's positions: sines and cosines of the two coordinates, and zeros for [CLS]."""
    patches: Any = network.patch_embed
    width = network.pos_embed.shape[-1] // 4
    grid = torch.arange(patches.grid_size[0], dtype=torch.float32)
    down, across = torch.meshgrid(grid, grid, indexing="ij")
    omega = 1 / 10000 ** (torch.arange(width) / width)
    angles = [axis.flatten()[:, None] * omega for axis in (across, down)]
    rows = torch.cat([function(angle) for angle in angles for function in (torch.sin, torch.cos)], dim=1)
    network.pos_embed = nn.Parameter(torch.cat([torch.zeros(1, 4 * width), rows])[None], requires_grad=False)


def head(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


class Wrapped(nn.Module):
    """A network with the names of data parallel training."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def _moco_v3(path: Path, network: nn.Module, other: nn.Module, classifier: str, width: int) -> None:
    """Save two encoders whose classifiers are replaced by projectors."""
    model = nn.Module()
    model.base_encoder, model.momentum_encoder = copy.deepcopy(network), copy.deepcopy(other)
    setattr(model.base_encoder, classifier, head(width))
    setattr(model.momentum_encoder, classifier, head(width))
    model.predictor = head(4)
    optimizer = torch.optim.AdamW(model.parameters())
    state = {"epoch": 1, "arch": "x", "state_dict": Wrapped(model).state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, path)


def moco_v3_resnet(folder: Path) -> Written:
    network = resnet()
    _moco_v3(folder / "r.pth.tar", network, resnet(1), "fc", 512)
    return folder / "r.pth.tar", network


def moco_v3_momentum(folder: Path) -> Written:
    network = resnet(1)
    _moco_v3(folder / "r.pth.tar", resnet(), network, "fc", 512)
    return folder / "r.pth.tar", network


def moco_v3_vit(folder: Path, name: str = "vit_tiny_patch16_224", **arguments: Any) -> Written:
    network = vit(0, name, **arguments)
    fixed_positions(network)
    _moco_v3(folder / "v.pth.tar", network, network, "head", network.num_features)
    return folder / "v.pth.tar", network


def dino_backbone(folder: Path) -> Written:
    network = vit()
    torch.save(network.state_dict(), folder / "dino.pth")
    return folder / "dino.pth", network


def _dino(path: Path, student: nn.Module, teacher: nn.Module) -> None:
    """Save a wrapped student, a teacher that is not wrapped, and settings as an argparse.Namespace."""

    def both(network: nn.Module) -> nn.Module:
        pair = nn.Module()
        pair.backbone, pair.head = network, head(network.num_features if hasattr(network, "num_features") else 512)
        return pair

    state = {
        "student": Wrapped(both(student)).state_dict(),
        "teacher": both(teacher).state_dict(),
        "optimizer": {},
        "epoch": 1,
        "args": argparse.Namespace(arch="vit_tiny", lr=0.1),
        "dino_loss": {"center": torch.zeros(1, 4)},
    }
    torch.save(state, path)


def dino_teacher(folder: Path) -> Written:
    network = vit()
    _dino(folder / "full.pth", vit(1), network)
    return folder / "full.pth", network


def dino_student(folder: Path) -> Written:
    network = resnet()
    _dino(folder / "full.pth", network, resnet(1))
    return folder / "full.pth", network


def lightly_lightning(folder: Path) -> Written:
    """Save like lightly's benchmark of NNCLR: a LightningModule saved by a Trainer."""
    lightly = pytest.importorskip("lightly.models.modules")
    pytorch_lightning = pytest.importorskip("pytorch_lightning")

    class NNCLR(pytorch_lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.save_hyperparameters({"batch_size_per_device": 4, "num_classes": 10})
            self.backbone = resnet()
            self.projection_head = lightly.NNCLRProjectionHead(512, 8, 4)
            self.prediction_head = lightly.NNCLRPredictionHead(4, 8, 4)
            self.memory_bank = lightly.NNMemoryBankModule(size=(16, 4))
            self.online_classifier = nn.Linear(512, 10)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    model = NNCLR()
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = pytorch_lightning.Trainer(accelerator="cpu", **quiet)
    model.trainer = trainer
    trainer.strategy.connect(model)
    trainer.save_checkpoint(folder / "lightly.ckpt", weights_only=True)
    return folder / "lightly.ckpt", model.backbone.eval()


def lightly_numbered(folder: Path) -> Written:
    """Save like lightly's examples: nn.Sequential of a ResNet's children, saved by its user."""
    lightly = pytest.importorskip("lightly.models.modules")
    network = resnet()
    model = nn.Module()
    model.backbone = nn.Sequential(*list(network.children())[:-1])
    model.projection_head = lightly.NNCLRProjectionHead(512, 8, 4)
    model.prediction_head = lightly.NNCLRPredictionHead(4, 8, 4)
    torch.save(model.state_dict(), folder / "nnclr.pth")
    return folder / "nnclr.pth", network


def _solo(folder: Path, name: str) -> Written:
    network = resnet()
    model = nn.Module()
    setattr(model, name, network)
    setattr(model, f"momentum_{name}", resnet(1))
    model.classifier, model.projector, model.predictor = nn.Linear(512, 10), head(512), head(4)
    model.register_buffer("queue", torch.zeros(2, 8, 4))
    model.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))
    state = {"epoch": 1, "pytorch-lightning_version": "2.1.2", "state_dict": model.state_dict(), "loops": {}}
    torch.save(state, folder / "solo.ckpt")
    return folder / "solo.ckpt", network


def solo_learn(folder: Path) -> Written:
    return _solo(folder, "backbone")


def solo_learn_old(folder: Path) -> Written:
    return _solo(folder, "encoder")


def torchvision_resnet(folder: Path) -> Written:
    torch.manual_seed(0)
    network = randomized(torchvision.models.resnet18(num_classes=10))
    torch.save(network.state_dict(), folder / "resnet18.pth")
    network.fc = nn.Identity()
    return folder / "resnet18.pth", network


def torchvision_compiled(folder: Path) -> Written:
    """Save like torchvision's training script, with a compiled network."""
    network = resnet()
    state = {f"_orig_mod.{key}": value for key, value in network.state_dict().items()}
    torch.save({"model": state, "args": argparse.Namespace(lr=0.1), "epoch": 3}, folder / "model_3.pth")
    return folder / "model_3.pth", network


def torchvision_vit(folder: Path) -> Written:
    """Save torchvision's transformer in the width of a stock one of timm's that is small enough for a test."""
    torch.manual_seed(0)
    network = randomized(
        torchvision.models.VisionTransformer(
            image_size=64, patch_size=16, num_layers=12, num_heads=3, hidden_dim=192, mlp_dim=768, num_classes=10
        )
    )
    nn.init.normal_(network.encoder.pos_embedding, std=0.5)
    torch.save(network.state_dict(), folder / "vit.pth")
    network.heads = nn.Identity()
    return folder / "vit.pth", network


READ: dict[str, Callable[[Path], Written]] = {
    "MoCo v3 ResNet": moco_v3_resnet,
    "MoCo v3 ViT": moco_v3_vit,
    "DINO backbone": dino_backbone,
    "DINO teacher": dino_teacher,
    "lightly, Lightning": lightly_lightning,
    "lightly, numbered": lightly_numbered,
    "solo-learn": solo_learn,
    "solo-learn, old": solo_learn_old,
    "torchvision ResNet": torchvision_resnet,
    "torchvision compiled": torchvision_compiled,
    "torchvision ViT": torchvision_vit,
}
