"""Training speed compared with the device's limits: model only, whole loop, augmentation, lookup, roofline.

    python benchmarks/pretrain_gpu.py --out results                      # the most important rows first
    python benchmarks/pretrain_gpu.py --only resnet50_224 --profile --out results
    python benchmarks/pretrain_gpu.py --only lookup augment --out results
    python benchmarks/pretrain_gpu.py --toy --out /tmp/toy               # two minutes on a CPU, as a check of the code

"images/s" counts images of the data set; a step makes two views of each. "model only" is the complete optimizer step,
compiled, channels last, bf16, on views made once. "whole loop" is the same step with its augmentation and the decoded
images on the device. "torchvision workers" feeds the step from torchvision's transforms in DataLoader workers. All
three take turns on one learner. The roofline is the counted FLOPs over the matrix rate measured in the same run.
Images are generated noise. Rows are appended to OUT/pretrain_gpu.md and .jsonl as they are measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch.utils.flop_counter import FlopCounterMode
from training_loop import LOOP, MODEL, TORCHVISION, Loops, noise_pack, wait

from nnclr_hub.encoder.device import find_device
from nnclr_hub.errors import NNCLRHubError
from nnclr_hub.method import SupportSet
from training.assemble import choose_precision
from training.data.augment import StoredImages, make_views, sample_numbers
from training.data.operations import EAGER, compiled
from training.monitor import peak_memory_mb
from training.recipes import Recipe, find_recipe

COLUMNS = (
    *("what", "images/s", "ms a step", "of model only", "TFLOP/s", "of the matrix rate", "peak MiB", "until steady, s"),
    "note",
)
Figure = str | float | int | None
Row = dict[str, Figure]
SIDE = {"cuda": 8192, "cpu": 512}
BYTES = {"cuda": 2**31, "cpu": 2**24}


@dataclass(frozen=True)
class Network:
    """A network at a size; `pack_size` is the size of the stored images, as in the recipes."""

    settings: tuple[str, ...]
    images: int = 2048


PAPER = ("method=nnclr", "projection=nnclr", "queue_size=98304", "warm_start=0", "ramp=0", "gate=1", "compile=true")
VIT = ("backbone=vit_small_patch16_224", "optimizer=adamw", "base_lr=5e-4", "weight_decay=0.05")
NETWORKS = {
    "resnet50_224": Network(("backbone=resnet50", "image_size=224", "pack_size=256", "batch_size=256")),
    "vit_small_224": Network((*VIT, "image_size=224", "eval_size=224", "pack_size=256", "batch_size=256")),
    "resnet50_128": Network(("backbone=resnet50", "image_size=128", "pack_size=160", "batch_size=512"), 4096),
    "resnet18_32": Network(
        ("backbone=resnet18_cifar", "image_size=32", "pack_size=32", "batch_size=512", "augmentation=cifar"), 16_384
    ),
    "vit_small_128": Network((*VIT, "image_size=128", "eval_size=128", "pack_size=160", "batch_size=512"), 4096),
}
QUEUES = (8192, 16_384, 32_768, 65_536, 98_304)
# sizes that a CPU runs in seconds
TOY = ("batch_size=4", "image_size=32", "eval_size=32", "pack_size=40", "queue_size=16", "compile=false")
TOY_NETWORKS = {
    "resnet50_224": ("backbone=resnet18", "channels=4,4,8,8", "projection_hidden=16", "projection_dim=8"),
    "vit_small_224": ("backbone=test_vit", "image_size=160", "eval_size=160", "pack_size=160", "projection_hidden=16"),
}


def main(given: list[str] | None = None) -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--only", nargs="+", choices=[*NETWORKS, "augment", "lookup"], help="only these rows")
    arguments.add_argument("--set", dest="settings", action="append", default=[], help="KEY=VALUE for every network")
    arguments.add_argument("--eager", action="store_true", help="networks and augmentation without compilation")
    arguments.add_argument("--profile", action="store_true", help="also write torch's table of kernels")
    arguments.add_argument("--steps", type=int, default=15, help="steps per turn")
    arguments.add_argument("--turns", type=int, default=3)
    arguments.add_argument("--workers", type=int, default=16, help="worker processes of torchvision; 0: skip its rows")
    arguments.add_argument("--device", default=None)
    arguments.add_argument("--toy", action="store_true", help="tiny sizes")
    chosen = arguments.parse_args(given)
    where = find_device(chosen.device)
    if where.type == "cuda":
        torch.set_float32_matmul_precision("high")  # as `nnclr pretrain` does
        torch.backends.cudnn.benchmark = True
    report = Report(chosen.out, "pretrain_gpu", where, COLUMNS)
    rate = ceilings(where, report)
    for name, rows in parts(chosen, where, rate):
        if chosen.only and name not in chosen.only:
            continue
        try:
            for row in rows():
                report.add(row)
        # out of memory, a failed compilation, or a worker that died
        except (NNCLRHubError, RuntimeError, OSError) as error:
            report.add({"what": name, "note": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"})
        if where.type == "cuda":
            torch._dynamo.reset()
            torch.cuda.empty_cache()


def ceilings(where: torch.device, report: Report) -> float:
    """Add rows for the device's limits and return the matrix rate of the networks' precision in FLOP/s."""
    bf16 = choose_precision("auto", where) == "bf16"
    rate = matrix_rate(where, torch.bfloat16 if bf16 else torch.float32)
    report.add({"what": f"matrix products, {'bf16' if bf16 else 'fp32'}", "TFLOP/s": rate / 1e12})
    report.add(
        {"what": "matrix products, fp32 as the lookup has it", "TFLOP/s": matrix_rate(where, torch.float32) / 1e12}
    )
    report.add({"what": "copy", "note": f"{copy_rate(where) / 1e9:,.0f} GB/s read and written"})
    return rate


def parts(
    chosen: argparse.Namespace, where: torch.device, rate: float
) -> Iterator[tuple[str, Callable[[], Iterator[Row]]]]:
    """Yield (name, function that yields its rows), the most important first."""
    names = list(TOY_NETWORKS if chosen.toy else NETWORKS)
    for name in names[:2]:
        yield name, lambda name=name: network_rows(name, chosen, where, rate)
    yield "augment", lambda: augment_rows(chosen, where)
    yield "lookup", lambda: lookup_rows(chosen, where)
    for name in names[2:]:
        yield name, lambda name=name: network_rows(name, chosen, where, rate)


# ------------------------------------------------------------------------------ the step


def recipe_of(name: str, chosen: argparse.Namespace, where: torch.device) -> Recipe:
    settings = [*PAPER, *NETWORKS[name].settings]
    settings += [*TOY, *TOY_NETWORKS[name]] if chosen.toy else []
    settings += ["compile=false"] if chosen.eager else []
    return find_recipe("small").with_settings(
        [*settings, f"precision={choose_precision('auto', where)}", *chosen.settings]
    )


def network_rows(name: str, chosen: argparse.Namespace, where: torch.device, rate: float) -> Iterator[Row]:
    """Measure model only and whole loop in turns, then torchvision's workers."""
    recipe = recipe_of(name, chosen, where)
    if where.type == "cuda":
        torch.cuda.reset_peak_memory_stats(where)
    began = time.perf_counter()
    loops = Loops(
        recipe, noise_pack(64 if chosen.toy else NETWORKS[name].images, recipe.pack_size), where, chosen.workers
    )
    for kind in (MODEL, LOOP):
        loops.run(kind, 2)
    start = time.perf_counter() - began
    times: dict[str, list[float]] = {MODEL: [], LOOP: []}
    for _ in range(chosen.turns):
        for kind, taken in times.items():
            taken.append(loops.run(kind, chosen.steps) / chosen.steps)
    memory = peak_memory_mb(where)
    flops = step_flops(loops)
    form = f"{recipe.backbone} {recipe.image_size}, B {recipe.batch_size}, {'compiled' if recipe.compile else 'eager'}"

    def row(kind: str, seconds: float, ratio: float) -> Row:
        return {
            "what": f"{name}: {kind}", "images/s": recipe.batch_size / seconds, "ms a step": 1e3 * seconds,
            "of model only": ratio, "TFLOP/s": flops / seconds / 1e12, "of the matrix rate": flops / seconds / rate,
            "peak MiB": memory, "note": form,
        }  # fmt: skip

    yield {**row(MODEL, statistics.median(times[MODEL]), 1.0), "until steady, s": start}
    ratio = statistics.median(model / loop for model, loop in zip(times[MODEL], times[LOOP], strict=True))
    yield row(LOOP, statistics.median(times[LOOP]), ratio)
    if chosen.profile:
        profile(loops, chosen.out / f"profile_{name}.txt")
    if chosen.workers:
        seconds = loops.run_fed(chosen.steps)
        yield row(f"{TORCHVISION} ({chosen.workers})", seconds, statistics.median(times[MODEL]) / seconds)
    loops.close()


