"""hf-hub:org/repo[@revision]: a model folder from the Hugging Face Hub, or from the mirror that HF_ENDPOINT names.

The Hub's own client downloads, so its variables apply: HF_HUB_OFFLINE, HF_ENDPOINT, HF_HUB_CACHE, HF_TOKEN,
HTTPS_PROXY. Its errors become short messages that name the variable and the cache.
"""

from __future__ import annotations

import errno
import re
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from nnclr_hub.errors import InvalidRequest, ModelError, ModelFilesMissing, UnknownModel
from nnclr_hub.hub.layout import CARD, CONFIG, GRAPH, HEADS, SUPPORT_SET, WEIGHTS

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_XET = re.compile("xet-(read|write)-token")
NO_XET = "HF_HUB_DISABLE_XET"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    require_endpoint()
    try:
        folder = Path(
            snapshot_download(
                repository,
                revision=revision or None,
                allow_patterns=[CONFIG, WEIGHTS, HEADS, GRAPH, CARD, *([SUPPORT_SET] if whole else [])],
                library_name="nnclr_hub",
                tqdm_class=None if progress else _silent(),
            )
        )
    except HFValidationError as error:
        raise InvalidRequest(f"hf-hub:{reference} is not a valid repository: {' '.join(str(error).split())}") from error
    except (HfHubHTTPError, OSError, RuntimeError, ValueError, *network_errors()) as error:
        raise _as_model_error(repository, revision, error) from error
    return folder


def _as_model_error(repository: str, revision: str, error: Exception) -> ModelError:
    """Turn an error of the client, often of many lines, into one message."""
    from huggingface_hub import constants

    reference = f"{repository}@{revision}" if revision else repository
    if is_of_xet(error):
        return ModelError(
            f"{constants.ENDPOINT} announces the Xet protocol for {reference} but does not support it; set {NO_XET}=1 "
            "before starting to download over plain HTTP."
        )
    if (refused := _refused(repository, revision, error)) is not None:
        return refused
    if isinstance(error, OSError) and error.errno in _FULL:
        return ModelError(
            f"The disk of the cache {constants.HF_HUB_CACHE} is full, so {reference} was not downloaded; free some "
            "space, or set HF_HUB_CACHE to a folder on another disk."
        )
    if isinstance(error, PermissionError):
        return ModelError(
            f"The cache {constants.HF_HUB_CACHE} cannot be written, and {reference} is not in it; set HF_HUB_CACHE to "
            "a writable folder."
        )
    why = _unreachable(error)
    if why is not None:
        return ModelFilesMissing(
            f"{reference} is not completely in the cache {constants.HF_HUB_CACHE} and {why}, set HF_HUB_CACHE to "
            "a folder that contains it, or use a local model folder."
        )
    status = _status(error)
    what = f"the answer was {status}" if status else type(error).__name__
    hint = "try again later" if status else f"check HF_ENDPOINT and HTTPS_PROXY, set {NO_XET}=1, or try again later"
    return ModelError(f"{reference} could not be downloaded from {constants.ENDPOINT} ({what}); {hint}.")


def _refused(repository: str, revision: str, error: Exception) -> UnknownModel | None:
    """Return the error for a refused token, name or revision; None for other errors."""
    from huggingface_hub import constants
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(error, UnicodeEncodeError):  # the token is part of a header
        return UnknownModel(f"HF_TOKEN contains invalid characters, so {repository} was not requested; correct it.")
    if isinstance(error, GatedRepoError):
        return UnknownModel(
            f"{repository} is gated; accept its terms on its page, then log in with `hf auth login` or set HF_TOKEN."
        )
    if isinstance(error, RepositoryNotFoundError):
        return UnknownModel(
            f"{constants.ENDPOINT} has no repository {repository}, or it is private; check the name and HF_ENDPOINT, "
            "or set HF_TOKEN."
        )
    if isinstance(error, RevisionNotFoundError):
        return UnknownModel(
            f"{repository} does not have a revision {revision!r}; use an existing tag, branch or commit."
        )
    if _status(error) == 401:
        return UnknownModel(
            f"{constants.ENDPOINT} does not accept the token for {repository} (401); set HF_TOKEN to a valid one, or "
            "log in with `hf auth login`."
        )
    return None


def is_of_xet(error: BaseException | None) -> bool:
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


def _unreachable(error: BaseException) -> str | None:
    """Return why no server answered, and what to do; None if one answered."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set; unset it"
    names = {type(one).__name__ for one in (error, error.__cause__) if one is not None}
    if "ProxyError" in names:
        return "the proxy refuses the connection; check HTTPS_PROXY"
    if names & {"ConnectError", "ConnectTimeout", "ReadTimeout", "ConnectionError"}:
        return f"{constants.ENDPOINT} cannot be reached; connect, check HF_ENDPOINT and HTTPS_PROXY"
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
