"""The part of a step up to the gradients as one graph, recorded once and replayed at each later step.

    graph = StepGraph(run, CudaRecorder(device), autocast)
    graph.load(batches.draw(step), neighbor_share)      # rows, boxes and random numbers: the only input from the host
    done = graph.run()                                  # the gradients are in the parameters

A step of a ResNet-18 has more than a thousand small operations, and a CPU launches them more slowly than a GPU computes
them. The graph holds the gather of the images, the views, the forward and backward passes, the loss and the metrics.
Optimizer, momentum encoder and support set stay outside: they are a few launches, and their learning rates are Python
numbers.

The first steps of a view size run eagerly, on the stream of the recording: they are real training steps, and let the
libraries choose their algorithms. The result of a pass is in the memory of the graph, and the next step overwrites it.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from nnclr_hub.method import Learner, Step, SupportSet

from .data.augment import NUMBERS, Change, StoredImages, change_all, colors_and_blur, make_views
from .data.batches import Draw
from .data.image_pack import PackedPixels
from .data.views import AUGMENTATIONS, View
from .monitor import Metrics, measure_step
from .run import Run

log = logging.getLogger(__name__)

EAGER_STEPS = 3  # with a view size, before its step is recorded
RING = 3  # steps whose inputs may be on their way to the device


@dataclass(frozen=True)
class Pass:
    """A forward and backward pass of a rank's part of a batch.

    step: what the learner returned.
    ids, labels: (B,) int64 on the device.
    metrics: see `measure_step`.
    """

    step: Step
    ids: Tensor
    labels: Tensor
    metrics: Metrics


class Recorder(Protocol):
    """Records the operations of a function on a device, and replays them.

    pinned: whether the device reads pinned memory of the host while the program continues.
    """

    pinned: bool

    def stream(self) -> AbstractContextManager[None]:
        """Run the enclosed operations on the stream of the recording, after those before and before those after."""
        ...

    def record(self, body: Callable[[], Pass]) -> Pass:
        """Record the operations of `body` without running them, and return its result, which has no values yet."""
        ...

    def replay(self) -> None:
        """Run the recorded operations; inputs and results are in the same memory each time."""
        ...

    def reset(self) -> None:
        """Free the memory of the recording."""
        ...


class CudaRecorder:
    """Records a CUDA graph."""

    pinned = True

    def __init__(self, where: torch.device) -> None:
        self._stream = torch.cuda.Stream(where)
        self._graph: torch.cuda.CUDAGraph | None = None

    @contextmanager
    def stream(self) -> Iterator[None]:
        outside = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(outside)
        with torch.cuda.stream(self._stream):
            yield
        outside.wait_stream(self._stream)

    def record(self, body: Callable[[], Pass]) -> Pass:
        self._graph = torch.cuda.CUDAGraph()
        # other threads, such as those of callbacks, may use the device at the same time
        with torch.cuda.graph(self._graph, stream=self._stream, capture_error_mode="thread_local"):
            return body()

    def replay(self) -> None:
        assert self._graph is not None
        self._graph.replay()

    def reset(self) -> None:
        self._graph = None
        torch.cuda.empty_cache()


def can_compile(where: torch.device) -> bool:
    """Return whether torch can compile for this GPU; Triton needs a C compiler, too, which containers may lack."""
    if where.type != "cuda" or find_spec("triton") is None:
        return False
    try:
        torch.compile(lambda x: x + 1, dynamic=False)(torch.zeros(1, device=where))
    except (RuntimeError, OSError) as error:  # torch's errors of compilers are RuntimeErrors
        log.warning("The views are not compiled: %s", str(error).splitlines()[0])
        return False
    return True


def why_eager(run: Run) -> str | None:
    """Return why the steps of a run cannot be recorded, or None."""
    recipe, pixels = run.recipe, run.batches.pixels
    reasons = {
        "graph=false": not recipe.graph,
        "several processes exchange gradients": run.ranks.world > 1,
        "fp16 scales the loss": run.scaler.is_enabled(),
        f"chunk={recipe.chunk}": recipe.chunk > 0,
        "support_set=current_encoder fills the support set at each step": recipe.support_set == "current_encoder",
        "the images are not in the memory of the device": not (isinstance(pixels, PackedPixels) and pixels.resident),
        "a plug-in may read values": _has_plugins(run),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _has_plugins(run: Run) -> bool:
    operations = any(view.operation for view in AUGMENTATIONS[run.recipe.augmentation])
    learner = run.learner
    parts = type(learner) is not Learner or type(learner.support_set) not in (SupportSet, type(None))
    return operations or parts or learner.objective is not None


class StepGraph:
    """The recorded step of a run.

    failure: why recording failed, if it did; steps are then eager.

    Args:
        autocast: returns the context of the forward pass.
    """

    def __init__(self, run: Run, recorder: Recorder, autocast: Callable[[], torch.autocast]) -> None:
        assert isinstance(run.batches.pixels, PackedPixels)
        self.recorder = recorder
        self.failure: str | None = None
        self._run, self._pack, self._autocast = run, run.batches.pixels, autocast
        compiled = run.recipe.compile_views and can_compile(run.ranks.where)
        # each view has its own shapes and parameters, which are constants of its program
        colors = torch.compile(colors_and_blur, dynamic=False) if compiled else colors_and_blur
        self._change: Change = partial(change_all, change=colors)
        self._labels = torch.from_numpy(run.batches.labels).to(run.ranks.where)
        self._views: tuple[View, ...] = ()
        self._steps = 0  # with these views
        self._ring: list[tuple[Inputs, torch.cuda.Event | None]] = []  # with an event after their last copy
        self._result: Pass | None = None

    def wait(self) -> None:
        """Wait until the device has read the inputs that the next ones replace: it is at most RING steps behind."""
        if self._ring and (sent := self._ring[self._steps % RING][1]) is not None:
            sent.synchronize()

    def load(self, drawn: Draw, neighbor_share: float) -> None:
        """Send the inputs of a step to the device, after `wait`."""
        if self._views != tuple(drawn.views):
            self._start(tuple(drawn.views), len(drawn.rows))
        inputs, sent = self._ring[self._steps % RING]
        inputs.rows.copy_(torch.from_numpy(drawn.rows))
        inputs.numbers.copy_(drawn.numbers)
        inputs.boxes.copy_(self._pack.boxes(drawn.rows, drawn.views, drawn.numbers))
        inputs.share.fill_(neighbor_share)
        for here, there in zip(inputs, self._inputs, strict=True):
            there.copy_(here, non_blocking=True)
        if sent is not None:
            sent.record()

    def run(self) -> Pass:
        """Compute the gradients of the step whose inputs were loaded."""
        self._steps += 1
        if self._result is None and self._steps > EAGER_STEPS and self.failure is None:
            self._record()
        if self._result is None:
            self._run.optimizer.zero_grad(set_to_none=True)
            return self._body()
        self.recorder.replay()
        return self._result

    def _record(self) -> None:
        self._run.optimizer.zero_grad(set_to_none=True)
        try:
            self._result = self.recorder.record(self._body)
        except RuntimeError as error:  # the step runs eagerly, as it did before
            traceback.clear_frames(error.__traceback__)  # they hold the activations in memory
            self.failure = f"recording failed: {str(error).splitlines()[0]}"
            log.warning("Steps are not recorded as a graph: %s.", self.failure)
            self.recorder.reset()

    def _start(self, views: tuple[View, ...], batch: int) -> None:
        self._result, self._steps, self._views = None, 0, views
        self._run.optimizer.zero_grad(set_to_none=True)
        self.recorder.reset()
        where = self._run.ranks.where
        self._inputs = Inputs.empty(len(views), batch, where)
        host, pinned = torch.device("cpu"), self.recorder.pinned
        self._ring = [
            (Inputs.empty(len(views), batch, host, pinned), torch.cuda.Event() if pinned else None) for _ in range(RING)
        ]

    def _body(self) -> Pass:
        inputs, learner = self._inputs, self._run.learner
        labels = self._labels[inputs.rows]
        pixels = StoredImages(self._pack.gather(inputs.rows), inputs.boxes)
        views = make_views(pixels, self._views, inputs.numbers, change=self._change)
        with self._autocast():
            step: Step = learner(views, ids=inputs.rows, labels=labels, neighbor_share=inputs.share)
            step.loss.backward()
        return Pass(step, inputs.rows, labels, measure_step(step, learner.support_set, labels))


class Inputs(NamedTuple):
    """What a step gets from the host, there or on the device.

    rows: (B,) int64, images of the step.
    boxes: (V, B, 4) float32, crops of the views.
    numbers: (V, B, NUMBERS) float32, random numbers of the views.
    share: scalar float64, neighbor_share of the step.
    """

    rows: Tensor
    boxes: Tensor
    numbers: Tensor
    share: Tensor

    @classmethod
    def empty(cls, views: int, batch: int, where: torch.device, pinned: bool = False) -> Inputs:
        """Return inputs of these sizes; `pinned`: in memory that a device reads while the program continues."""
        zeros = partial(torch.zeros, device=where, pin_memory=pinned)
        return cls(
            zeros(batch, dtype=torch.int64),
            zeros(views, batch, 4),
            zeros(views, batch, NUMBERS),
            zeros((), dtype=torch.float64),
        )
