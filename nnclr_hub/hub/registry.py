"""MODELS lists the encoders with weights of this project, pinned by sha256; ARCHITECTURES lists networks of the paper
without weights. torch.hub's entry points, `nnclr models` and `load_encoder` read these two tables. BENCHMARKS lists the
labeled sets on which the encoders are scored; model cards show its floors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from nnclr_hub.arguments import checked
from nnclr_hub.errors import ModelFilesMissing, UnknownModel

PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class InputContract:
    """The preprocessing of a model: RGB, resize a side to size / crop_pct, crop the center, scale to [0, 1], normalize.

    size: side of the square input in pixels.
    crop_mode: the side to resize: "center" the short one, "squash" both, "border" the long one; see `Preprocessing`.
    """

    size: int
    crop_pct: float = 0.875
    interpolation: str = "bicubic"
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    crop_mode: str = "center"


# labeled set -> floor, which needs no training -> accuracy of `nnclr eval knn FLOOR --data SET` on its test split;
# measured in docs/results/starter.md
BENCHMARKS = {
    "imagenette128": {"hog": 0.367, "color": 0.474, "hog+color": 0.528},
    "mix128": {"hog": 0.404, "color": 0.226, "hog+color": 0.346},
    "clothing160": {"hog": 0.478, "color": 0.177, "hog+color": 0.285},
    "grocery128": {"hog": 0.031, "color": 0.352, "hog+color": 0.329},
}


@dataclass(frozen=True)
class ModelInfo:
    """An encoder with weights.

    name: for `load_encoder`.
    architecture: timm's name.
    embed_dim: length of a vector.
    parameters: number of weights.
    input: its preprocessing.
    sha256: of its files by name; loading verifies them.
    license: license of the weights.
    data: training data, and the terms of its images.
    recipe: name of the training recipe.
    metrics: results of `nnclr eval knn NAME --data DATA` on test splits, by knn20/DATA, with DATA of BENCHMARKS. The
        config.json of a folder has the results of its run, on validation splits if the data has one.
    limits: sentences for its card, on what it is not for.
    repository: org/name on the Hugging Face Hub; None: not published there.
    revision: commit of the repository with these files.
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
    limits: str = ""
    repository: str | None = None
    revision: str | None = None

    @property
    def available(self) -> bool:
        """Whether this installation has it, or the Hub; a wheel has only the stock ResNet-18s."""
        return self._place is not None or self.repository is not None

    @property
    def _place(self) -> Path | None:
        places = (PACKAGE / "weights" / self.name, PACKAGE.parent / "weights" / self.name)
        return next((place for place in places if place.is_dir()), None)

    @property
    def folder(self) -> Path | None:
        """The model folder in this installation: in a checkout's weights/, or inside an installed package.

        None if only the Hub has it.

        Raises:
            ModelFilesMissing: it is neither installed nor published.
        """
        if (place := self._place) is not None or self.repository is not None:
            return place
        if (PACKAGE.parent / "hubconf.py").is_file():
            why = f"the folder weights/{self.name} is missing in this checkout; restore it with git checkout"
        else:
            why = f"the installed package does not contain them; clone nnclr_hub and use CHECKOUT/weights/{self.name}"
        raise ModelFilesMissing(f"The weights of {self.name} are not published on the Hub, and {why}.")

    def require_published(self) -> str:
        """Return org/name.

        Raises:
            UnknownModel: it is not on the Hub; the message names its folder.
        """
        if self.repository is None:
            raise UnknownModel(
                f"{self.name} is not published on the Hub, so it does not have revisions; use the name without one for "
                f"the version in {self.folder}."
            )
        return self.repository


