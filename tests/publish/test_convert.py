"""Foreign checkpoints: the converted network gives the same output, or the file is refused by name and never run."""

import argparse
import os
import pickle
import sys
from pathlib import Path

import commands
import numpy as np
import pytest
import torch
from publish import foreign
from safetensors.torch import save_file
from torch import nn

from nnclr_hub import convert_checkpoint, load_encoder
from nnclr_hub.errors import InvalidRequest, ModelFilesMissing, NNCLRHubError, WeightsMismatch

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning:lightly.*",
    "ignore:.*weight_norm:FutureWarning",
    "ignore::UserWarning:pytorch_lightning.*",
)


def assert_equal_output(folder: Path, network: nn.Module) -> None:
    encoder = load_encoder(folder, device="cpu")
    # a ResNet takes images of any size
    side = encoder.transform.preprocessing.input_size if hasattr(encoder.backbone, "blocks") else 64
    x = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        want, got = network(x), encoder.backbone(x)
    assert want.std() > 0.01
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5 * float(want.abs().max()))


# layouts that differ from others by a prefix or by numbers; `make slow` takes them
NEAR = {"DINO teacher", "DINOv2 teacher", "lightly, DINO", "lightly, backbone alone, numbered", "lightly, numbered"}
NEAR |= {"torchvision numbered", "torchvision compiled", "solo-learn, old"}


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.slow) if one in NEAR else one for one in foreign.READ]
)
def test_the_converted_network_gives_the_output_of_the_one_that_was_saved(name, tmp_path, monkeypatch):
    path, network = foreign.READ[name](tmp_path)
    for project in ("lightly", "pytorch_lightning", "solo"):  # none is needed
        monkeypatch.setitem(sys.modules, project, None)
    done = convert_checkpoint(path, tmp_path / "model")
    assert_equal_output(done.folder, network)
    assert done.layout.split()[0] in (name.split()[0].rstrip(","), "torchvision's")
    assert "converted from a checkpoint" in (done.folder / "README.md").read_text()


@pytest.mark.parametrize(
    ("write", "branch"),
    [(foreign.moco_v3_resnet, "momentum"), (foreign.moco_v2, "momentum"), (foreign.dino_teacher, "student")],
)
def test_another_branch_can_be_converted(write, branch, tmp_path):
    path, network = write(tmp_path, branch=branch)
    assert_equal_output(convert_checkpoint(path, tmp_path / "model", branch=branch).folder, network)
    with pytest.raises(InvalidRequest):
        convert_checkpoint(path, tmp_path / "model", branch="third")


# torchvision's own resnet18 with the weights of `waves`, on the input of the test: its unit vector at each 64th place
GOLDEN = [0.030389, 0.049233, 0.041315, 0.016098, 0.061155, 0.057338, 0.001664, 0.051071]


def waves(network: nn.Module) -> dict[str, torch.Tensor]:
    """Its state filled by a formula, so that no library's chance counts."""
    state = network.state_dict()
    for place, (key, value) in enumerate(sorted(state.items())):
        if value.is_floating_point():
            wave = torch.sin(torch.arange(value.numel(), dtype=torch.float64) * 0.7 + place)
            scale = (2 / max(1, value[0].numel())) ** 0.5 if value.ndim == 4 else 0.1
            value.copy_((wave * scale + (value.ndim == 1 and not key.endswith(("bias", "mean")))).reshape(value.shape))
    return state


def test_a_golden_of_eight_numbers(tmp_path):
    network = foreign.resnet()
    state = waves(network)
    both = {f"module.{part}.{key}": state[key] for part in ("base_encoder", "momentum_encoder") for key in state}
    torch.save({"state_dict": both}, tmp_path / "golden.pth")
    folder = convert_checkpoint(tmp_path / "golden.pth", tmp_path / "model").folder
    x = torch.linspace(-1, 1, 3 * 64 * 64).reshape(1, 3, 64, 64)
    with torch.no_grad():
        theirs = nn.functional.normalize(network(x))[0, ::64]
    np.testing.assert_allclose(theirs, GOLDEN, atol=2e-5)
    np.testing.assert_allclose(load_encoder(folder, device="cpu").embed(x)[0, ::64], GOLDEN, atol=2e-5)


