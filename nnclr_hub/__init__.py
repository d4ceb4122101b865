"""nnclr_hub: pretrained NNCLR encoders, and tools to search, label and serve images with them.

    from nnclr_hub import load_encoder, open_store

    encoder = load_encoder("nnclr_resnet18_starter")
    vectors = encoder.embed(["cat.jpg", "dog.jpg"])           # (2, D) float32, unit rows

Importing this package is light: torch, faiss and other libraries load with the first use of a name.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnclr_hub.lazy_names import lazy_names

__version__ = "0.1.0"

# a wheel contains the programs training, serving and app, and a checkout has them next to this package. So they are
# found under one name, and another module named `app` on sys.path is never imported
_CHECKOUT = Path(__file__).resolve().parents[1]
if (_CHECKOUT / "training" / "pretrain.py").is_file():
    __path__.append(str(_CHECKOUT))

# names of the training program, by its modules
_TRAINING = {
    "pretrain": "pretrain",
    "evaluate": "evals.evaluate",
    "Callback": "run",
    "CALLBACKS": "run",
    "AUGMENTATIONS": "data.views",
    "View": "data.views",
}

__all__ = [
    "AUGMENTATIONS",
    "CALLBACKS",
    "AsyncClient",
    "AttentionMap",
    "Box",
    "Callback",
    "Client",
    "CollectionSpec",
    "EmbeddedStore",
    "Encoder",
    "Example",
    "ImageError",
    "Item",
    "LinearProbe",
    "Match",
    "MilvusStore",
    "NNCLRHubError",
    "Point",
    "SearchQuery",
    "View",
    "__version__",
    "convert_checkpoint",
    "evaluate",
    "export_model",
    "fit_linear_probe",
    "knn_classify",
    "list_models",
    "load_encoder",
    "model_info",
    "open_bench",
    "open_store",
    "pretrain",
    "publish_model",
    "push_to_hub",
    "wrap_encoder",
]


_load = lazy_names(
    __name__,
    {
        "client": ("Client", "AsyncClient", "open_bench", "open_store"),
        "encoder.attention": ("Point", "Box", "AttentionMap"),
        "encoder.encoder": ("Encoder",),
        "encoder.loader": ("load_encoder",),
        "encoder.wrapped": ("wrap_encoder",),
        "errors": ("ImageError", "NNCLRHubError"),
        "hub.registry": ("list_models", "model_info"),
        "probe.knn": ("knn_classify",),
        "probe.linear": ("fit_linear_probe",),
        "probe.linear_probe": ("LinearProbe",),
        "publish.convert": ("convert_checkpoint",),
        "publish.export": ("export_model",),
        "publish.upload": ("publish_model", "push_to_hub"),
        "store.base": ("CollectionSpec", "Item", "Match"),
        "store.folder": ("EmbeddedStore",),
        "store.milvus": ("MilvusStore",),
        "workbench.search_query": ("Example", "SearchQuery"),
    },
)[0]


def __getattr__(name: str) -> object:
    if name in ("inspect", "method"):  # packages of functions; they are not in `__all__`, as `inspect` is Python's too
        return import_module(f"{__name__}.{name}")
    if name not in _TRAINING:
        return _load(name)
    return getattr(import_module("nnclr_hub.cli.programs").load_program("training", _TRAINING[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if TYPE_CHECKING:
    from nnclr_hub.client import AsyncClient, Client, open_bench, open_store
    from nnclr_hub.encoder.attention import AttentionMap, Box, Point
    from nnclr_hub.encoder.encoder import Encoder
    from nnclr_hub.encoder.loader import load_encoder
    from nnclr_hub.encoder.wrapped import wrap_encoder
    from nnclr_hub.errors import ImageError, NNCLRHubError
    from nnclr_hub.hub.registry import list_models, model_info
    from nnclr_hub.probe.knn import knn_classify
    from nnclr_hub.probe.linear import fit_linear_probe
    from nnclr_hub.probe.linear_probe import LinearProbe
    from nnclr_hub.publish.convert import convert_checkpoint
    from nnclr_hub.publish.export import export_model
    from nnclr_hub.publish.upload import publish_model, push_to_hub
    from nnclr_hub.store.base import CollectionSpec, Item, Match
    from nnclr_hub.store.folder.store import EmbeddedStore
    from nnclr_hub.store.milvus.store import MilvusStore
    from nnclr_hub.workbench.search_query import Example, SearchQuery

    pretrain: Any
    evaluate: Any
    Callback: Any
    View: Any
    CALLBACKS: dict[str, Any]
    AUGMENTATIONS: dict[str, Any]
