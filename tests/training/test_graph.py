"""Recorded steps: the same operations at each step, and the weights of eager training after a replay.

A tape replaces a CUDA graph: it records the operations of a step on a CPU and runs them again on the same memory.
Whatever a CUDA graph would keep from the recorded step, such as a Python number, the tape keeps too.
"""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from image_views import stored
from packed_batches import packed_batches
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nnclr_hub.method import METHODS, Gather
from training.data.augment import (
    change_all,
    change_rows,
    make_views,
    sample_numbers,
)
from training.data.views import AUGMENTATIONS
from training.distributed import Ranks
from training.graph import EAGER_STEPS as SHIPPED
from training.graph import StepGraph
from training.network import Tables, build_learner
from training.optimization import Schedule, make_optimizer
from training.recipes import find_recipe
from training.run import Run
from training.step import Stepper

CPU = torch.device("cpu")
STEPS, EAGER_STEPS = 5, 1
TINY = [
    *(
        "backbone=test_resnet",
        "channels=",
        "projection_hidden=16",
        "projection_dim=8",
        "image_size=16",
        "pack_size=20",
        "eval_size=16",
    ),
    *("batch_size=16", "queue_size=48", "precision=fp32", "warm_start=0.2", "ramp=0.4", "gate=1", "mean_of=3"),
]
TEACHER = {name: ["teacher=t"] * (row.target_encoder == "teacher") for name, row in METHODS.items()}
KINDS = {name: [f"method={name}", *TEACHER[name]] for name in METHODS} | {
    "metadata": ["same=patient", "not_same=scanner,site"],
    "k": ["k=3", "prediction=paper"],
    "soft": ["pick=soft"],
    "oracle": ["pick=oracle"],
    "both": ["enqueue=both"],
    "random": ["support_set=random_replacement"],
    "multicrop, sizes": ["local_crops=3", "local_size=8", "early_size=12", "early_share=0.5"],
    "look": ["augmentation=keep_color"],
    "lars": ["optimizer=lars", "weight_decay=1e-6", "transposed_term=true"],
    "vit": [
        *("backbone=test_vit", "channels=", "drop_path=0.3", "optimizer=adamw", "clip=1", "image_size=16"),
        *("pack_size=16", "eval_size=16", "method=momentum_nnclr"),
    ],
}
LOOKS = {name: [f"augmentation={name}"] for name in AUGMENTATIONS}  # both forms are compared with each other, too
BRIEF = ("nnclr", "swav", "lejepa", "metadata", "multicrop, sizes", "vit")  # `make slow` takes the others


def brief(kinds) -> list:
    return [kind if kind in BRIEF else pytest.param(kind, marks=pytest.mark.slow) for kind in kinds]


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """Several threads may add in another order when the machine is busy; record early, because replays take long."""
    monkeypatch.setattr("training.graph.EAGER_STEPS", EAGER_STEPS)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Tape:
    """Records and replays operations on a CPU; `ops` has each with its arguments and the new tensors of its result."""

    pinned = False

    def __init__(self, keep: bool = True) -> None:
        self.keep, self.replays, self.ops, self.ran = keep, 0, [], False

    def stream(self):
        return nullcontext()

    def record(self, body):
        if not self.keep:
            raise RuntimeError("not recorded")
        self.ran = True  # a CPU has run the operations; a GPU would only have recorded them
        with Watch(seen := []):
            made = body()
        self.ops = [(func, args, kwargs, new_tensors(args, kwargs, out)) for func, args, kwargs, out in seen]
        return made

    @torch.no_grad()
    def replay(self):
        self.replays += 1
        if self.ran:
            self.ran = False
            return
        for func, args, kwargs, new in self.ops:
            out = func(*args, **kwargs)
            leaves = [out] if torch.is_tensor(out) else tree_leaves(out)
            for number, old in new:
                old.copy_(leaves[number])

    def reset(self):
        self.ops = []


def new_tensors(args, kwargs, out) -> list[tuple[int, torch.Tensor]]:
    """Return place and tensor of each part of a result that has its own memory."""
    inputs = {one.untyped_storage().data_ptr() for one in tree_leaves((args, kwargs)) if torch.is_tensor(one)}
    leaves = enumerate(tree_leaves(out))
    return [(i, one) for i, one in leaves if torch.is_tensor(one) and one.untyped_storage().data_ptr() not in inputs]


class Watch(TorchDispatchMode):
    def __init__(self, ops: list) -> None:
        super().__init__()
        self.ops = ops

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.ops.append((func, args, kwargs or {}, out))
        return out


def signature(ops) -> list:
    """Return name, shapes, types and Python numbers of each operation."""

    def of(leaf):
        return (tuple(leaf.shape), leaf.dtype) if torch.is_tensor(leaf) else leaf

    aten = [(str(func), tree_leaves((args, kwargs))) for func, args, kwargs, _ in ops if func.namespace == "aten"]
    return [(name, *map(of, leaves)) for name, leaves in aten]