def test_the_report_says_what_was_dropped(tmp_path):
    done = convert_checkpoint(foreign.moco_v3_resnet(tmp_path)[0], tmp_path / "model")
    assert (done.layout, done.branch, done.architecture) == ("MoCo v3", "online", "resnet18")
    assert done.kept == 120
    assert done.dropped["momentum_encoder"] == 129
    assert done.dropped["base_encoder.fc"] == 9
    assert done.dropped["predictor"] == 9
    assert done.dropped["optimizer"] == 0
    out = commands.output_of("convert", tmp_path / "r.pth.tar", tmp_path / "again")
    assert "dropped momentum_encoder (129 tensors)" in out
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (done.folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("architecture", "registers"), [("vit_giant_patch14_dinov2", 0), ("vit_giant_patch14_reg4_dinov2", 4)]
)
def test_dinov2s_gated_layers_and_registers_give_the_same_output(architecture, registers, tmp_path):
    """The giant alone has gated layers; here it is narrow."""
    path, network = foreign.dinov2(tmp_path, width=48, depth=2, heads=2, registers=registers, gated=128)
    narrow = {"embed_dim": 48, "depth": 2, "num_heads": 2}
    done = convert_checkpoint(path, tmp_path / "model", architecture=architecture, model_args=narrow)
    assert (done.layout, done.dropped) == ("DINOv2", {"mask_token": 1})
    assert_equal_output(done.folder, network)


def test_dinov2s_blocks_that_are_numbered_per_chunk_are_refused(tmp_path):
    """Renamed, they would overwrite each other."""
    path, _ = foreign.dinov2(tmp_path, width=48, depth=2, heads=2)
    state = torch.load(path)
    state = {key.replace("blocks.0.", "blocks.0.0.").replace("blocks.1.", "blocks.1.0."): state[key] for key in state}
    torch.save(state, path)
    narrow = {"embed_dim": 48, "depth": 1, "num_heads": 2}
    with pytest.raises(WeightsMismatch):
        convert_checkpoint(path, tmp_path / "model", architecture="vit_small_patch14_dinov2", model_args=narrow)


# ---- of another architecture


def test_moco_v3s_small_transformer_gets_its_twelve_heads(tmp_path):
    """Names and shapes are those of timm's ViT-S of six, and the output is not."""
    path, network = foreign.moco_v3_vit(tmp_path, "vit_small_patch16_224", num_heads=12)
    done = convert_checkpoint(path, tmp_path / "model")
    assert done.model_args == {"num_heads": 12}
    assert_equal_output(done.folder, network)


@pytest.mark.slow
def test_a_small_transformer_that_may_have_twelve_heads_is_refused_until_they_are_named(tmp_path):
    """Its backbone alone: the fixed positions are MoCo v3's, and nothing else tells."""
    _, network = foreign.moco_v3_vit(tmp_path, "vit_small_patch16_224", num_heads=12)
    torch.save(network.state_dict(), tmp_path / "flat.pth")
    with pytest.raises(WeightsMismatch, match="num_heads=12"):
        convert_checkpoint(tmp_path / "flat.pth", tmp_path / "other")
    assert not (tmp_path / "other").exists()
    done = convert_checkpoint(tmp_path / "flat.pth", tmp_path / "model", model_args={"num_heads": 12})
    assert_equal_output(done.folder, network)


def test_a_cifar_stem_is_refused_without_an_explicit_padding(tmp_path):
    from nnclr_hub.encoder.backbones import create_backbone

    network = foreign.randomized(create_backbone("nnclr_resnet18_cifar"))
    torch.save(network.state_dict(), tmp_path / "cifar.pth")
    with pytest.raises(WeightsMismatch):
        convert_checkpoint(tmp_path / "cifar.pth", tmp_path / "model")
    done = convert_checkpoint(tmp_path / "cifar.pth", tmp_path / "model", architecture="nnclr_resnet18_cifar")
    assert_equal_output(done.folder, network)