MODELS: dict[str, ModelInfo] = {
    model.name: model
    for model in (
        ModelInfo(
            name="nnclr_resnet18_starter",
            architecture="resnet18",
            embed_dim=512,
            parameters=11_176_512,
            input=InputContract(128, crop_pct=1.0),
            sha256={
                "config.json": "ba8194c033bc44e92937f6bc9a300b03c229832a97eff7021eb02c933b85c351",
                "model.safetensors": "b06c076612ec4b3ad4db341b39a1a461eb6aeb2ae1025634f98e5360c6380d94",
                "nnclr_heads.safetensors": "b3dcf430790887ff898e3a577c7bd89336ba3f1e38229891adf61ed149e78cc5",
                "network.onnx": "79b870daae57a2a1a0956ad998b881127c6ad0a2945819c7055041e4f955f749",
            },
            license="cc-by-nc-4.0",
            data=(
                "imagenette128 and tiny64 (ImageNet's terms: research only), mix128 (Caltech-101, CC BY 4.0; ImageNet "
                "images, research only), clothing160 (CC0 1.0) and grocery128 (MIT), train splits and unlabeled"
            ),
            recipe="small, 20 epochs at 64 and 96 pixels, 19 at 48 and 64, 40 at 64 and 96, 144 at 96, 352 to 128",
            metrics={
                "knn20/imagenette128": 0.8619,
                "knn20/mix128": 0.6967,
                "knn20/clothing160": 0.6909,
                "knn20/grocery128": 0.5087,
            },
        ),
        ModelInfo(
            name="nnclr_resnet18_free_starter",
            architecture="resnet18",
            embed_dim=512,
            parameters=11_176_512,
            input=InputContract(128, crop_pct=1.0),
            sha256={
                "config.json": "c231ba95151e74c3d4eeb3da50e153df9161fa0c1f26e4b62ef5c008ad09770f",
                "model.safetensors": "d88129e7984f24628374d41cefa16852d2ee7a307dba270eb69f891c0be256de",
                "nnclr_heads.safetensors": "6310ec1e56863571eb191b3d83a5858d62beaebf105d624fb627f9428c1dcd40",
                "network.onnx": "79b870daae57a2a1a0956ad998b881127c6ad0a2945819c7055041e4f955f749",
            },
            license="cc-by-4.0",
            data=(
                "Caltech-101 (CC BY 4.0; the train split of mix128, without the other images of that pack), "
                "clothing160 (CC0 1.0) and grocery128 (MIT), train splits"
            ),
            recipe="small, 56 epochs at 48 and 64 pixels, then 45 at 96",
            metrics={
                "knn20/imagenette128": 0.6591,
                "knn20/mix128": 0.51452,
                "knn20/clothing160": 0.4892,
                "knn20/grocery128": 0.3529,
            },
        ),
        ModelInfo(
            name="nnclr_resnet50_starter",
            architecture="resnet50",
            embed_dim=2048,
            parameters=23_508_032,
            input=InputContract(128, crop_pct=1.0),
            sha256={
                "config.json": "0b9371d8833f76c4df9b0ffc31d998fa9742216e2449eeb9c1cfda96263d9370",
                "model.safetensors": "b690d744db2b0655aa0888abfd495347e03aa5985172e760db614a0643c27833",
                "network.onnx": "52252f5d32a4701b55b0549fbc9e6bb77903a52c05087de5078e6bc7d7791ef5",
            },
            license="cc-by-nc-4.0",
            data=(
                "imagenette128 (ImageNet's terms: research only), mix128 (Caltech-101, CC BY 4.0; ImageNet images, "
                "research only), clothing160 (CC0 1.0) and grocery128 (MIT), train splits and unlabeled"
            ),
            recipe="small, 69 epochs at 64 and 96 pixels",
            metrics={
                "knn20/imagenette128": 0.7261,
                "knn20/mix128": 0.4966,
                "knn20/clothing160": 0.5054,
                "knn20/grocery128": 0.2620,
            },
            limits=(
                "It is weaker than nnclr_resnet18_starter, which saw 8 times as many images. It is meant for "
                "comparing networks, not for search."
            ),
        ),
        ModelInfo(
            name="nnclr_vit_small_patch8_starter",
            architecture="vit_small_patch8_224",
            embed_dim=384,
            parameters=21_424_512,
            input=InputContract(96, crop_pct=1.0),
            sha256={
                "config.json": "ac56ce860a491d5f21048c4d848d219db812af3c0e1254a4524560ab2c712123",
                "model.safetensors": "f3c01d1b0d8ef4d936f977920853edd3b04e824072b84110ae5ce1f47ea7774b",
                "network.onnx": "b45fb08bf228bd4f82422e0c4dbaa76b0c81fa5c4b73748fb3db414df9524df3",
            },
            license="cc-by-nc-4.0",
            data=(
                "imagenette128 (ImageNet's terms: research only), mix128 (Caltech-101, CC BY 4.0; ImageNet images, "
                "research only), clothing160 (CC0 1.0) and grocery128 (MIT), train splits and unlabeled"
            ),
            recipe="small, 38 epochs at 64 and 96 pixels",
            metrics={
                "knn20/imagenette128": 0.6479,
                "knn20/mix128": 0.3879,
                "knn20/clothing160": 0.3790,
                "knn20/grocery128": 0.3352,
            },
            limits=(
                "It is weaker than nnclr_resnet18_starter, which saw 15 times as many images. It is meant for "
                "comparing networks, not for search."
            ),
        ),
    )
}

# torch.hub entry points without published weights -> the architecture
ARCHITECTURES = {
    "nnclr_resnet50": "resnet50",
    "nnclr_vit_small": "vit_small",
    "nnclr_vit_base": "vit_base",
    "nnclr_vit_base_patch8": "vit_base_patch8",
}


# families of timm, which is not imported here because that takes seconds
_ARCHITECTURE = re.compile(r"(wide_)?res(net|next)|vit_|deit|convnext|swin|efficientnet|mobilenet|densenet|regnet")


def list_models() -> list[str]:
    """Return the names of the encoders with weights, the default first."""
    return list(MODELS)


def default_model() -> str:
    """Return the name of the default encoder: the best starter, which is listed first."""
    return next(iter(MODELS))


@checked
def model_info(name: str) -> ModelInfo:
    """Return the registry entry of an encoder.

    Raises:
        UnknownModel: the name does not exist or has no weights yet; the message lists the available names.
    """
    if name in MODELS:
        return MODELS[name]
    available = f"available: {', '.join(one for one, model in MODELS.items() if model.available)}"
    if name in ARCHITECTURES:
        raise UnknownModel(
            f"{name} does not have published weights yet; {available}. Use random:{ARCHITECTURES[name]} for random "
            "weights."
        )
    if _ARCHITECTURE.match(name):
        raise UnknownModel(
            f"{name} is an architecture, not an encoder with weights; use timm:{name} for timm's weights, or "
            f"random:{name} for random weights; {available}."
        )
    close = get_close_matches(name, [*MODELS, *ARCHITECTURES], n=1)
    raise UnknownModel(
        f"{name!r} is neither a model name nor a folder; "
        f"{f'did you mean {close[0]!r}?' if close else f'{available}; or use a model folder.'}"
    )
