"""One optimizer step: views, losses, gradients, the momentum encoder and the support set, in the paper's order.

The random numbers of the views depend only on seed and step, and those of the network also on the rank. A resumed run
therefore equals one that never stopped, without a generator's state in the checkpoint.

On a GPU, the part of a step up to the gradients is recorded once and replayed, see `training.graph`.
"""

from __future__ import annotations

import time
import traceback
from contextlib import nullcontext

import torch
from torch import nn

from nnclr_hub.errors import OutOfMemory
from nnclr_hub.method import Step, momentum_at

from .data.augment import make_views
from .data.batches import seed_of
from .distributed import share_gradients
from .graph import CudaRecorder, Pass, Recorder, StepGraph, why_eager
from .monitor import measure_step
from .optimization import Schedule
from .recipes import Recipe
from .run import Run, StepResult

# messages from the CPU; the driver, for pinned memory or a kernel's code; cuBLAS; and cuDNN, for its workspaces
SHORTAGES = ("allocate memory", "out of memory", "_STATUS_ALLOC_FAILED", "unable to find an engine to execute")


class Stepper:
    """Runs the steps of a run, of which it needs learner, optimizer, recipe, ranks and batches.

    eager_because: why steps are not recorded on this GPU; None if they are, and on a CPU.

    Args:
        run: with a learner on its device, and sizes that fit the data. Its number of steps may change between steps.
        recorder: recorder of the graph; by default one for the device of the run.
    """

    def __init__(self, run: Run, schedule: Schedule, recorder: Recorder | None = None) -> None:
        self._learner, self._optimizer, self._scaler = run.learner, run.optimizer, run.scaler
        self._run, self._recipe, self._ranks, self._batches = run, run.recipe, run.ranks, run.batches
        self._schedule = schedule
        self._shared = share_gradients(run.learner, run.ranks)
        self._data_seconds = 0.0
        self._graph: StepGraph | None = None
        self.eager_because: str | None = None
        if recorder is None and run.ranks.where.type == "cuda":  # a CPU launches operations as fast as it computes them
            recorder = CudaRecorder(run.ranks.where)
        if recorder is not None:
            self.eager_because = why_eager(run)
            if self.eager_because is None:
                self._graph = StepGraph(run, recorder, self._autocast)

    def run(self, step: int) -> StepResult:
        """Run one step."""
        # for stochastic depth and for sampling one of the k nearest
        torch.manual_seed(seed_of(self._recipe.seed, step, self._ranks.rank))
        lr = self._schedule.set(step)
        with nullcontext() if self._graph is None else self._graph.recorder.stream():
            return self._take(step, lr)

    # ---- parts of a step

    def _take(self, step: int, lr: float) -> StepResult:
        try:
            done = self._gradients(step)
            if self._recipe.clip:
                self._scaler.unscale_(self._optimizer)
                nn.utils.clip_grad_norm_(self._learner.parameters(), self._recipe.clip)
            self._scaler.step(self._optimizer)
            self._scaler.update()
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            if not isinstance(error, torch.OutOfMemoryError) and not any(words in str(error) for words in SHORTAGES):
                raise
            traceback.clear_frames(error.__traceback__)  # they hold the memory of the step, also in a notebook
            raise self._explain() from error
        if self._recipe.support_set != "current_encoder":
            self._learner.enqueue(done.step, done.ids, done.labels)
        self._learner.update_momentum_encoder(momentum_at(step / self._run.steps, self._recipe.ema))
        loss = done.step.loss.detach().clone()
        return StepResult(loss, done.step.online, done.metrics, lr, self._data_seconds)

    def _gradients(self, step: int) -> Pass:
        progress = step / self._run.steps
        share = self._recipe.neighbor_share(progress)
        if self._graph is not None:
            self._graph.wait()
            began = time.perf_counter()
            self._graph.load(self._batches.draw(step), share)
            self._data_seconds = time.perf_counter() - began
            recorded = self._graph.run()
            self.eager_because = self._graph.failure
            return recorded
        began = time.perf_counter()
        batch = self._batches.at(step)
        self._data_seconds = time.perf_counter() - began
        self._optimizer.zero_grad(set_to_none=True)
        if self._recipe.support_set == "current_encoder" and self._learner.support_set is not None:
            self._refill(step)
        began = time.perf_counter()
        views = make_views(batch.pixels, batch.views, batch.numbers, self._recipe.chunk)
        self._data_seconds += time.perf_counter() - began
        with self._autocast():
            result: Step = self._shared(views, ids=batch.ids, labels=batch.labels, neighbor_share=share)
            self._scaler.scale(result.loss).backward()
        metrics = measure_step(result, self._learner.support_set, batch.labels)
        return Pass(result, batch.ids, batch.labels, metrics)

    def _autocast(self) -> torch.autocast:
        kind = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self._recipe.precision)
        return torch.autocast(self._ranks.where.type, kind, enabled=kind is not None)

    def _refill(self, step: int) -> None:
        """Fill the support set with a random set of images from the current encoder; each rank embeds its share."""
        support = self._learner.support_set
        assert support is not None
        # the number of ranks is not a rank: all ranks get the same seed, and no step uses it otherwise
        draws = torch.Generator().manual_seed(seed_of(self._recipe.seed, step, self._ranks.world))
        rows = torch.randperm(len(self._batches), generator=draws)[: support.size].chunk(self._ranks.world)
        z, ids, labels = [], [], []
        views = self._recipe.views_at(step / self._run.steps)[:1]
        local_rows, most = rows[self._ranks.rank], max(1, self._recipe.batch_size // self._ranks.world)
        # equal parts: batch norm cannot process a single image
        for row_numbers in local_rows.tensor_split(-(-len(local_rows) // most)):
            part = self._batches.of(row_numbers, views, seed_of(self._recipe.seed, step, int(row_numbers[0])))
            view = make_views(part.pixels, views, part.numbers)[0]
            with self._autocast():
                z.append(self._learner.project(view, part.ids))
            ids.append(part.ids)
            labels.append(part.labels)
        gather = self._ranks.gather
        support.refill(*(gather(torch.cat(one)) for one in (z, ids, labels)))

    def _explain(self) -> OutOfMemory:
        where = torch.cuda.get_device_name(self._ranks.where) if self._ranks.where.type == "cuda" else "this machine"
        images, freed = self._recipe.batch_size // self._ranks.world, self._batches.pixels.device_bytes
        smaller, hints = smaller_settings(self._recipe, self._ranks.world), []
        if (batch := smaller.get("batch_size")) is not None:
            hints.append(f"--set batch_size={batch}")
        if (chunk := smaller.get("chunk")) is not None:
            hints.append(
                f"--set chunk={chunk}, which keeps the batch and its negatives, makes views of {chunk} images at a "
                "time and computes the activations twice"
            )
        if freed:
            hints.append(f"--set residency=host, which frees the {freed / 1e9:.1f} GB of the decoded images")
        hints.append("a smaller backbone or image_size")
        return OutOfMemory(
            f"A step of {images} images does not fit into the memory of {where}. Use {'; or '.join(hints)}."
        )


def smaller_settings(recipe: Recipe, world: int) -> dict[str, int]:
    """Return a batch_size and a chunk with which a step of each of `world` processes needs less memory, if any.

    Batch norm sees at least two images of a process.
    """
    images = recipe.batch_size // world
    passed = min(recipe.chunk or images, images)
    found = {}
    if (half := max(2, images // 2)) < images:
        found["batch_size"] = half * world
    if (quarter := max(2 + images % 2, passed // 4)) < passed:  # an odd batch in parts of two leaves a single image
        found["chunk"] = quarter
    return found
