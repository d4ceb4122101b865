"""A source is a string that says where an encoder comes from.

    nnclr_resnet18_small_cpu_starter      a registered name (see `nnclr models`), of a published one also NAME@REVISION
    hf-hub:org/repo[@revision]            a model folder on the Hugging Face Hub
    local-dir:/models/mine, ./mine, file:///models/mine, or the .safetensors file in it
    https://host/name-<sha256>.safetensors    with its config.json beside it
    timm:resnet50.a1_in1k                 timm's own weights
    random:resnet50[@seed]                untrained weights, a baseline; timm starts a ResNet's residual
                                          branches at zero, so this one is weaker than its size suggests
    random:SOURCE[@seed]                  likewise, the network and preprocessing of a name or model folder

`resolve` turns one into local files whose hashes are right: those that the registry or the address pins, or else
those that the folder's own config.json records (see `nnclr_hub.hub.integrity`).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote

from nnclr_hub.errors import InvalidRequest, UnknownModel
from nnclr_hub.hub.addresses import fetch, pinned_digits, without_query
from nnclr_hub.hub.integrity import FileCheck, Pins, announced, check, hash_again
from nnclr_hub.hub.layout import BESIDE, CONFIG, WEIGHTS, ModelConfig, read_config, require
from nnclr_hub.hub.registry import MODELS, model_info
from nnclr_hub.hub.repositories import download

PICKLES = (".pth", ".pt", ".ckpt", ".bin", ".pkl", ".pickle", ".tar")
NOBODY = Pins("nobody")
_ON_THE_HUB = re.compile(r"\w[\w.-]*/[\w.-]+(@[\w./+-]+)?")


@dataclass(frozen=True)
class Resolved:
    """Where an encoder's files are.

    folder: a verified model folder; None for timm: and for random: of an architecture.
    architecture: timm's name.
    seed: of random weights; None for trained ones.
    weights: name of the weights' file in the folder.
    pins: what the files were compared with, by whoever else than the folder itself says so, if anybody does.
    own: what the folder's config.json says of them.
    """

    folder: Path | None
    architecture: str
    seed: int | None = None
    weights: str = WEIGHTS
    pins: Pins = NOBODY
    own: Pins = NOBODY

    @property
    def config(self) -> ModelConfig:
        """The folder's config.json."""
        if self.folder is None:
            raise InvalidRequest(f"{self.architecture} comes from timm and has no model folder.")
        return read_config(self.folder)


def resolve(source: str, *, progress: bool = True, whole: bool = False) -> Resolved:
    """Finds, fetches if need be, and verifies.

    Args:
        source: see above.
        progress: show a bar where something is downloaded.
        whole: of a repository also the support set, which loading an encoder does not need.

    Raises:
        UnknownModel: no such name, folder, repository or revision.
        ModelFilesMissing: a file of the folder is not there, and cannot be fetched.
        TamperedModel: a file's sha256 is not the recorded one.
        WeightsMismatch, ModelTooNew: config.json cannot be read.
        ModelError: a download failed.
        InvalidRequest: the source cannot be read as one.
    """
    if not source:
        raise InvalidRequest("The source is empty: give a model folder, or a name that `nnclr models` lists.")
    kind, colon, rest = source.partition(":")
    if colon and kind in ("timm", "random"):
        return _untrained_or_timm(kind, rest)
    if colon and kind == "hf-hub":
        return _fetched(rest, progress, whole)
    if colon and kind == "local-dir":
        return _folder(_local(rest))
    if colon and kind in ("http", "https"):
        _refuse_pickles(source.partition("?")[0], without_query(source))
        folder, digits = fetch(source, progress=progress)
        return _folder(folder, Pins("address", {WEIGHTS: digits}))
    name, _, revision = source.partition("@")
    if name in MODELS:
        return _registered(name, revision, progress, whole)
    path = _named(source)
    if os.path.isfile(path):  # unlike Path's own, false of names that no file can have
        return _file(path)
    if os.path.isdir(path):
        return _folder(path)
    if colon or "/" in source or "\\" in source or source.startswith("."):
        hint = f", or hf-hub:{source} if it is on the Hub" if _ON_THE_HUB.fullmatch(source) else ""
        raise UnknownModel(f"{source} does not exist: give a model folder, or a name that `nnclr models` lists{hint}.")
    model_info(name)  # says that it has no weights yet, or which name is the nearest
    raise AssertionError(name)


