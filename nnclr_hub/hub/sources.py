"""Sources: strings that name where an encoder comes from.

    nnclr_resnet18_starter      a registered name (see `nnclr models`); if published, also NAME@REVISION
    hf-hub:org/repo[@revision]            a model folder on the Hugging Face Hub
    local-dir:/models/mine, ./mine, file:///models/mine, or the .safetensors file in it
    https://host/name-<sha256>.safetensors    with its config.json next to it
    timm:resnet50.a1_in1k                 timm's own weights
    random:resnet50[@seed]                random weights, as a baseline; timm initializes a ResNet's residual
                                          branches with zero, so it is weaker than its size suggests
    random:SOURCE[@seed]                  random weights in the network of a name or model folder

Any of them may be followed by +shape, +color or both, which the vectors then describe too (see
`nnclr_hub.encoder.appended`), and by ?channels=0,2,1&page=3, the pixels that the encoder reads of an image file (see
`nnclr_hub.images.reading`).

`resolve` returns local files with verified hashes. The source of the expected hash decides what a match proves:

    registry, address    the file is the published one, or the one that the address names: nobody changed it
    Hub                  the file is the one that the Hub announced for the download: complete and undamaged
    config.json          the files of the folder belong together and are complete; an attacker who changes the weights
                         can change config.json as well
    nobody               no hash is recorded, as in a folder that timm wrote
"""

from __future__ import annotations

import filecmp
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote

from nnclr_hub.errors import InvalidRequest, ModelError, ModelFilesMissing, TamperedModel, UnknownModel
from nnclr_hub.hub.addresses import fetch, pinned_digits, without_query
from nnclr_hub.hub.layout import CARD, CONFIG, OPTIONAL, WEIGHTS, ModelConfig, read_config, require, sha256_of
from nnclr_hub.hub.registry import MODELS, model_info
from nnclr_hub.hub.repositories import download

PYTHON = "python:"  # a file of yours that builds an encoder; see nnclr_hub.encoder.wrapped
PICKLES = (".pth", ".pt", ".ckpt", ".bin", ".pkl", ".pickle", ".tar")
INCOMPLETE = ".download-"  # prefix of the folder for incomplete files
_READING = re.compile(r"(?:channels|page|project|scale)=[\w,]*(?:&(?:channels|page|project|scale)=[\w,]*)*")
APPENDABLE = ("shape", "color")
_APPENDED = re.compile(rf"(.+)\+({'|'.join(APPENDABLE)})", re.DOTALL)
_BLOB = re.compile(r"[0-9a-f]{64}")
_PUBLISHED = {
    "registry": "the published file",
    "address": "the file that its address names",
    "Hub": "the file that the Hub announced",
}
_ON_THE_HUB = re.compile(r"\w[\w.-]*/[\w.-]+(@[\w./+-]+)?")


@dataclass(frozen=True)
class Pins:
    """The expected hashes of a model folder's files.

    by: their source: "registry", "address", "Hub", "config.json" or "nobody".
    sha256: file name -> hex digest, or its first digits.
    """

    by: str = "nobody"
    sha256: Mapping[str, str] = field(default_factory=dict)

    def check(self, folder: Path) -> None:
        """Compare files with their pins; raise ModelFilesMissing or TamperedModel."""
        for name in self.sha256:
            self.compare(path := require(folder, name), sha256_of(path))

    def compare(self, path: Path, digest: str) -> None:
        """Raise TamperedModel if the hash of a file differs from its pin."""
        expected = self.sha256.get(path.name, "").lower()
        if not digest.startswith(expected):
            raise TamperedModel(
                f"{path} is not {_PUBLISHED.get(self.by, f'the file that its {CONFIG} records')} (sha256 "
                f"{digest[:12]}..., expected {expected[:12]}...). It is damaged, or was changed, as by "
                f"`save_pretrained` of transformers. `nnclr convert {path} NEW_FOLDER` makes a model of your own "
                "weights; otherwise download or export the model again, to another folder."
            )


NOBODY = Pins()


@dataclass(frozen=True)
class FileCheck:
    """One file of a model folder: its sha256, and the source of the expected hash, "nobody" if none is recorded."""

    name: str
    sha256: str
    pinned_by: str


