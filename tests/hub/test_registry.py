"""The table of encoders: what it says is so, and what it does not have it says."""

import shutil

import pytest
from hub.test_hub_answers import fetch
from hub_server import HubServer, running_hub

from nnclr_hub import load_encoder
from nnclr_hub.errors import ModelFilesMissing
from nnclr_hub.hub import registry
from nnclr_hub.hub.layout import CONFIG, WEIGHTS, sha256_of
from nnclr_hub.hub.registry import MODELS, InputContract, ModelInfo

NAME = "nnclr_made_up"


def made_up(model, **more) -> ModelInfo:
    hashes = {name: sha256_of(model / name) for name in (CONFIG, WEIGHTS)}
    return ModelInfo(NAME, "resnet18", 32, 1, InputContract(48), hashes, "mit", "none", "none", **more)


def test_a_starter_outside_the_wheel_is_reported_as_such(model, monkeypatch, tmp_path):
    """From an installed package, and from a checkout that has lost it."""
    monkeypatch.setitem(MODELS, NAME, made_up(model))
    with pytest.raises(ModelFilesMissing):
        load_encoder(NAME)
    monkeypatch.setattr(registry, "PACKAGE", tmp_path / "site-packages" / "nnclr_hub")
    with pytest.raises(ModelFilesMissing):
        load_encoder(NAME)
    assert not MODELS[NAME].available
    shutil.copytree(model, tmp_path / "site-packages" / "nnclr_hub" / "weights" / NAME)
    assert load_encoder(NAME, device="cpu").embed_dim == 32
    assert [name for name, info in MODELS.items() if info.available] == [NAME]


@pytest.fixture(scope="module")
def hub(model, tmp_path_factory):
    changed = shutil.copytree(model, tmp_path_factory.mktemp("changed") / "model")
    (changed / CONFIG).write_text((changed / CONFIG).read_text().replace('"crop_pct": 0.875', '"crop_pct": 0.5'))
    with running_hub({"org/name": model, "org/changed": changed}) as hub:
        yield hub


def registered(hub: HubServer, cache, model, repository: str, *sources: str) -> list[str]:
    """What a process answers in which the made-up model is registered as published there."""
    info = made_up(model, repository=repository, revision=hub.head(repository))
    code = (
        "from nnclr_hub.hub.registry import MODELS, ModelInfo, InputContract\n"
        f"MODELS[{NAME!r}] = {info!r}\n"
        "import json, sys; from nnclr_hub.hub.sources import verify; from nnclr_hub import NNCLRHubError\n"
        "answers = {}\n"
        "for source in sys.argv[1:]:\n"
        "    source = source.removeprefix('hf-hub:')\n"
        "    try: answers[source] = ' '.join(one.pinned_by for one in verify(source))\n"
        "    except NNCLRHubError as error: answers[source] = f'{type(error).__name__}: {error}'\n"
        "print(json.dumps(answers))"
    )
    return list(fetch(hub, cache, *sources, code=code).values())


def test_a_published_model_comes_from_the_hub_pinned(hub, model, tmp_path):
    """Our revision is held against the registry's hashes, another one against what the Hub announced of it."""
    at = f"{NAME}@{hub.head('org/name')}"
    answers = registered(hub, tmp_path, model, "org/name", NAME, at, f"{NAME}@v1.0", f"{NAME}@v9")
    assert answers[:3] == ["registry registry", "registry registry", "nobody Hub"]
    assert answers[3].startswith("UnknownModel: ")


def test_a_published_model_with_another_config_is_refused(hub, model, tmp_path):
    """Its weights are right; its preprocessing would change every vector."""
    (answer,) = registered(hub, tmp_path, model, "org/changed", NAME)
    assert answer.startswith("TamperedModel: ")
    assert f"{CONFIG} is not the published file" in answer
