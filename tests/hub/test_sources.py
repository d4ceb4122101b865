"""Every kind of source resolves to verified files, or to a sentence that says what to do."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

from nnclr_hub import load_encoder
from nnclr_hub.errors import InvalidRequest, ModelFilesMissing, TamperedModel, UnknownModel, WeightsMismatch
from nnclr_hub.hub.layout import sha256_of
from nnclr_hub.hub.registry import BENCHMARKS, MODELS, default_model, list_models, model_info
from nnclr_hub.hub.sources import absolute, resolve
from nnclr_hub.publish.provenance import check_license
from nnclr_hub.torch_hub import entry_points


def test_a_folder_is_found_by_all_its_spellings(model):
    for source in (str(model), f"local-dir:{model}", model.as_uri()):
        assert resolve(source).folder.resolve() == model.resolve()


def test_an_absolute_source_means_the_same_from_every_folder(model, tmp_path, monkeypatch):
    shutil.copytree(model, tmp_path / "here" / "it")
    (tmp_path / "here" / default_model()).mkdir()  # names come first, whatever is called so here
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    sources = (
        "it",
        "./it",
        "../here/it",
        "it/model.safetensors",
        "local-dir:it",
        "file:it",
        "random:it",
        "random:it@3",
    )
    found = {source: resolve(source) for source in sources}
    sent = {source: absolute(source) for source in sources}
    monkeypatch.chdir(tmp_path / "there")
    for source in sources:
        again = resolve(sent[source])
        assert again.folder.samefile(tmp_path / "here" / "it"), source
        assert (again.seed, again.weights) == (found[source].seed, found[source].weights), source
    monkeypatch.chdir(tmp_path / "here")
    for source in (default_model(), f"random:{default_model()}@1", "random:test_resnet@2", "timm:x", "hf-hub:a/b@c"):
        assert absolute(source) == source


def test_random_weights_come_from_their_seed(image_files):
    """They are not described as the trained ones."""
    encoders = [load_encoder(f"random:test_resnet{seed}", device="cpu") for seed in ("", "@0", "@1")]
    vectors = [encoder.embed(image_files[:2]) for encoder in encoders]
    np.testing.assert_array_equal(vectors[0], vectors[1])
    assert not np.allclose(vectors[0], vectors[2])
    config = load_encoder(f"random:{default_model()}", device="cpu").config
    assert config is not None
    assert config.nnclr == {}
    assert resolve(f"random:{default_model()}").pins.by == "nobody"


def test_every_registered_model_is_as_the_registry_describes_it():
    assert default_model() == list_models()[0]
    for name, info in MODELS.items():
        assert {"config.json", "model.safetensors"} <= set(info.sha256)
        about = resolve(name).config
        assert about.num_features == info.embed_dim
        encoder = load_encoder(name, device="cpu")
        assert sum(p.numel() for p in encoder.backbone.parameters()) == info.parameters
        steps = encoder.transform.preprocessing.steps
        steps["size"] = steps.pop("input_size")
        assert steps == dataclasses.asdict(info.input)
        assert about.nnclr["license"] == info.license
        check_license(info.license, {**about.nnclr, "data_terms": info.data})
        # timm and transformers know it without this library
        assert timm.models.is_model(info.architecture)
        assert not timm.models.model_entrypoint(info.architecture).__module__.startswith("nnclr_hub")


def test_the_results_of_the_registry_are_those_of_the_readme():
    """To the three places of its table, whose columns are the data sets, with the best floor in its last row."""
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    heading, rows = readme.partition("| encoder | may be used |")[2].split("\n", 1)
    names = [name.strip().removeprefix("20-NN ") for name in heading.strip("| ").split("|")]

    def shown(start: str) -> dict[str, float]:
        row = next(line for line in rows.splitlines() if line.startswith(start))
        return dict(zip(names, map(float, row.strip("| ").split("|")[2:]), strict=True))

    for model, info in MODELS.items():
        results = {metric.removeprefix("knn20/"): round(value, 3) for metric, value in info.metrics.items()}
        assert shown(f"| `{model}`") == results
    assert shown("| best of ") == {name: max(BENCHMARKS[name].values()) for name in names}


@pytest.fixture
def copy(model, tmp_path):
    return shutil.copytree(model, tmp_path / "copy")


def test_a_changed_config_of_a_pinned_model_is_refused(tmp_path, monkeypatch):
    """The registry pins config.json as well: a preprocessing that was changed changes every vector."""
    name = default_model()
    folder = shutil.copytree(model_info(name).folder, tmp_path / name)
    config = json.loads((folder / "config.json").read_text())
    config["pretrained_cfg"]["crop_pct"] = 0.5
    (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr("nnclr_hub.hub.registry.ModelInfo.folder", folder)
    with pytest.raises(TamperedModel, match=r"config\.json"):
        resolve(name)


def test_a_truncated_or_foreign_folder_is_explained(copy, tmp_path):
    for name in ("config.json", "model.safetensors"):
        (copy / name).rename(tmp_path / name)
        with pytest.raises(ModelFilesMissing, match=name):
            load_encoder(copy)
        (tmp_path / name).rename(copy / name)
    edit(copy, lambda fields: fields["nnclr"].pop("sha256"))  # a folder of somebody else's, without hashes
    data = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(WeightsMismatch, match="damaged"):
        load_encoder(copy)
    save_file({"conv1.weight": torch.zeros(1)}, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(WeightsMismatch, match="missing"):
        load_encoder(copy)


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("nnclr_resnet18_small_cpu_startr", UnknownModel),
        ("zzz", UnknownModel),
        ("org/name@v1.0", UnknownModel),
        (f"{default_model()}@v1.0", UnknownModel),  # it is not published, so it has no revisions
        ("hf-hub:org/name@", InvalidRequest),
        ("https://huggingface.co/org/name", InvalidRequest),
        ("./nowhere", UnknownModel),
        ("local-dir:/nowhere", UnknownModel),
        ("random:", InvalidRequest),
        ("random:resnet18@x", InvalidRequest),
        ("random:resnet18@" + "9" * 30, InvalidRequest),
        ("random:resnet_18", UnknownModel),
        ("hf-hub:nonsense", InvalidRequest),
        ("https://example.com/model", InvalidRequest),
        ("file:///no/where", UnknownModel),
        ("file://[/x", UnknownModel),
        ("~no_such_user/x", UnknownModel),
        ("./" + "a" * 5000, UnknownModel),
        ("local-dir:a\0b", UnknownModel),
        ("", InvalidRequest),
    ],
)
def test_an_invalid_source_is_refused(source, kind):
    with pytest.raises(kind):
        load_encoder(source)


@pytest.mark.parametrize("name", ["resnet50", "vit_base_patch16_224"])
def test_the_name_of_an_architecture_has_hints_for_its_weights(name):
    with pytest.raises(UnknownModel, match=f"timm:{name}.*random:{name}"):
        load_encoder(name)


def test_an_endpoint_that_is_not_a_url_is_named(monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "hub.example.com")
    with pytest.raises(InvalidRequest):
        load_encoder("hf-hub:org/name")


def test_a_repository_comes_from_the_cache_when_offline(model, tmp_path):
    """Load from a prepared cache of the Hub in an offline process."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "models--org--name"
    (repository / "refs").mkdir(parents=True)
    for ref in ("main", "v1.0"):
        (repository / "refs" / ref).write_text(commit)
    shutil.copytree(model, repository / "snapshots" / commit)
    code = (
        "from nnclr_hub.hub.sources import resolve, verify\n"
        "for s in ('hf-hub:org/name', 'hf-hub:org/name@v1.0'): print(verify(s)[1].sha256)\n"
        "try: resolve('hf-hub:org/other')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    environment = os.environ | {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    first, second, refusal = done.stdout.splitlines()
    assert first == second == sha256_of(model / "model.safetensors")
    assert refusal.startswith("ModelFilesMissing")
    assert "HF_HUB_CACHE" in refusal


@pytest.mark.parametrize("name", ["model.pth", "weights.pt", "last.ckpt", "pytorch_model.bin"])
def test_a_pickle_is_never_read(model, tmp_path, name):
    """Unpickling would create a file; a pickle next to valid weights is not read."""
    trace = tmp_path / "it ran"
    folder = shutil.copytree(model, tmp_path / "model")
    torch.save(Trap(trace), folder / name)
    with pytest.raises(InvalidRequest):
        load_encoder(folder / name)
    load_encoder(folder, device="cpu")
    entry_points()["nnclr_resnet18_free_starter"](weights=folder, num_classes=10)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelFilesMissing):
        load_encoder(folder)
    assert not trace.exists()
    torch.load(folder / name, weights_only=False)  # the trap works
    assert trace.exists()


