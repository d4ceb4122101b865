"""A step of each method equals the algorithm of its paper."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.method import (
    METHODS,
    TARGETS,
    Batch,
    Learner,
    PredictionHead,
    ProjectionHead,
    Prototypes,
    SupportSet,
    info_nce,
    sigreg,
    sinkhorn,
)


def make(method: str, **options) -> Learner:
    torch.manual_seed(0)
    row = METHODS[method]
    backbone = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 12))
    heads = {"none": lambda: None, "prototypes": lambda: Prototypes(8, 6)}
    prediction = heads.get(row.prediction, lambda: PredictionHead(8, 32))()
    support = SupportSet(40, 8) if row.uses_support_set else None
    parts = [backbone, row, ProjectionHead(12, 24, 8), prediction, support]
    teacher = {"teacher": torch.randn(10, 8)} if row.target_encoder == "teacher" else {}
    return Learner(*parts, **teacher, **options)


@pytest.fixture
def views():
    torch.manual_seed(1)
    return torch.randn(10, 3, 4, 4), torch.randn(10, 3, 4, 4)


def cross_entropy_of_pairs(targets, predictions, tau=0.1):
    targets, predictions = F.normalize(targets, dim=1), F.normalize(predictions, dim=1)
    rows = [-torch.log_softmax(predictions @ targets[i] / tau, dim=0)[i] for i in range(len(targets))]
    return torch.stack(rows).mean()


def test_nnclr_is_algorithm_1(views):
    """loss = L(NN(z1), p2)/2 + L(NN(z2), p1)/2, neighbors from the queue as it was before the step."""
    learner = make("nnclr")
    with torch.no_grad():
        z1, z2 = (learner.projection(learner.backbone(x)) for x in views)
        p1, p2 = learner.prediction(z1), learner.prediction(z2)
        queue = learner.support_set.queue.clone()
        nn1, nn2 = (queue[(F.normalize(z, dim=1) @ queue.T).argmax(1)] for z in (z1, z2))
        want = cross_entropy_of_pairs(nn1, p2) / 2 + cross_entropy_of_pairs(nn2, p1) / 2
    step = learner(views)
    torch.testing.assert_close(step.loss, want)
    assert torch.equal(learner.support_set.queue, queue), "the lookup must not write"
    torch.testing.assert_close((step.neighbors.embeddings, step.neighbor_share), (nn1, torch.ones(())))
    learner.enqueue(step)
    torch.testing.assert_close(learner.support_set.queue[:10], F.normalize(z1, dim=1))
    assert torch.equal(learner.support_set.queue[10:], queue[10:]), "only one view is enqueued"


def test_simclr_is_equation_2_over_both_views(views):
    """With the transposed term, rows and columns change places in half of each loss."""
    learner = make("simclr", temperature=0.2)
    z1, z2 = (learner.projection(learner.backbone(x)) for x in views)
    want = cross_entropy_of_pairs(z1, z2, 0.2) / 2 + cross_entropy_of_pairs(z2, z1, 0.2) / 2
    torch.testing.assert_close(learner(views).loss, want)
    nnclr = make("nnclr", transposed_term=True)
    z = [encode(nnclr, x) for x in views]
    p, near = [nnclr.prediction(one) for one in z], [nnclr.support_set.lookup(one).embeddings for one in z]
    losses = [cross_entropy_of_pairs(near[i], p[1 - i]) + cross_entropy_of_pairs(p[1 - i], near[i]) for i in (0, 1)]
    torch.testing.assert_close(nnclr(views).loss, sum(losses) / 4)


@pytest.mark.parametrize("method", ["nnclr", "nnsiam"])
def test_an_objective_gets_targets_predictions_and_temperature(method, views):
    def product(targets, predictions, temperature, *, gather):
        assert gather.world == 1
        return temperature * (targets * predictions).sum(dim=-1).mean()

    learner = make(method, objective=product, temperature=0.3)
    z = [encode(learner, x) for x in views]
    near = [learner.support_set.lookup(one).embeddings for one in z]
    want = sum((near[i] * learner.prediction(z[1 - i])).sum(dim=1).mean() for i in (0, 1)) * 0.3 / 2
    torch.testing.assert_close(learner(views).loss, want)
    assert learner.chance_loss(10) == {}
    for wrong in (1.5, torch.ones(2), torch.tensor(1)):
        with pytest.raises(InvalidRequest):
            make(method, objective=lambda *_, wrong=wrong, **__: wrong)(views)


def test_ids_and_labels_reach_the_support_set(views):
    """The same views again: each image finds its own row, which is skipped."""
    for method in ("nnclr", "msf"):
        learner, ids, labels = make(method), torch.arange(10), torch.arange(10) % 2
        support = learner.support_set
        learner.enqueue(learner(views, ids=ids), ids, labels)
        assert torch.equal(support.labels[:10], labels)
        assert support.ids[learner(views).neighbors.index].tolist() == ids.tolist()
        assert (support.ids[learner(views, ids=ids).neighbors.index] != ids).all()
    learner = make("momentum_nnclr")
    support = learner.support_set
    learner.enqueue(learner(views, ids=ids), ids, labels)
    support.pick = "oracle"
    found = learner(views, ids=ids, labels=1 - labels).neighbors
    assert torch.equal(support.labels[found.index], 1 - labels)


def test_the_loss_of_a_guess_is_the_entropy_of_the_choices():
    chance = {name: make(name).chance_loss(10).get("chance") for name in METHODS}
    known = {name: math.log(10) for name in METHODS if METHODS[name].objective == "info_nce"}
    assert {name: loss for name, loss in chance.items() if loss} == {
        **known,
        "moco_v2": pytest.approx(math.log(1 + 40)),
        "queue_nnclr": pytest.approx(math.log(1 + 40)),
        "swav": pytest.approx(math.log(6)),
    }


def cosines(targets, predictions):
    return (F.normalize(targets, dim=1) * F.normalize(predictions, dim=1)).sum(1)


def test_simsiam_is_its_papers_algorithm(views):
    """D(p1, z2) / 2 + D(p2, z1) / 2 with D = -cos, with constant targets."""
    learner = make("simsiam")
    z1, z2 = (learner.projection(learner.backbone(x)) for x in views)
    p1, p2 = learner.prediction(z1), learner.prediction(z2)
    want = -cosines(z2.detach(), p1).mean() / 2 - cosines(z1.detach(), p2).mean() / 2
    torch.testing.assert_close(learner(views).loss, want)


def test_nnsiam_replaces_the_constant_branch_with_its_neighbor(views):
    learner = make("nnsiam")
    z1, z2 = (learner.projection(learner.backbone(x)) for x in views)
    p1, p2 = learner.prediction(z1), learner.prediction(z2)
    queue = learner.support_set.queue
    nn1, nn2 = (queue[(F.normalize(z, dim=1) @ queue.T).argmax(1)] for z in (z1, z2))
    torch.testing.assert_close(learner(views).loss, -cosines(nn1, p2).mean() / 2 - cosines(nn2, p1).mean() / 2)


def moved_away(learner):
    """Move the online network away from its average."""
    with torch.no_grad():
        for parameter in learner.online.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return learner


def test_byol_sums_the_squared_distances_of_both_views(views):
    """|p - z'|^2 = 2 - 2 cos of unit vectors, summed over the views; a mean would have a quarter of the gradient."""
    learner = moved_away(make("byol"))
    p1, p2 = (learner.prediction(learner.projection(learner.backbone(x))) for x in views)
    zm1, zm2 = (learner.momentum(x) for x in views)
    want = (2 - 2 * cosines(zm2, p1)).mean() + (2 - 2 * cosines(zm1, p2)).mean()
    torch.testing.assert_close(learner(views).loss + 4, want)


