"""Every kind of step on a simulated GPU: no tensor is on the wrong device, and nothing makes the GPU wait.

tests/gpu tests the results of a real device.
"""

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from image_views import make_view
from packed_batches import packed_batches
from pretended_gpu import PretendedGPU

from nnclr_hub.method import Gather, SupportSet
from training.data.views import AUGMENTATIONS, View
from training.distributed import Ranks
from training.network import Tables, build_learner
from training.optimization import Schedule, make_optimizer
from training.recipes import find_recipe
from training.run import Run
from training.step import Stepper

GPU = torch.device("cuda")
TINY = [
    *("backbone=test_resnet", "channels=", "projection_hidden=16", "projection_dim=8"),
    *("image_size=32", "pack_size=32", "eval_size=32", "batch_size=8", "queue_size=32", "precision=fp32"),
    *("warm_start=0", "ramp=0", "gate=1"),
]
VIT = [
    *("backbone=test_vit", "drop_path=0.1"),
]
# the others are slow: each operation takes a thousand times longer than usual
BRIEF = ("nnclr", "starter", "vit", "lejepa", "eager")
KINDS = {
    "nnclr": ["prediction=paper"],
    "gate": ["gate=0.5"],
    "simclr": ["method=simclr", "augmentation=simclr"],
    "simsiam": ["method=simsiam"],
    "nnsiam": ["method=nnsiam", "gate=0.5"],
    "byol": ["method=byol"],
    "moco_v3": ["method=moco_v3"],
    "msf": ["method=msf", "mean_of=3"],
    "sce": ["method=sce"],
    "swav": ["method=swav", "prototypes=5"],
    "lejepa": ["method=lejepa"],
    "starter": [
        *("method=momentum_nnclr", "encoder=momentum", "local_crops=1", "local_size=16", "early_size=24"),
        *("early_share=0.5", "nesterov=true"),
    ],
    "vit": [*VIT, "optimizer=adamw", "clip=1", "method=momentum_nnclr", "local_crops=1", "local_size=16"],
    "lars": ["optimizer=lars", "transposed_term=true"],
    "k": ["k=4"],
    "soft": ["pick=soft"],
    "oracle": ["pick=oracle"],
    "both": ["enqueue=both"],
    "metadata": ["not_same=scanner"],
    "random": ["support_set=random_replacement"],
    "refill": ["support_set=current_encoder"],
    "parts": ["chunk=2"],
    "eager": ["graph=false"],
}
EAGER = ("refill", "parts", "eager")


@pytest.fixture
def gpu(monkeypatch):
    """A simulated GPU with much memory."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (1 << 40, 1 << 40))
    monkeypatch.setattr("training.graph.EAGER_STEPS", 1)
    with PretendedGPU() as pretended:
        yield pretended


class Recorder:
    """Runs a step as if it were recorded; a replay has nothing to do, because tensors have no content."""

    pinned = False

    def __init__(self, gpu: PretendedGPU) -> None:
        self.recorded, self._gpu = 0, gpu

    def stream(self):
        return nullcontext()

    def record(self, body):
        self.recorded += 1
        with self._gpu.recording():
            return body()

    def replay(self) -> None: ...

    def reset(self) -> None: ...


def stepper_of(gpu, settings) -> tuple[Stepper, Recorder]:
    recipe = find_recipe("small_cpu").with_settings([*TINY, *settings])
    rng, side = np.random.default_rng(0), recipe.pack_size
    pixels = rng.integers(0, 256, (32, side, side, 3), dtype=np.uint8)
    views = lambda step: recipe.views_at(step / 4)  # noqa: E731
    labels, folders = np.arange(32) % 3, [20, 12]
    batches = packed_batches(pixels, 8, views, where=GPU, labels=labels, folders=folders)
    groups = torch.arange(32) % 2
    tables = Tables(not_same=groups[:, None], groups=groups) if recipe.not_same else Tables()
    learner = gpu.place(build_learner(recipe, tables).to(memory_format=torch.channels_last))
    optimizer = make_optimizer(learner, recipe)
    run = Run(Path(), recipe, learner, optimizer, batches, Ranks(0, 1, GPU, Gather()), 4)
    return Stepper(run, Schedule(optimizer, recipe, 4, 4), recorder := Recorder(gpu)), recorder


@pytest.mark.parametrize(
    "kind", [kind if kind in BRIEF else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_a_step_stays_on_the_device_and_never_waits(gpu, kind):
    stepper, recorder = stepper_of(gpu, KINDS[kind])
    gpu.waits.clear()  # from placing the images
    steps = (0, 1, 2, 3) if kind == "starter" else (2, 3)
    for step in steps:
        taken = stepper.run(step)
    assert taken.loss.device.type == taken.z1.device.type == "cuda"
    assert gpu.waits == []
    assert recorder.recorded == (0 if stepper.eager_because else len(steps) // 2)
    assert bool(stepper.eager_because) == (kind in EAGER), stepper.eager_because


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_augmentation_sends_its_parameters_without_waiting(gpu, name):
    images = torch.zeros(16, 32, 32, 3, dtype=torch.uint8).to(GPU, non_blocking=True)
    for view in (*AUGMENTATIONS[name], View(blur=0.9, solarize=0.9)):
        x = make_view(images, torch.ones(16), view, torch.Generator().manual_seed(0))
        assert (x.device.type, x.shape) == ("cuda", (16, 3, 224, 224))
    assert gpu.waits == []


def test_the_simulation_detects_waits_and_mixed_devices(gpu):
    """A copy that waits is recorded; reading a value fails; devices do not mix."""
    x = torch.zeros(3, device=GPU)
    torch.ones(3).to(GPU)
    assert [place.partition(":")[0] for place in gpu.waits] == ["tests/training/test_pretended_gpu.py"]
    with pytest.raises(Exception, match="_local_scalar_dense"):
        x.sum().item()
    with pytest.raises(RuntimeError, match="device"):
        x + torch.ones(3)
    with gpu.recording(), pytest.raises(RuntimeError, match="recorded"):
        x[[0, 2]]


def test_the_lookup_at_the_papers_sizes_stays_on_the_device(gpu):
    support = gpu.place(SupportSet(98_304, 256))
    found = support.lookup(torch.zeros(4096, 256, device=GPU), ids=torch.zeros(4096, dtype=torch.int64, device=GPU))
    assert found.embeddings.device.type == "cuda"
