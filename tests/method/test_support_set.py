"""The support set is the paper's queue: first in, first out, looked up before it is written."""

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.method import SupportSet, nearest
from nnclr_hub.method import neighbors as neighbors_module


def equation_4(z: torch.Tensor, queue: torch.Tensor) -> list[int]:
    """NN(z, Q) = argmin over q of the L2 distance of the normalized vectors, by a loop."""
    z, queue = F.normalize(z, dim=1), F.normalize(queue, dim=1)
    return [min(range(len(queue)), key=lambda j: float((row - queue[j]).norm())) for row in z]


def test_lookup_equals_the_equation(monkeypatch):
    torch.manual_seed(0)
    support = SupportSet(50, 6)
    z = 5 * torch.randn(20, 6)
    want, random_state = equation_4(z, support.queue), torch.get_rng_state()
    for chunk in (1 << 23, 140, 1):  # one chunk, chunks that do not divide the queue, row by row
        monkeypatch.setattr(neighbors_module, "PIECE", chunk)
        found = support.lookup(z)
        assert found.index.tolist() == want
        assert torch.equal(found.embeddings, support.queue[want])
        torch.testing.assert_close(found.similarity, F.cosine_similarity(z, support.queue[want]))
    assert torch.equal(torch.get_rng_state(), random_state), "only one of several neighbors is sampled"


@pytest.mark.parametrize("queue", ["random", "narrow", "equal", "trained"])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
def test_a_lookup_by_maxima_of_pieces_equals_one_of_all_rows(kind, queue, monkeypatch):
    """In bf16 many rows are equally near: rows that differ in the fourth digit, copies of rows, own rows."""
    torch.manual_seed(0)
    support, z, ids = SupportSet(600, 16), torch.randn(24, 16), torch.arange(24)
    rows = {
        "random": torch.randn(600, 16),
        "narrow": z[0] + 1e-3 * torch.randn(600, 16),
        "equal": z[:1].expand(600, -1),
        "trained": z[torch.arange(600) % 24] + 0.02 * torch.randn(600, 16),
    }[queue]
    support.enqueue(rows, ids=torch.arange(600) % 200)
    exact = F.normalize(z.double(), dim=1) @ support.queue.double().T
    monkeypatch.setattr(neighbors_module, "CPU_PIECE", 24 * 7)
    monkeypatch.setattr(neighbors_module, "multiplies_bf16", lambda: kind == torch.bfloat16)
    for known in (ids, None):
        want = support.lookup(z, known)
        with monkeypatch.context() as patch:
            patch.setattr(neighbors_module, "LEAST_PRUNED", 0)
            found = support.lookup(z, known)
        torch.testing.assert_close(found.similarity, want.similarity, atol=1e-6, rtol=0)
        chosen, best = (exact.gather(1, one.index[:, None]) for one in (found, want))
        torch.testing.assert_close(chosen, best, atol=3e-7, rtol=0)  # float32 adds in another order
        if queue in ("random", "trained"):
            assert torch.equal(found.index, want.index)
            assert torch.equal(found.own, want.own)
            assert found.own.any() == (known is not None and queue == "trained")


def test_without_any_allowed_row_there_is_no_neighbor(monkeypatch):
    for least in (0, 1 << 22):
        monkeypatch.setattr(neighbors_module, "LEAST_PRUNED", least)
        support = SupportSet(8, 4)
        support.refill(torch.randn(8, 4), ids=torch.zeros(8, dtype=torch.int64))
        found = support.lookup(torch.randn(2, 4), ids=torch.tensor([0, 1]))
        assert (found.similarity[0], found.own.tolist()) == (-torch.inf, [True, False])
        assert found.similarity[1].isfinite()


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.lists(st.integers(1, 30), min_size=1, max_size=8))
def test_the_queue_holds_the_last_rows_in_first_in_first_out_order(size, batches):
    """Compare with a list, with batches that do not divide the queue, wrap around it, or exceed it."""
    support = SupportSet(size, 3)
    before = list(support.queue.clone())  # oldest first, since nothing has been written
    number = 0
    for batch in batches:
        z = torch.randn(batch, 3)
        ids = torch.arange(number, number + batch)
        support.enqueue(z, ids=ids, labels=ids + 1000)
        number += batch
        before = [*before, *F.normalize(z, dim=1)][-size:]
        now = torch.roll(support.queue, -int(support.pointer), 0)
        torch.testing.assert_close(now, torch.stack(before))
    held = sorted(support.ids[support.ids >= 0].tolist())
    assert held == list(range(max(0, number - size), number))
    assert torch.equal(support.labels[support.ids >= 0], support.ids[support.ids >= 0] + 1000)


