"""MODELS: every encoder that this project has weights of, pinned by the sha256 of its files; ARCHITECTURES: the paper's
networks, which have none yet. torch.hub's entry points, `nnclr models` and `load_encoder` all read these two tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from nnclr_hub.errors import ModelFilesMissing, UnknownModel

PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class InputContract:
    """What is done to an image before the network sees it: RGB, a side resized to size / crop_pct, the center cut out,
    scaled to [0, 1], mean taken off, divided by std.

    size: side of the square input in pixels.
    crop_mode: which side: "center" the short one, "squash" both, "border" the long one; as `Preprocessing` has them.
    """

    size: int
    crop_pct: float = 0.875
    interpolation: str = "bicubic"
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    crop_mode: str = "center"


@dataclass(frozen=True)
class ModelInfo:
    """An encoder with weights.

    name: what `load_encoder` takes.
    architecture: timm's.
    embed_dim: length of a vector.
    parameters: number of weights.
    input: its preprocessing.
    sha256: of its files by name; a load verifies them.
    license: of the weights.
    data: what it was trained on, and the terms of those images.
    metrics: what `nnclr eval knn NAME --data DATA` measured on test splits, by name. A folder's config.json has its
        run's own figures, which are of validation splits where the data has one.
    recipe: how it was trained.
    repository: org/name on the Hugging Face Hub; None: it is not published there.
    revision: the repository's commit that has these files.
    """

    name: str
    architecture: str
    embed_dim: int
    parameters: int
    input: InputContract
    sha256: Mapping[str, str]
    license: str
    data: str
    recipe: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    repository: str | None = None
    revision: str | None = None

    @property
    def folder(self) -> Path | None:
        """The model folder in this installation: in a checkout's weights/, or inside an installed package.

        None: only the Hub has it.

        Raises:
            ModelFilesMissing: it is not here, nor published.
        """
        for place in (PACKAGE / "weights" / self.name, PACKAGE.parent / "weights" / self.name):
            if place.is_dir():
                return place
        if self.repository is not None:
            return None
        if (PACKAGE.parent / "hubconf.py").is_file():
            why = f"its folder weights/{self.name} is missing from this checkout: restore it, as by git checkout"
        else:
            why = (
                "this installed package does not hold them: only a checkout of nnclr_hub does, so clone it and give "
                f"CHECKOUT/weights/{self.name}"
            )
        raise ModelFilesMissing(f"The weights of {self.name} are not published on a hub, and {why}.")

    def require_published(self) -> str:
        """org/name.

        Raises:
            UnknownModel: it is not on the Hub; the sentence names the folder that has it.
        """
        if self.repository is None:
            raise UnknownModel(
                f"{self.name} is not published on a hub yet, so it has no revisions: name it without one; its one "
                f"version is in {self.folder}."
            )
        return self.repository


MODELS: dict[str, ModelInfo] = {
    model.name: model
    for model in (
        ModelInfo(
            name="nnclr_resnet18_small_cpu_starter",
            architecture="resnet18",
            embed_dim=256,
            parameters=2_814_976,
            input=InputContract(48, crop_pct=1.0),
            sha256={
                "config.json": "7a363dd2a070b6e0c4a6ea35baf1192aacefb5a2dc8ab9acc9762bc67bc18248",
                "model.safetensors": "daf4950de2e95d9ee67ba6cfb1a120372a1490b329244044df16d3f8d7a49a23",
                "nnclr_heads.safetensors": "49bf0a6473c8b8f2047db8cd6e731b004d233c1e993b2d0b51a89bf55ecf2e32",
            },
            license="apache-2.0",
            data=(
                "imagenette128 (ImageNet's terms: research only) and mix128 (Caltech-101, CC BY 4.0; ImageNet "
                "images, research only), train splits and unlabeled"
            ),
            recipe="small_cpu, 50 epochs",
            metrics={
                "knn20/imagenette128": 0.6413,
                "knn20/mix128": 0.4132,
                "knn20/clothing160": 0.4220,
                "knn20/grocery128": 0.1662,
            },
        ),
        ModelInfo(
            name="nnclr_resnet18_free_starter",
            architecture="resnet18",
            embed_dim=256,
            parameters=2_814_976,
            input=InputContract(48, crop_pct=1.0),
            sha256={
                "config.json": "3c7cdad0282300e3df1ccf2d0123668cc9332023e2be2925dba018d88792235a",
                "model.safetensors": "4f43ff2e55ebf1ae891dfdd6effd54524f812c2709a07d8e918569e8c54174d7",
                "nnclr_heads.safetensors": "7f441474271c13c2ea40207e29990636714afb42c0a470e333bda4cb1668b7f8",
            },
            license="apache-2.0",
            data=(
                "Caltech-101 (CC BY 4.0; the train split of mix128, without the other images of that pack), "
                "clothing160 (CC0 1.0) and grocery128 (MIT), train splits"
            ),
            recipe="small_cpu, 80 epochs",
            metrics={
                "knn20/imagenette128": 0.5753,
                "knn20/mix128": 0.4058,
                "knn20/clothing160": 0.4866,
                "knn20/grocery128": 0.1791,
            },
        ),
    )
}

# entry points of torch.hub whose weights nobody has trained yet -> the architecture
ARCHITECTURES = {
    "nnclr_resnet50": "resnet50",
    "nnclr_vit_small": "vit_small",
    "nnclr_vit_base": "vit_base",
    "nnclr_vit_base_patch8": "vit_base_patch8",
}


def list_models() -> list[str]:
    """Names of the encoders with weights, the default first."""
    return list(MODELS)


def default_model() -> str:
    """The encoder that is used where none is named: the best starter, which stands first.

    Raises:
        UnknownModel: there is none.
    """
    if not MODELS:
        raise UnknownModel("This version has no encoder of its own: name a source, such as a model folder, yourself.")
    return next(iter(MODELS))


def model_info(name: str) -> ModelInfo:
    """What is known about an encoder.

    Raises:
        UnknownModel: no such name, or an architecture that has no weights yet; the sentence says what there is.
    """
    if name in MODELS:
        return MODELS[name]
    there_are = f"there are {', '.join(MODELS)}" if MODELS else "there are none yet"
    if name in ARCHITECTURES:
        raise UnknownModel(
            f"{name} has no weights yet, and random ones are never given for them: {there_are}; random:"
            f"{ARCHITECTURES[name]} is the network untrained."
        )
    close = get_close_matches(name, [*MODELS, *ARCHITECTURES], n=1)
    raise UnknownModel(
        f"No model is called {name!r}, and no folder here is: "
        f"{f'did you mean {close[0]!r}?' if close else f'{there_are}, or give a model folder.'}"
    )
