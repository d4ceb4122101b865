"""hf-hub:org/repo[@revision]: a model folder from the Hugging Face Hub, or from the mirror that HF_ENDPOINT names.

The Hub's own client downloads, so its variables apply: HF_HUB_OFFLINE, HF_ENDPOINT, HF_HUB_CACHE, HF_TOKEN,
HTTPS_PROXY. Its errors become short messages that name the variable and the cache.
"""

from __future__ import annotations

import re
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from nnclr_hub.errors import InvalidRequest, ModelError, ModelFilesMissing, NNCLRHubError, UnknownModel
from nnclr_hub.hub.addresses import FULL
from nnclr_hub.hub.layout import CARD, CONFIG, GRAPH, HEADS, SUPPORT_SET, WEIGHTS

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_XET = re.compile("xet-(read|write)-token")
NO_XET = "HF_HUB_DISABLE_XET"


def download(reference: str, *, progress: bool = True, whole: bool = False) -> Path:
    """Return the model folder of a repository in the Hub's cache, downloaded if necessary but not yet verified.

    Args:
        reference: "org/repo" or "org/repo@revision".
        whole: include the support set, which loading an encoder does not need.

    Raises:
        InvalidRequest: the name of the repository is invalid.
        UnknownModel: the repository or revision does not exist, or this token has no access.
        ModelFilesMissing: the cache does not have it and the Hub cannot be reached.
        ModelError: the download failed.
    """
    repository, at, revision = reference.partition("@")
    if at and not revision:  # such as `@$TAG` with an unset variable, which must not mean main
        raise InvalidRequest(f"hf-hub:{reference} has no revision after the @; add a tag or commit, or remove the @.")
    if not _REPOSITORY.fullmatch(repository):
        raise InvalidRequest(
            f"hf-hub:{reference} is not a valid repository; expected hf-hub:ORGANIZATION/NAME[@REVISION]."
        )
    from huggingface_hub import snapshot_download

    require_endpoint()
    try:
        folder = snapshot_download(
            repository,
            revision=revision or None,
            allow_patterns=[CONFIG, WEIGHTS, HEADS, GRAPH, CARD, *([SUPPORT_SET] if whole else [])],
            library_name="nnclr_hub",
            tqdm_class=None if progress else _silent(),
        )
    except (OSError, RuntimeError, ValueError, *network_errors()) as error:
        raise hub_failure(error, reference) from error
    return Path(folder)


