"""Training on labels: parts of a batch, resume, and results."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console
from scipy.stats import binom
from sklearn.linear_model import LogisticRegression

from nnclr_hub import load_encoder
from nnclr_hub.errors import InvalidRequest
from training import checkpoint
from training.evals import supervised as classifier
from training.evals.supervised import (
    Classifier,
    ClassifierPlan,
    ClassifierTrainer,
    Images,
    _step,
    finetune,
    linear_images,
    semi_supervised,
    stratified,
)
from training.evals.task import Part, Task, read_task
from training.interrupt import Interrupted

CPU, QUIET = torch.device("cpu"), Console(quiet=True)
PLAN = ClassifierPlan(epochs=3, lr=0.05, batch_size=16, micro_batch=8, optimizer="sgd", workers=0)


@pytest.fixture
def subject(data, model, tmp_path) -> ClassifierTrainer:
    return ClassifierTrainer(load_encoder(model, device="cpu"), read_task(data), tmp_path, CPU, QUIET)


def test_a_network_learns_without_what_is_appended_to_its_vectors(model, data, tmp_path):
    subject = ClassifierTrainer(load_encoder(f"{model}+shape", device="cpu"), read_task(data), tmp_path, CPU, QUIET)
    with pytest.raises(InvalidRequest):
        subject.train(PLAN, "finetune")


@pytest.fixture(autouse=True)
def fp32(monkeypatch):
    monkeypatch.setattr(classifier, "choose_precision", lambda *a: "fp32")


def test_a_batch_in_parts_equals_the_whole_batch():
    torch.manual_seed(0)
    x, y = torch.randn(12, 3, 8, 8), torch.arange(12) % 3
    backbone = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 5))
    backbone.num_features = 5
    steps = []
    for parts in ([(x, y)], [(x[:5], y[:5]), (x[5:], y[5:])]):
        torch.manual_seed(1)
        model = Classifier(backbone, 3)
        model.load_state_dict({**model.state_dict()})
        start = {name: value.clone() for name, value in model.state_dict().items()}
        _step(model, torch.optim.SGD(model.parameters(), lr=0.1), parts, replace(PLAN, augmentation="crop"), CPU, False)
        steps.append({name: value - start[name] for name, value in model.state_dict().items()})
        model.load_state_dict(start)
    for name in steps[0]:
        torch.testing.assert_close(steps[0][name], steps[1][name], atol=1e-6, rtol=1e-4)


def test_linear_evaluation_learns_and_does_not_change_the_encoder(subject):
    before = {name: value.clone() for name, value in subject.encoder.backbone.state_dict().items()}
    task = replace(subject.task, test=subject.task.train)
    found = dict(linear_images(replace(subject, task=task), epochs=20, lr=0.3, optimizer="sgd", workers=0))
    name = f"linear_images/{task.name}"
    # on as many images, a guess among three classes is right this often once in a thousand runs
    images = len(task.test.paths)
    assert found[name] > binom.isf(1e-3, images, 1 / 3) / images
    for key, value in subject.encoder.backbone.state_dict().items():
        assert torch.equal(value, before[key]), key


@pytest.mark.slow
def test_a_frozen_head_trained_long_is_logistic_regression(subject, monkeypatch):
    """Without crops, the trained head and scikit-learn agree on almost every image."""
    transform = subject.encoder.transform

    def center(part, preprocessing, plan):
        def make(image):
            return transform.normalize(transform.crop(image)[None])[0]

        return torch.utils.data.DataLoader(Images(part, make), plan.micro_batch, shuffle=True, collate_fn=list)

    monkeypatch.setattr(classifier, "image_loader", center)
    plan = ClassifierPlan(epochs=60, lr=0.5, batch_size=16, micro_batch=16, optimizer="sgd", frozen=True, workers=0)
    scores, labels = subject.train(plan, "linear").scores(subject.task.train)
    features = np.stack(subject.encoder.features_each(subject.task.train.paths))
    theirs = LogisticRegression(C=1e3, max_iter=5000).fit(features, labels)
    assert (scores.argmax(axis=1) == theirs.predict(features)).mean() > 0.9


def test_an_interrupted_training_continues_to_the_same_weights(subject, monkeypatch, tmp_path):
    whole = subject.train(PLAN, "whole").model.state_dict()
    kept = checkpoint.save_checkpoint
    calls = []

    def stop_after_one(folder, state):
        kept(folder, state)
        calls.append(folder)
        if len(calls) == 1:
            raise Interrupted("stop")

    monkeypatch.setattr(classifier, "save_checkpoint", stop_after_one)
    with pytest.raises(Interrupted):
        subject.train(PLAN, "again")
    again = subject.train(PLAN, "again").model.state_dict()
    assert len(calls) == 3
    for name in whole:
        torch.testing.assert_close(again[name], whole[name], atol=1e-6, rtol=1e-5)


def test_a_vision_transformer_is_tuned_at_another_size(data, tmp_path):
    encoder = load_encoder("random:test_vit", device="cpu")
    subject = ClassifierTrainer(encoder, read_task(data), tmp_path, CPU, QUIET)
    size = encoder.transform.preprocessing.input_size * 2
    dict(finetune(subject, epochs=1, image_size=size, workers=0, micro_batch=8))
    again = load_encoder(subject.made[0])
    assert again.transform.preprocessing.input_size == size
    assert again.embed(subject.task.test.paths[:2]).shape == (2, encoder.embed_dim)


def test_every_trial_of_the_sweep_is_recorded(subject):
    found = dict(semi_supervised(subject, shares=(0.5,), rates=(0.01, 0.1), epochs=(1, 2), workers=0))
    name = f"semi_supervised/{subject.task.name}/50%"
    trials = [key for key in found if "lr=" in key]
    assert len(trials) == 4
    assert list(found)[-1] == name


def test_a_share_is_the_same_for_each_class():
    labels = np.repeat([0, 1, 2], [200, 50, 3])
    chosen = stratified(labels, 0.1, seed=0)
    assert np.bincount(labels[chosen]).tolist() == [20, 5, 1]
    assert not np.array_equal(chosen, stratified(labels, 0.1, seed=1))


def test_simclrs_lists_select_by_file_name(subject, tmp_path):
    table = tmp_path / "1percent.txt"
    table.write_text("00.jpg\n01.jpg\n")
    options = {"rates": (0.01,), "epochs": (1,), "shares": (0.01,), "workers": 0}
    assert dict(semi_supervised(subject, subset=(str(table),), **options))
    table.write_text("n01440764_10026.JPEG\n")
    with pytest.raises(InvalidRequest, match="training images"):
        dict(semi_supervised(subject, subset=(str(table),), **options))


def test_unreadable_images_are_reported_and_several_labels_rejected(subject, tmp_path):
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"nothing")
    train = subject.task.train
    part = Part((*train.paths, bad), np.append(train.labels, 0))
    subject.train(PLAN, "t", part=part)
    assert list(subject.broken) == [str(bad)]
    several = Task("s", ("a", "b"), Part(train.paths, np.zeros((42, 2), np.float32)), train)
    with pytest.raises(InvalidRequest, match="use linear"):
        replace(subject, task=several).train(PLAN, "t")
