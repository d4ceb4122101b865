"""Steps: clipping, memory, the current encoder's support set, and every option end to end."""

import json
import math
import re

import numpy as np
import pytest
import torch
from tiny_runs import recipe, weights

from nnclr_hub import load_encoder
from nnclr_hub.errors import InvalidRequest, OutOfMemory, TrainingDiverged
from nnclr_hub.method import LEARNERS, Learner
from training.checkpoint import load_checkpoint
from training.data.image_index import training_files
from training.monitor import read_log
from training.pretrain import pretrain
from training.run import Callback
from training.step import smaller_settings
from training.verdict import symptoms


def run(photos, out, *settings):
    chosen = recipe("batch_size=8", "epochs=1", "checkpoint_every=5", "log_every=1", *settings)
    return pretrain(chosen, [photos], out, device="cpu")


@pytest.mark.parametrize(
    "settings",
    [
        ["method=simsiam", "optimizer=lars", "weight_decay=1e-6"],
        ["method=momentum_nnclr", "support_set=random_replacement", "enqueue=both", "k=4", "residency=host"],
        ["method=momentum_nnclr", "encoder=momentum", "chunk=4"],
        ["prediction=paper", "pick=oracle", "optimizer=adamw", "base_lr=1e-3", "local_crops=3", "local_size=16"],
        ["support_set=current_encoder", "warm_start=0", "gate=1", "ramp=0", "chunk=3"],
        ["early_size=24", "early_share=0.5", "clip=0.1", "nesterov=true"],
        ["augmentation=crop_only", "precision=bf16", "projection=none", "projection_dim=0"],
    ],
    ids=" ".join,
)
def test_every_option_gives_an_encoder(photos, tmp_path, settings):
    """test_graph.py takes steps of every method, support set and augmentation."""
    assert run(photos, tmp_path / "run", *settings).finished
    vectors = load_encoder(tmp_path / "run" / "encoder", device="cpu").embed(sorted(photos.rglob("*.jpg"))[:4])
    assert np.isfinite(vectors).all()


def test_a_vision_transformer_with_all_its_options(photos, tmp_path):
    settings = [
        *("backbone=test_vit", "channels=", "drop_path=0.1", "optimizer=adamw"),
        *("method=momentum_nnclr", "local_crops=2", "local_size=16", "early_size=16", "early_share=0.5", "epochs=1"),
    ]
    assert run(photos, tmp_path / "run", *settings).finished
    encoder = load_encoder(tmp_path / "run" / "encoder", device="cpu")
    assert encoder.embed(sorted(photos.rglob("*.jpg"))[:2]).shape == (2, 64)


def test_views_of_sixteen_pixels_use_fp32_on_a_cpu(photos, tmp_path):
    """torch's gradients in bf16 are wrong there: weights became NaN at the first step."""
    assert run(photos, tmp_path / "run", "precision=bf16", "local_crops=1", "local_size=16").finished
    assert json.loads((tmp_path / "run" / "run.json").read_text())["precision"] == "fp32"


def test_each_batch_is_learned_and_enqueued_with_the_schedules_of_its_step(photos, tmp_path, monkeypatch):
    """14 steps: no neighbors for a quarter of them, then a ramp, then the gate."""
    seen, enqueued, rates, losses = [], [], [], []

    class Noting(Learner):
        def forward(self, views, *, ids, labels, neighbor_share):
            seen.append((ids.tolist(), labels.tolist(), neighbor_share))
            step = super().forward(views, ids=ids, labels=labels, neighbor_share=neighbor_share)
            losses.append(step.loss.item())
            return step

        def enqueue(self, step, ids, labels):
            enqueued.append((ids.tolist(), labels.tolist()))
            super().enqueue(step, ids, labels)

        def update_momentum_encoder(self, t):
            rates.append(t)
            super().update_momentum_encoder(t)

    chosen = ["epochs=2", "method=momentum_nnclr", "ema=0.9"]
    chosen = recipe("batch_size=8", "warm_start=0.25", "ramp=0.5", "gate=0.8", "log_every=1", *chosen)
    monkeypatch.setitem(LEARNERS, "noting", Noting)
    pretrain(chosen, [photos], tmp_path / "run", settings={"learner": "noting"}, device="cpu")
    logged = [line["loss"] for line in read_log(tmp_path / "run") if "loss" in line]
    assert logged == pytest.approx(losses, abs=1e-4)
    progress = [step / 14 for step in range(14)]
    assert rates == pytest.approx([1 - 0.1 * (math.cos(math.pi * at) + 1) / 2 for at in progress])
    shares = [share for *_, share in seen]
    assert shares == pytest.approx([min(0.8, max(0, 1.6 * (at - 0.25))) for at in progress])
    assert [(ids, labels) for ids, labels, _ in seen] == enqueued
    for epoch in (enqueued[:7], enqueued[7:]):
        images = [image for ids, _ in epoch for image in ids]
        assert len(images) == len(set(images)) == 56
    state = weights(tmp_path / "run")
    assert int(state["support_set.enqueues"]) == len(enqueued) == 14
    files = training_files([photos])
    assert all(files.labels[ids].tolist() == labels for ids, labels in enqueued)


