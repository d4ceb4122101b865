"""https://HOST/NAME-<sha256>.safetensors with a config.json next to it: weights from any web server.

The address pins the weights by at least 8 hex digits of the sha256, as in torch.hub. config.json is not pinned. Both
are cached. Plain http is only accepted for this machine.
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
TIMEOUT = 30.0  # seconds without data
MAX_CONFIG = 1 << 20  # bytes
TEMPORARY = ".half-"  # prefix of the folder of an incomplete download
STALE = 86400.0  # seconds without a change


def pinned_digits(name: str) -> str | None:
    """Return the first digits of the sha256 in a file name, as in encoder-0123abcd.safetensors; None if absent."""
    found = _NAME.search(name)
    return found[1] if found and found.end() == len(name) else None


def fetch(address: str, *, progress: bool = True) -> tuple[Path, str]:
    """Download the weights and config.json of an address; return the cached model folder and the pinned digits.

    Args:
        address: https://HOST/NAME-<at least 8 digits of the sha256>.safetensors.

    Raises:
        InvalidRequest: the address is invalid.
        UnknownModel: the server does not have the file, or denies access.
        ModelFilesMissing: it is not in the cache and the server cannot be reached.
        TamperedModel: the sha256 differs from the address.
        ModelTooNew: a later version wrote config.json.
        ModelError: the download was interrupted, config.json is invalid, or the disk is full.
    """
    digits = _require_pinned(address)
    folder = cache_folder() / "models" / hashlib.sha256(address.encode()).hexdigest()[:16]
    if (folder / WEIGHTS).is_file() and (folder / CONFIG).is_file():
        return folder, digits
    _refuse_when_offline(address, folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _sweep(folder.parent)
        with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=folder.parent, ignore_cleanup_errors=True) as temporary:
            half = Path(temporary)
            _save_both(address, digits, half, progress)
            folder.mkdir(exist_ok=True)
            for name in (CONFIG, WEIGHTS):  # the weights last, because they mark the folder as complete
                os.replace(half / name, folder / name)
    except OSError as error:
        raise _cache_error(address, error) from error
    return folder, digits


def without_query(address: str) -> str:
    """Return an address without secrets: the query may be a signature, and a login may precede an @."""
    return re.sub("//[^/@]*@", "//", address.partition("?")[0])


def _save_both(address: str, digits: str, half: Path, progress: bool) -> None:
    """Download config.json first, because an invalid one makes the large download of the weights useless."""
    _save(_config_address(address), half / CONFIG, MAX_CONFIG, progress=False)
    _require_config(address, digits, half)
    digest = _save(address, half / WEIGHTS, None, progress=progress)
    if not digest.startswith(digits):
        raise TamperedModel(
            f"{without_query(address)} is not the file that its name pins (sha256 {digest[:12]}..., expected "
            f"{digits}...). The download was deleted; check the address with its publisher."
        )


def _require_config(address: str, digits: str, half: Path) -> None:
    """Reject other responses than config.json, such as a 404 page, because the result is cached permanently."""
    try:
        recorded = read_config(half).sha256.get(WEIGHTS, "")
    except ModelTooNew:
        raise ModelTooNew(
            f"{without_query(_config_address(address))} was written by a later version of nnclr_hub; update nnclr_hub."
        ) from None
    except ModelError as error:
        raise ModelError(
            f"{without_query(_config_address(address))} is not the {CONFIG} of a model folder; it must be next to the "
            "weights. The download was deleted."
        ) from error
    if recorded and not recorded.lower().startswith(digits):
        raise TamperedModel(
            f"{without_query(_config_address(address))} records other weights (sha256 {recorded[:12]}...) than the "
            "address pins. The download was deleted; check the address with its publisher."
        )


def _sweep(place: Path) -> None:
    """Delete the temporary folders of killed downloads; recent ones may belong to a running process."""
    for left in place.glob(f"{TEMPORARY}*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > STALE:
                shutil.rmtree(left)


def _require_pinned(address: str) -> str:
    _require_safe(address)
    digits = pinned_digits(urlsplit(address).path)
    page = _PAGE.fullmatch(address)
    if page is not None:
        raise InvalidRequest(f"{address} is a web page, not a file; use hf-hub:{page[1]}.")
    if digits is None:
        raise InvalidRequest(
            f"{without_query(address)} does not pin its weights; it must end in -<at least 8 hex digits of the "
            f"sha256>.safetensors, with a {CONFIG} next to it. Or download both into a folder and use the folder."
        )
    return digits


def _require_safe(address: str) -> None:
    """Check that an address uses https, or is on this machine."""
    try:
        parts = urlsplit(address)
        host = parts.hostname or ""
    except ValueError as error:
        raise InvalidRequest(f"{without_query(address)} is not a valid address: {error}.") from error
    if not host:
        raise InvalidRequest(f"{without_query(address)} is not a valid address; the host is missing.")
    if parts.username is not None:
        raise InvalidRequest(f"{without_query(address)} contains a login, which only hf-hub: sources support.")
    if parts.scheme != "https" and not (parts.scheme == "http" and _is_loopback(host)):
        raise InvalidRequest(
            f"{without_query(address)} is not encrypted; use https. Plain http is only accepted for this machine."
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _config_address(address: str) -> str:
    """Return the address of config.json with the same query, which may be a signature."""
    query = urlsplit(address).query
    return urljoin(address, CONFIG) + (f"?{query}" if query else "")


def _refuse_when_offline(address: str, folder: Path) -> None:
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        raise ModelFilesMissing(
            f"{without_query(address)} is not in the cache {folder} and HF_HUB_OFFLINE is set; unset it, set "
            "NNCLR_CACHE to a folder that contains it, or use a local model folder."
        )


class _SafeRedirects(HTTPRedirectHandler):
    """Follow redirects only to addresses that `fetch` accepts."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        _require_safe(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _save(address: str, path: Path, limit: int | None, *, progress: bool) -> str:
    """Download to a file and return its sha256."""
    shown = without_query(address)
    direct = [] if urlsplit(address).scheme == "https" else [ProxyHandler({})]  # no proxy for addresses of this machine
    try:
        answer: Any = build_opener(_SafeRedirects, *direct).open(address, timeout=TIMEOUT)
    except NNCLRHubError:  # from a redirect; some of these are ValueErrors
        raise
    except HTTPError as error:
        error.close()
        hint = (
            "it needs a login, which only hf-hub: sources support" if error.code in (401, 403) else "check the address"
        )
        kind = UnknownModel if error.code < 500 else ModelError
        raise kind(f"{shown} is unavailable (the server answered {error.code}); {hint}, or try again later.") from error
    except (OSError, HTTPException, ValueError) as error:
        raise ModelFilesMissing(
            f"{shown} is not in the cache {cache_folder() / 'models'} and its server cannot be reached "
            f"({without_query(str(error))}); connect, check HTTPS_PROXY, or use a local model folder."
        ) from error
    with answer:
        length = int(answer.length or 0)  # None if the header is not a number
        with path.open("wb") as file:
            digest, written = _copy(shown, answer, file, limit, length, progress)
    if length and written != length:
        raise ModelError(
            f"The download of {shown} stopped after {written} of {length} bytes and was deleted; try again."
        )
    return digest


