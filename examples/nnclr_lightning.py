"""NNCLR in PyTorch Lightning: devices, checkpoints and loggers are Lightning's, the method is `Learner`.

    pip install lightning
    python examples/nnclr_lightning.py PHOTOS --epochs 10 --out backbone.pt

It also trains on several devices (`Trainer(devices=4)`): the negatives and the support set are those of all of them.
"""

import argparse
from pathlib import Path

import torch
from nnclr_minimal import TwoViews
from torch import Tensor, nn
from torch.utils.data import DataLoader

from nnclr_hub.method import (
    METHODS,
    GatherRanks,
    Learner,
    PredictionHead,
    ProjectionHead,
    Step,
    SupportSet,
    momentum_at,
)

try:
    import lightning
except ModuleNotFoundError as error:
    raise SystemExit(f"This example needs the package {error.name}; pip install lightning") from error


class Numbered(TwoViews):
    """Two views of each image, and its number, by which the support set never returns the image's own row."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        return (*super().__getitem__(index), index)


class SelfSupervised(lightning.LightningModule):
    """Trains any `Learner`: NNCLR, or another row of METHODS."""

    def __init__(self, learner: Learner, lr: float, weight_decay: float = 5e-4) -> None:
        super().__init__()
        self.learner, self.lr, self.weight_decay = learner, lr, weight_decay
        self.latest: Step | None = None

    def setup(self, stage: str) -> None:
        if self.trainer.world_size > 1:
            self.learner.gather = GatherRanks()

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        x1, x2, ids = batch
        self.latest = self.learner([x1, x2], ids=ids)
        self.log("loss", self.latest.loss, prog_bar=True)
        return self.latest.loss

    def on_train_batch_end(self, outputs: object, batch: list[Tensor], batch_idx: int) -> None:
        """Enqueue after the optimizer's step, as the paper does."""
        self.learner.enqueue(self.latest, ids=batch[2])
        progress = self.trainer.global_step / self.trainer.estimated_stepping_batches
        self.learner.update_momentum_encoder(momentum_at(progress))  # for methods with a momentum encoder

    def configure_optimizers(self) -> dict:
        trained = [p for p in self.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(trained, self.lr, 0.9, weight_decay=self.weight_decay)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("photos", type=Path)
    arguments.add_argument("--out", type=Path, default=Path("backbone.pt"))
    arguments.add_argument("--epochs", type=int, default=10)
    arguments.add_argument("--batch", type=int, default=128)
    arguments.add_argument("--size", type=int, default=64)
    arguments.add_argument("--queue", type=int, default=4096)
    chosen = arguments.parse_args()

    import torchvision

    backbone = torchvision.models.resnet18(weights=None)
    backbone.fc = nn.Identity()  # type: ignore[assignment]
    heads = ProjectionHead(512), PredictionHead()
    learner = Learner(backbone, METHODS["nnclr"], *heads, SupportSet(chosen.queue, 256))
    model = SelfSupervised(learner, lr=0.06 * chosen.batch / 256)
    loader = DataLoader(Numbered(chosen.photos, chosen.size), chosen.batch, shuffle=True, drop_last=True, num_workers=2)
    trainer = lightning.Trainer(max_epochs=chosen.epochs, log_every_n_steps=1, default_root_dir=chosen.out.parent)
    trainer.fit(model, loader)
    torch.save(backbone.state_dict(), chosen.out)


if __name__ == "__main__":
    main()
