"""Two optimizer steps of every method and a short run, in one process or in two, for a test that compares them.

The two processes write OUT/rank0.pt, OUT/rank1.pt and the run folder OUT/run, with the environment that torchrun sets.
"""

import multiprocessing
import os
import signal
from pathlib import Path

import torch
from timm.layers import BatchNormAct2d
from tiny_runs import recipe
from torch import nn
from waiting import free_port

from nnclr_hub.method import METHODS, Learner, PredictionHead, ProjectionHead, Prototypes, SupportSet
from training.distributed import Ranks, joined, share_gradients, synchronize_norms
from training.pretrain import pretrain
from training.run import Callback

BATCH = 12
# name -> (method, options of the learner, share of neighbors, small views)
CASES = {
    **{method: (method, {}, 1.0, 0) for method in METHODS},
    "transposed": ("nnclr", {"transposed_term": True}, 1.0, 0),
    "transposed_simclr": ("simclr", {"transposed_term": True}, 1.0, 0),
    "gate": ("nnclr", {}, 0.5, 0),
    "multicrop": ("nnclr", {}, 1.0, 2),
    "forget": ("nnclr", {"groups": torch.arange(2 * BATCH) % 3}, 0.5, 0),
    "both_views": ("momentum_nnclr", {"both_views": True}, 1.0, 0),
    # batch norm would see each chunk separately, so this backbone has none
    "chunks": ("nnclr", {"chunk": 3}, 1.0, 0),
}


def make(method: str, options: dict) -> Learner:
    torch.manual_seed(0)
    row = METHODS[method]
    backbone = nn.Sequential(
        nn.Conv2d(3, 6, 3, bias=False),
        nn.ReLU() if "chunk" in options else BatchNormAct2d(6),  # timm's, which includes a ReLU
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
    )
    heads = {"none": lambda: None, "prototypes": lambda: Prototypes(8, 5)}
    prediction = heads.get(row.prediction, lambda: PredictionHead(8, 16))()
    support = SupportSet(30, 8) if row.uses_support_set else None
    parts = [backbone, row, ProjectionHead(24, 16, 8), prediction, support]
    teacher = {"teacher": torch.randn(2 * BATCH, 8)} if row.target_encoder == "teacher" else {}
    return Learner(*parts, **teacher, **options)


def one_step(case: str, ranks: Ranks) -> dict[str, torch.Tensor]:
    """Return losses over the whole batch, gradients, weights, statistics and the support set after two steps."""
    method, options, share, small = CASES[case]
    learner = make(method, options)
    if ranks.world > 1:
        synchronize_norms(learner, ranks.where)
    shared = share_gradients(learner, ranks)
    optimizer = torch.optim.SGD([p for p in learner.parameters() if p.requires_grad], lr=0.1)
    draws = torch.Generator().manual_seed(1)
    part = slice(ranks.rank * BATCH // ranks.world, (ranks.rank + 1) * BATCH // ranks.world)
    losses = []
    for step in range(2):
        sides = [10, 10, *[6] * small]
        views = [torch.randn(BATCH, 3, side, side, generator=draws)[part] for side in sides]
        ids = torch.arange(step * BATCH, (step + 1) * BATCH)[part]
        result = shared(views, ids=ids, labels=ids % 3, neighbor_share=share)
        optimizer.zero_grad()
        result.loss.backward()
        losses.append(ranks.gather(result.loss.detach()[None]).mean())
        gradients = {f"gradient {n}": p.grad.clone() for n, p in learner.named_parameters() if p.grad is not None}
        optimizer.step()
        learner.enqueue(result, ids, ids % 3)
        learner.update_momentum_encoder(0.9)
    state = {name: value.clone() for name, value in learner.state_dict().items()}
    return {"loss": torch.stack(losses), **gradients, **state}


class Unreadable(Callback):
    def on_start(self, run):
        run.batches.pixels.unreadable.update({1: "met by all", 10 + run.ranks.rank: "met by one"})


def short_run(data: Path, out: Path) -> None:
    """Take ten steps, with log lines after four, eight and ten, and scores and a checkpoint after five and ten.

    Each rank meets two images that it cannot read, one of them in common.
    """
    changes = ("epochs=2", "batch_size=8", "log_every=4", "checkpoint_every=1")
    changes += ("warm_start=0", "ramp=0", "gate=1", "base_lr=1e-6")  # a higher rate would amplify rounding
    assert pretrain(recipe(*changes), data, out, device="cpu", callbacks=[Unreadable()]).finished


def work(rank: int, ports: list[str], data: Path, out: Path) -> None:
    os.environ |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": ports[0]}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    with joined("cpu") as ranks:
        torch.save({case: one_step(case, ranks) for case in CASES}, out / f"rank{ranks.rank}.pt")
    os.environ["MASTER_PORT"] = ports[1]
    short_run(data, out / "run")


def fork(*arguments) -> None:
    """Run both ranks, of which one is a fork, because imports take longest."""
    other = os.fork()
    try:
        work(int(other == 0), *arguments)
    except BaseException:
        if other:  # it would wait for this one
            os.kill(other, signal.SIGKILL)
        raise
    if other == 0:
        os._exit(0)
    assert os.waitpid(other, 0)[1] == 0


def both_ranks(data: Path, out: Path) -> int | None:
    """Run both processes; return the exit code. Spawned: torch refuses gradients in a fork of what took some."""
    ports = [str(free_port()), str(free_port())]
    both = multiprocessing.get_context("spawn").Process(target=fork, args=(ports, data, out))
    both.start()
    both.join(300)
    both.kill()
    return both.exitcode
