"""Images/s of a training step on a GPU: eager, recorded as a graph, compiled, and the network alone.

    python benchmarks/pretrain_gpu.py --out results
    python benchmarks/pretrain_gpu.py --only resnet18_96 --steps 60 --out results
    python benchmarks/pretrain_gpu.py --device cpu --toy --out /tmp/toy        # a check of the code, in a minute

"images/s" counts images of the data set; a step makes two views of each. "network alone" is the recorded step on views
that are made once. "of network" is relative to it. All rows of a network are measured in one process, one after the
other. The images are noise with sides of 3:4, in the memory of the device. Rows are printed and appended to
OUT/pretrain_gpu.jsonl as they are measured.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from nnclr_hub.encoder.device import find_device
from nnclr_hub.method import Gather
from training.cpu import choose_precision
from training.data.augment import make_views
from training.data.batches import Batches, Order
from training.data.image_pack import ImagePack, PackedPixels
from training.distributed import Ranks
from training.network import build_learner, place_learner
from training.optimization import Schedule, make_optimizer
from training.recipes import Recipe, find_recipe
from training.run import Run
from training.step import Stepper

PAPER = ("projection=nnclr", "queue_size=98304", "warm_start=0", "ramp=0", "gate=1")
VIT = ("optimizer=adamw", "base_lr=5e-4", "weight_decay=0.05")
NETWORKS = {
    "resnet18_96": ("backbone=resnet18", "image_size=96", "pack_size=112", "batch_size=512"),
    "resnet50_96": ("backbone=resnet50", "image_size=96", "pack_size=112", "batch_size=512"),
    "resnet50_224": ("backbone=resnet50", "image_size=224", "pack_size=256", "batch_size=256"),
    "vit_small_16_224": (*VIT, "backbone=vit_small_patch16_224", "image_size=224", "eval_size=224", "batch_size=256"),
    "vit_small_8_96": (
        *(*VIT, "backbone=vit_small_patch8_224", "image_size=96", "eval_size=96", "pack_size=112", "batch_size=512"),
    ),
}
TOY = ("channels=8,8,8,8", "backbone=resnet18", "image_size=32", "eval_size=32", "pack_size=40", "batch_size=8")
FORMS = {
    "eager": ("graph=false",),
    "graph": (),
    "graph, compiled views": ("compile_views=true",),
    "graph, compiled network": ("compile=true",),
}
ALONE = "network alone"
STEPS = 1000  # length of the schedule that the steps are taken from
WARM = 6  # steps before the measured ones: three eager ones, the recorded one, and two more


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--set", dest="settings", action="append", default=[], help="KEY=VALUE for every network")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--device")
    parser.add_argument("--toy", action="store_true", help="tiny sizes")
    chosen = parser.parse_args(given)
    where = find_device(chosen.device)
    if where.type == "cuda":
        torch.set_float32_matmul_precision("high")  # as `nnclr pretrain` does
        torch.backends.cudnn.benchmark = True
    chosen.out.mkdir(parents=True, exist_ok=True)
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else "cpu"
    print(f"{name}, torch {torch.__version__}\n\n| network | form | images/s | ms a step | of network | GiB | note |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for network in chosen.only:
        alone = None
        for form in (ALONE, *chosen.forms):
            row = {"network": network, "form": form, **measure(network, form, chosen, where)}
            alone = row.get("images_per_s") if form == ALONE else alone
            row["of_network"] = row["images_per_s"] / alone if alone and "images_per_s" in row else None
            shown = [f"{row[key]:,.4g}" if row.get(key) else "" for key in ("images_per_s", "ms", "of_network", "gib")]
            print(f"| {network} | {form} | {' | '.join(shown)} | {row.get('note', '')} |", flush=True)
            with (chosen.out / "pretrain_gpu.jsonl").open("a") as file:
                file.write(json.dumps({"device": name, **row}) + "\n")


def measure(network: str, form: str, chosen: argparse.Namespace, where: torch.device) -> dict[str, float | str]:
    """Return the speed of one form of the step, or a note about why there is none."""
    settings = [*PAPER, *NETWORKS[network], *FORMS.get(form, ()), *chosen.settings]
    settings += [*TOY, "queue_size=64", "projection_hidden=16", "projection_dim=8"] if chosen.toy else []
    recipe = find_recipe("small").with_settings([*settings, f"precision={choose_precision('auto', where)}"])
    images, cuda = 64 if chosen.toy else 4096, where.type == "cuda"
    pack = noise_pack(images, recipe.pack_size)
    gc.collect()
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(where)
    try:
        stepper = make_stepper(recipe, pack, where)
        with fixed_views() if form == ALONE else nullcontext():
            began = time.perf_counter()
            for step in range(WARM):
                stepper.run(step)
            wait(where)
            prepared = time.perf_counter() - began
            began = time.perf_counter()
            for step in range(WARM, WARM + chosen.steps):
                stepper.run(step)
            wait(where)
            seconds = (time.perf_counter() - began) / chosen.steps
    except RuntimeError as error:  # out of memory, or a failed compilation
        return {"note": f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"}
    note = f"first {WARM} steps {prepared:.1f} s" + (f"; {stepper.eager_because}" if stepper.eager_because else "")
    gib = torch.cuda.max_memory_allocated(where) / 2**30 if cuda else 0.0
    return {"images_per_s": recipe.batch_size / seconds, "ms": 1e3 * seconds, "gib": gib, "note": note}


def make_stepper(recipe: Recipe, pack: ImagePack, where: torch.device) -> Stepper:
    torch.manual_seed(0)
    batches = Batches(
        PackedPixels(pack, where, recipe.residency),
        np.full(len(pack), -1),
        Order(np.array([len(pack)]), recipe.batch_size, 0),
        views=lambda step: recipe.views_at(step / STEPS),
        where=where,
    )
    ranks = Ranks(0, 1, where, Gather())
    learner = place_learner(build_learner(recipe), recipe, ranks)
    learner.train()
    optimizer = make_optimizer(learner, recipe)
    run = Run(Path(), recipe, learner, optimizer, batches, ranks, STEPS)
    return Stepper(run, Schedule(optimizer, recipe, STEPS, 100))


def wait(where: torch.device) -> None:
    if where.type == "cuda":
        torch.cuda.synchronize(where)


def noise_pack(images: int, side: int) -> ImagePack:
    """Return a pack of colored noise with sides of 3:4; the speed does not depend on the content."""
    high, wide = side, side * 4 // 3
    pixels = np.random.default_rng(0).integers(0, 256, images * high * wide * 3 + wide * 3, dtype=np.uint8)
    sizes = np.tile((high, wide), (images, 1))
    return ImagePack(pixels, sizes, sizes, np.arange(images))


def fixed_views() -> AbstractContextManager[object]:
    """Replace the views of recorded steps by those of the first one."""
    made: list[list[torch.Tensor]] = []

    def once(*given: object, **more: object) -> list[torch.Tensor]:
        if not made:
            made.append(make_views(*given, **more))  # type: ignore[arg-type]
        return made[0]

    return patch("training.graph.make_views", once)


if __name__ == "__main__":
    main()
