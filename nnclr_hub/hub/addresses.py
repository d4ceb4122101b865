"""https://HOST/NAME-<sha256>.safetensors with a config.json next to it: weights from any web server.

The address pins the weights by at least 8 hex digits of the sha256, as in torch.hub. config.json is not pinned. Both
are cached. Plain http is only accepted for this machine. `pooch` downloads.
"""

from __future__ import annotations

import errno
import hashlib
import ipaddress
import logging
import os
import re
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from nnclr_hub.cache import cache_folder
from nnclr_hub.errors import InvalidRequest, ModelError, ModelFilesMissing, TamperedModel, UnknownModel
from nnclr_hub.hub.layout import CONFIG, WEIGHTS, read_config, sha256_of

_NAME = re.compile(r"-([0-9a-f]{8,64})\.safetensors")
_PAGE = re.compile(r"https://(?:www\.)?huggingface\.co/([\w.-]+/[\w.-]+)/?")
TIMEOUT = 30.0  # seconds without data
MAX_CONFIG = 1 << 20  # bytes
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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
    from huggingface_hub import constants

    digits, shown = _check(address), without_query(address)
    folder = cache_folder() / "models" / hashlib.sha256(address.encode()).hexdigest()[:16]
    if (folder / WEIGHTS).is_file() and (folder / CONFIG).is_file():
        return folder, digits
    if constants.HF_HUB_OFFLINE:
        raise ModelFilesMissing(
            f"{shown} is not in the cache {folder} and HF_HUB_OFFLINE is set; unset it, set NNCLR_CACHE to a folder "
            "that contains it, or use a local model folder."
        )
    query = urlsplit(address).query  # it may be a signature, which both files need
    config = urljoin(address, CONFIG) + (f"?{query}" if query else "")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".half-", dir=folder.parent, ignore_cleanup_errors=True) as temporary:
            half = Path(temporary)
            _save(config, half / CONFIG, MAX_CONFIG, progress=False)
            try:  # the result is cached permanently, so a 404 page must not become a config.json
                recorded = read_config(half).sha256.get(WEIGHTS, "")
            except ModelError as error:
                shown = without_query(config)
                raise type(error)(
                    f"{shown}, which must be the {CONFIG} of a model folder, is refused: {error}"
                ) from error
            if recorded and not recorded.lower().startswith(digits):
                raise TamperedModel(
                    f"{without_query(config)} records other weights (sha256 {recorded[:12]}...) than the address pins. "
                    "The download was deleted; check the address with its publisher."
                )
            digest = _save(address, half / WEIGHTS, None, progress=progress)
            if not digest.startswith(digits):
                raise TamperedModel(
                    f"{shown} is not the file that its name pins (sha256 {digest[:12]}..., expected {digits}...). The "
                    "download was deleted; check the address with its publisher."
                )
            folder.mkdir(exist_ok=True)
            for name in (CONFIG, WEIGHTS):  # the weights last, because they mark the folder as complete
                os.replace(half / name, folder / name)
    except OSError as error:
        what = "has a full disk" if error.errno in FULL else f"cannot be written ({error.strerror})"
        raise ModelError(
            f"The cache {cache_folder() / 'models'} {what}, so {shown} was not downloaded; free some space, or set "
            "NNCLR_CACHE to another folder."
        ) from error
    return folder, digits


def without_query(address: str) -> str:
    """Return an address without secrets: the query may be a signature, and a login may precede an @."""
    return re.sub("//[^/@]*@", "//", address.partition("?")[0])


def _save(address: str, path: Path, limit: int | None, *, progress: bool) -> str:
    """Download to a file and return its sha256."""
    import pooch
    import requests

    def check(response: Any, **options: Any) -> None:
        """Follow redirects only to addresses that `fetch` accepts, and stop at files that are too large."""
        if response.is_redirect:
            _require_safe(urljoin(response.url, response.headers["Location"]))
        elif limit is not None and int(response.headers.get("Content-Length") or 0) > limit:
            raise ModelError(f"{shown} is larger than the limit of {limit} bytes for {CONFIG}; check the address.")

    shown = without_query(address)
    pooch.get_logger().setLevel(logging.ERROR)
    # no proxy for addresses of this machine
    own = {} if urlsplit(address).scheme == "https" else {"no_proxy": urlsplit(address).hostname or ""}
    downloader: Any = pooch.HTTPDownloader(
        progressbar=progress, timeout=TIMEOUT, hooks={"response": check}, proxies=own, allow_redirects=True
    )
    try:
        pooch.retrieve(address, known_hash=None, fname=path.name, path=path.parent, downloader=downloader)
    except requests.HTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        hint = "it needs a login, which only hf-hub: sources support" if status in (401, 403) else "check the address"
        kind = UnknownModel if status < 500 else ModelError
        raise kind(f"{shown} is unavailable (the server answered {status}); {hint}, or try again later.") from error
    except (requests.ConnectionError, requests.Timeout) as error:
        raise ModelFilesMissing(
            f"{shown} is not in the cache {cache_folder() / 'models'} and its server cannot be reached; connect, check "
            "HTTPS_PROXY, or use a local model folder."
        ) from error
    except requests.RequestException as error:
        raise ModelError(f"The download of {shown} stopped ({type(error).__name__}); try again.") from error
    return sha256_of(path)


def _check(address: str) -> str:
    if (page := _PAGE.fullmatch(address)) is not None:
        raise InvalidRequest(f"{address} is a web page, not a file; use hf-hub:{page[1]}.")
    _require_safe(address)
    if (digits := pinned_digits(urlsplit(address).path)) is None:
        raise InvalidRequest(
            f"{without_query(address)} does not pin its weights; it must end in -<at least 8 hex digits of the "
            f"sha256>.safetensors, with a {CONFIG} next to it. Or download both into a folder and use the folder."
        )
    return digits


def _require_safe(address: str) -> None:
    """Raise InvalidRequest unless an address uses https, or is on this machine."""
    shown = without_query(address)
    try:
        parts = urlsplit(address)
        host = parts.hostname or ""
    except ValueError as error:
        raise InvalidRequest(f"{shown} is not a valid address: {error}.") from error
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not host:
        raise InvalidRequest(f"{shown} is not a valid address; the host is missing.")
    if parts.username is not None:
        raise InvalidRequest(f"{shown} contains a login, which only hf-hub: sources support.")
    if parts.scheme != "https" and not (parts.scheme == "http" and loopback):
        raise InvalidRequest(f"{shown} is not encrypted; use https. Plain http is only accepted for this machine.")
