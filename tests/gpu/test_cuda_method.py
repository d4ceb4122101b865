"""The parts of a step on a CUDA device, compared with the CPU.

make gpu            # or, uninstalled: python -m pytest -m gpu tests/gpu
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from image_views import make_view
from packed_batches import packed_batches

from nnclr_hub.method import METHODS, Gather, Learner, SupportSet, random_directions
from nnclr_hub.method import learner as nnclr_learner
from training.data.augment import change_all, colors_and_blur, make_views
from training.data.batches import Batches
from training.data.views import AUGMENTATIONS
from training.distributed import Ranks
from training.monitor import rankme
from training.network import Tables, build_learner, place_learner
from training.optimization import Schedule, make_optimizer
from training.recipes import find_recipe
from training.run import Run
from training.step import Stepper

# warnings of torch on a GPU, such as its check for synchronization being a prototype, must not fail the tests
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]


@pytest.mark.parametrize("name", list(AUGMENTATIONS))
def test_augmentation_is_the_same_on_both_devices(name, device, full_precision):
    images = torch.randint(0, 256, (32, 96, 96, 3), dtype=torch.uint8)
    for view in AUGMENTATIONS[name]:
        cpu, gpu = (
            make_view(images.to(where), torch.ones(32), replace(view, size=64), torch.Generator().manual_seed(3)).cpu()
            for where in ("cpu", device)
        )
        # rounding may change values at the threshold between two levels of quality or of solarization
        assert ((cpu - gpu).abs() > 2e-3).float().mean() < 1e-3


def test_both_forms_of_the_augmentation_are_equal_on_the_device(device, full_precision):
    images = torch.randint(0, 256, (32, 96, 96, 3), dtype=torch.uint8).to(device)
    view = replace(AUGMENTATIONS["byol"][1], size=64, blur=0.5)
    compiled = torch.compile(colors_and_blur, dynamic=False)
    eager, fused = (
        make_view(images, torch.ones(32), view, torch.Generator().manual_seed(3), change)
        for change in (change_all, partial(change_all, change=compiled))
    )
    assert ((fused - eager).abs() > 2e-3).float().mean() < 1e-3


def test_lookup_is_in_float32_under_autocast(device):
    support = SupportSet(65_536, 256).to(device)
    z = torch.randn(512, 256).to(device)
    with torch.autocast(device, torch.bfloat16):
        inside = support.lookup(z)
    assert torch.equal(inside.similarity, support.lookup(z).similarity)


def test_lookup_equals_that_of_the_cpu(device, full_precision):
    support, z, ids = SupportSet(4096, 64), torch.randn(256, 64), torch.arange(256)
    support.enqueue(torch.randn(1000, 64), torch.arange(1000))
    here, there = support.lookup(z, ids), support.to(device).lookup(z.to(device), ids.to(device))
    torch.testing.assert_close(there.similarity.cpu(), here.similarity, atol=1e-5, rtol=0)
    assert (there.index.cpu() == here.index).float().mean() > 0.99  # rows may be equally near


def test_the_lookup_at_the_papers_sizes_needs_little_memory(cuda):
    """B = 4096, M = 98,304: the whole matrix of similarities would take 1.6 GB."""
    support, z = SupportSet(98_304, 256).to(cuda), torch.randn(4096, 256, device=cuda)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    support.lookup(z, ids=torch.arange(4096, device=cuda))
    assert torch.cuda.max_memory_allocated() - before < 300 * 2**20


def small_learner(method: str) -> Learner:
    torch.manual_seed(0)
    sizes = ("channels=8,8,16,16", "projection_hidden=32", "projection_dim=8", "queue_size=64", "prototypes=8")
    teacher = METHODS[method].target_encoder == "teacher"
    settings = [f"method={method}", "prediction=method", *["teacher=t"] * teacher, *sizes]
    tables = Tables(torch.randn(16, 8)) if teacher else Tables()
    return build_learner(find_recipe("small_cpu").with_settings(settings), tables)


@pytest.mark.parametrize("method", list(METHODS))
def test_a_step_of_every_method_equals_that_of_the_cpu(method, device, full_precision, monkeypatch):
    """Loss and gradients in float64, with the same random directions of LeJEPA."""

    def on_the_cpu(dim: int, count: int, where: torch.device) -> torch.Tensor:
        return random_directions(dim, count).to(where)

    monkeypatch.setattr(nnclr_learner, "random_directions", on_the_cpu)
    generator = torch.Generator().manual_seed(0)
    views = [torch.randn(16, 3, 32, 32, generator=generator, dtype=torch.float64) for _ in range(2)]
    results = []
    for where in ("cpu", device):
        learner = small_learner(method).double().to(where)
        loss = learner([view.to(where) for view in views], ids=torch.arange(16, device=where)).loss
        loss.backward()
        results.append([loss.detach().cpu(), *(p.grad.cpu() for p in learner.parameters() if p.grad is not None)])
    for cpu, gpu in zip(*results, strict=True):
        torch.testing.assert_close(gpu, cpu, atol=1e-4, rtol=1e-3)


def stepper_on(device: str, *settings: str) -> tuple[Learner, Stepper, Batches]:
    recipe = find_recipe("small_cpu").with_settings(
        [
            *("channels=8,8,16,16", "projection_hidden=32", "projection_dim=16", "batch_size=16", "queue_size=64"),
            *("pack_size=64", "local_crops=2", "local_size=32", "method=momentum_nnclr", *settings),
        ]
    )
    where = torch.device(device)
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 64, 3), dtype=np.uint8)
    views = lambda step: recipe.views_at(step / 8)  # noqa: E731
    batches = packed_batches(pixels, 16, views, where=where, residency=recipe.residency)
    ranks = Ranks(0, 1, where, Gather())
    learner = place_learner(build_learner(recipe), recipe, ranks)
    optimizer = make_optimizer(learner, recipe)
    stepper = Stepper(Run(Path(), recipe, learner, optimizer, batches, ranks, 8), Schedule(optimizer, recipe, 8, 4))
    return learner, stepper, batches


@pytest.mark.parametrize(
    "settings",
    [
        ["precision=bf16"],
        ["precision=fp32"],
        ["precision=bf16", "compile_views=true"],
        ["precision=bf16", "graph=false"],
        ["precision=bf16", "optimizer=lars"],
        ["precision=bf16", "optimizer=adamw", "clip=1"],
    ],
    ids=" ".join,
)
def test_a_step_never_makes_the_device_wait(cuda, settings):
    """torch rejects operations that synchronize, after placing the images and compiling the views of these steps."""
    _, stepper, _ = stepper_on("cuda", *settings)
    for step in (0, 1, 2, 3):
        stepper.run(step)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in (1, 2, 3):
            stepper.run(step)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_views_and_weights_are_channels_last(device):
    learner, stepper, batches = stepper_on(device, "precision=fp32")
    batch = batches.at(0)
    [view] = make_views(batch.pixels, batch.views[:1], batch.numbers[:1])
    kernel = learner.backbone.conv1.weight
    assert all(one.is_contiguous(memory_format=torch.channels_last) for one in (view, kernel))
    stepper.run(0)
    # with another layout the optimizer would start kernels for each weight instead of a few for all
    others = [name for name, p in learner.named_parameters() if p.requires_grad and p.grad.stride() != p.stride()]
    assert not others


def test_images_that_fit_are_on_the_device(device):
    _, _, batches = stepper_on(device)
    assert batches.at(0).pixels.images.device.type == device


def test_rankme_equals_that_of_the_cpu(device):
    z = torch.randn(64, 16)
    assert rankme(z.to(device)) == pytest.approx(rankme(z), rel=1e-4)