def run_of(settings) -> tuple[Run, Schedule]:
    recipe = find_recipe("small_cpu").with_settings([*TINY, *settings])
    rng, side = np.random.default_rng(0), recipe.pack_size
    pixels = rng.integers(0, 256, (64, side, side, 3), dtype=np.uint8)
    batches = packed_batches(pixels, 16, lambda step: recipe.views_at(step / STEPS), labels=np.arange(64) % 3)
    torch.manual_seed(0)
    tables = {"teacher": torch.randn(64, 8)} if recipe.teacher else {}
    for name in ("same", "not_same"):
        if columns := getattr(recipe, name):
            tables[name] = torch.randint(-1, 3, (64, len(columns)))
            tables["groups"] = torch.randint(3, (64,))
    learner = build_learner(recipe, Tables(**tables))
    learner.train()
    optimizer = make_optimizer(learner, recipe)
    run = Run(Path(), recipe, learner, optimizer, batches, Ranks(0, 1, CPU, Gather()), STEPS)
    return run, Schedule(optimizer, recipe, STEPS, 4)


def trained(settings, tape) -> tuple[list[float], dict[str, torch.Tensor]]:
    run, schedule = run_of(settings)
    stepper = Stepper(run, schedule, tape)
    losses = [stepper.run(step).loss.item() for step in range(STEPS)]
    return losses, run.learner.state_dict()


@pytest.mark.parametrize("kind", [*brief(KINDS), "shipped"])
def test_a_replayed_step_trains_like_an_eager_one_to_the_bit(kind, monkeypatch):
    kind, first = ("nnclr", SHIPPED) if kind == "shipped" else (kind, EAGER_STEPS)
    monkeypatch.setattr("training.graph.EAGER_STEPS", first)
    tape = Tape()
    eager, recorded = trained(KINDS[kind], Tape(keep=False)), trained(KINDS[kind], tape)
    several = "early_size" in "".join(KINDS[kind])
    assert tape.replays == STEPS - first * (2 if several else 1)
    assert eager[0] == recorded[0]
    assert [name for name, value in eager[1].items() if not torch.equal(value, recorded[1][name])] == []


@pytest.mark.parametrize("kind", brief([*KINDS, *LOOKS]))
def test_two_steps_have_the_same_operations_shapes_and_numbers(kind, monkeypatch):
    monkeypatch.setattr("training.graph.EAGER_STEPS", STEPS)
    run, _ = run_of([one for one in (KINDS | LOOKS)[kind] if not one.startswith("early")])
    graph = StepGraph(run, Tape(), lambda: torch.autocast("cpu", enabled=False))
    seen = []
    for step in (1, 2, 3):  # the share of neighbors rises from one to the next; the first makes constants
        graph.load(run.batches.draw(step), run.recipe.neighbor_share(step / STEPS))
        with Watch(ops := []):
            graph.run()
        seen.append(signature(ops))
    assert [pair for pair in zip(*seen[1:], strict=True) if pair[0] != pair[1]] == []
    assert not [row[0] for row in seen[1] if "nonzero" in row[0] or "_local_scalar_dense" in row[0]]


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_both_forms_of_the_augmentation_make_the_same_images(name):
    views = [replace(view, size=48) for view in AUGMENTATIONS[name]]
    rng = np.random.default_rng(0)
    pixels = torch.from_numpy(rng.integers(0, 256, (64, 9, 9, 3), dtype=np.uint8)).repeat_interleave(8, 1)
    pixels = pixels.repeat_interleave(8, 2)
    sizes = np.stack([np.full(64, 300.0), rng.integers(200, 500, 64).astype(float)], 1)
    numbers = sample_numbers(2, 64, torch.Generator().manual_seed(1))
    images = stored(pixels, np.full((64, 2), 72.0), sizes, views, numbers)
    rows, static = (make_views(images, views, numbers, change=change) for change in (change_rows, change_all))
    for one, other in zip(rows, static, strict=True):
        assert other.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(one, other, atol=2e-6, rtol=0)


def test_a_recorded_run_learns_what_a_run_on_a_cpu_learns():
    """The forms of the augmentation round differently, hence a tolerance."""
    run, schedule = run_of(["method=simclr"])
    plain = Stepper(run, schedule)
    losses = [plain.run(step).loss.item() for step in range(STEPS)]
    assert trained(["method=simclr"], Tape())[0] == pytest.approx(losses, rel=1e-3)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["graph=false"], "graph=false"),
        (["chunk=4"], "chunk"),
        (["precision=fp16"], "fp16"),
        (["support_set=current_encoder"], "support set"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_step_that_cannot_be_recorded_is_eager_and_says_why(settings, words):
    run, schedule = run_of(settings)
    stepper = Stepper(run, schedule, Tape())
    assert words in (stepper.eager_because or "")
    assert stepper.run(0).loss.isfinite()


def test_a_failed_recording_leaves_the_run_as_an_eager_one(caplog):
    run, schedule = run_of(["method=nnclr"])
    stepper = Stepper(run, schedule, Tape(keep=False))
    for step in range(EAGER_STEPS + 1):
        assert stepper.run(step).loss.isfinite()
    assert "not recorded" in stepper.eager_because
    assert len([one for one in caplog.records if one.name == "training.graph"]) == 1