def absolute(source: str) -> str:
    """The same source to a process that works in another folder: what is a path of this machine's is a whole one."""
    kind, colon, rest = source.partition(":")
    if colon and kind == "local-dir":
        return f"{kind}:{_local(rest).absolute()}"
    if colon and kind == "random":
        architecture, at, seed = rest.partition("@")
        here = architecture not in MODELS and os.path.isfile(_local(architecture) / CONFIG)
        return f"{kind}:{_local(architecture).absolute()}{at}{seed}" if here else source
    if source.partition("@")[0] in MODELS or not os.path.exists(_named(source)):
        return source
    return str(_named(source).absolute())


def verify(source: str, *, progress: bool = True) -> tuple[FileCheck, ...]:
    """Hashes every file of a source's model folder anew, whatever is remembered of it.

    Raises:
        InvalidRequest: the source is no model folder.
        ModelError: see `resolve`.
    """
    found = resolve(source, progress=progress)
    if found.folder is None or found.seed is not None:
        raise InvalidRequest(f"{source} is no model folder, so nothing is recorded to verify it against.")
    return hash_again(found.folder, (CONFIG, found.weights, *BESIDE), (found.pins, found.own))


def _local(path: str) -> Path:
    """With ~ read, where there is such a user."""
    return Path(os.path.expanduser(path))


def _named(source: str) -> Path:
    """The path that a source without a kind of its own is, or file: with a path behind it."""
    kind, colon, rest = source.partition(":")
    return _local(unquote(re.sub("//[^/]*", "", rest, count=1)) if colon and kind == "file" else source)


def _untrained_or_timm(kind: str, rest: str) -> Resolved:
    if not rest:
        raise InvalidRequest(f"{kind}: needs an architecture, for example {kind}:resnet50.")
    if kind == "timm":
        return Resolved(None, rest)
    architecture, _, seed = rest.partition("@")
    if seed and not re.fullmatch("[0-9]{1,18}", seed):  # torch takes 64 bits
        raise InvalidRequest(
            f"random:{rest}: the seed after @ is a whole number of up to 18 digits, for example random:resnet50@0."
        )
    if architecture in MODELS or os.path.isfile(_local(architecture) / CONFIG):
        return replace(resolve(architecture), seed=int(seed or 0), pins=NOBODY, own=NOBODY)
    return Resolved(None, architecture, int(seed or 0))


def _registered(name: str, revision: str, progress: bool, whole: bool) -> Resolved:
    """From the folder that this installation has, else from the Hub; another revision than ours only from there."""
    info = model_info(name)
    pins = Pins("registry", info.sha256)
    if revision in ("", info.revision):
        folder = info.folder
        if folder is None:
            folder = download(f"{info.require_published()}@{info.revision}", progress=progress, whole=whole)
        return _folder(folder, pins)
    return _fetched(f"{info.require_published()}@{revision}", progress, whole)


def _fetched(reference: str, progress: bool, whole: bool) -> Resolved:
    """From the Hub, with what it announced; a repository need not be one of ours."""
    folder = download(reference, progress=progress, whole=whole)
    return _folder(folder, announced(folder))


def _refuse_pickles(path: str, source: str) -> None:
    if path.lower().endswith(PICKLES):
        raise InvalidRequest(
            f"{source} is a pickle, which can run code when it is read, so it is never loaded: `nnclr convert` makes a "
            f"model folder with {CONFIG} and {WEIGHTS} of it."
        )


def _file(path: Path) -> Resolved:
    """The weights in one file, with the config.json that lies beside it."""
    _refuse_pickles(path.name, str(path))
    if path.suffix != ".safetensors" or path.name in BESIDE:
        raise InvalidRequest(f"{path} holds no encoder's weights: give {WEIGHTS}, or the folder it lies in.")
    digits = pinned_digits(path.name)
    return _folder(path.parent, Pins("address", {path.name: digits}) if digits else None, path.name)


def _folder(folder: Path, pins: Pins | None = None, weights: str = WEIGHTS) -> Resolved:
    """Compares a model folder with what somebody else has pinned, if so, and with what its config records."""
    if not os.path.isdir(folder):
        raise UnknownModel(f"{folder} is no folder: give a model folder, or a name that `nnclr models` lists.")
    require(folder, CONFIG)
    require(folder, weights)
    if pins is not None:
        check(folder, pins)
    config = read_config(folder)
    recorded = {weights if name == WEIGHTS else name: digest for name, digest in config.sha256.items()}
    recorded = {name: digest for name, digest in recorded.items() if name == weights or (folder / name).exists()}
    own = Pins("config.json", recorded) if recorded else NOBODY
    if pins is None or pins.by != "registry":  # which pins config.json itself
        check(folder, own)
    return Resolved(folder, config.architecture, weights=weights, pins=pins or own, own=own)