def test_a_sample_never_gets_its_own_older_embedding():
    """Its row is skipped for the next nearest, and counted."""
    torch.manual_seed(0)
    z = torch.randn(10, 4)
    support = SupportSet(10, 4)
    support.enqueue(z, ids=torch.arange(10))
    found = support.lookup(z, ids=torch.arange(10))
    assert found.own.all()
    assert (support.ids[found.index] != torch.arange(10)).all()
    similarity = F.normalize(z, dim=1) @ support.queue.T
    assert found.index.tolist() == similarity.fill_diagonal_(-2).argmax(1).tolist()
    assert support.lookup(z, ids=torch.arange(10, 20)).own.tolist() == [False] * 10
    unmasked = SupportSet(10, 4, mask_own=False)
    unmasked.enqueue(z, ids=torch.arange(10))
    found = unmasked.lookup(z, ids=torch.arange(10))
    assert found.index.tolist() == list(range(10))
    assert found.own.tolist() == [True] * 10
    assert unmasked.lookup(z).own.tolist() == [False] * 10
    assert unmasked.lookup(z).own.dtype == torch.bool


@pytest.mark.parametrize("chunk", [1 << 23, 140])
def test_the_k_nearest_rows_are_those_of_other_images(monkeypatch, chunk):
    monkeypatch.setattr(neighbors_module, "PIECE", chunk)
    torch.manual_seed(0)
    support, z, ids = SupportSet(50, 6), 5 * torch.randn(20, 6), torch.arange(20)
    support.enqueue(z + torch.randn(20, 6), ids=ids)
    own = ids[:, None] == support.ids[None]
    similarity, index = (F.normalize(z, dim=1) @ support.queue.T).masked_fill(own, -2).topk(3, dim=1)
    with torch.autocast("cpu", torch.bfloat16):
        rows, found = support.nearest_k(z, 3, ids)
    torch.testing.assert_close(rows, support.queue[index])
    torch.testing.assert_close((found.embeddings, found.similarity), (rows[:, 0], similarity[:, 0]))
    assert (found.index.tolist(), found.own.tolist()) == (index[:, 0].tolist(), [False] * 20)
    assert found.own.dtype == torch.bool
    assert (nearest(support.queue[20:], support.queue.repeat(3, 1))[1] == torch.arange(20, 50)).all()


def test_a_neighbor_is_never_a_row_of_the_same_step():
    """With an enqueue before the look-up, each sample would find itself, and the method would be SimCLR."""
    torch.manual_seed(1)
    support = SupportSet(64, 8, mask_own=False)
    for step in range(6):
        z, ids = torch.randn(16, 8), torch.arange(16 * step, 16 * step + 16)
        found = support.lookup(z, ids=ids)
        assert not found.own.any()
        assert found.similarity.max() < 0.999
        support.enqueue(z, ids=ids)


def test_ages_and_fill_count_enqueues():
    support = SupportSet(6, 2)
    assert support.fill() == 0
    support.enqueue(torch.randn(3, 2))
    assert support.fill() == 0.5
    support.enqueue(torch.randn(2, 2))
    assert support.age(torch.tensor([0, 4])).tolist() == [2, 1]


def test_lookup_is_in_float32_under_autocast():
    """bf16 changes few of the indices, so the similarities are compared: they would differ in the third digit."""
    torch.manual_seed(0)
    support, z, ids = SupportSet(512, 64), torch.randn(64, 64), torch.arange(64)
    outside = support.lookup(z, ids)
    with torch.autocast("cpu", torch.bfloat16):
        inside = support.lookup(z, ids)
    assert inside.similarity.dtype == inside.embeddings.dtype == torch.float32
    assert torch.equal(inside.similarity, outside.similarity)
    assert torch.equal(inside.index, outside.index)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("variant", [{}, {"k": 3}, {"pick": "soft"}, {"replacement": "random"}])
