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


MODELS: dict[str, ModelInfo] = {}


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
        hint = f"did you mean {close[0]!r}?" if close else f"published are {', '.join(MODELS) or 'none yet'}."
        raise UnknownModel(f"No model is called {name!r}: {hint}")
    return MODELS[name]
