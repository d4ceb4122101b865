"""The files of a model folder to upload, verified, and a card that names the repository."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from nnclr_hub.encoder.loader import load_encoder
from nnclr_hub.errors import ModelFilesMissing, TamperedModel, WeightsMismatch
from nnclr_hub.hub.layout import CARD, CONFIG, WEIGHTS, read_config, read_weights, sha256_of
from nnclr_hub.publish.card import is_ours, model_card, sealed

LICENSE = "LICENSE"


@dataclass(frozen=True)
class OutgoingFile:
    """A file to upload, from the disk or from memory."""

    content: Path | bytes

    def sha256(self) -> str:
        """Return the hex digest by which the Hub identifies large files."""
        if isinstance(self.content, bytes):
            return hashlib.sha256(self.content).hexdigest()
        with self.content.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def git_hash(self) -> str:
        """Return the hex digest by which the Hub identifies other files."""
        data = self.content if isinstance(self.content, bytes) else self.content.read_bytes()
        return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()

    def size(self) -> int:
        """Return the number of bytes."""
        return len(self.content) if isinstance(self.content, bytes) else self.content.stat().st_size


def outgoing(folder: Path, repository: str, revision: str | None) -> dict[str, OutgoingFile]:
    """Return the files to upload by name: config.json, the files that it records, the card, and LICENSE if it exists.

    Args:
        revision: the tag for the snippets of the card, if any.

    Raises:
        ModelFilesMissing, TamperedModel, WeightsMismatch: the folder is incomplete or damaged.
    """
    folder = Path(folder)
    config = read_config(folder)
    recorded = config.sha256
    if WEIGHTS not in recorded:
        raise WeightsMismatch(
            f"{folder} does not record the hash of its weights; make a folder with `nnclr export` to publish it."
        )
    for name in recorded:
        if not (folder / name).is_file():
            raise ModelFilesMissing(f"{folder / name} is listed in {CONFIG} but missing; export the model again.")
    for name, digest in recorded.items():
        if sha256_of(folder / name) != digest:  # without the cache of hashes
            raise TamperedModel(f"{folder / name} differs from its hash in {CONFIG}; export the model again.")
    encoder = load_encoder(f"local-dir:{folder}", device="cpu", backend="torch")  # checks that every weight fits
    if encoder.embed_dim != config.num_features:
        raise WeightsMismatch(
            f"{folder / CONFIG} records vectors of length {config.num_features}, but the network gives "
            f"{encoder.embed_dim}; export the model again."
        )
    for name in recorded:
        if name.endswith(".safetensors"):
            read_weights(folder, name)  # raises for NaN and infinity
    files = {name: OutgoingFile(folder / name) for name in (CONFIG, *sorted(recorded))}
    if (folder / LICENSE).is_file():
        files[LICENSE] = OutgoingFile(folder / LICENSE)
    return {**files, CARD: outgoing_card(folder, repository, revision)}


def outgoing_card(folder: Path, repository: str, revision: str | None) -> OutgoingFile:
    """Return the card for the repository; an edited card keeps its text and gets a new seal."""
    try:
        text = (folder / CARD).read_text("utf-8") if (folder / CARD).is_file() else None
    except (UnicodeDecodeError, OSError) as error:
        raise WeightsMismatch(f"{folder / CARD} cannot be read as UTF-8; save it in this encoding.") from error
    if text is None or is_ours(text):
        name = repository.partition("/")[2]
        text = model_card(name, read_config(folder), repository=repository, revision=revision)
    return OutgoingFile(sealed(text).encode())