def test_a_clipped_step_has_the_length_of_its_rate(photos, tmp_path):
    """Plain SGD moves the weights by the rate times the gradient, whose norm is that of the limit."""
    moves = []

    class Moves(Callback):
        def on_start(self, run):
            self.before = self.weights(run)

        def on_step(self, run, result):
            now = self.weights(run)
            moves.append(((now - self.before).norm() / result.lr if result.lr else torch.tensor(0.05)).item())
            self.before = now

        def weights(self, run):
            return torch.cat([p.detach().flatten().clone() for p in run.learner.parameters()])

    plain = ("clip=0.05", "momentum=0", "weight_decay=0")
    chosen = recipe("batch_size=8", "epochs=1", "method=simclr", *plain)
    pretrain(chosen, [photos], tmp_path / "run", device="cpu", callbacks=[Moves()])
    assert moves == pytest.approx([0.05] * 7, rel=1e-3)


def test_chunks_do_not_change_what_a_batch_norm_free_encoder_learns(photos, tmp_path):
    vit = ["backbone=test_vit", "channels=", "optimizer=sgd", "prediction=paper", "warm_start=0", "gate=1"]
    vit += ["image_size=16", "pack_size=16", "eval_size=16"]  # one patch
    two_steps = ["batch_size=30", "warmup_epochs=0"]  # rounding errors grow with each step, and a neighbor may change
    run(photos, tmp_path / "whole", *vit, *two_steps)
    run(photos, tmp_path / "chunked", *vit, *two_steps, "chunk=7")
    run(photos, tmp_path / "unmoved", *vit, *two_steps, "base_lr=1e-12")
    whole, chunked, unmoved = (weights(tmp_path / name) for name in ("whole", "chunked", "unmoved"))
    for name, value in whole.items():
        moved = (value - unmoved[name]).norm() if value.is_floating_point() else 0
        assert (chunked[name] - value).float().norm() <= 1e-2 * moved + 1e-6, name


def test_the_current_encoders_support_set_is_new_at_each_step(photos, tmp_path):
    run(photos, tmp_path / "run", "support_set=current_encoder", "queue_size=20")
    state = weights(tmp_path / "run")
    assert int(state["support_set.enqueues"]) == 7
    assert (state["support_set.enqueued_at"] == 6).all(), "all of it in the last step"


def limit_memory(monkeypatch, images: int, error: Exception | None = None) -> None:
    """Raise torch's error for lack of memory in steps of more images."""
    original = Learner.forward

    def forward(learner, views, **rest):
        if len(views[0]) > images:
            raise error or torch.OutOfMemoryError("CUDA out of memory")
        return original(learner, views, **rest)

    monkeypatch.setattr(Learner, "forward", forward)


def check_smaller(named: dict[str, int], batch_size: int, chunk: int, world: int) -> None:
    """Check that the named settings are valid, and smaller than the present ones."""
    recipe(*(f"{name}={value}" for name, value in named.items()))
    images = named.get("batch_size", batch_size) / world
    assert images % 1 == 0
    assert 2 <= images < batch_size // world or "batch_size" not in named
    assert "chunk" not in named or 2 <= named["chunk"] < min(chunk or math.inf, batch_size // world)


@pytest.mark.parametrize(
    ("batch_size", "chunk", "names"),
    [
        (8, 0, {"batch_size", "chunk"}),
        (8, 4, {"batch_size", "chunk"}),
        (8, 2, {"batch_size"}),
        (3, 0, {"batch_size"}),
        (2, 0, set()),
    ],
)
def test_out_of_memory_names_a_smaller_batch(photos, tmp_path, monkeypatch, batch_size, chunk, names):
    limit_memory(monkeypatch, 1)
    with pytest.raises(OutOfMemory, match="smaller backbone or image_size") as raised:
        run(photos, tmp_path / "run", f"batch_size={batch_size}", f"chunk={chunk}")
    named = {name: int(value) for name, value in re.findall(r"--set (batch_size|chunk)=(\d+)", str(raised.value))}
    assert named.keys() == names
    check_smaller(named, batch_size, chunk, 1)


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize(("images", "chunk"), [(2, 0), (3, 0), (5, 2), (6, 5), (64, 128), (4096, 256)])
def test_less_memory_is_possible_for_any_number_of_processes(world, images, chunk):
    named = smaller_settings(recipe(f"batch_size={images * world}", f"chunk={chunk}"), world)
    check_smaller(named, images * world, chunk, world)
    assert ("batch_size" in named) == (images > 2)


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "FIND was unable to find an engine to execute this computation",
    ],
)
def test_other_messages_of_missing_memory_are_recognized(photos, tmp_path, monkeypatch, message):
    limit_memory(monkeypatch, 5, RuntimeError(message))
    with pytest.raises(OutOfMemory, match="batch_size=4"):
        run(photos, tmp_path / "run")