def _copy(
    address: str, answer: Any, file: IO[bytes], limit: int | None, length: int, progress: bool
) -> tuple[str, int]:
    """Copy the answer to a file; return the sha256 and the number of bytes."""
    from huggingface_hub.utils import tqdm

    digest, written = hashlib.sha256(), 0
    with tqdm(total=length or None, unit="B", unit_scale=True, desc=WEIGHTS, disable=not progress) as bar:
        while True:
            try:
                chunk = answer.read(_CHUNK)
            except (OSError, HTTPException) as error:
                raise ModelError(
                    f"The download of {address} stopped after {written} bytes ({type(error).__name__}); try again."
                ) from error
            if not chunk:
                return digest.hexdigest(), written
            written += len(chunk)
            if limit is not None and written > limit:
                raise ModelError(
                    f"{address} is larger than the limit of {limit} bytes for {CONFIG}; check the address."
                )
            file.write(chunk)
            digest.update(chunk)
            bar.update(len(chunk))


def _cache_error(address: str, error: OSError) -> ModelError:
    place = cache_folder() / "models"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return ModelError(
            f"The disk of the cache {place} is full, so {without_query(address)} was not downloaded; free some space, "
            "or set NNCLR_CACHE to a folder on another disk."
        )
    return ModelError(
        f"The cache {place} cannot be written ({error.strerror}), so {without_query(address)} was not downloaded; set "
        "NNCLR_CACHE to a writable folder."
    )