def test_a_module_of_another_precision_still_looks_up_in_float32(dtype, variant):
    """After `learner.to(torch.bfloat16)`, enqueued rows are still found."""
    torch.manual_seed(0)
    support = SupportSet(16, 8, **variant).to(dtype)
    z = torch.randn(16, 8)
    support.enqueue(z.to(dtype))
    found = support.lookup(z.to(dtype))
    assert (found.embeddings.dtype, found.similarity.dtype) == (torch.float32, torch.float32)
    if variant == {}:
        assert torch.equal(found.index, torch.arange(16))


# ---- the paper's variants


@pytest.mark.parametrize(("chunk", "k"), [(1 << 23, 4), (140, 2)])
def test_one_of_the_k_nearest_is_sampled_separately_for_each_query(monkeypatch, chunk, k):
    monkeypatch.setattr(neighbors_module, "PIECE", chunk)
    torch.manual_seed(0)
    support = SupportSet(50, 6, k=k)
    z, ids = torch.randn(20, 6), torch.arange(20)
    support.enqueue(z, ids=ids)
    similarity = (F.normalize(z, dim=1) @ support.queue.T).masked_fill(ids[:, None] == support.ids[None], -2)
    nearest_k = similarity.argsort(dim=1, descending=True)[:, :k].tolist()
    seen = [set() for _ in z]
    for _ in range(100):
        for i, place in enumerate(support.lookup(z, ids).index.tolist()):
            seen[i].add(place)
    assert [sorted(one) for one in seen] == [sorted(near) for near in nearest_k]
    ranks = {near.index(place) for near, place in zip(nearest_k, support.lookup(z, ids).index.tolist(), strict=True)}
    assert len(ranks) > 1, "not one rank for the whole batch"


