"""https://HOST/NAME-<sha256>.safetensors with its config.json beside it: weights from any web server.

The address itself pins the weights, by at least 8 of the sha256's hex digits, as torch.hub has it; config.json is
pinned by nobody, and kept as it came. Both lie in our cache folder afterwards. Plain http is for this machine alone.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import ipaddress
import os
import re
import shutil
import tempfile
import time
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError
from urllib.parse import urljoin, urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from nnclr_hub.cache import cache_folder
from nnclr_hub.errors import (
    InvalidRequest,
    ModelError,
    ModelFilesMissing,
    ModelTooNew,
    NNCLRHubError,
    TamperedModel,
    UnknownModel,
)
from nnclr_hub.hub.layout import CONFIG, WEIGHTS, read_config

_NAME = re.compile(r"-([0-9a-f]{8,64})\.safetensors")
_PAGE = re.compile(r"https://(?:www\.)?huggingface\.co/([\w.-]+/[\w.-]+)/?")
_CHUNK = 1 << 20
TIMEOUT = 30.0  # seconds without a byte
LARGEST_CONFIG = 1 << 20  # bytes
HALF = ".half-"  # where a download lies until it is whole
STALE = 86400.0  # seconds without a change


def pinned_digits(name: str) -> str | None:
    """The sha256's first digits in a file's name, as in encoder-0123abcd.safetensors; None if there are none."""
    found = _NAME.search(name)
    return found[1] if found and found.end() == len(name) else None


def fetch(address: str, *, progress: bool = True) -> tuple[Path, str]:
    """A model folder in our cache with an address's weights and the config.json beside it, and the digits that pin it.

    Args:
        address: https://HOST/NAME-<at least 8 digits of the sha256>.safetensors.
        progress: show a bar.

    Raises:
        InvalidRequest: another kind of address.
        UnknownModel: the server does not have it, or not for us.
        ModelFilesMissing: it is not in the cache and there is no network.
        TamperedModel: the bytes do not have the hash that the address names.
        ModelTooNew: a later version wrote config.json.
        ModelError: the download broke off, what came is no config.json, or there is no room.
    """
    digits = _require_pinned(address)
    folder = cache_folder() / "models" / hashlib.sha256(address.encode()).hexdigest()[:16]
    if (folder / WEIGHTS).is_file() and (folder / CONFIG).is_file():
        return folder, digits
    _refuse_when_offline(address, folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _sweep(folder.parent)
        half = Path(tempfile.mkdtemp(prefix=HALF, dir=folder.parent))
        try:
            _save_both(address, digits, half, progress)
            folder.mkdir(exist_ok=True)
            for name in (CONFIG, WEIGHTS):  # the weights last: they say that the folder is whole
                os.replace(half / name, folder / name)
        finally:
            shutil.rmtree(half, ignore_errors=True)
    except OSError as error:
        raise _no_place(address, error) from error
    return folder, digits


def without_query(address: str) -> str:
    """An address as it may be shown: a query may be a signature, and what stands before an @ a password."""
    return re.sub("//[^/@]*@", "//", address.partition("?")[0])


def _save_both(address: str, digits: str, half: Path, progress: bool) -> None:
    """config.json first, which is small and tells whether the weights are worth fetching.

    Raises:
        NNCLRHubError: see `fetch`.
        OSError: they cannot be written.
    """
    _save(_beside(address), half / CONFIG, LARGEST_CONFIG, progress=False)
    _require_config(address, digits, half)
    digest = _save(address, half / WEIGHTS, None, progress=progress)
    if not digest.startswith(digits):
        raise TamperedModel(
            f"{without_query(address)} is not the file that its name says (sha256 {digest[:12]}..., expected "
            f"{digits}...): nothing was kept; ask whoever gave you the address."
        )


def _require_config(address: str, digits: str, half: Path) -> None:
    """Refuses what is no config.json, such as a page that says that there is none: it would be kept for good."""
    try:
        recorded = read_config(half).sha256.get(WEIGHTS, "")
    except ModelTooNew:
        raise ModelTooNew(
            f"{without_query(_beside(address))} was written by a later version of nnclr_hub: update nnclr_hub."
        ) from None
    except ModelError as error:
        raise ModelError(
            f"{without_query(_beside(address))} is no {CONFIG} of a model folder: put that beside the weights; nothing "
            "was kept."
        ) from error
    if recorded and not recorded.lower().startswith(digits):
        raise TamperedModel(
            f"{without_query(_beside(address))} records other weights (sha256 {recorded[:12]}...) than the address "
            "names: nothing was kept; ask whoever gave you the address."
        )


def _sweep(place: Path) -> None:
    """Deletes what downloads that were killed have left; a younger one may be another process's."""
    for left in place.glob(f"{HALF}*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > STALE:
                shutil.rmtree(left)


def _require_pinned(address: str) -> str:
    _require_safe(address)
    digits = pinned_digits(urlsplit(address).path)
    page = _PAGE.fullmatch(address)
    if page is not None:
        raise InvalidRequest(f"{address} is a page and no file: write hf-hub:{page[1]}.")
    if digits is None:
        raise InvalidRequest(
            f"{without_query(address)} pins no weights: it must end in -<at least 8 hex digits of the "
            f"sha256>.safetensors, with a {CONFIG} beside it; or download both into a folder and give that."
        )
    return digits


def _require_safe(address: str) -> None:
    """https, or this machine.

    Raises:
        InvalidRequest: anything else.
    """
    try:
        parts = urlsplit(address)
        host = parts.hostname or ""
    except ValueError as error:
        raise InvalidRequest(f"{without_query(address)} is no web address: {error}.") from error
    if not host:
        raise InvalidRequest(f"{without_query(address)} is no web address: it names no host.")
    if parts.username is not None:
        raise InvalidRequest(f"{without_query(address)} was given with a login, which only hf-hub: sources can have.")
    if parts.scheme != "https" and not (parts.scheme == "http" and _is_loopback(host)):
        raise InvalidRequest(
            f"{without_query(address)} is not encrypted: use https; plain http is taken from this machine alone."
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _beside(address: str) -> str:
    """The address of config.json, under the same query, which may be a signature."""
    query = urlsplit(address).query
    return urljoin(address, CONFIG) + (f"?{query}" if query else "")


def _refuse_when_offline(address: str, folder: Path) -> None:
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        raise ModelFilesMissing(
            f"{without_query(address)} is not in the cache {folder} and HF_HUB_OFFLINE is set: unset it, set "
            "NNCLR_CACHE to a folder that has it, or give a local model folder."
        )


class _SafeRedirects(HTTPRedirectHandler):
    """Follows to addresses alone that could have been given."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        _require_safe(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _save(address: str, path: Path, limit: int | None, *, progress: bool) -> str:
    """Downloads to a file and gives its sha256.

    Raises:
        UnknownModel, ModelFilesMissing, ModelError: see `fetch`.
        OSError: the file cannot be written.
    """
    shown = without_query(address)
    direct = [] if urlsplit(address).scheme == "https" else [ProxyHandler({})]  # to this machine no proxy leads
    try:
        answer: Any = build_opener(_SafeRedirects, *direct).open(address, timeout=TIMEOUT)
    except NNCLRHubError:  # of a redirect; some of these are ValueErrors
        raise
    except HTTPError as error:
        error.close()
        hint = "it needs a login, which only hf-hub: sources can have" if error.code in (401, 403) else "check it"
        kind = UnknownModel if error.code < 500 else ModelError
        raise kind(f"{shown} cannot be had (the server answered {error.code}): {hint}, or try again later.") from error
    except (OSError, HTTPException, ValueError) as error:
        raise ModelFilesMissing(
            f"{shown} is not in the cache {cache_folder() / 'models'} and its server cannot be reached "
            f"({without_query(str(error))}): connect, check HTTPS_PROXY, or give a local model folder."
        ) from error
    with answer:
        length = int(answer.length or 0)  # None of a number that is none
        with path.open("wb") as file:
            digest, written = _copy(shown, answer, file, limit, length, progress)
    if length and written != length:
        raise ModelError(f"{shown} broke off after {written} of {length} bytes: try again; nothing was kept.")
    return digest


def _copy(
    address: str, answer: Any, file: IO[bytes], limit: int | None, length: int, progress: bool
) -> tuple[str, int]:
    """sha256 and number of the bytes that came."""
    from huggingface_hub.utils import tqdm

    digest, written = hashlib.sha256(), 0
    with tqdm(total=length or None, unit="B", unit_scale=True, desc=WEIGHTS, disable=not progress) as bar:
        while True:
            try:
                chunk = answer.read(_CHUNK)
            except (OSError, HTTPException) as error:
                raise ModelError(
                    f"{address} broke off after {written} bytes ({type(error).__name__}): try again; nothing was kept."
                ) from error
            if not chunk:
                return digest.hexdigest(), written
            written += len(chunk)
            if limit is not None and written > limit:
                raise ModelError(f"{address} is larger than any {CONFIG} ({limit} bytes): check the address.")
            file.write(chunk)
            digest.update(chunk)
            bar.update(len(chunk))


def _no_place(address: str, error: OSError) -> ModelError:
    place = cache_folder() / "models"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return ModelError(
            f"There is no room for {without_query(address)} in the cache {place}: free some, or set NNCLR_CACHE to a "
            "folder on another disk; nothing was kept."
        )
    return ModelError(
        f"{without_query(address)} cannot be kept in the cache {place} ({error.strerror}): set NNCLR_CACHE to a "
        "folder of yours."
    )