@dataclass(frozen=True)
class Resolved:
    """The location of an encoder's files.

    folder: a verified model folder; None for timm:NAME and random:ARCHITECTURE.
    architecture: timm's name.
    seed: seed of random weights; None for trained weights.
    weights: name of the weights file in the folder.
    pins: the expected hashes, from a source outside the folder if there is one.
    own: the hashes in the folder's config.json.
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
            raise InvalidRequest(f"{self.architecture} comes from timm and does not have a model folder.")
        return read_config(self.folder)


def split_reading(source: str) -> tuple[str, str]:
    """Return a source without what it selects of image files, and that selection; "" if there is none."""
    plain, mark, reading = source.rpartition("?")
    return (plain, reading) if mark and _READING.fullmatch(reading) else (source, "")


def split_appended(source: str) -> tuple[str, tuple[str, ...]]:
    """Return a source without the parts that it appends to vectors, and these, in the order of APPENDABLE.

    The name of an existing file or folder may end like that, and appends nothing.

    Raises:
        InvalidRequest: a part is repeated.
    """
    plain, reading = split_reading(source)
    names: list[str] = []
    while not os.path.exists(_named(plain.removeprefix("local-dir:"))) and (found := _APPENDED.fullmatch(plain)):
        plain, name = found.groups()
        names.append(name)
    if len(set(names)) < len(names):
        raise InvalidRequest(f"{source} appends a part twice; use each of {', '.join(APPENDABLE)} at most once.")
    return f"{plain}?{reading}" if reading else plain, tuple(one for one in APPENDABLE if one in names)


def recorded_source(source: str, whose: str) -> str:
    """Return the source that a collection, a probe or a job recorded. It may come from elsewhere and must not run code.

    Args:
        whose: what recorded it, such as "this collection", for the message.

    Raises:
        ModelFilesMissing: the source is a file of Python, which only the user may name.
    """
    if source.startswith(PYTHON):
        raise ModelFilesMissing(f"The encoder of {whose} is your own code; name it: --model {source}.")
    return source


def resolve(source: str, *, progress: bool = True) -> Resolved:
    """Find the files of a source, download them if necessary, and verify them.

    Raises:
        UnknownModel: the name, folder, repository or revision does not exist.
        ModelFilesMissing: a file of the folder is missing and cannot be downloaded.
        TamperedModel: the sha256 of a file differs from the recorded one.
        WeightsMismatch, ModelTooNew: config.json is invalid or too new.
        ModelError: a download failed.
        InvalidRequest: the source is malformed, or appends parts, which belong to no file.
    """
    source = split_reading(source)[0]
    if (bare := split_appended(source)[0]) != source:
        raise InvalidRequest(f"Only vectors can have the parts of {source}; name {bare} for its files.")
    if not source:
        raise InvalidRequest("The source is empty; use a model folder, or a name from `nnclr models`.")
    kind, colon, rest = source.partition(":")
    if colon and kind in ("timm", "random"):
        return _untrained_or_timm(kind, rest)
    if colon and kind == "hf-hub":
        return _fetched(rest, progress)
    if colon and kind == "local-dir":
        return _folder(_local(rest))
    if colon and kind in ("http", "https"):
        _refuse_pickles(source.partition("?")[0], without_query(source))
        folder, digits = fetch(source, progress=progress)
        return _folder(folder, Pins("address", {WEIGHTS: digits}))
    name, _, revision = source.partition("@")
    if name in MODELS:
        return _registered(name, revision, progress)
    path = _named(source)
    if os.path.isfile(path):  # unlike Path.is_file, returns False for invalid names
        return _file(path)
    if os.path.isdir(path):
        return _folder(path)
    if colon or "/" in source or "\\" in source or source.startswith("."):
        hint = f", or hf-hub:{source} if it is on the Hub" if _ON_THE_HUB.fullmatch(source) else ""
        raise UnknownModel(f"{source} does not exist; use a model folder, or a name from `nnclr models`{hint}.")
    model_info(name)  # raises UnknownModel with the nearest name
    raise AssertionError(name)


def absolute(source: str) -> str:
    """Return the source with absolute paths, for a process with another working directory."""
    plain, reading = split_reading(source)
    if reading:
        return f"{absolute(plain)}?{reading}"
    plain, parts = split_appended(source)
    if parts:
        return "+".join([absolute(plain), *parts])
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


def verify(source: str) -> tuple[FileCheck, ...]:
    """Hash every file of a source's model folder, and compare it with its pins.

    Raises:
        InvalidRequest: the source is not a model folder.
        ModelError: see `resolve`.
    """
    found = resolve(source)
    if found.folder is None or found.seed is not None:
        raise InvalidRequest(f"{source} is not a model folder, so no hashes are recorded to verify it.")
    checks = []
    for path in (found.folder / name for name in (CONFIG, found.weights, *OPTIONAL)):
        if path.is_file():
            digest, pins = sha256_of(path), [one for one in (found.pins, found.own) if path.name in one.sha256]
            for one in pins:
                one.compare(path, digest)
            checks.append(FileCheck(path.name, digest, pins[0].by if pins else "nobody"))
    return tuple(checks)


def keep(found: Resolved, folder: Path) -> Path:
    """Copy the files of a model folder, each completely or not at all; existing files are not written again.

    Args:
        folder: the target; new, empty, or with this model in it.

    Raises:
        InvalidRequest: the source has no model folder, or the target contains other files.
        ModelError: the target cannot be written.
    """
    if found.folder is None or found.seed is not None:
        raise InvalidRequest(
            f"{found.architecture} does not have a model folder to copy; timm keeps its weights in HF_HUB_CACHE."
        )
    # config.json last, because a folder without it is not a model folder
    targets = {CARD: CARD, **{name: name for name in OPTIONAL}, found.weights: WEIGHTS, CONFIG: CONFIG}
    files = {target: found.folder / name for name, target in targets.items() if (found.folder / name).is_file()}
    try:
        there = [path for path in folder.glob("*") if not path.name.startswith(INCOMPLETE)]
        if other := [
            path.name
            for path in there
            if path.name not in files or not filecmp.cmp(path, files[path.name], shallow=False)
        ]:
            raise InvalidRequest(f"{folder} contains other files ({', '.join(sorted(other)[:3])}); use a new folder.")
        for left_over in folder.glob(f"{INCOMPLETE}*"):
            shutil.rmtree(left_over, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=INCOMPLETE, dir=folder, ignore_cleanup_errors=True) as temporary:
            missing = [name for name in files if not (folder / name).exists()]
            for name in missing:
                # without permissions and links: the files of a cache may be read-only links
                shutil.copyfile(files[name], Path(temporary, name))
            for name in missing:
                os.replace(Path(temporary, name), folder / name)
    except OSError as error:
        raise ModelError(
            f"{folder} cannot be written ({error.strerror}); use another folder, or free some space."
        ) from error
    return folder


def _local(path: str) -> Path:
    return Path(os.path.expanduser(path))


def _named(source: str) -> Path:
    kind, colon, rest = source.partition(":")
    return _local(unquote(re.sub("//[^/]*", "", rest, count=1)) if colon and kind == "file" else source)


def _untrained_or_timm(kind: str, rest: str) -> Resolved:
    if not rest:
        raise InvalidRequest(f"{kind}: needs an architecture, such as {kind}:resnet50.")
    if kind == "timm":
        return Resolved(None, rest)
    architecture, _, seed = rest.partition("@")
    if seed and not re.fullmatch("[0-9]{1,18}", seed):  # torch takes 64 bits
        raise InvalidRequest(
            f"The seed in random:{rest} must be a whole number of up to 18 digits, such as random:resnet50@0."
        )
    if architecture in MODELS or os.path.isfile(_local(architecture) / CONFIG):
        return replace(resolve(architecture), seed=int(seed or 0), pins=NOBODY, own=NOBODY)
    return Resolved(None, architecture, int(seed or 0))


def _registered(name: str, revision: str, progress: bool) -> Resolved:
    # this installation has one revision at most; the Hub has all of them
    info = model_info(name)
    pins = Pins("registry", info.sha256)
    if revision in ("", info.revision):
        folder = info.folder
        if folder is None:
            folder = download(f"{info.require_published()}@{info.revision}", progress=progress)
        return _folder(folder, pins)
    return _fetched(f"{info.require_published()}@{revision}", progress)


def _fetched(reference: str, progress: bool) -> Resolved:
    # the client names each cached file by the sha256 that the Hub announced, but does not verify the content
    folder = download(reference, progress=progress)
    blobs = {name: (folder / name).resolve().name for name in (WEIGHTS, *OPTIONAL)}
    blobs = {name: blob for name, blob in blobs.items() if _BLOB.fullmatch(blob)}
    return _folder(folder, Pins("Hub", blobs) if blobs else None)


def _refuse_pickles(path: str, source: str) -> None:
    if path.lower().endswith(PICKLES):
        raise InvalidRequest(
            f"{source} is a pickle and is not loaded, because it can run code; convert it to a model folder with "
            "`nnclr convert`."
        )


def _file(path: Path) -> Resolved:
    _refuse_pickles(path.name, str(path))
    if path.suffix != ".safetensors" or path.name in OPTIONAL:
        raise InvalidRequest(f"{path} does not contain the weights of an encoder; use {WEIGHTS}, or its folder.")
    digits = pinned_digits(path.name)
    return _folder(path.parent, Pins("address", {path.name: digits}) if digits else None, path.name)


def _folder(folder: Path, pins: Pins | None = None, weights: str = WEIGHTS) -> Resolved:
    """Verify a model folder with external pins, if any, and with the hashes in its config.json."""
    if not os.path.isdir(folder):
        raise UnknownModel(f"{folder} is not a folder; use a model folder, or a name from `nnclr models`.")
    require(folder, CONFIG)
    require(folder, weights)
    if pins is not None:
        pins.check(folder)
    config = read_config(folder)
    recorded = {weights if name == WEIGHTS else name: digest for name, digest in config.sha256.items()}
    recorded = {name: digest for name, digest in recorded.items() if name == weights or (folder / name).exists()}
    own = Pins("config.json", recorded) if recorded else NOBODY
    if pins is None or pins.by != "registry":  # the registry also pins config.json
        own.check(folder)
    return Resolved(folder, config.architecture, weights=weights, pins=pins or own, own=own)