class Trap:
    """Unpickled, it creates a file."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


@pytest.mark.parametrize("name", ["nnclr_heads.safetensors", "a.txt"])
def test_a_file_that_holds_no_encoder_is_refused(copy, name):
    (copy / name).write_text("")
    with pytest.raises(InvalidRequest):
        resolve(str(copy / name))


@pytest.mark.parametrize("argument", ["checkpoint_path", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay"])
def test_a_config_may_not_bring_other_weights(copy, tmp_path, argument):
    """timm would read a file of that name, which is a pickle, past everything that was verified."""
    trace = tmp_path / "it ran"
    torch.save(Trap(trace), tmp_path / "other.pth")
    edit(copy, lambda fields: fields["model_args"].update({argument: str(tmp_path / "other.pth")}))
    with pytest.raises(InvalidRequest):
        load_encoder(copy)
    with pytest.raises(InvalidRequest, match=argument):
        entry_points()["nnclr_resnet18_free_starter"](weights=copy, num_classes=10)
    assert not trace.exists()


@pytest.mark.parametrize("dtype", [torch.int8, torch.complex64], ids=str)
def test_weights_that_are_not_real_numbers_are_refused(copy, dtype):
    """Cast, a quantized network's codes would be weights that nobody trained."""
    edit(copy, lambda fields: fields["nnclr"].pop("sha256"))
    state = load_file(copy / "model.safetensors")
    save_file(state | {"conv1.weight": (state["conv1.weight"] * 100).to(dtype)}, copy / "model.safetensors")
    with pytest.raises(WeightsMismatch):
        load_encoder(copy)


def edit(folder: Path, change) -> None:
    """Changes the fields of a folder's config.json."""
    fields = json.loads((folder / "config.json").read_text())
    change(fields)
    (folder / "config.json").write_text(json.dumps(fields))
