"""NNCLR in one file: the paper's Algorithm 1 on a folder of images, with only torch.

    python examples/nnclr_minimal.py PHOTOS --epochs 10 --out backbone.pt

Read it, or start from it. `nnclr pretrain` does the same with fast batched augmentation, resume, metrics, evaluation
and export. A test compares the two, step by step.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp"}


def projection_head(inputs: int, hidden: int = 2048, d: int = 256) -> nn.Sequential:
    """Build three layers, each with batch norm, with ReLU on the first two (section 4.1)."""
    return nn.Sequential(
        *(nn.Linear(inputs, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU(inplace=True)),
        *(nn.Linear(hidden, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU(inplace=True)),
        *(nn.Linear(hidden, d, bias=False), nn.BatchNorm1d(d)),
    )


def prediction_head(d: int = 256, hidden: int = 4096) -> nn.Sequential:
    """Build two layers, with batch norm and ReLU on the hidden one (section 4.1)."""
    return nn.Sequential(
        nn.Linear(d, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU(inplace=True), nn.Linear(hidden, d)
    )


class NNCLR(nn.Module):
    """f = projection(backbone), g = prediction head, Q = queue of earlier projections."""

    def __init__(self, backbone: nn.Module, projection: nn.Module, prediction: nn.Module, queue: Tensor) -> None:
        super().__init__()
        self.backbone, self.projection, self.prediction = backbone, projection, prediction
        self.register_buffer("queue", F.normalize(queue, dim=1))  # (m, d), random at first
        self.oldest = 0

    def loss(self, x1: Tensor, x2: Tensor) -> tuple[Tensor, Tensor]:
        """Compute Algorithm 1 for two views (n, 3, H, W): the loss, and z1 to enqueue after the optimizer's step."""
        z1, z2 = self.projection(self.backbone(x1)), self.projection(self.backbone(x2))  # (n, d)
        p1, p2 = self.prediction(z1), self.prediction(z2)  # (n, d)
        loss = info_nce(self.nearest(z1), p2) / 2 + info_nce(self.nearest(z2), p1) / 2
        return loss, z1.detach()

    @torch.no_grad()
    def nearest(self, z: Tensor) -> Tensor:
        """Find NN(z, Q), eq. 4: for unit vectors the nearest has the largest dot product."""
        return self.queue[(F.normalize(z, dim=1) @ self.queue.T).argmax(dim=1)]

    @torch.no_grad()
    def enqueue(self, z: Tensor) -> None:
        """Overwrite the oldest rows, first in first out, wrapping around the end."""
        rows = torch.arange(self.oldest, self.oldest + len(z)) % len(self.queue)
        self.queue[rows] = F.normalize(z, dim=1)
        self.oldest = (self.oldest + len(z)) % len(self.queue)


def info_nce(nn_z: Tensor, p: Tensor, temperature: float = 0.1) -> Tensor:
    """Eq. 3: neighbor i must pick out prediction i among those of the batch."""
    logits = F.normalize(nn_z, dim=1) @ F.normalize(p, dim=1).T / temperature  # (n, n)
    return F.cross_entropy(logits, torch.arange(len(p)))


class TwoViews(Dataset[tuple[Tensor, Tensor]]):
    """Each image of a folder, augmented twice."""

    def __init__(self, folder: Path, size: int) -> None:
        from torchvision.transforms import v2

        self.paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
        self.augment = v2.Compose(
            [
                v2.RandomResizedCrop(size, (0.08, 1.0)),
                v2.RandomHorizontalFlip(),
                v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.2, 0.1)], 0.8),
                v2.RandomGrayscale(0.2),
                v2.RandomApply([v2.GaussianBlur(max(3, size // 20 * 2 + 1), (0.1, 2.0))], 0.5),
                v2.ToImage(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            ]
        )

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        from PIL import Image

        with Image.open(self.paths[index]) as file:
            image = file.convert("RGB")
        return self.augment(image), self.augment(image)


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

    images = TwoViews(chosen.photos, chosen.size)
    loader = DataLoader(images, chosen.batch, shuffle=True, drop_last=True, num_workers=2)
    if not len(loader):
        raise SystemExit(f"{chosen.photos} holds {len(images)} images: give at least --batch {chosen.batch} of them.")
    backbone = torchvision.models.resnet18(weights=None)
    backbone.fc = nn.Identity()  # type: ignore[assignment]
    model = NNCLR(backbone, projection_head(512), prediction_head(), torch.randn(chosen.queue, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.06 * chosen.batch / 256, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, chosen.epochs * len(loader))
    for epoch in range(chosen.epochs):
        for step, (x1, x2) in enumerate(loader):
            loss, z1 = model.loss(x1, x2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            model.enqueue(z1)
            print(f"\repoch {epoch + 1}/{chosen.epochs} step {step + 1}/{len(loader)} loss {loss.item():.3f}", end="")
        torch.save(backbone.state_dict(), chosen.out)
    print(f"\nwritten: {chosen.out}")


if __name__ == "__main__":
    main()