@pytest.mark.parametrize("chunk", [1 << 23, 140, 1])
@pytest.mark.parametrize("temperature", [0.01, 0.1, 1.0])
def test_a_soft_neighbor_is_the_mean_of_the_queue_weighted_by_similarity(monkeypatch, chunk, temperature):
    """Compare with an explicit softmax, with the sample's own rows excluded."""
    monkeypatch.setattr(neighbors_module, "PIECE", chunk)
    torch.manual_seed(0)
    support = SupportSet(50, 6, pick="soft", **({} if temperature == 0.1 else {"soft_temperature": temperature}))
    support.enqueue(torch.randn(30, 6), ids=torch.arange(30))
    z, ids = torch.randn(20, 6), torch.arange(20)
    weight = (F.normalize(z, dim=1) @ support.queue.T / temperature).double().exp()
    weight[ids[:, None] == support.ids[None]] = 0
    mean = weight @ support.queue.double() / weight.sum(1, keepdim=True)
    want = F.normalize(mean, dim=1)
    own = ids[:, None] == support.ids[None]
    got = neighbors_module.soft_nearest(
        F.normalize(z, dim=1), support.queue, temperature, lambda queries, rows: own[queries, rows]
    )
    torch.testing.assert_close(got, mean.float(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(support.lookup(z, ids=ids).embeddings, want.float(), atol=1e-5, rtol=1e-4)


def test_the_oracle_picks_the_nearest_of_the_same_class_or_else_the_nearest():
    torch.manual_seed(0)
    support = SupportSet(30, 4, pick="oracle")
    support.enqueue(torch.randn(20, 4), ids=torch.arange(20), labels=torch.arange(20) % 3)
    z, labels = torch.randn(9, 4), torch.tensor([0, 1, 2, 0, 1, 2, 7, -1, 0])
    for ids in (None, torch.arange(9)):
        own = torch.zeros(9, 30, dtype=torch.bool) if ids is None else ids[:, None] == support.ids[None]
        found = support.lookup(z, ids=ids, labels=labels)
        similarity = (F.normalize(z, dim=1) @ support.queue.T).masked_fill(own, -2)
        for i, label in enumerate(labels.tolist()):
            same = (support.labels == label) & (support.labels >= 0) & ~own[i]
            candidates = similarity[i].masked_fill(~same, -2) if same.any() else similarity[i]
            assert found.index[i] == candidates.argmax(), label
    with pytest.raises(InvalidRequest, match="labels"):
        support.lookup(z)


def test_the_oracle_samples_only_rows_of_the_class():
    """Classes with one row and with several, in one batch."""
    torch.manual_seed(0)
    support, labels = SupportSet(8, 4, pick="oracle", k=3), torch.tensor([0, 1, 1, 1, 2, 2, 3, 3])
    support.enqueue(torch.randn(8, 4), labels=labels)
    z = torch.randn(8, 4)
    for _ in range(30):
        found = support.lookup(z, labels=labels.flip(0))
        assert torch.equal(support.labels[found.index], labels.flip(0))


def test_random_replacement_overwrites_rows_anywhere_and_alike_on_all_ranks():
    two = [SupportSet(100, 3, replacement="random", seed=4) for _ in range(2)]
    for _ in range(5):
        z = torch.randn(30, 3)
        for support in two:
            support.enqueue(z)
    assert torch.equal(two[0].queue, two[1].queue)
    written = two[0].enqueued_at
    assert sorted(set(written.tolist())) == [-1, 0, 1, 2, 3, 4]
    assert (written == 4).sum() == 30
    assert (written == 0).sum() < 25, "older rows are overwritten while initial random rows remain"
    assert (written[:30] == 0).sum() < 25, "not in order"


def test_random_replacement_continues_after_loading_or_copying():
    """The random rows depend on the number of enqueues, which is part of the state."""
    torch.manual_seed(0)
    batches, once = torch.randn(7, 30, 3), SupportSet(100, 3, replacement="random", seed=4)
    for z in batches[:4]:
        once.enqueue(z)
    again = SupportSet(100, 3, replacement="random", seed=4)
    again.load_state_dict(once.state_dict())
    copied = copy.deepcopy(once)
    for z in batches[4:]:
        for support in (once, again, copied):
            support.enqueue(z)
    assert torch.equal(once.queue, again.queue)
    assert torch.equal(once.queue, copied.queue)


def test_refill_replaces_every_row():
    support = SupportSet(12, 3)
    z = torch.randn(12, 3)
    support.refill(z, ids=torch.arange(12), labels=torch.arange(12))
    torch.testing.assert_close(support.queue, F.normalize(z, dim=1))
    assert support.fill() == 1
    assert support.ids.tolist() == support.labels.tolist() == list(range(12))
    for wrong in ({"z": z[:11]}, {"z": z, "ids": torch.arange(11)}, {"z": z, "labels": torch.arange(11)}):
        with pytest.raises(InvalidRequest):
            support.refill(**wrong)


@pytest.mark.parametrize(
    "choice",
    [{"pick": "farthest"}, {"replacement": "lifo"}, {"k": 0}, {"size": 0}, {"dim": 0}, {"k": 2, "pick": "soft"}],
)
def test_an_invalid_choice_is_rejected(choice):
    with pytest.raises(InvalidRequest, match=rf"\b{next(iter(choice))}\b"):
        SupportSet(**{"size": 10, "dim": 3, **choice})


@pytest.mark.parametrize(
    ("z", "given"), [((4, 1), {}), ((4, 5), {}), ((4, 3), {"ids": [7]}), ((4, 3), {"labels": [1, 2, 3, 4, 5]})]
)
def test_rows_that_do_not_fit_are_rejected_before_any_write(z, given):
    support = SupportSet(10, 3)
    before = copy.deepcopy(support.state_dict())
    for call in (support.enqueue, *([] if given else [support.lookup, lambda z: support.nearest_k(z, 2)])):
        with pytest.raises(InvalidRequest, match="rows of 3"):
            call(torch.randn(z), **{name: torch.tensor(one) for name, one in given.items()})
    assert all(torch.equal(before[name], now) for name, now in support.state_dict().items())
