"""Write checkpoints like other projects, each of a known network.

The code of torchvision, timm and lightly writes their files; the others follow the documented names.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from conftest import randomized
from timm.layers import PatchEmbed
from timm.models.vision_transformer import Block
from torch import nn

Written = tuple[Path, nn.Module]  # the file, and the network whose output the converted one must give


def resnet(seed: int = 0) -> nn.Module:
    """Return torchvision's ResNet-18 without classifier: (B, 3, H, W) -> (B, 512)."""
    return copy.deepcopy(_resnet(seed))


@cache  # random initialization takes longer than all else in most tests of conversion
def _resnet(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    network = randomized(torchvision.models.resnet18(), seed)
    network.fc = nn.Identity()
    return network


def vit(seed: int = 0, name: str = "vit_tiny_patch16_224", **arguments: Any) -> nn.Module:
    """Return timm's ViT without classifier, which is equal to those of DINO and MoCo v3."""
    torch.manual_seed(seed)
    return randomized(timm.create_model(name, num_classes=0, **arguments), seed)


def saved(state: Any, path: Path, network: nn.Module) -> Written:
    torch.save(state, path)
    return path, network


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


def _moco_v3(folder: Path, network: nn.Module, other: nn.Module, classifier: str, width: int) -> Path:
    """Save two encoders whose classifiers are replaced by projectors."""
    model = nn.Module()
    model.base_encoder, model.momentum_encoder = copy.deepcopy(network), copy.deepcopy(other)
    setattr(model.base_encoder, classifier, head(width))
    setattr(model.momentum_encoder, classifier, head(width))
    model.predictor = head(4)
    optimizer = torch.optim.AdamW(model.parameters())
    state = {"epoch": 1, "arch": "x", "state_dict": Wrapped(model).state_dict(), "optimizer": optimizer.state_dict()}
    return saved(state, folder / "r.pth.tar", network)[0]


def moco_v3_resnet(folder: Path, branch: str = "online") -> Written:
    network, other = resnet(), resnet(1)
    return _moco_v3(folder, network, other, "fc", 512), network if branch == "online" else other


def moco_v3_vit(folder: Path, name: str = "vit_tiny_patch16_224", **arguments: Any) -> Written:
    network = vit(0, name, **arguments)
    fixed_positions(network)
    return _moco_v3(folder, network, network, "head", network.num_features), network


def dino_backbone(folder: Path) -> Written:
    network = vit()
    return saved(network.state_dict(), folder / "dino.pth", network)


def dino_teacher(folder: Path, branch: str = "teacher") -> Written:
    """Save a wrapped student, a teacher that is not wrapped, and settings as an argparse.Namespace."""

    def both(network: Any) -> nn.Module:
        return nn.ModuleDict({"backbone": network, "head": head(getattr(network, "num_features", 512))})

    student, teacher = (vit(1), vit()) if branch == "teacher" else (resnet(), resnet(1))
    state = {
        "student": Wrapped(both(student)).state_dict(),
        "teacher": both(teacher).state_dict(),
        "optimizer": {},
        "epoch": 1,
        "args": argparse.Namespace(arch="vit_tiny", lr=0.1),
        "dino_loss": {"center": torch.zeros(1, 4)},
    }
    return saved(state, folder / "full.pth", teacher if branch == "teacher" else student)


def _saved(path: Path, container: str, network: nn.Module, **parts: nn.Module | torch.Tensor) -> Written:
    """Save parts of a network that trains with data parallelism, and settings."""
    model = nn.Module()
    for name, part in parts.items():
        model.register_buffer(name, part) if isinstance(part, torch.Tensor) else setattr(model, name, part)
    state = {container: Wrapped(model).state_dict(), "epoch": 1, "arch": "x", "optimizer": {"state": {}}}
    return saved(state, path, network)


def _projecting(network: nn.Module) -> nn.Module:
    """Return a copy of a ResNet with a projector in place of its classifier."""
    network = copy.deepcopy(network)
    network.fc = nn.Sequential(head(512), nn.BatchNorm1d(4, affine=False))
    return network


def moco_v2(folder: Path, branch: str = "online") -> Written:
    network, other = resnet(), resnet(1)
    parts = {"encoder_q": _projecting(network), "encoder_k": _projecting(other)}
    parts |= {"queue": torch.zeros(4, 16), "queue_ptr": torch.zeros(1, dtype=torch.long)}
    return _saved(folder / "r.pth.tar", "state_dict", network if branch == "online" else other, **parts)


def simsiam(folder: Path) -> Written:
    network = resnet()
    return _saved(folder / "s.pth.tar", "state_dict", network, encoder=_projecting(network), predictor=head(4))


def barlow_twins(folder: Path) -> Written:
    network = resnet()
    parts = {"backbone": network, "projector": head(512), "bn": nn.BatchNorm1d(4, affine=False)}
    return _saved(folder / "b.pth", "model", network, **parts)


def swav(folder: Path) -> Written:
    """SwAV's ResNet pads once before its first convolution; the released files are flat."""
    network = resnet()
    network.conv1.padding = (2, 2)
    model = copy.deepcopy(network)
    model.projection_head, model.prototypes = head(512), nn.Linear(4, 30, bias=False)
    return saved(
        Wrapped(model).state_dict(), folder / "swav_pretrain.pth.tar", nn.Sequential(nn.ConstantPad2d(1, 0.0), network)
    )


def mae(folder: Path) -> Written:
    """MAE's encoder is timm's transformer with fixed positions; its decoder is narrower."""
    network = vit()
    fixed_positions(network)
    model = copy.deepcopy(network)
    model.mask_token = nn.Parameter(torch.randn(1, 1, 96))
    model.decoder_pos_embed = nn.Parameter(torch.randn(1, 197, 96))
    model.decoder_embed, model.decoder_pred = nn.Linear(192, 96), nn.Linear(96, 768)
    model.decoder_blocks, model.decoder_norm = nn.ModuleList([Block(96, 3)]), nn.LayerNorm(96)
    state = {"model": model.state_dict(), "optimizer": {}, "epoch": 1, "scaler": {}, "args": argparse.Namespace(lr=0.1)}
    return saved(state, folder / "checkpoint-1.pth", network)


def mae_encoder(folder: Path) -> Written:
    """Save like the files that MAE publishes for fine-tuning: its encoder only."""
    network = vit()
    return saved({"model": network.state_dict()}, folder / "mae_pretrain.pth", network)


class SwiGLU(nn.Module):
    """The gated layer of DINOv2's giant: both halves in one matrix."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.w12, self.w3 = nn.Linear(width, 2 * hidden), nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, value = self.w12(x).chunk(2, dim=-1)
        return self.w3(nn.functional.silu(gate) * value)


class DINOv2(nn.Module):
    """DINOv2's transformer: positions for [CLS] and patches, then registers between the two; (B, 3, S, S) -> (B, D)."""

    def __init__(self, width: int, depth: int, heads: int, *, registers: int, chunks: int = 0, gated: int = 0) -> None:
        super().__init__()
        self.patch_embed = PatchEmbed(3 * 14, 14, 3, width)
        self.cls_token, self.mask_token = nn.Parameter(torch.randn(1, 1, width)), nn.Parameter(torch.randn(1, width))
        self.pos_embed = nn.Parameter(torch.randn(1, 3 * 3 + 1, width))
        self.register_tokens = nn.Parameter(torch.randn(1, registers, width)) if registers else None
        self.blocks = nn.ModuleList(Block(width, heads, qkv_bias=True, init_values=0.5) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        if gated:
            for block in self.blocks:
                block.mlp = SwiGLU(width, gated)
        if chunks:  # a chunk counts its blocks from the first block of the network
            size = depth // chunks
            self.blocks = nn.ModuleList(
                nn.Sequential(*[nn.Identity()] * start, *self.blocks[start : start + size])
                for start in range(0, depth, size)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = torch.cat([self.cls_token.expand(len(x), -1, -1), self.patch_embed(x)], dim=1) + self.pos_embed
        if self.register_tokens is not None:
            registers = self.register_tokens.expand(len(x), -1, -1)
            tokens = torch.cat([tokens[:, :1], registers, tokens[:, 1:]], dim=1)
        for block in self.blocks:
            tokens = block(tokens)
        return self.norm(tokens)[:, 0]


def dinov2(
    folder: Path, width: int = 384, depth: int = 12, heads: int = 6, registers: int = 0, gated: int = 0
) -> Written:
    """Save like the files of DINOv2's hub."""
    torch.manual_seed(0)
    network = randomized(DINOv2(width, depth, heads, registers=registers, gated=gated))
    return saved(network.state_dict(), folder / "dinov2_pretrain.pth", network)


def dinov2_teacher(folder: Path) -> Written:
    """Save like DINOv2's training: the teacher with its heads, in chunks of blocks."""
    torch.manual_seed(0)
    network = randomized(DINOv2(384, 12, 6, registers=4, chunks=4))
    both = nn.ModuleDict({"backbone": network, "dino_head": head(384), "ibot_head": head(384)})
    return saved({"teacher": both.state_dict()}, folder / "teacher_checkpoint.pth", network)


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
    shown = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = pytorch_lightning.Trainer(accelerator="cpu", **dict.fromkeys(shown, False))
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
    return saved(model.state_dict(), folder / "nnclr.pth", network)


def lightly_dino(folder: Path) -> Written:
    """Save like lightly's example of DINO: two backbones, each with its head."""
    lightly = pytest.importorskip("lightly.models.modules")
    network = resnet()
    model = nn.Module()
    for name, backbone in (("student", resnet(1)), ("teacher", network)):
        setattr(model, f"{name}_backbone", nn.Sequential(*list(backbone.children())[:-1]))
        setattr(model, f"{name}_head", lightly.DINOProjectionHead(512, 8, 4, 16))
    return saved(model.state_dict(), folder / "dino.pth", network)


def backbone_alone(folder: Path, prefix: str = "backbone.", numbered: bool = False) -> Written:
    """Save the backbone of a network of lightly's alone, with or without its prefix."""
    network = resnet()
    part = nn.Sequential(*list(network.children())[:-1]) if numbered else network
    return saved({prefix + key: value for key, value in part.state_dict().items()}, folder / "backbone.pth", network)


def solo_learn(folder: Path, name: str = "backbone") -> Written:
    network = resnet()
    parts = {name: network, f"momentum_{name}": resnet(1), "classifier": nn.Linear(512, 10), "projector": head(512)}
    model = nn.ModuleDict(parts | {"predictor": head(4)})
    model.register_buffer("queue", torch.zeros(2, 8, 4))
    model.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))
    state = {"epoch": 1, "pytorch-lightning_version": "2.1.2", "state_dict": model.state_dict(), "loops": {}}
    return saved(state, folder / "solo.ckpt", network)


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
    return saved({"model": state, "args": argparse.Namespace(lr=0.1), "epoch": 3}, folder / "model_3.pth", network)


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
    "MoCo v2": moco_v2,
    "SimSiam": simsiam,
    "SwAV": swav,
    "Barlow Twins": barlow_twins,
    "MAE": mae,
    "torchvision's or timm's, MAE's encoder alone": mae_encoder,
    "DINOv2": dinov2,
    "DINOv2 teacher": dinov2_teacher,
    "lightly, Lightning": lightly_lightning,
    "lightly, DINO": lightly_dino,
    "lightly, backbone alone": backbone_alone,
    "lightly, backbone alone, numbered": partial(backbone_alone, numbered=True),
    "torchvision numbered": partial(backbone_alone, prefix="", numbered=True),
    "lightly, numbered": lightly_numbered,
    "solo-learn": solo_learn,
    "solo-learn, old": partial(solo_learn, name="encoder"),
    "torchvision ResNet": torchvision_resnet,
    "torchvision compiled": torchvision_compiled,
    "torchvision ViT": torchvision_vit,
}