def test_momentum_nnclr_is_algorithm_2(views):
    """Neighbors of zm, negatives from the online p, zm1 enqueued, then f_m = t f_m + (1 - t) f."""
    learner = moved_away(make("momentum_nnclr"))
    with torch.no_grad():
        p1, p2 = (learner.prediction(learner.projection(learner.backbone(x))) for x in views)
        zm1, zm2 = (learner.momentum(x) for x in views)
        queue = learner.support_set.queue.clone()
        nn1, nn2 = (queue[(F.normalize(z, dim=1) @ queue.T).argmax(1)] for z in (zm1, zm2))
    step = learner(views)
    want = cross_entropy_of_pairs(nn1, p2) / 2 + cross_entropy_of_pairs(nn2, p1) / 2
    torch.testing.assert_close(step.loss, want)
    learner.enqueue(step)
    torch.testing.assert_close(learner.support_set.queue[:10], F.normalize(zm1, dim=1))
    torch.testing.assert_close(learner.project(views[0]), zm1)
    before = [p.clone() for p in learner.momentum.parameters()]
    learner.update_momentum_encoder(0.9)
    for was, now, online in zip(before, learner.momentum.parameters(), learner.online.parameters(), strict=True):
        torch.testing.assert_close(now, 0.9 * was + 0.1 * online)


