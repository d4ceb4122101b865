"""The table of encoders: what it says is so, and what it does not have it says."""

import dataclasses
import shutil

import pytest
from hub.test_hub_answers import fetch
from hub_server import HubServer, running_hub

from nnclr_hub import load_encoder
from nnclr_hub.errors import ModelFilesMissing, UnknownModel
from nnclr_hub.hub import registry
from nnclr_hub.hub.layout import CONFIG, WEIGHTS, read_config, sha256_of
from nnclr_hub.hub.registry import MODELS, InputContract, ModelInfo, default_model, model_info
from nnclr_hub.hub.sources import resolve
from nnclr_hub.publish.provenance import check_license

NAME = "nnclr_made_up"


def test_the_input_in_the_registry_is_that_of_the_encoder():
    for name, info in MODELS.items():
        done = load_encoder(name, device="cpu").transform.preprocessing.steps
        done["size"] = done.pop("input_size")
        assert done == dataclasses.asdict(info.input)


def test_no_license_allows_more_than_the_images_and_the_parents():
    for info in MODELS.values():
        about = read_config(info.folder).nnclr
        assert about["license"] == info.license
        check_license(info.license, {**about, "data_terms": info.data})


@pytest.mark.parametrize("name", ["resnet50", "vit_base_patch16_224"])
def test_the_name_of_an_architecture_has_hints_for_its_weights(name):
    with pytest.raises(UnknownModel, match=f"timm:{name}.*random:{name}"):
        load_encoder(name)


def test_an_unpublished_model_has_no_revisions_and_names_its_folder():
    info = model_info(default_model())
    with pytest.raises(UnknownModel, match=str(info.folder)):
        resolve(f"{info.name}@v1.0")


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