def test_a_weight_that_is_not_finite_never_replaces_a_good_checkpoint(photos, tmp_path, monkeypatch):
    """The loss is computed before the optimizer's step, so it may be finite while the new weights are not."""
    original, steps = torch.optim.SGD.step, []

    def corrupting(self, *arguments):
        original(self, *arguments)
        steps.append(1)
        if len(steps) == 14:
            self.param_groups[0]["params"][0].data.fill_(torch.nan)

    monkeypatch.setattr(torch.optim.SGD, "step", corrupting)
    with pytest.raises(TrainingDiverged, match=r"weight.*step 14.*step 7.*--init"):
        run(photos, tmp_path / "run", "epochs=2", "checkpoint_every=1", "optimizer=sgd")
    assert load_checkpoint(tmp_path / "run")["step"] == 7
    assert all(value.isfinite().all() for value in weights(tmp_path / "run").values())
    assert list(symptoms(read_log(tmp_path / "run"), 14)) == ["diverged"]
    assert "step 14" in (tmp_path / "run" / "report.html").read_text().partition("Settings")[0]


def test_sizes_that_are_too_large_are_reduced_and_reported(photos, tmp_path, capsys):
    run(photos, tmp_path / "run", "epochs=1", "k=5000", "warmup_epochs=5")
    printed = " ".join(capsys.readouterr().err.split())
    assert "k: 5000" in printed
    assert "warmup_epochs: 5.0" in printed


def test_no_part_has_a_single_image(photos, tmp_path):
    """33 rows in parts of at most 8, and 8 images in chunks of at most 7: batch norm rejects a single image."""
    assert run(photos, tmp_path / "a", "epochs=1", "support_set=current_encoder", "queue_size=33").finished
    assert run(photos, tmp_path / "b", "epochs=1", "chunk=7").finished


def test_the_oracle_needs_labels(tmp_path, image_files):
    import shutil

    folder = tmp_path / "flat"
    folder.mkdir()
    for number, path in enumerate(image_files[:20]):
        shutil.copy(path, folder / f"{number}.jpg")
    with pytest.raises(InvalidRequest, match="pick=oracle"):
        run(folder, tmp_path / "run", "pick=oracle", "batch_size=4")
    assert run(folder, tmp_path / "run2", "batch_size=4").finished
    assert not any("nn_accuracy" in line for line in read_log(tmp_path / "run2")), "no accuracy without labels"


@pytest.mark.slow
def test_a_compiled_backbone_trains_and_exports(photos, tmp_path):
    """Compilation does not change the names of the weights."""
    assert run(photos, tmp_path / "run", "compile=true").finished
    assert load_encoder(tmp_path / "run" / "encoder", device="cpu").embed_dim == 8


def test_a_network_with_a_layer_after_its_pool_is_trained(photos, tmp_path):
    """Its vectors are longer than the depth of its feature map."""
    run(photos, tmp_path / "run", "backbone=mobilenetv3_small_050", "channels=")
    encoder = load_encoder(tmp_path / "run" / "encoder", device="cpu")
    assert encoder.embed_dim == encoder.config.num_features == 1024


def test_fp16_scales_gradients_and_resumes_exactly(photos, tmp_path):
    settings = recipe("precision=fp16", "epochs=2", "log_every=1")
    assert pretrain(settings, photos, tmp_path / "whole", device="cpu").finished
    pretrain(settings, photos, tmp_path / "cut", device="cpu", minutes=0)
    assert pretrain(settings, photos, tmp_path / "cut", device="cpu", resume=True).finished
    whole, cut = (load_checkpoint(tmp_path / name) for name in ("whole", "cut"))
    assert whole["scaler"]["scale"] == cut["scaler"]["scale"] > 1
    assert all(torch.equal(value, cut["learner"][name]) for name, value in whole["learner"].items())
    full = recipe("precision=fp32", "epochs=2", "log_every=1")
    pretrain(full, photos, tmp_path / "full", device="cpu", minutes=0)
    first = [next(line["loss"] for line in read_log(tmp_path / name) if "loss" in line) for name in ("whole", "full")]
    assert first[0] == pytest.approx(first[1], rel=0.02), "later, neighbors differ"