def hub_failure(error: Exception, reference: str) -> NNCLRHubError:
    """Return the error for one of the Hub's client, often of many lines, as one message.

    Returns:
        InvalidRequest for an invalid name, UnknownModel for a refusal, ModelFilesMissing if no server answered, and
        ModelError for other failures.
    """
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    endpoint, cache = constants.ENDPOINT, constants.HF_HUB_CACHE
    status = _status(error)
    text = re.sub(r"\?[^\s'\"]+", "", " ".join(str(error).split()))[:200]  # a query may be the signature of an upload
    causes = {type(one).__name__ for one in (error, error.__cause__) if one is not None}
    offline = constants.HF_HUB_OFFLINE or isinstance(error, OfflineModeIsEnabled)
    silent = status is None and (
        causes & {"ConnectError", "ConnectTimeout", "ReadTimeout", "ConnectionError", "ConnectionRefusedError"}
        or isinstance(error, ConnectionError | TimeoutError)
    )
    here = f"It is not completely in the cache {cache}; set HF_HUB_CACHE to a folder that has it, or use a model folder"
    rules: tuple[tuple[object, type[NNCLRHubError], str], ...] = (
        (isinstance(error, HFValidationError), InvalidRequest, f"{reference} is not a valid repository: {text}"),
        (
            _is_of_xet(error),
            ModelError,
            f"{endpoint} announces the Xet protocol for {reference} but does not support it; set {NO_XET}=1 before "
            "starting to use plain HTTP.",
        ),
        (
            isinstance(error, UnicodeEncodeError),  # the token is part of a header
            UnknownModel,
            f"HF_TOKEN contains invalid characters, so {reference} was not requested; correct it.",
        ),
        (
            isinstance(error, GatedRepoError),
            UnknownModel,
            f"{reference} is gated; accept its terms on its page, then log in with `hf auth login` or set HF_TOKEN.",
        ),
        (
            isinstance(error, RevisionNotFoundError),
            UnknownModel,
            f"{reference}: there is no such revision; use an existing tag, branch or commit.",
        ),
        (
            isinstance(error, RepositoryNotFoundError),
            UnknownModel,
            f"{endpoint} has no repository {reference}, or it is private; check the name and HF_ENDPOINT, or set "
            "HF_TOKEN.",
        ),
        (
            status == 401,
            UnknownModel,
            f"{endpoint} does not accept the token for {reference} (401); set HF_TOKEN to a valid one, or log in with "
            "`hf auth login`.",
        ),
        (
            status == 403,
            UnknownModel,
            f"The token has no permission for this on {reference}; create one that has it, and set HF_TOKEN.",
        ),
        (
            status == 412,
            ModelError,
            f"Another commit to {reference} was made during the upload, so nothing was committed; check it, and call "
            "again.",
        ),
        (
            isinstance(error, OSError) and error.errno in FULL,
            ModelError,
            f"The disk of the cache {cache} is full, so {reference} was not downloaded; free some space, or set "
            "HF_HUB_CACHE to a folder on another disk.",
        ),
        (
            isinstance(error, PermissionError),
            ModelError,
            f"The cache {cache} cannot be written, and {reference} is not in it; set HF_HUB_CACHE to another folder.",
        ),
        (offline, ModelFilesMissing, f"{reference} needs the network, and HF_HUB_OFFLINE is set; unset it. {here}."),
        (
            "ProxyError" in causes,
            ModelFilesMissing,
            f"The proxy refuses the connection for {reference}; check HTTPS_PROXY. {here}.",
        ),
        (
            silent,
            ModelFilesMissing,
            f"{endpoint} cannot be reached for {reference}; connect, check HF_ENDPOINT and HTTPS_PROXY. {here}.",
        ),
    )
    for applies, kind, message in rules:
        if applies:
            return kind(message)
    what = f"the answer was {status}: {text}" if status else f"{type(error).__name__}: {text}"
    return ModelError(
        f"{endpoint} failed for {reference} ({what}); check HF_ENDPOINT and HTTPS_PROXY, set {NO_XET}=1, or try again "
        "later. Another call transfers only what is missing."
    )


def _is_of_xet(error: BaseException | None) -> bool:
    """Return whether the error or its cause comes from a request for a Xet token, which Hubs without Xet refuse."""
    while error is not None:
        if _XET.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def _status(error: BaseException | None) -> int | None:
    """Return the HTTP status of the response that caused an error."""
    while error is not None:
        response = getattr(error, "response", None)
        if response is not None:
            return int(response.status_code)
        error = error.__cause__
    return None


def require_endpoint() -> None:
    """Check that HF_ENDPOINT is a web address.

    Raises:
        InvalidRequest: it is not.
    """
    from huggingface_hub import constants

    if not re.match(r"https?://[^/]", constants.ENDPOINT):
        raise InvalidRequest(
            f"HF_ENDPOINT must be a web address, got {constants.ENDPOINT!r}; set it to https://HOST, or unset it."
        )


def _silent() -> type:
    """Return a tqdm class without output."""
    from huggingface_hub.utils import tqdm

    class Silent(tqdm):
        def __init__(self, *arguments: object, **options: object) -> None:
            super().__init__(*arguments, **{**options, "disable": True})  # type: ignore[arg-type]

    return Silent


def network_errors() -> tuple[type[Exception], ...]:
    """Return the errors of the client's HTTP library, which are not OSErrors and which the client does not convert."""
    found = []
    for library in ("httpx", "httpx2"):  # depends on its release
        with suppress(ImportError):
            found.append(import_module(library).HTTPError)
    return tuple(found)
