"""NNCLR by this project and by lightly: images/s in one run, and 20-NN after the same number of epochs.

    pip install lightly
    python benchmarks/pretrain_vs_lightly.py --data PHOTOS --epochs 10 --out compared
    python benchmarks/pretrain_vs_lightly.py --data imagenette128 --side 128 --pack 128 --epochs 200 --workers 16 \\
        --minutes 60 --out compared          # on a GPU; the same command continues after the time limit

Both train a ResNet-18 at the same size on the same decoded images with the same batch, steps, SGD, rate and queue, and
the head widths of lightly's example. lightly's side is its documented NNCLR loop: its transform in DataLoader workers,
its memory bank, its loss with the default temperature, fp32. Ours is `nnclr pretrain small` with these sizes. PHOTOS
has train/ and test/ with classes; the same code scores both encoders.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

try:
    from lightly.loss import NTXentLoss
    from lightly.models.modules import NNCLRPredictionHead, NNCLRProjectionHead, NNMemoryBankModule
    from lightly.transforms.simclr_transform import SimCLRTransform
except ModuleNotFoundError as error:
    sys.exit(f"This benchmark needs lightly, and {error.name} is not installed; run pip install lightly.")
import torch
from PIL import Image
from rich.console import Console
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from nnclr_hub.encoder.backbones import create_backbone
from nnclr_hub.encoder.device import find_device
from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.encoder.loader import load_encoder
from nnclr_hub.encoder.preprocessing import Preprocessing
from training.data.datasets import evaluation_sets, training_files
from training.data.image_pack import ImagePack, build_pack
from training.data.views import IMAGENET_MEAN, IMAGENET_STD
from training.distributed import ALONE
from training.evals.frozen import knn
from training.evaluation import LabeledSet
from training.monitor import read_log
from training.pretrain import pretrain
from training.recipes import Recipe, find_recipe

BATCH, QUEUE = 256, 4096
CHECKPOINT = "lightly.pt"


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--data", type=Path, required=True)
    arguments.add_argument("--epochs", type=int, default=10)
    arguments.add_argument("--side", type=int, default=32, help="of the views, in pixels")
    arguments.add_argument("--pack", type=int, default=48, help="side at which the images are decoded")
    arguments.add_argument("--minutes", type=float, default=1e6, help="time limit; the same command continues")
    arguments.add_argument("--device", default=None)
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--precision", default="auto", help="of our side; auto: bf16 where it is fast")
    arguments.add_argument("--seed", type=int, default=0)
    chosen = arguments.parse_args()
    say, until = Console(stderr=True), time.monotonic() + 60 * chosen.minutes
    where, side = find_device(chosen.device), chosen.side
    pack = build_pack(training_files([chosen.data]), chosen.pack)
    if where.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32 for both
    run = chosen.out / "ours"
    recipe = ours(chosen.epochs, chosen.seed, chosen.precision, side, chosen.pack)
    left = (until - time.monotonic()) / 60
    outcome = pretrain(recipe, [chosen.data], run, resume=True, device=chosen.device, minutes=left, console=say)
    torch.manual_seed(chosen.seed)
    lightly = Lightly(where, side)
    rates = lightly.train(pack, chosen.epochs, chosen.workers, chosen.out, until, say)
    if not outcome.finished or len(rates) < chosen.epochs:
        sys.exit("The time is up; run the same command again to continue.")
    log = [line for line in read_log(run) if "images_per_s" in line]
    own = [line["images_per_s"] for line in log[1:] or log]

    preprocessing = Preprocessing(side, 1.0, IMAGENET_MEAN, IMAGENET_STD)
    encoders = {
        "lightly": Encoder(lightly.backbone, preprocessing, name="lightly", device=where),
        "ours": load_encoder(run / "encoder", device=str(where)),
        "untrained": Encoder(create_backbone("resnet18"), preprocessing, name="untrained", device=where),
    }
    print(
        f"ResNet-18 at {side} pixels, {where}, batch {BATCH}, {chosen.epochs} epochs, "
        f"{torch.get_num_threads()} threads; ours in {chosen.precision}"
    )
    print(
        f"images/s: lightly {statistics.median(rates):.0f}, ours {statistics.median(own):.0f}, "
        f"ratio {statistics.median(own) / statistics.median(rates):.2f}"
    )
    for one in evaluation_sets([chosen.data]):
        crops = LabeledSet(one, preprocessing, ALONE)
        for name, encoder in encoders.items():
            features = crops.embed(encoder)
            print(
                f"{one.name}: {name:9} 20-NN (T = 0.07) {next(knn(features))[1]:.3f}, "
                f"200-NN (T = 0.1) {next(knn(features, k=200, temperature=0.1))[1]:.3f}"
            )


def ours(epochs: int, seed: int, precision: str, side: int, pack: int) -> Recipe:
    settings = [
        *(f"image_size={side}", f"pack_size={pack}", f"eval_size={side}", "eval_crop=1", f"batch_size={BATCH}"),
        *("projection_hidden=512", "projection_dim=128", "prediction_hidden=512", f"queue_size={QUEUE}"),
        *(f"epochs={epochs}", f"seed={seed}", "warmup_epochs=0", f"checkpoint_every={epochs}"),
        *(f"precision={precision}", "log_every=50", "compile_views=true"),  # compile_views has an effect on GPUs only
    ]
    return find_recipe("small").with_settings(settings)


# ------------------------------------------------------------------------------ lightly's loop


class Images(Dataset[tuple[list[Tensor], int]]):
    """The decoded images as PIL, through lightly's transform."""

    def __init__(self, pack: ImagePack, side: int) -> None:
        self.pack, self.transform = pack, SimCLRTransform(input_size=side)

    def __len__(self) -> int:
        return len(self.pack)

    def __getitem__(self, index: int) -> tuple[list[Tensor], int]:
        return self.transform(Image.fromarray(self.pack.image(index))), index