@pytest.mark.parametrize("change", ["missing", "extra", "shape", "NaN"])
def test_weights_must_match_wholly(change, tmp_path):
    state = foreign.resnet().state_dict()
    if change == "missing":
        del state["layer3.0.bn1.bias"]
    elif change == "extra":
        state["layer3.0.gate"] = torch.zeros(3)
    elif change == "shape":
        state["layer3.0.conv1.weight"] = state["layer3.0.conv1.weight"][:8]
    else:
        state["bn1.bias"][0] = float("nan")
    torch.save(state, tmp_path / "bad.pth")
    with pytest.raises(WeightsMismatch, match="NaN" if change == "NaN" else None):
        convert_checkpoint(tmp_path / "bad.pth", tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_counters_that_old_files_lack_are_no_reason(tmp_path):
    network = foreign.resnet()
    state = {key: value for key, value in network.state_dict().items() if not key.endswith("num_batches_tracked")}
    save_file(state, tmp_path / "old.safetensors")
    assert_equal_output(convert_checkpoint(tmp_path / "old.safetensors", tmp_path / "model").folder, network)


# ---- laid out otherwise


def keys(*names: str) -> dict[str, torch.Tensor]:
    """A convolution under each name that ends in conv1.weight, a small matrix under any other."""
    return {name: torch.zeros(8, 3, 7, 7) if name.endswith("conv1.weight") else torch.zeros(2, 2) for name in names}


REFUSED = {
    "mmpretrain or mmselfsup": {"meta": {}, "state_dict": keys("backbone.conv1.weight", "neck.fc.weight")},
    "VISSL": {"classy_state_dict": {"base_model": {"model": {"trunk": keys("_feature_blocks.conv1.weight")}}}},
    "does not match": {"state_dict": keys("trunk.conv1.weight")},
    "several networks": {"state_dict": keys("backbone.conv1.weight", "projection_head.w", "target.conv1.weight")},
    "could be of": {"state_dict": keys("backbone.conv1.weight", "projection_head.w", "projector.w")},
    "no tensors": {"state_dict": {}, "epoch": 3},
    "dictionary": [torch.zeros(3)],
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_layouts_are_refused_by_name(name, tmp_path):
    torch.save(REFUSED[name], tmp_path / "other.pth")
    with pytest.raises(InvalidRequest, match=name):
        convert_checkpoint(tmp_path / "other.pth", tmp_path / "model")
    assert not (tmp_path / "model").exists()


ODD = {
    "two containers": (InvalidRequest, lambda one, two: {"state_dict": one, "model": two}),
    "one above": (InvalidRequest, lambda one, two: {**one, "model": two}),
    "one compiled": (InvalidRequest, lambda one, two: one | {f"_orig_mod.{key}": two[key] for key in two}),
    "integers": (WeightsMismatch, lambda one, _: one | {"bn1.bias": (one["bn1.bias"] * 100).to(torch.int8)}),
    "complex": (WeightsMismatch, lambda one, _: one | {"bn1.bias": one["bn1.bias"].to(torch.complex64)}),
    "sparse": (WeightsMismatch, lambda one, _: one | {"bn1.bias": one["bn1.bias"].to_sparse()}),
    "without values": (WeightsMismatch, lambda one, _: one | {"bn1.bias": one["bn1.bias"].to("meta")}),
    "stem": (NNCLRHubError, lambda *_: {"conv1.weight": torch.zeros(())}),
    "patches": (NNCLRHubError, lambda *_: transformer(torch.zeros(5), torch.zeros(1, 197, 192))),
    "positions": (NNCLRHubError, lambda *_: transformer(torch.zeros(384, 3, 16, 16), torch.zeros(384))),
    "no positions": (NNCLRHubError, lambda *_: transformer(torch.zeros(192, 3, 16, 16), torch.zeros(1, 0, 192))),
}


def transformer(patches: torch.Tensor, positions: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"patch_embed.proj.weight": patches, "pos_embed": positions}


@pytest.mark.parametrize("name", ODD)
def test_two_networks_and_odd_tensors_are_refused_and_never_guessed_at(name, tmp_path):
    kind, change = ODD[name]
    torch.save(change(foreign.resnet(0).state_dict(), foreign.resnet(1).state_dict()), tmp_path / "odd.pth")
    with pytest.raises(kind, match="bn1.bias" if kind is WeightsMismatch else None):
        convert_checkpoint(tmp_path / "odd.pth", tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_averaged_weights_are_reported_and_an_argument_may_not_bring_other_weights(tmp_path):
    """torchvision's script keeps the average under a separate name."""
    path, one = tmp_path / "both.pth", foreign.resnet(0).state_dict()
    torch.save({"model": one, "model_ema": foreign.resnet(1).state_dict(), "epoch": 3}, path)
    assert convert_checkpoint(path, tmp_path / "model").dropped == {"epoch": 0, "model_ema": 120}
    with pytest.raises(InvalidRequest, match="checkpoint_path"):
        convert_checkpoint(path, tmp_path / "other", model_args={"checkpoint_path": str(path)})


def test_one_of_several_networks_can_be_named(tmp_path):
    network = foreign.resnet()
    theirs = {f"student_backbone.{key}": value for key, value in network.state_dict().items()}
    torch.save({"state_dict": keys("backbone.conv1.weight", "projection_head.w") | theirs}, tmp_path / "two.pth")
    done = convert_checkpoint(tmp_path / "two.pth", tmp_path / "model", branch="student_backbone")
    assert_equal_output(done.folder, network)


# ---- never run


class Harmful:
    """Unpickled, it would make a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple:
        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize("form", ["zip", "old", "plain"])
def test_a_checkpoint_that_runs_code_is_refused_by_name_and_not_run(tmp_path, form):
    mark, path = tmp_path / "harm", tmp_path / "bad.pth"
    state = {"state_dict": foreign.resnet().state_dict(), "extra": Harmful(mark)}
    if form == "plain":
        path.write_bytes(pickle.dumps(state["extra"]))
    else:
        torch.save(state, path, _use_new_zipfile_serialization=form == "zip")
    with pytest.raises((InvalidRequest, WeightsMismatch), match=None if form == "plain" else r"(posix|nt)\.system"):
        convert_checkpoint(path, tmp_path / "model")
    assert not mark.exists()
    pickle.loads(path.read_bytes()) if form == "plain" else torch.load(path, weights_only=False)
    assert mark.exists(), "the file is harmful where it is trusted"


def test_a_class_is_named_and_of_many_only_three(tmp_path):
    for content, word in (({"state_dict": {}, "path": Path("x")}, r"pathlib\S*\.PosixPath"), (foreign.resnet(), None)):
        torch.save(content, tmp_path / "class.ckpt")
        with pytest.raises(InvalidRequest, match=word) as caught:
            convert_checkpoint(tmp_path / "class.ckpt", tmp_path / "model")
        assert len(str(caught.value)) < 600


def test_settings_of_argparse_are_let_in_for_this_alone(tmp_path):
    path, _ = foreign.dino_teacher(tmp_path)
    convert_checkpoint(path, tmp_path / "model")
    assert argparse.Namespace not in torch.serialization.get_safe_globals()


def test_a_file_that_is_not_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(ModelFilesMissing):
        convert_checkpoint(tmp_path / "gone.pth", tmp_path / "model")
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "config.json").write_text("{}")
    with pytest.raises(InvalidRequest):
        convert_checkpoint(tmp_path / "ours", tmp_path / "model")
    path, _ = foreign.torchvision_resnet(tmp_path)
    whole = path.read_bytes()
    for name, data in (("half.pth", whole[: len(whole) // 2]), ("text.pth", b"hello"), ("none.pth", b"")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(WeightsMismatch) as caught:
            convert_checkpoint(tmp_path / name, tmp_path / "model")
        assert "weights_only" not in str(caught.value)
    (tmp_path / "x.safetensors").write_bytes(b"hello")
    with pytest.raises(WeightsMismatch):
        convert_checkpoint(tmp_path / "x.safetensors", tmp_path / "model")
