"""NNCLR in a Hugging Face Trainer: any backbone of transformers learns from images without labels.

    pip install transformers accelerate
    python examples/nnclr_hf_trainer.py PHOTOS --epochs 10 --out vit

The result is a folder that `AutoModel.from_pretrained` loads. On several GPUs, start it with torchrun: the negatives
and the support set are then those of all processes.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from nnclr_minimal import TwoViews
from torch import Tensor, nn

from nnclr_hub.method import METHODS, GatherRanks, Learner, PredictionHead, ProjectionHead, SupportSet

try:
    import accelerate  # noqa: F401 - the Trainer needs it
    from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainingArguments, ViTConfig, ViTModel
except ModuleNotFoundError as error:
    raise SystemExit(f"This example needs the package {error.name}; pip install transformers accelerate") from error


class Named(TwoViews):
    """Two views of each image and its number, under the names of the model's arguments."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        x1, x2 = super().__getitem__(index)
        return {"x1": x1, "x2": x2, "ids": index}


class FirstToken(nn.Module):
    """[CLS] of a transformer: (B, 3, H, W) -> (B, F)."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(pixel_values=x).last_hidden_state[:, 0]


class SelfSupervised(nn.Module):
    """A `Learner` as the Trainer calls it: named tensors in, the loss out."""

    def __init__(self, learner: Learner) -> None:
        super().__init__()
        self.learner = learner

    def forward(self, x1: Tensor, x2: Tensor, ids: Tensor) -> dict[str, Tensor]:
        self.latest, self.ids = self.learner([x1, x2], ids=ids), ids
        return {"loss": self.latest.loss}


class Enqueue(TrainerCallback):
    """Fills the support set after the optimizer's step, as the paper does."""

    def on_optimizer_step(self, args: Any, state: Any, control: Any, model: SelfSupervised, **_: Any) -> None:
        model.learner.enqueue(model.latest, ids=model.ids)


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("photos", type=Path)
    arguments.add_argument("--out", type=Path, default=Path("vit"))
    arguments.add_argument("--epochs", type=int, default=10)
    arguments.add_argument("--batch", type=int, default=128)
    arguments.add_argument("--size", type=int, default=64)
    arguments.add_argument("--width", type=int, default=192)
    arguments.add_argument("--queue", type=int, default=4096)
    chosen = arguments.parse_args()

    width, patch = chosen.width, chosen.size // 8
    shape = {"image_size": chosen.size, "patch_size": patch, "hidden_size": width, "intermediate_size": 4 * width}
    vit = ViTModel(ViTConfig(**shape, num_hidden_layers=6, num_attention_heads=3), add_pooling_layer=False)
    heads = ProjectionHead(width), PredictionHead()
    model = SelfSupervised(Learner(FirstToken(vit), METHODS["nnclr"], *heads, SupportSet(chosen.queue, 256)))
    settings = TrainingArguments(
        output_dir=str(chosen.out),
        use_cpu=not torch.accelerator.is_available(),  # else processes of torchrun without GPUs would not meet
        num_train_epochs=chosen.epochs,
        per_device_train_batch_size=chosen.batch,
        learning_rate=3e-4,
        weight_decay=0.05,
        warmup_steps=0.1,
        lr_scheduler_type="cosine",
        dataloader_drop_last=True,
        dataloader_num_workers=2,
        logging_steps=1,
        report_to="none",
    )
    if settings.n_gpu > 1:
        arguments.error("One process cannot train on several GPUs; start the script with torchrun --nproc-per-node N.")
    if settings.world_size > 1:
        model.learner.gather = GatherRanks()
    Trainer(model, settings, train_dataset=Named(chosen.photos, chosen.size), callbacks=[Enqueue()]).train()
    if settings.process_index:
        return
    vit.save_pretrained(chosen.out)
    print(f"written: {chosen.out}; AutoModel.from_pretrained({str(chosen.out)!r}) loads it")


if __name__ == "__main__":
    main()
