"""Cost of a training step on a CPU: with each speed-up, and relative to its convolutions alone.

    python benchmarks/cpu_step.py                          # a ResNet-18, views of 64 pixels
    python benchmarks/cpu_step.py --backbone vit_tiny_patch16_224 --size 96
    python benchmarks/cpu_step.py --precision fp32

"images/s" counts images of the data set; a step makes two views of each, with heads, support set and optimizer. Each
variant runs in separate processes, because an allocator cannot be set back. They take turns, and the fastest turn of
each counts. "convolutions" is the time of the forward and backward passes of all convolutions of the step, each run
alone on an input of its size, as the variant computes them. Images are generated noise.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor, nn
from training_loop import batches_of, make_stepper, noise_pack

from training import assemble
from training.assemble import choose_precision
from training.cpu import keep_freed_memory
from training.recipes import Recipe, find_recipe

CPU = torch.device("cpu")
SPEED_UPS = ("keep_freed_memory", "use_products", "use_plain_attention")
# name: (number of speed-ups, compile)
VARIANTS = {
    "torch's operations": (0, False),
    "+ freed memory is kept": (1, False),
    "+ products for small maps": (2, False),
    "+ plain attention (default)": (3, False),
    "+ compiled": (3, True),
}


def recipe_of(backbone: str, size: int, batch: int, precision: str, compile: bool) -> Recipe:
    settings = {
        "backbone": backbone, "image_size": size, "eval_size": size, "pack_size": 256, "batch_size": batch,
        "prediction": "none", "queue_size": 4096, "precision": choose_precision(precision, CPU), "compile": compile,
    }  # fmt: skip
    return find_recipe("small").with_settings(settings)


def seconds_per_step(variant: str, recipe: Recipe, steps: int) -> dict[str, float]:
    """Return the seconds of a step, and those of its convolutions alone."""
    used = SPEED_UPS[: VARIANTS[variant][0]]
    if "keep_freed_memory" in used:
        keep_freed_memory()
    for name in SPEED_UPS[1:]:  # which `place_learner` calls
        if name not in used:
            setattr(assemble, name, lambda network: None)
    batches = batches_of(noise_pack(2048, 128), recipe, CPU)
    learner, stepper = make_stepper(recipe, batches, CPU)
    step = count()

    def run() -> None:
        number = next(step)
        stepper.run(number)

    spent = fastest(run, steps, before=3)
    alone = convolutions_alone(learner.backbone, recipe, steps)
    batches.close()
    return {"step": spent, "convolutions": alone}


def convolutions_alone(backbone: nn.Module, recipe: Recipe, times: int) -> float:
    """Return the seconds of the forward and backward passes of all convolutions of both views, or nan without any."""
    found: list[tuple[nn.Conv2d, torch.Size]] = []
    hooks = [
        module.register_forward_hook(lambda module, inputs, _: found.append((module, inputs[0].shape)))
        for module in backbone.modules()
        if isinstance(module, nn.Conv2d)
    ]
    size, batch = recipe.image_size, recipe.batch_size
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        backbone(torch.zeros(2, 3, size, size).to(memory_format=torch.channels_last))
    for hook in hooks:
        hook.remove()
    if len(found) < 2:  # the patch projection of a vision transformer
        return math.nan
    dtype = torch.bfloat16 if recipe.precision == "bf16" else torch.float32
    seconds = 0.0
    for module, shape in found:
        x = torch.randn(batch, *shape[1:]).to(dtype).contiguous(memory_format=torch.channels_last)
        x.requires_grad_(shape[1] > 3)  # images need no gradient
        module = module.to(dtype)
        seconds += 2 * fastest(partial(_forward_backward, module, x), times)
    return seconds


def _forward_backward(module: nn.Conv2d, x: Tensor) -> None:
    y = module(x)
    torch.autograd.grad(y, [module.weight, x] if x.requires_grad else [module.weight], torch.ones_like(y))


def fastest(run: Callable[[], None], times: int, before: int = 1) -> float:
    """Return the seconds of the fastest of some runs; other processes only make a run slower."""
    for _ in range(before):
        run()
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--size", type=int, default=64, help="side of a view, in pixels")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--precision", choices=["auto", "bf16", "fp32"], default="auto")
    parser.add_argument("--steps", type=int, default=10, help="counted steps of a process")
    parser.add_argument("--turns", type=int, default=3, help="processes of each variant")
    parser.add_argument("--variant", choices=list(VARIANTS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.variant:
        compile = VARIANTS[options.variant][1]
        recipe = recipe_of(options.backbone, options.size, options.batch, options.precision, compile)
        print(json.dumps(seconds_per_step(options.variant, recipe, options.steps)))
        return
    print(f"python benchmarks/cpu_step.py {' '.join(sys.argv[1:])}")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {choose_precision(options.precision, CPU)}\n")
    best: dict[str, dict[str, float]] = {name: {} for name in VARIANTS}
    for _ in range(options.turns):
        for name, seconds in best.items():
            command = [sys.executable, __file__, *sys.argv[1:], "--variant", name]
            turn = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
            best[name] = {key: min(value, seconds.get(key, value)) for key, value in turn.items()}
    first = next(iter(best.values()))
    print("| variant | images/s | relative to the first | step / its convolutions | step / those of the first |")
    print("|---|---|---|---|---|")
    for name, seconds in best.items():
        step = seconds["step"]
        ratios = [step / one["convolutions"] for one in (seconds, first)]
        relative = " | ".join("-" if math.isnan(ratio) else f"{ratio:.2f}" for ratio in ratios)
        print(f"| {name} | {options.batch / step:.0f} | {first['step'] / step:.2f} | {relative} |")


if __name__ == "__main__":
    main()
