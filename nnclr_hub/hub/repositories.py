"""hf-hub:org/repo[@revision]: a model folder from the Hugging Face Hub, or from the mirror that HF_ENDPOINT names.

The Hub's own client does the work, so that its variables hold: HF_HUB_OFFLINE, HF_ENDPOINT, HF_HUB_CACHE, HF_TOKEN,
HTTPS_PROXY. What can go wrong becomes one sentence that names the variable and the cache.
"""

from __future__ import annotations

import errno
import re
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from nnclr_hub.errors import InvalidRequest, ModelError, ModelFilesMissing, UnknownModel
from nnclr_hub.hub.layout import CARD, CONFIG, HEADS, SUPPORT_SET, WEIGHTS

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_XET = re.compile("xet-(read|write)-token")
NO_XET = "HF_HUB_DISABLE_XET"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def download(reference: str, *, progress: bool = True, whole: bool = False) -> Path:
    """The repository's model folder in the Hub's cache; fetched unless it is there, and verified by nobody yet.

    Args:
        reference: "org/repo" or "org/repo@revision".
        progress: show the client's progress bars.
        whole: with the support set, which loading an encoder does not need.

    Raises:
        InvalidRequest: no repository can be called that.
        UnknownModel: the Hub has no such repository or revision, or not for this token.
        ModelFilesMissing: there is no network and the cache does not have it.
        ModelError: it could not be fetched.
    """
    repository, at, revision = reference.partition("@")
    if at and not revision:  # as `@$TAG` gives where TAG is not set: main is not what was meant
        raise InvalidRequest(f"hf-hub:{reference} names no revision after the @: write a tag or commit, or no @.")
    if not _REPOSITORY.fullmatch(repository):
        raise InvalidRequest(f"hf-hub:{reference} is no repository: write hf-hub:ORGANISATION/NAME[@REVISION].")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    require_endpoint()
    try:
        folder = Path(
            snapshot_download(
                repository,
                revision=revision or None,
                allow_patterns=[CONFIG, WEIGHTS, HEADS, CARD, *([SUPPORT_SET] if whole else [])],
                library_name="nnclr_hub",
                tqdm_class=None if progress else _silent(),
            )
        )
    except HFValidationError as error:
        raise InvalidRequest(f"hf-hub:{reference} is no repository: {' '.join(str(error).split())}") from error
    except (HfHubHTTPError, OSError, RuntimeError, ValueError, *network_errors()) as error:
        raise _in_a_sentence(repository, revision, error) from error
    return folder


def _in_a_sentence(repository: str, revision: str, error: Exception) -> ModelError:
    """What the client says over many lines."""
    from huggingface_hub import constants

    reference = f"{repository}@{revision}" if revision else repository
    if is_of_xet(error):
        return ModelError(
            f"{constants.ENDPOINT} names Xet, the client's way of fetching large files, and does not serve {reference} "
            f"by it: set {NO_XET}=1 before starting, and it comes by plain HTTP."
        )
    if (refused := _refused(repository, revision, error)) is not None:
        return refused
    if isinstance(error, OSError) and error.errno in _FULL:
        return ModelError(
            f"There is no room for {reference} in the cache {constants.HF_HUB_CACHE}: free some, or set HF_HUB_CACHE "
            "to a folder on another disk."
        )
    if isinstance(error, PermissionError):
        return ModelError(
            f"The cache {constants.HF_HUB_CACHE} cannot be written, and {reference} is not in it: set HF_HUB_CACHE to "
            "a folder of yours."
        )
    why = _unreachable(error)
    if why is not None:
        return ModelFilesMissing(
            f"{reference} is not, or not wholly, in the cache {constants.HF_HUB_CACHE} and {why}, set HF_HUB_CACHE to "
            "a folder that has it, or give a local model folder."
        )
    status = _status(error)
    what = f"the answer was {status}" if status else type(error).__name__
    hint = "try again later" if status else f"check HF_ENDPOINT and HTTPS_PROXY, set {NO_XET}=1, or try again later"
    return ModelError(f"{reference} could not be fetched from {constants.ENDPOINT} ({what}): {hint}.")


def _refused(repository: str, revision: str, error: Exception) -> UnknownModel | None:
    """What the Hub says no to: a token, a name, a revision; None for anything else."""
    from huggingface_hub import constants
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(error, UnicodeEncodeError):  # a header is made of it
        return UnknownModel(f"HF_TOKEN holds characters that no token has, so {repository} was not asked for: mend it.")
    if isinstance(error, GatedRepoError):
        return UnknownModel(
            f"{repository} is gated: accept its terms on its page, then log in with `hf auth login` or set HF_TOKEN."
        )
    if isinstance(error, RepositoryNotFoundError):
        return UnknownModel(
            f"{constants.ENDPOINT} has no repository {repository}, or it is private: check the name and HF_ENDPOINT, "
            "or set HF_TOKEN."
        )
    if isinstance(error, RevisionNotFoundError):
        return UnknownModel(f"{repository} has no revision {revision!r}: name a tag, branch or commit of it.")
    if _status(error) == 401:
        return UnknownModel(
            f"{constants.ENDPOINT} does not accept the token for {repository} (401): set HF_TOKEN to a valid one, or "
            "log in with `hf auth login`."
        )
    return None


def is_of_xet(error: BaseException | None) -> bool:
    """Whether it, or what it came from, happened while Xet asked for its token, which a Hub without Xet has not."""
    while error is not None:
        if _XET.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def _status(error: BaseException | None) -> int | None:
    """HTTP status of the answer behind an error."""
    while error is not None:
        response = getattr(error, "response", None)
        if response is not None:
            return int(response.status_code)
        error = error.__cause__
    return None


def _unreachable(error: BaseException) -> str | None:
    """Why no server was asked, and what to do about it; None if one has answered."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set: unset it"
    names = {type(one).__name__ for one in (error, error.__cause__) if one is not None}
    if "ProxyError" in names:
        return "the proxy does not let us through: check HTTPS_PROXY"
    if names & {"ConnectError", "ConnectTimeout", "ReadTimeout", "ConnectionError"}:
        return f"{constants.ENDPOINT} cannot be reached: connect, check HF_ENDPOINT and HTTPS_PROXY"
    return None


def require_endpoint() -> None:
    """Refuses an HF_ENDPOINT that is no web address.

    Raises:
        InvalidRequest: names the variable.
    """
    from huggingface_hub import constants

    if not re.match(r"https?://[^/]", constants.ENDPOINT):
        raise InvalidRequest(
            f"HF_ENDPOINT is {constants.ENDPOINT!r}, no web address: set it to https://HOST, or unset it."
        )


def _silent() -> type:
    """tqdm without its bar."""
    from huggingface_hub.utils import tqdm

    class Silent(tqdm):
        def __init__(self, *arguments: object, **options: object) -> None:
            super().__init__(*arguments, **{**options, "disable": True})  # type: ignore[arg-type]

    return Silent


def network_errors() -> tuple[type[Exception], ...]:
    """What the Hub's client lets through when a connection breaks: its HTTP library's errors, which are no OSErrors."""
    found = []
    for library in ("httpx", "httpx2"):  # by its release
        with suppress(ImportError):
            found.append(import_module(library).HTTPError)
    return tuple(found)