def profile(loops: Loops, place: Path) -> None:
    """Write torch's profile of three steps of the whole loop: kernels, longest first."""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    key = "self_cpu_time_total"
    if loops.where.type == "cuda":
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
        key = "self_device_time_total"
    with torch.profiler.profile(activities=kinds, acc_events=True) as seen:  # without it torch 2.11 warns
        for _ in range(3):
            loops.step(LOOP)
        wait(loops.where)
    place.write_text(seen.key_averages().table(sort_by=key, row_limit=60), "utf-8")
    print(f"written: {place}", flush=True)


# ------------------------------------------------------------------------------ parts of the step


def augment_rows(chosen: argparse.Namespace, where: torch.device) -> Iterator[Row]:
    """Measure two views x 256 at 224 from images of 256 pixels, eager and compiled."""
    batch, size, side = (4, 32, 40) if chosen.toy else (256, 224, 256)
    images = torch.randint(0, 256, (batch, side, side, 3), dtype=torch.uint8).to(where)
    views, draws = Recipe(image_size=size, pack_size=size).views_at(0), torch.Generator()
    pixels = StoredImages.whole(images, torch.ones(batch))
    if where.type == "cuda":
        torch.cuda.reset_peak_memory_stats(where)
    forms = {"eager": EAGER, **({} if chosen.eager or chosen.toy else {"compiled": compiled()})}
    for form, operations in forms.items():
        began = time.perf_counter()
        for _ in range(3):  # other random choices select other numbers of images, which compiled code must accept
            make_views(pixels, views, sample_numbers(2, batch, draws), operations)
        wait(where)
        start = time.perf_counter() - began
        seconds = best_of(
            lambda operations=operations: make_views(pixels, views, sample_numbers(2, batch, draws), operations),
            where,
            2.0,
        )
        yield {
            "what": f"augmentation alone, two views x {batch} at {size}, {form}", "images/s": batch / seconds,
            "ms a step": 1e3 * seconds, "until steady, s": start, "peak MiB": peak_memory_mb(where),
        }  # fmt: skip


