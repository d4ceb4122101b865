"""One optimizer step: views, losses, gradients, the momentum encoder and the support set, in the paper's order.

What is random in a step follows from seed, step and rank alone, so a run that was stopped anywhere goes on as
if it had not been, without a generator's state in the checkpoint.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from nnclr_hub.errors import OutOfMemory
from nnclr_hub.method import Learner, Step, momentum_at

from .data.augment import View, make_views, plan_views
from .data.batches import Batch, Batches
from .data.operations import EAGER, compiled
from .data.order import seed_of
from .distributed import Ranks, share_gradients
from .monitor import Figures, measure_step
from .optimization import Schedule
from .recipes import Recipe


@dataclass(frozen=True)
class Taken:
    """What a step was like; but for the loss, by its last part.

    loss: scalar float32 on the device, the mean over its parts.
    z1: (B, D) projections of the first view.
    figures: see `measure_step`.
    lr: learning rate of the heads.
    augmented: seconds that making the views took; on a GPU, that starting it took.
    """

    loss: Tensor
    z1: Tensor
    figures: Figures
    lr: float
    augmented: float


class Stepper:
    """Takes steps of a recipe.

    Args:
        learner: on its device.
        optimizer, schedule: of it.
        recipe: with sizes that fit the data.
        ranks: this process among those of the run.
        batches: where random images come from, for a support set made by the current encoder.
        steps: of the whole run.
    """

    def __init__(
        self,
        learner: Learner,
        optimizer: torch.optim.Optimizer,
        schedule: Schedule,
        recipe: Recipe,
        ranks: Ranks,
        batches: Batches,
        steps: int,
    ) -> None:
        self._learner, self._optimizer, self._schedule = learner, optimizer, schedule
        self._recipe, self._ranks, self._batches, self._steps = recipe, ranks, batches, steps
        self._shared = share_gradients(learner, ranks)
        fused = recipe.compile or recipe.compile_views
        self._operations = compiled() if fused and ranks.where.type == "cuda" else EAGER
        self._augmenting = 0.0  # seconds of the step
        self._draws = torch.Generator()  # every draw of the augmentation

    def take(self, batch: Batch, step: int) -> Taken:
        """One step.

        Raises:
            OutOfMemory: the device cannot hold it; names a batch that fits.
        """
        self._seed(step)
        lr = self._schedule.set(step)
        parts = self._descend(batch, step)
        if parts is None:  # out here nothing holds the step's memory any more
            raise self._explain(batch, step)
        last = parts[-1]
        figures = measure_step(last, self._learner.support_set, batch.labels[-len(last.z1) :])
        if self._recipe.support_set != "current_encoder":
            for (_, part), result in zip(self._parts(batch), parts, strict=True):
                self._learner.enqueue(result, part.ids, part.labels)
        self._learner.follow(momentum_at(step / self._steps, self._recipe.ema))
        loss = torch.stack([part.loss.detach() for part in parts]).mean()
        return Taken(loss, last.z1, figures, lr, self._augmenting)

    def views(self, step: int) -> list[View]:
        """What is made of each image at a step."""
        recipe = self._recipe
        return plan_views(
            recipe.augmentation,
            recipe.size_at(step / self._steps),
            scale=(recipe.crop_scale[0], recipe.crop_scale[1]) if recipe.crop_scale else None,
            small=recipe.local_crops,
            small_size=recipe.local_size,
            small_scale=(recipe.local_scale[0], recipe.local_scale[1]),
            degrade=recipe.degrade,
            mean=recipe.mean,
            std=recipe.std,
        )

    # ---- parts of a step

    def _descend(self, batch: Batch, step: int) -> list[Step] | None:
        """Gradients, and the optimizer's step; None if the device cannot hold them."""
        try:
            parts = self._gradients(batch, step)
            if self._recipe.clip:
                nn.utils.clip_grad_norm_(self._learner.parameters(), self._recipe.clip)
            self._optimizer.step()
            return parts
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            traceback.clear_frames(error.__traceback__)  # they hold the activations
            return None

    def _seed(self, step: int) -> None:
        seed = seed_of(self._recipe.seed, step, self._ranks.rank)
        torch.manual_seed(seed)  # stochastic depth, one of the k nearest
        self._draws.manual_seed(seed)

    def _gradients(self, batch: Batch, step: int) -> list[Step]:
        """Adds up the gradients of the batch's parts; most recipes have one."""
        progress = step / self._steps
        self._optimizer.zero_grad(set_to_none=True)
        if self._recipe.support_set == "current_encoder" and self._learner.support_set is not None:
            self._refill(step)
        results, self._augmenting = [], 0.0
        for last, part in self._parts(batch):
            began = time.perf_counter()
            views = make_views(part.images, part.aspect, self.views(step), self._draws, self._operations)
            self._augmenting += time.perf_counter() - began
            with self._autocast(), self._synchronized(last):
                result: Step = self._shared(
                    views,
                    ids=part.ids,
                    labels=part.labels,
                    neighbor_share=self._recipe.neighbor_share(progress),
                )
                (result.loss / self._recipe.accumulate).backward()
            results.append(result)
        return results

    def _parts(self, batch: Batch) -> Iterator[tuple[bool, Batch]]:
        """(is it the last, part) of the batch."""
        size = len(batch.images) // self._recipe.accumulate
        for number in range(self._recipe.accumulate):
            some = slice(number * size, (number + 1) * size)
            part = Batch(batch.images[some], batch.aspect[some], batch.ids[some], batch.labels[some])
            yield number == self._recipe.accumulate - 1, part

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self._ranks.where.type, torch.bfloat16, enabled=self._recipe.precision == "bf16")

    @contextmanager
    def _synchronized(self, last: bool) -> Iterator[None]:
        """Ranks exchange their gradients once a step, with the last part."""
        shared = self._shared
        wait = isinstance(shared, DistributedDataParallel) and not last
        with shared.no_sync() if wait else nullcontext():  # type: ignore[union-attr]
            yield

    def _refill(self, step: int) -> None:
        """ "NNs from current encoder": a random set of images, each rank's share of it, embedded anew."""
        support = self._learner.support_set
        assert support is not None
        # a number that no rank has, and all ranks alike
        draws = torch.Generator().manual_seed(seed_of(self._recipe.seed, step, self._ranks.world))
        rows = torch.randperm(len(self._batches), generator=draws)[: support.size].chunk(self._ranks.world)
        z, ids, labels = [], [], []
        own, most = rows[self._ranks.rank], max(1, self._recipe.batch_size // self._ranks.world)
        for some in own.tensor_split(-(-len(own) // most)):  # equal pieces: batch norm cannot take one of one image
            part = self._batches.of(some)
            view = make_views(part.images, part.aspect, self.views(step)[:1], self._draws)[0]
            with self._autocast():
                z.append(self._learner.project(view))
            ids.append(part.ids)
            labels.append(part.labels)
        gather = self._ranks.gather
        support.refill(*(gather(torch.cat(one)) for one in (z, ids, labels)))

    # ---- when memory runs out

    def _explain(self, batch: Batch, step: int) -> OutOfMemory:
        pictures = len(batch.images)
        fits = self._largest(batch, step)
        where = torch.cuda.get_device_name(self._ranks.where) if self._ranks.where.type == "cuda" else "this machine"
        if not fits:
            return OutOfMemory(
                f"A step of {pictures} images does not fit into the memory of {where}, nor do 2: take a smaller "
                "backbone or image_size."
            )
        do = "do" if self._ranks.world == 1 else "may"  # a trial would leave the other ranks waiting
        return OutOfMemory(
            f"A step of {pictures} images does not fit into the memory of {where}, {fits} {do}: "
            f"--set batch_size={fits * self._ranks.world * self._recipe.accumulate}, or keep the batch and its "
            f"negatives by --set chunk={fits}, which makes the activations twice."
        )

    def _largest(self, batch: Batch, step: int) -> int:
        """The largest half of a half ... of the batch whose gradients can be made; 0 if not even two images'."""
        size = len(batch.images) // self._recipe.accumulate
        while (size := size // 2) >= 2:
            if self._ranks.world > 1:
                return size
            self._optimizer.zero_grad(set_to_none=True)
            if self._ranks.where.type == "cuda":
                torch.cuda.empty_cache()
            try:
                some = Batch(batch.images[:size], batch.aspect[:size], batch.ids[:size], batch.labels[:size])
                views = make_views(some.images, some.aspect, self.views(step), self._draws)
                with self._autocast():
                    self._learner(views, ids=some.ids, labels=some.labels).loss.backward()
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if not _is_out_of_memory(error):
                    raise
            else:
                return size
        return 0


# on the CPU; of the driver, for pinned memory or a kernel's code; of cuBLAS; of cuDNN, whose workspaces do not fit
SHORTAGES = ("allocate memory", "out of memory", "_STATUS_ALLOC_FAILED", "unable to find an engine to execute")


def _is_out_of_memory(error: Exception) -> bool:
    """torch's own class for GPUs; elsewhere a RuntimeError that says so."""
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in SHORTAGES)
