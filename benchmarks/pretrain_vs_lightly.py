"""NNCLR by this project and by lightly, side by side: images/s in one run, and 20-NN after equal epochs.

    pip install -e '.[bench]'
    python benchmarks/pretrain_vs_lightly.py --data PHOTOS --epochs 10 --out compared

Both train a ResNet-18 at the same size on the same decoded pictures with the same batch, steps, SGD, rate and queue,
and the head widths of lightly's example. lightly's side is its documented NNCLR loop: its transform in DataLoader
workers, its memory bank, its loss with that loss's default temperature, fp32. Ours is `nnclr pretrain small` with
these sizes. PHOTOS has train/ and test/ with classes; both encoders are scored by the same code.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from lightly.loss import NTXentLoss
from lightly.models.modules import NNCLRPredictionHead, NNCLRProjectionHead, NNMemoryBankModule
from lightly.transforms.simclr_transform import SimCLRTransform
from PIL import Image
from rich.console import Console
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from nnclr_hub.encoder.backbones import create_backbone
from nnclr_hub.encoder.encoder import Encoder, load_encoder
from nnclr_hub.encoder.preprocess import Preprocessing
from nnclr_hub.probe.knn import knn_classify
from training.data.augment import IMAGENET_MEAN, IMAGENET_STD
from training.data.datasets import evaluation_sets, training_files
from training.data.image_pack import ImagePack, build_pack
from training.evals.labelled import Features, LabelledSet
from training.monitor import read_log
from training.pretrain import pretrain
from training.recipes import Recipe, find_recipe

BATCH, SIDE, PACK, QUEUE = 256, 32, 48, 4096


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--data", type=Path, required=True)
    arguments.add_argument("--epochs", type=int, default=10)
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--precision", default="auto", help="ours; auto: bf16 if it is fast")
    arguments.add_argument("--seed", type=int, default=0)
    chosen = arguments.parse_args()
    say = Console(stderr=True)
    pack = build_pack(training_files([chosen.data]).paths, PACK)

    torch.manual_seed(chosen.seed)
    lightly = Lightly()
    rates = lightly.train(pack, chosen.epochs, chosen.workers, say)
    run = chosen.out / "ours"
    pretrain("small", ours(chosen.epochs, chosen.seed, chosen.precision), [chosen.data], run, resume=True, console=say)
    log = [line for line in read_log(run) if "images_per_s" in line]
    own = [line["images_per_s"] for line in log[1:]]

    preprocessing = Preprocessing(SIDE, 1.0, IMAGENET_MEAN, IMAGENET_STD)
    encoders = {
        "lightly": Encoder(lightly.backbone, preprocessing, name="lightly"),
        "ours": load_encoder(run / "encoder"),
        "untrained": Encoder(create_backbone("resnet18"), preprocessing, name="untrained"),
    }
    print(
        f"ResNet-18 at {SIDE} pixels, batch {BATCH}, {chosen.epochs} epochs, {torch.get_num_threads()} threads; "
        f"ours in {chosen.precision}"
    )
    print(
        f"images/s: lightly {statistics.median(rates):.0f}, ours {statistics.median(own):.0f}, "
        f"ratio {statistics.median(own) / statistics.median(rates):.2f}"
    )
    for one in evaluation_sets([chosen.data]):
        crops = LabelledSet(one, preprocessing)
        for name, encoder in encoders.items():
            features = crops.embed(encoder)
            print(
                f"{one.name}: {name:9} 20-NN (T = 0.07) {score(features, 20, 0.07):.3f}, "
                f"200-NN (T = 0.1) {score(features, 200, 0.1):.3f}"
            )


def ours(epochs: int, seed: int, precision: str) -> Recipe:
    settings = [
        *(f"image_size={SIDE}", f"pack_size={PACK}", f"eval_size={SIDE}", "eval_crop=1", f"batch_size={BATCH}"),
        *("projection_hidden=512", "projection_dim=128", "prediction_hidden=512", f"queue_size={QUEUE}"),
        *(f"epochs={epochs}", f"seed={seed}", "warmup_epochs=0", f"checkpoint_every={epochs}"),
        f"precision={precision}",
    ]
    return find_recipe("small").with_settings(settings)


def score(features: Features, k: int, temperature: float) -> float:
    predicted = knn_classify(features.train, features.train_labels, features.test, k=k, temperature=temperature)
    return float(np.mean(predicted == features.test_labels))


# ------------------------------------------------------------------------------ lightly's loop


class Pictures(Dataset[tuple[list[Tensor], int]]):
    """The decoded pictures as PIL, through lightly's transform."""

    def __init__(self, pack: ImagePack) -> None:
        self.pixels, self.transform = pack.pixels, SimCLRTransform(input_size=SIDE)

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> tuple[list[Tensor], int]:
        return self.transform(Image.fromarray(self.pixels[index])), index


class Lightly:
    """The modules and the loop of lightly's NNCLR example."""

    def __init__(self) -> None:
        self.backbone = create_backbone("resnet18")
        self.model = nn.ModuleList(
            [self.backbone, NNCLRProjectionHead(512, 512, 128), NNCLRPredictionHead(128, 512, 128)]
        )
        self.bank = NNMemoryBankModule(size=(QUEUE, 128))
        self.loss = NTXentLoss()

    def _embed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        backbone, projection, prediction = self.model
        z = projection(backbone(x))
        return z.detach(), prediction(z)

    def train(self, pack: ImagePack, epochs: int, workers: int, say: Console) -> list[float]:
        """Images a second of each epoch."""
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.06)
        loader = DataLoader(
            Pictures(pack), BATCH, shuffle=True, drop_last=True, num_workers=workers, persistent_workers=workers > 0
        )
        self.model.train()
        rates = []
        for epoch in range(epochs):
            began, seen = None, 0
            for x0, x1 in views(loader):
                if began is None:  # the workers' start is not counted
                    began = time.perf_counter()
                else:
                    seen += BATCH
                z0, p0 = self._embed(x0)
                z1, p1 = self._embed(x1)
                z0, z1 = self.bank(z0, update=False), self.bank(z1, update=True)
                loss = 0.5 * (self.loss(z0, p1) + self.loss(z1, p0))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            assert began is not None
            rates.append(seen / (time.perf_counter() - began))
            say.print(f"lightly: epoch {epoch + 1}, loss {loss.item():.3f}, {rates[-1]:.0f} images/s", highlight=False)
        return rates


def views(loader: DataLoader[tuple[list[Tensor], int]]) -> Iterator[tuple[Tensor, Tensor]]:
    for (x0, x1), _ in loader:
        yield x0, x1


if __name__ == "__main__":
    main()
