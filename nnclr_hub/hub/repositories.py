"""hf-hub:org/repo[@revision]: a model folder from the Hugging Face Hub, or from the mirror that HF_ENDPOINT names.

The Hub's own client downloads, so its variables apply: HF_HUB_OFFLINE, HF_ENDPOINT, HF_HUB_CACHE, HF_TOKEN,
HTTPS_PROXY. Its errors become short messages that name the variable and the cache.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from nnclr_hub.errors import InvalidRequest, ModelError, ModelFilesMissing, NNCLRHubError, UnknownModel
from nnclr_hub.hub.addresses import FULL
from nnclr_hub.hub.layout import CARD, CONFIG, GRAPH, HEADS, WEIGHTS

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_XET = re.compile("xet-(read|write)-token")
NO_XET = "HF_HUB_DISABLE_XET"
SILENT = {"ConnectError", "ConnectTimeout", "ReadTimeout", "ConnectionError", "ConnectionRefusedError"}


def download(reference: str, *, progress: bool = True) -> Path:
    """Return the model folder of a repository in the Hub's cache, downloaded if necessary but not yet verified.

    Args:
        reference: "org/repo" or "org/repo@revision".

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
    from huggingface_hub.utils import tqdm

    class Silent(tqdm):
        def __init__(self, *arguments: object, **options: object) -> None:
            super().__init__(*arguments, **{**options, "disable": True})  # type: ignore[arg-type]

    require_endpoint()
    try:
        folder = snapshot_download(
            repository,
            revision=revision or None,
            allow_patterns=[CONFIG, WEIGHTS, HEADS, GRAPH, CARD],
            library_name="nnclr_hub",
            tqdm_class=None if progress else Silent,
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
    from huggingface_hub import constants, errors

    endpoint, cache = constants.ENDPOINT, constants.HF_HUB_CACHE
    causes = list(_causes(error))
    answers = (getattr(one, "response", None) for one in causes)
    status = next((int(answer.status_code) for answer in answers if answer is not None), None)
    names = {type(one).__name__ for one in causes}
    text = re.sub(r"\?[^\s'\"]+", "", " ".join(str(error).split()))[:200]  # a query may be the signature of an upload
    here = f"It is not completely in the cache {cache}; set HF_HUB_CACHE to a folder that has it, or use a model folder"
    login = "log in with `hf auth login`"
    if isinstance(error, errors.HFValidationError):
        return InvalidRequest(f"{reference} is not a valid repository: {text}")
    if any(_XET.search(str(one)) for one in causes):  # a Hub without Xet refuses the request for its token
        return ModelError(
            f"{endpoint} announces the Xet protocol for {reference} but does not support it; set {NO_XET}=1 before "
            "starting to use plain HTTP."
        )
    if isinstance(error, UnicodeEncodeError):  # the token is part of a header
        return UnknownModel(f"HF_TOKEN contains invalid characters, so {reference} was not requested; correct it.")
    if isinstance(error, errors.GatedRepoError):
        return UnknownModel(f"{reference} is gated; accept its terms on its page, then {login} or set HF_TOKEN.")
    if isinstance(error, errors.RevisionNotFoundError):
        return UnknownModel(f"{reference}: there is no such revision; use an existing tag, branch or commit.")
    if isinstance(error, errors.RepositoryNotFoundError):
        return UnknownModel(
            f"{endpoint} has no repository {reference}, or it is private; check the name and HF_ENDPOINT, or set "
            "HF_TOKEN."
        )
    if status == 401:
        return UnknownModel(
            f"{endpoint} does not accept the token for {reference} (401); set HF_TOKEN to a valid one, or {login}."
        )
    if status == 403:
        return UnknownModel(
            f"The token has no permission for this on {reference}; create one that has it, and set HF_TOKEN."
        )
    if status == 412:
        return ModelError(
            f"Another commit to {reference} was made during the upload, so nothing was committed; check it, and call "
            "again."
        )
    if isinstance(error, OSError) and error.errno in FULL:
        return ModelError(
            f"The disk of the cache {cache} is full, so {reference} was not downloaded; free some space, or set "
            "HF_HUB_CACHE to a folder on another disk."
        )
    if isinstance(error, PermissionError):
        return ModelError(
            f"The cache {cache} cannot be written, and {reference} is not in it; set HF_HUB_CACHE to another folder."
        )
    if constants.HF_HUB_OFFLINE or isinstance(error, errors.OfflineModeIsEnabled):
        return ModelFilesMissing(f"{reference} needs the network, and HF_HUB_OFFLINE is set; unset it. {here}.")
    if "ProxyError" in names:
        return ModelFilesMissing(f"The proxy refuses the connection for {reference}; check HTTPS_PROXY. {here}.")
    if status is None and (names & SILENT or isinstance(error, ConnectionError | TimeoutError)):
        return ModelFilesMissing(
            f"{endpoint} cannot be reached for {reference}; connect, check HF_ENDPOINT and HTTPS_PROXY. {here}."
        )
    what = f"the answer was {status}: {text}" if status else f"{type(error).__name__}: {text}"
    return ModelError(
        f"{endpoint} failed for {reference} ({what}); check HF_ENDPOINT and HTTPS_PROXY, set {NO_XET}=1, or try again "
        "later. Another call transfers only what is missing."
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


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


def network_errors() -> tuple[type[Exception], ...]:
    """Return the errors of the client's HTTP library, which are not OSErrors and which the client does not convert."""
    found = []
    for library in ("httpx", "httpx2"):  # depends on its release
        with suppress(ImportError):
            found.append(import_module(library).HTTPError)
    return tuple(found)
