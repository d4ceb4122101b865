"""The support set is the paper's queue: first in, first out, looked up before it is written."""

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from nnclr_hub.method import SupportSet
from nnclr_hub.method import neighbours as neighbours_module


def equation_4(z: torch.Tensor, queue: torch.Tensor) -> list[int]:
    """NN(z, Q) = argmin over q of the L2 distance of the normalised vectors, by a loop."""
    z, queue = F.normalize(z, dim=1), F.normalize(queue, dim=1)
    return [min(range(len(queue)), key=lambda j: float((row - queue[j]).norm())) for row in z]


def test_lookup_equals_the_equation(monkeypatch):
    torch.manual_seed(0)
    support = SupportSet(50, 6)
    z = 5 * torch.randn(20, 6)
    want = equation_4(z, support.queue)
    for chunk in (8192, 7, 1):  # in one piece, and in pieces that do not divide the queue
        monkeypatch.setattr(neighbours_module, "CHUNK", chunk)
        found = support.lookup(z)
        assert found.index.tolist() == want
        assert torch.equal(found.embeddings, support.queue[want])
        torch.testing.assert_close(found.similarity, F.cosine_similarity(z, support.queue[want]))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.lists(st.integers(1, 30), min_size=1, max_size=8))
def test_the_queue_holds_the_last_rows_in_first_in_first_out_order(size, batches):
    """Against a list, with batches that do not divide the queue, wrap around it, or exceed it."""
    support = SupportSet(size, 3)
    before = list(support.queue.clone())  # oldest first, as nothing was written yet
    number = 0
    for batch in batches:
        z = torch.randn(batch, 3)
        ids = torch.arange(number, number + batch)
        support.enqueue(z, ids=ids)
        number += batch
        before = [*before, *F.normalize(z, dim=1)][-size:]
        now = torch.roll(support.queue, -int(support.pointer), 0)
        torch.testing.assert_close(now, torch.stack(before))
    held = sorted(support.ids[support.ids >= 0].tolist())
    assert held == list(range(max(0, number - size), number))


def test_a_sample_never_gets_its_own_older_embedding():
    """Its row is passed over for the next nearest, and counted."""
    torch.manual_seed(0)
    z = torch.randn(10, 4)
    support = SupportSet(10, 4)
    support.enqueue(z, ids=torch.arange(10))
    found = support.lookup(z, ids=torch.arange(10))
    assert found.own.all()
    assert (support.ids[found.index] != torch.arange(10)).all()
    similarity = F.normalize(z, dim=1) @ support.queue.T
    assert found.index.tolist() == similarity.fill_diagonal_(-2).argmax(1).tolist()
    unmasked = SupportSet(10, 4, mask_own=False)
    unmasked.enqueue(z, ids=torch.arange(10))
    assert unmasked.lookup(z, ids=torch.arange(10)).index.tolist() == list(range(10))


def test_ages_and_fill_count_enqueues():
    support = SupportSet(6, 2)
    assert support.fill() == 0
    support.enqueue(torch.randn(3, 2))
    assert support.fill() == 0.5
    support.enqueue(torch.randn(2, 2))
    assert support.age(torch.tensor([0, 4])).tolist() == [2, 1]


def test_the_queue_is_saved_and_the_bank_is_the_only_matrix():
    support = SupportSet(6, 2)
    support.enqueue(torch.randn(4, 2), ids=torch.arange(4))
    state = support.state_dict()
    assert [name for name, value in state.items() if value.ndim == 2] == ["queue"]
    other = SupportSet(6, 2, seed=1)
    other.load_state_dict(state)
    assert torch.equal(other.queue, support.queue)
    assert other.pointer == support.pointer
    torch.testing.assert_close(support.queue.norm(dim=1), torch.ones(6))


def test_lookup_is_in_float32_under_autocast():
    torch.manual_seed(0)
    support = SupportSet(4096, 64)
    z = torch.randn(64, 64)
    with torch.autocast("cpu", torch.bfloat16):
        inside = support.lookup(z)
    assert torch.equal(inside.index, support.lookup(z).index)
