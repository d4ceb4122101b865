"""MODELS: every encoder that this project has published, pinned by the sha256 of its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from nnclr_hub.errors import ModelFilesMissing, UnknownModel


@dataclass(frozen=True)
class ModelInfo:
    """A published encoder.

    name: what `load_encoder` takes.
    architecture: timm's.
    embed_dim: length of a vector.
    parameters: number of weights.
    input_size: side of its input in pixels.
    sha256: of its files by name; a load verifies them.
    license: of the weights.
    data: what it was trained on, and the terms of those pictures.
    metrics: what was measured, by name.
    recipe: how it was trained.
    """

    name: str
    architecture: str
    embed_dim: int
    parameters: int
    input_size: int
    sha256: Mapping[str, str]
    license: str
    data: str
    recipe: str
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Where the bundled model folder lies: in a checkout's weights/, or inside an installed package.

        Raises:
            ModelFilesMissing: it is in neither.
        """
        package = Path(__file__).resolve().parents[1]
        places = (package / "weights" / self.name, package.parent / "weights" / self.name)
        for place in places:
            if place.is_dir():
                return place
        raise ModelFilesMissing(
            f"The weights of {self.name} are not in this installation (looked in {places[0]} and {places[1]}): "
            "install nnclr_hub again, or work in a full checkout."
        )


MODELS: dict[str, ModelInfo] = {
    model.name: model
    for model in (
        ModelInfo(
            name="nnclr_resnet18_small_cpu_starter",
            architecture="resnet18",
            embed_dim=256,
            parameters=2_814_976,
            input_size=48,
            sha256={
                "config.json": "7a363dd2a070b6e0c4a6ea35baf1192aacefb5a2dc8ab9acc9762bc67bc18248",
                "model.safetensors": "daf4950de2e95d9ee67ba6cfb1a120372a1490b329244044df16d3f8d7a49a23",
                "nnclr_heads.safetensors": "49bf0a6473c8b8f2047db8cd6e731b004d233c1e993b2d0b51a89bf55ecf2e32",
            },
            license="apache-2.0",
            data=(
                "imagenette128 (ImageNet's terms: research only) and mix128 (Caltech-101, CC BY 4.0; ImageNet "
                "pictures, research only), train splits and unlabelled"
            ),
            recipe="small_cpu, 50 epochs",
            metrics={"knn20/imagenette128": 0.6413, "knn20/mix128": 0.4132},
        ),
    )
}


def list_models() -> list[str]:
    """Names of the published encoders, the default first."""
    return list(MODELS)


def default_model() -> str:
    """The encoder that is used where none is named: the best starter, which stands first.

    Raises:
        UnknownModel: none is published.
    """
    if not MODELS:
        raise UnknownModel("This version publishes no encoder: name a source, such as a model folder, yourself.")
    return next(iter(MODELS))


def model_info(name: str) -> ModelInfo:
    """What is known about a published encoder.

    Raises:
        UnknownModel: no such name; the sentence names the nearest.
    """
    if name not in MODELS:
        close = get_close_matches(name, MODELS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(MODELS) or 'none yet'}."
        raise UnknownModel(f"No model is called {name!r}: {hint}")
    return MODELS[name]