class Lightly:
    """The modules and the loop of lightly's NNCLR example."""

    def __init__(self, where: torch.device, side: int) -> None:
        self.where, self.side = where, side
        self.backbone = create_backbone("resnet18")
        self.model = nn.ModuleList(
            [self.backbone, NNCLRProjectionHead(512, 512, 128), NNCLRPredictionHead(128, 512, 128)]
        ).to(where)
        self.bank = NNMemoryBankModule(size=(QUEUE, 128)).to(where)
        self.loss = NTXentLoss()

    def _embed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        backbone, projection, prediction = self.model
        z = projection(backbone(x))
        return z.detach(), prediction(z)

    def train(self, pack: ImagePack, epochs: int, workers: int, out: Path, until: float, say: Console) -> list[float]:
        """Train and return the images/s of each epoch; continue from OUT/lightly.pt if it exists."""
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.06)
        loader = DataLoader(
            Images(pack, self.side),
            BATCH,
            shuffle=True,
            drop_last=True,
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=self.where.type == "cuda",
        )
        rates = self._load(out, optimizer)
        self.model.train()
        while len(rates) < epochs and (not rates or time.monotonic() < until):
            rates.append(self._epoch(loader, optimizer))
            say.print(f"lightly: epoch {len(rates)}, {rates[-1]:.0f} images/s", highlight=False)
            state = {"model": self.model.state_dict(), "bank": (self.bank.bank, self.bank.bank_ptr)}
            torch.save({**state, "optimizer": optimizer.state_dict(), "rates": rates}, out / CHECKPOINT)
        return rates

    def _load(self, out: Path, optimizer: torch.optim.Optimizer) -> list[float]:
        if not (out / CHECKPOINT).exists():
            return []
        saved = torch.load(out / CHECKPOINT, map_location=self.where, weights_only=True)
        self.model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        self.bank.bank, self.bank.bank_ptr = saved["bank"]
        return list(saved["rates"])

    def _epoch(self, loader: DataLoader[tuple[list[Tensor], int]], optimizer: torch.optim.Optimizer) -> float:
        """Train one epoch and return its images/s."""
        began, seen = None, 0
        for (x0, x1), _ in loader:
            if began is None:  # excludes the start of the workers
                began = time.perf_counter()
            else:
                seen += BATCH
            z0, p0 = self._embed(x0.to(self.where, non_blocking=True))
            z1, p1 = self._embed(x1.to(self.where, non_blocking=True))
            z0, z1 = self.bank(z0, update=False), self.bank(z1, update=True)
            loss = 0.5 * (self.loss(z0, p1) + self.loss(z1, p0))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert began is not None
        if self.where.type == "cuda":
            torch.cuda.synchronize(self.where)
        return seen / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