def encode(learner, x):
    return learner.projection(learner.backbone(x))


@pytest.mark.parametrize(("method", "weight"), [("moco_v2", 1.0), ("sce", 0.5), ("ressl", 0.0)])
def test_relational_methods_compare_with_the_queue(method, weight, views):
    """Targets of the momentum encoder, softmaxes over [positive, Q] at 0.1 and over Q at 0.05; own rows left out."""
    learner = moved_away(make(method))
    queue, ids = learner.support_set.queue, torch.arange(10)
    learner.support_set.ids[:10] = ids
    losses = []
    for x, other in (views, views[::-1]):
        p, zm = F.normalize(encode(learner, x), dim=1), F.normalize(learner.momentum(other), dim=1)
        for i in range(10):
            rows = torch.cat([queue[:i], queue[i + 1 :]])
            positive = (p[i] @ zm[i] / 0.1)[None]
            logits = torch.cat([positive, rows @ p[i] / 0.1]) if weight else rows @ p[i] / 0.1
            relation = (1 - weight) * (rows @ zm[i] / 0.05).softmax(0)
            target = torch.cat([torch.tensor([weight]), relation]) if weight else relation
            losses.append(-(target * logits.log_softmax(0)).sum())
    torch.testing.assert_close(learner(views, ids=ids).loss, torch.stack(losses).mean())


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_queue_negatives_are_the_rows_that_are_neither_own_nor_the_neighbor(share, views):
    """-log exp(p.NN / tau) / (exp(p.NN / tau) + sum over other rows of exp(p.q / tau)); the gate as for the batch."""
    learner = make("queue_nnclr")
    queue, ids = learner.support_set.queue, torch.arange(10)
    learner.support_set.ids[:10] = ids
    losses = []
    for x, other in (views, views[::-1]):
        p = F.normalize(learner.prediction(encode(learner, x)), dim=1)
        z = F.normalize(encode(learner, other), dim=1)
        similarity = z.detach() @ queue.T
        similarity[ids, ids] = -1.0  # own rows
        value, place = similarity.max(dim=1)
        gated = value.topk(round(10 * share)).indices.tolist()
        for i in range(10):
            target = queue[place[i]] if i in gated else z[i]
            negatives = sum((p[i] @ queue[q] / 0.1).exp() for q in range(40) if q not in (i, int(place[i])))
            positive = (p[i] @ target / 0.1).exp()
            losses.append(-(positive / (positive + negatives)).log())
    loss, want = learner(views, ids=ids, neighbor_share=share).loss, torch.stack(losses).mean()
    torch.testing.assert_close(loss, want)
    weights = list(learner.projection.parameters())  # of a view as target, too, as with negatives of the batch
    torch.testing.assert_close(torch.autograd.grad(loss, weights), torch.autograd.grad(want, weights))


def test_moco_v3_has_predictions_as_rows_and_momentum_keys_as_columns(views):
    learner = moved_away(make("moco_v3"))
    p1, p2 = (learner.prediction(encode(learner, x)) for x in views)
    k1, k2 = (learner.momentum(x) for x in views)
    want = cross_entropy_of_pairs(p1, k2) / 2 + cross_entropy_of_pairs(p2, k1) / 2
    torch.testing.assert_close(learner(views).loss, want)


@pytest.mark.parametrize("k", [1, 3, 5])
def test_mean_shift_pulls_to_the_target_and_its_nearest_rows(k, views):
    """2 - 2 cos, averaged over the target and its k - 1 nearest rows of Q, summed over the views."""
    learner = moved_away(make("msf", **({} if k == 5 else {"mean_of": k})))
    queue, want = learner.support_set.queue, 0.0
    for x, other in (views, views[::-1]):
        p, zm = learner.prediction(encode(learner, x)), F.normalize(learner.momentum(other), dim=1)
        for i in range(10):
            nearest = queue[(queue @ zm[i]).topk(k - 1).indices]
            rows = torch.cat([zm[i][None], nearest])
            want = want + sum(2 - 2 * F.cosine_similarity(p[i], row, dim=0) for row in rows) / k / 10
    torch.testing.assert_close(learner(views).loss + 4, want)


