"""A source is a string that says where an encoder comes from.

    nnclr_resnet18_small_cpu_starter      a registered name (see `nnclr models`)
    hf-hub:org/repo[@revision]            a model folder on the Hugging Face Hub
    local-dir:/models/mine, ./mine, file:///models/mine
    timm:resnet50.a1_in1k                 timm's own weights
    random:resnet50[@seed]                untrained weights, a baseline; timm starts a ResNet's residual
                                          branches at zero, so this one is weaker than its size suggests
    random:SOURCE[@seed]                  likewise, the network and preprocessing of a name or model folder

`resolve` turns one into local files whose hashes are right: those that the registry pins, or else
those that the folder's own config.json records.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote, urlparse

from nnclr_hub.errors import InvalidRequest, ModelError, ModelFilesMissing, TamperedModel, UnknownModel
from nnclr_hub.hub.layout import CONFIG, HEADS, WEIGHTS, ModelConfig, read_config, require, sha256_of
from nnclr_hub.hub.registry import MODELS, model_info

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class Resolved:
    """Where an encoder's files are.

    folder: a verified model folder; None for timm: and for random: of an architecture.
    architecture: timm's name.
    seed: of random weights; None for trained ones.
    """

    folder: Path | None
    architecture: str
    seed: int | None = None

    @property
    def config(self) -> ModelConfig:
        """The folder's config.json."""
        if self.folder is None:
            raise InvalidRequest(f"{self.architecture} comes from timm and has no model folder.")
        return read_config(self.folder)


def resolve(source: str) -> Resolved:
    """Finds, fetches if need be, and verifies.

    Raises:
        UnknownModel: no such name, folder, repository or revision.
        ModelFilesMissing: a file of the folder is not there.
        TamperedModel: a file's sha256 is not the recorded one.
        InvalidRequest: the source cannot be read as one.
    """
    kind, colon, rest = source.partition(":")
    if colon and kind in ("timm", "random"):
        return _untrained_or_timm(kind, rest)
    if colon and kind == "hf-hub":
        return _folder(_download(rest))
    if colon and kind == "local-dir":
        return _folder(Path(rest).expanduser())
    if colon and kind == "file":
        return _folder(Path(unquote(urlparse(source).path)))
    if colon and kind in ("http", "https"):
        raise InvalidRequest(
            f"{source} is a web address: download its config.json and model.safetensors into a folder and give that, "
            "or name a Hugging Face repository as hf-hub:org/repo."
        )
    if source in MODELS:
        info = model_info(source)
        return _folder(info.folder, info.sha256)
    path = Path(source).expanduser()
    if path.is_dir():
        return _folder(path)
    if path.exists():
        raise InvalidRequest(f"{source} is a file: give the model folder that holds its {CONFIG} and {WEIGHTS}.")
    if "/" in source or "\\" in source or source.startswith("."):
        raise UnknownModel(f"{source} does not exist: give a model folder, or a name that `nnclr models` lists.")
    model_info(source.partition("@")[0])  # says which name is the nearest
    raise UnknownModel(
        f"{source!r} names a revision, but the published models are bundled and have none: leave it out."
    )


def _untrained_or_timm(kind: str, rest: str) -> Resolved:
    if not rest:
        raise InvalidRequest(f"{kind}: needs an architecture, for example {kind}:resnet50.")
    if kind == "timm":
        return Resolved(None, rest)
    architecture, _, seed = rest.partition("@")
    if seed and not seed.isdecimal():
        raise InvalidRequest(f"random:{rest}: the seed after @ is a whole number, for example random:resnet50@0.")
    if architecture in MODELS or (Path(architecture).expanduser() / CONFIG).is_file():
        return replace(resolve(architecture), seed=int(seed or 0))
    return Resolved(None, architecture, int(seed or 0))


def _folder(folder: Path, pinned: Mapping[str, str] | None = None) -> Resolved:
    """Checks a model folder against the pinned hashes, or against those that its config records."""
    if not folder.is_dir():
        raise UnknownModel(f"{folder} is no folder: give a model folder, or a name that `nnclr models` lists.")
    require(folder, CONFIG)
    require(folder, WEIGHTS)
    for name, expected in (pinned or {}).items():
        _verify(folder, name, expected)
    config = read_config(folder)
    if pinned is None:
        for name, expected in (config.nnclr.get("sha256") or {}).items():
            if name == WEIGHTS or (folder / name).exists():
                _verify(folder, name, expected)
    return Resolved(folder, config.architecture)


def _verify(folder: Path, name: str, expected: str) -> None:
    actual = sha256_of(require(folder, name))
    if actual != expected:
        raise TamperedModel(
            f"{folder / name} is not the published file (sha256 {actual[:12]}..., expected {expected[:12]}...): "
            "delete it and fetch it again."
        )


def _download(reference: str) -> Path:
    """A snapshot of a Hugging Face repository, from the cache if it is there."""
    repository, _, revision = reference.partition("@")
    if not _REPOSITORY.fullmatch(repository):
        raise InvalidRequest(f"hf-hub:{reference} is no repository: write hf-hub:ORGANISATION/NAME[@REVISION].")
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        return Path(
            snapshot_download(
                repository,
                revision=revision or None,
                allow_patterns=[CONFIG, WEIGHTS, HEADS],
                library_name="nnclr_hub",
            )
        )
    except GatedRepoError as error:
        raise UnknownModel(
            f"{repository} is gated: accept its terms on its page, then log in with `hf auth login` or set HF_TOKEN."
        ) from error
    except RepositoryNotFoundError as error:
        raise UnknownModel(
            f"The Hub has no repository {repository}, or it is private: check the name, or set HF_TOKEN."
        ) from error
    except RevisionNotFoundError as error:
        raise UnknownModel(f"{repository} has no revision {revision!r}: name a tag, branch or commit of it.") from error
    except HFValidationError as error:
        raise InvalidRequest(f"hf-hub:{reference} is no repository: {' '.join(str(error).split())}") from error
    except LocalEntryNotFoundError as error:
        why = "HF_HUB_OFFLINE is set: unset it" if constants.HF_HUB_OFFLINE else "the Hub cannot be reached: connect"
        raise ModelFilesMissing(
            f"{reference} is not in the cache {constants.HF_HUB_CACHE} and {why}, set HF_HUB_CACHE to a folder that "
            "has it, or give a local model folder."
        ) from error
    except (HfHubHTTPError, OSError, *_network_errors()) as error:
        raise ModelError(f"{reference} could not be fetched ({type(error).__name__}): try again later.") from error


def _network_errors() -> tuple[type[Exception], ...]:
    """What the Hub's client lets through when a connection breaks: httpx's errors, unlike those of requests, are no
    OSErrors."""
    try:
        from httpx import HTTPError
    except ImportError:
        return ()
    return (HTTPError,)