def lookup_rows(chosen: argparse.Namespace, where: torch.device) -> Iterator[Row]:
    """Measure one view's lookup at B = 4096, D = 256, with the own-sample mask."""
    batch, dim = (16, 8) if chosen.toy else (4096, 256)
    z, ids = torch.randn(batch, dim, device=where), torch.arange(batch, device=where)
    for size in (64, 128) if chosen.toy else QUEUES:
        support = SupportSet(size, dim).to(where)
        seconds = best_of(lambda support=support: support.lookup(z, ids), where, 1.0)
        yield {
            "what": f"lookup, B {batch}, M {size:,}", "images/s": batch / seconds, "ms a step": 1e3 * seconds,
            "TFLOP/s": 2 * batch * size * dim / seconds / 1e12,
        }  # fmt: skip


# ------------------------------------------------------------------------------ the roofline


def matrix_rate(where: torch.device, dtype: torch.dtype, seconds: float = 1.0) -> float:
    """Return the FLOP/s of square matrix products, the best of some runs that take `seconds` in total.

    Random values, because zeros would use less power and run faster.
    """
    side = SIDE[where.type]
    a, b = (torch.randn(side, side, device=where, dtype=dtype) for _ in range(2))
    return 2 * side**3 / best_of(lambda: a @ b, where, seconds)


def copy_rate(where: torch.device, seconds: float = 0.5) -> float:
    """Return the bytes/s read and written by a copy."""
    a = torch.zeros(BYTES[where.type], dtype=torch.uint8, device=where)
    b = torch.empty_like(a)
    return 2 * a.numel() / best_of(lambda: b.copy_(a), where, seconds)


def best_of(run: Callable[[], object], where: torch.device, seconds: float) -> float:
    """Return the seconds of the fastest of five runs that take about `seconds` in total."""
    run()
    wait(where)
    began = time.perf_counter()
    run()
    wait(where)
    once = max(time.perf_counter() - began, 1e-7)
    each = max(1, min(1000, round(seconds / 5 / once)))
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(each):
            run()
        wait(where)
        best = min(best, (time.perf_counter() - began) / each)
    return best


def step_flops(loops: Loops) -> float:
    """Count the FLOPs of one optimizer step: both views, forward and backward, heads and lookup.

    A multiply-add counts as two. Compilation is off, because it would hide the products from the count.
    """
    with torch.compiler.set_stance("force_eager"), FlopCounterMode(display=False) as counter:
        loops.step(MODEL)
    return float(counter.get_total_flops())


# ------------------------------------------------------------------------------ the report


class Report:
    """OUT/NAME.jsonl with one row per line, and OUT/NAME.md with a line about the machine and a table.

    Each row is written at once, so a run that is killed keeps its rows.

    Args:
        out: the folder.
        name: of the files.
        where: the device.
        columns: of the table, in order; a row may lack some. Other values of a row are only in the JSON file.
    """

    def __init__(self, out: Path, name: str, where: torch.device, columns: Sequence[str]) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self._lines, self._table, self._columns = out / f"{name}.jsonl", out / f"{name}.md", columns
        about = machine(where)
        self._lines.write_text(json.dumps(about) + "\n", "utf-8")
        about_machine = ", ".join(f"{key} {value}" for key, value in about.items())
        head = f"{about_machine}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n"
        self._table.write_text(head, "utf-8")
        print(head, end="", flush=True)

    def add(self, row: Mapping[str, Figure]) -> None:
        """Write a row to both files and print it."""
        line = f"| {' | '.join(_shown(row.get(column)) for column in self._columns)} |\n"
        for path, text in ((self._lines, json.dumps(row) + "\n"), (self._table, line)):
            with path.open("a", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        print(line, end="", flush=True)


def machine(where: torch.device) -> dict[str, Figure]:
    """Return the machine and versions that the results refer to."""
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else platform.processor() or platform.machine()
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "device": name,
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda if where.type == "cuda" else None,
        "python": platform.python_version(),
        "command": shlex.join(["python", *sys.argv]),
    }


def _shown(value: Figure) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)


if __name__ == "__main__":
    main()