def test_swav_predicts_the_assignment_of_the_other_view(views):
    learner = make("swav", temperature=0.2, target_temperature=0.1)
    scores = [learner.prediction(encode(learner, x)) for x in views]
    codes = [sinkhorn(one, 0.1) for one in scores]
    want = sum(-(codes[i] * (scores[1 - i] / 0.2).log_softmax(1)).sum(1).mean() for i in range(2)) / 2
    torch.testing.assert_close(learner(views).loss, want)


def test_lejepa_is_agreement_with_the_mean_of_the_large_views_and_sigreg(views):
    learner = make("lejepa", sigreg_weight=0.1)
    small = torch.randn(10, 3, 2, 2)
    z = torch.stack([encode(learner, x) for x in (*views, small)])
    torch.manual_seed(7)
    step = learner([*views, small])
    loss = step.loss
    torch.manual_seed(7)
    directions = torch.randn(8, 256)
    gaussian = sigreg(z, directions / directions.norm(dim=0))
    torch.testing.assert_close((step.z1, step.z2, step.neighbor_share), (z[0], z[1], torch.zeros(())))
    torch.testing.assert_close(loss, 0.9 * (z - z[:2].mean(0)).square().mean() + 0.1 * gaussian)


@pytest.mark.parametrize("method", list(METHODS))
def test_exactly_the_trained_tensors_get_a_gradient(method, views):
    """The queue and the momentum encoder do not."""
    learner = make(method)
    learner(views, ids=torch.arange(10)).loss.backward()
    trained = [*learner.backbone.parameters(), *learner.projection.parameters(), *learner.prediction.parameters()]
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in trained if p.ndim > 1)
    assert {id(p) for p in learner.parameters() if p.requires_grad} == {id(p) for p in trained}
    assert not any(buffer.requires_grad for buffer in learner.buffers())


@pytest.mark.parametrize("method", list(METHODS))
def test_only_targets_without_a_stop_gradient_have_one(method, views):
    """The predictions are constant here, so only the target can carry a gradient."""
    learner = make(method)
    z = [learner.projection(learner.backbone(x)).detach().requires_grad_() for x in views]
    learner.projection = nn.Identity()
    outputs = iter(z)
    learner.backbone = type("Given", (nn.Module,), {"forward": lambda self, x: next(outputs)})()
    learner.prediction = type("Constant", (nn.Module,), {"forward": lambda self, x: x.detach()})()
    loss = learner(views, ids=torch.arange(10)).loss
    assert loss.requires_grad == (method == "simclr"), "LeJEPA has its gradient through what is constant here"


def test_in_the_warm_start_the_view_is_the_positive(views):
    """With a neighbor share of 0 and no prediction head, NNCLR's step is SimCLR's, with its gradient on both sides."""
    simclr = make("simclr")
    nnclr = Learner(simclr.backbone, METHODS["nnclr"], simclr.projection, None, SupportSet(40, 8))
    one, other = nnclr(views, neighbor_share=0.0).loss, simclr(views).loss
    torch.testing.assert_close(one, other)
    weights = list(simclr.online.parameters())
    torch.testing.assert_close(torch.autograd.grad(one, weights), torch.autograd.grad(other, weights))


def test_nnsiam_without_neighbors_is_simsiam_with_its_stop_gradient(views):
    """With a gradient through both sides of the negative cosine SimSiam collapses."""
    nnsiam = make("nnsiam")
    simsiam = Learner(nnsiam.backbone, METHODS["simsiam"], nnsiam.projection, nnsiam.prediction)
    gradients = []
    for learner in (nnsiam, simsiam):
        learner.zero_grad()
        (learner(views, neighbor_share=0.0) if learner is nnsiam else learner(views)).loss.backward()
        gradients.append([p.grad.clone() for p in learner.projection.parameters() if p.grad is not None])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_the_gate_gives_neighbors_to_the_most_similar(views):
    learner = make("nnclr")
    with torch.no_grad():
        z = learner.projection(learner.backbone(views[0]))
    found = learner.support_set.lookup(z)
    targets = TARGETS["neighbor"](learner, Batch([z, z], [z, z], neighbor_share=0.3)).of[0]
    takes = (targets == found.embeddings).all(dim=1)
    assert takes.sum() == 3
    assert found.similarity[takes].min() >= found.similarity[~takes].max()
    assert torch.equal(targets[~takes], z[~takes])
    assert learner(views, neighbor_share=0.3).neighbor_share == pytest.approx(0.3)


