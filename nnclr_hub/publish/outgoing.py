"""What a model folder has to send: its files, whole and verified, and a card that names the repository."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from nnclr_hub.encoder.encoder import load_encoder
from nnclr_hub.errors import ModelFilesMissing, TamperedModel, WeightsMismatch
from nnclr_hub.hub.layout import CARD, CONFIG, WEIGHTS, read_config, read_weights, sha256_of
from nnclr_hub.publish.card import is_ours, model_card, sealed

LICENSE = "LICENSE"


@dataclass(frozen=True)
class OutgoingFile:
    """A file to send, from the disk or from memory."""

    content: Path | bytes

    def sha256(self) -> str:
        """Hex digest, by which the Hub knows large files."""
        if isinstance(self.content, bytes):
            return hashlib.sha256(self.content).hexdigest()
        with self.content.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def git_hash(self) -> str:
        """Hex digest, by which the Hub knows any other file."""
        data = self.content if isinstance(self.content, bytes) else self.content.read_bytes()
        return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()

    def size(self) -> int:
        """Bytes."""
        return len(self.content) if isinstance(self.content, bytes) else self.content.stat().st_size


def outgoing(folder: Path, repository: str, revision: str | None) -> dict[str, OutgoingFile]:
    """{name: file} of what the folder publishes: what its config.json records, that file, the card and a LICENSE.

    Args:
        folder: a model folder of ours.
        repository: ORGANISATION/NAME.
        revision: the tag that the card's snippets name, if any.

    Raises:
        ModelFilesMissing, TamperedModel, WeightsMismatch: the folder is not whole.
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
            raise ModelFilesMissing(f"{folder / name} is missing, and its {CONFIG} records it: export the model again.")
    for name, digest in recorded.items():
        if sha256_of(folder / name) != digest:  # read anew, whatever is remembered of the file
            raise TamperedModel(f"{folder / name} is not the file that its {CONFIG} records: export the model again.")
    encoder = load_encoder(f"local-dir:{folder}", device="cpu")  # every weight has its place
    if encoder.embed_dim != config.num_features:
        raise WeightsMismatch(
            f"{folder / CONFIG} speaks of vectors of {config.num_features} numbers, and the network gives "
            f"{encoder.embed_dim}: export the model again."
        )
    for name in recorded:
        if name.endswith(".safetensors"):
            _require_finite(folder, name)
    files = {name: OutgoingFile(folder / name) for name in (CONFIG, *sorted(recorded))}
    if (folder / LICENSE).is_file():
        files[LICENSE] = OutgoingFile(folder / LICENSE)
    return {**files, CARD: outgoing_card(folder, repository, revision)}


def outgoing_card(folder: Path, repository: str, revision: str | None) -> OutgoingFile:
    """Return the card, written for the repository, unless somebody edited it: then it goes as it stands, sealed."""
    try:
        text = (folder / CARD).read_text("utf-8") if (folder / CARD).is_file() else None
    except (UnicodeDecodeError, OSError) as error:
        raise WeightsMismatch(f"{folder / CARD} cannot be read as UTF-8; save it in this encoding.") from error
    if text is None or is_ours(text):
        name = repository.partition("/")[2]
        text = model_card(name, read_config(folder), repository=repository, revision=revision)
    return OutgoingFile(sealed(text).encode())


def _require_finite(folder: Path, name: str) -> None:
    for key, value in read_weights(folder, name).items():
        if value.is_floating_point() and not value.isfinite().all():
            raise WeightsMismatch(f"{key} in {folder / name} holds NaN or infinity: export an older checkpoint.")
