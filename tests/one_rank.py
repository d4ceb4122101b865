"""Run every collective of a distributed step in a process group of one, on any device; a test starts this script.

python tests/one_rank.py cuda
"""

import os
import socket
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from two_ranks import make

from nnclr_hub.method import GatherRanks
from training.distributed import Ranks, share_gradients, synchronize_norms

IMAGES = 12


def main(where: torch.device) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    if where.type == "cuda":
        where = torch.device("cuda:0")
        torch.cuda.set_device(where)
    dist.init_process_group("nccl" if where.type == "cuda" else "gloo")
    gather = GatherRanks()
    x = torch.arange(6.0, device=where).view(3, 2).requires_grad_()
    assert torch.equal(gather(x), x.detach())
    gather.with_gradient(x).square().sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, 2 * x.detach())

    learner = make("momentum_nnclr", {}).to(where)
    synchronize_norms(learner, where)
    # as one of two ranks, because a single rank shares nothing
    shared = share_gradients(learner, Ranks(0, 2, where, gather))
    assert isinstance(shared, DistributedDataParallel)
    ids = torch.arange(IMAGES, device=where)
    views = [torch.randn(IMAGES, 3, 10, 10, device=where) for _ in range(2)]
    step = shared(views, ids=ids, labels=ids % 3)
    step.loss.backward()
    learner.enqueue(step, ids, ids % 3)
    learner.update_momentum_encoder(0.9)
    dist.barrier()
    gradients = [p.grad for p in learner.parameters() if p.requires_grad]
    assert all(one is not None and one.isfinite().all() for one in gradients)
    assert learner.support_set is not None
    assert learner.support_set.fill() > 0
    dist.destroy_process_group()


if __name__ == "__main__":
    main(torch.device(sys.argv[1]))