def test_the_support_set_must_fit_the_method():
    backbone, projection = nn.Linear(3, 4), ProjectionHead(4, 8, 4)
    with pytest.raises(InvalidRequest, match="needs a support set"):
        Learner(backbone, METHODS["nnclr"], projection)
    with pytest.raises(InvalidRequest, match="does not use"):
        Learner(backbone, METHODS["simclr"], projection, None, SupportSet(8, 4))
    with pytest.raises(InvalidRequest, match="transposed_term"):
        Learner(backbone, METHODS["moco_v2"], projection, None, SupportSet(8, 4), transposed_term=True)


def test_multi_crop_takes_targets_from_the_large_views_and_averages_over_pairs(views):
    """Every large view's neighbor against every other view's prediction; 2 large and 3 small make 8 pairs."""
    learner = make("nnclr")
    small = [torch.randn(10, 3, side, side) for side in (2, 3, 2)]  # those of a size pass the network together
    with torch.no_grad():
        z = [learner.projection(learner.backbone(x)) for x in views]
        first, third = encode(learner, torch.cat(small[::2])).chunk(2)
        p = [learner.prediction(one) for one in z]
        p += learner.prediction(torch.cat([first, encode(learner, small[1]), third])).chunk(3)
        queue = learner.support_set.queue
        nn_z = [queue[(F.normalize(one, dim=1) @ queue.T).argmax(1)] for one in z]
        pairs = [(i, j) for i in range(2) for j in range(5) if i != j]
        want = sum(cross_entropy_of_pairs(nn_z[i], p[j]) for i, j in pairs) / len(pairs)
    step = learner([*views, *small])
    assert len(pairs) == 8
    torch.testing.assert_close(step.loss, want)
    learner.enqueue(step)
    torch.testing.assert_close(
        learner.support_set.queue[:10], F.normalize(z[0], dim=1), msg="only the first large view"
    )


def test_both_views_can_be_enqueued(views):
    learner = make("nnclr", both_views=True)
    step = learner(views, ids=torch.arange(10))
    learner.enqueue(step, ids=torch.arange(10))
    torch.testing.assert_close(learner.support_set.queue[:20], F.normalize(torch.cat([step.z1, step.z2]), dim=1))
    assert learner.support_set.ids[:20].tolist() == [*range(10), *range(10)]


@pytest.mark.parametrize("method", list(METHODS))
def test_a_batch_in_chunks_has_the_gradient_of_the_large_batch(method, views):
    """Chunks change memory and time, but not the loss: the heads see the whole batch."""
    gradients = []
    for chunk in (0, 3):
        learner = make(method, chunk=chunk)
        small = torch.randn(10, 3, 2, 2, generator=torch.Generator().manual_seed(5))
        loss = learner([*views, small], ids=torch.arange(10)).loss
        loss.backward()
        gradients.append([loss.detach(), *(p.grad for p in learner.parameters() if p.requires_grad)])
    for whole, chunked in zip(*gradients, strict=True):
        torch.testing.assert_close(chunked, whole, atol=1e-5, rtol=1e-3)


def test_accumulating_small_batches_is_another_loss(views):
    """Half the batch has half the negatives; this is why `chunk` exists."""
    learner = make("simclr")
    learner.projection = nn.Identity()
    halves = [learner([x[half] for x in views]).loss for half in (slice(0, 5), slice(5, 10))]
    assert sum(halves) / 2 < learner(views).loss - 0.1


def test_without_a_projection_head_z_is_the_output_of_the_backbone(views):
    """The paper's vision transformers: "the output corresponding to the [CLS] token" is z."""
    made = make("simclr")
    learner = Learner(made.backbone, dataclasses.replace(METHODS["simclr"], projection="none"))
    h1, h2 = (made.backbone(x) for x in views)
    torch.testing.assert_close(learner(views).loss, info_nce(h1, h2) / 2 + info_nce(h2, h1) / 2)
