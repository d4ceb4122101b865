"""The state of a repository on the Hugging Face Hub before an upload, and the Hub's errors as `PublishingError`."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from nnclr_hub.errors import InvalidRequest, NNCLRHubError, PublishingError
from nnclr_hub.hub.layout import CARD
from nnclr_hub.hub.repositories import NO_XET, is_of_xet, network_errors
from nnclr_hub.publish.upload_files import OutgoingFile

if TYPE_CHECKING:
    from huggingface_hub import HfApi


@dataclass(frozen=True)
class RemoteFile:
    """The hashes of a file on the Hub; only large files have a sha256."""

    git_hash: str
    sha256: str | None

    def is_the_same_as(self, file: OutgoingFile) -> bool:
        """Return whether the contents are equal, so that no upload is necessary."""
        return self.git_hash == file.git_hash() if self.sha256 is None else self.sha256 == file.sha256()


@dataclass(frozen=True)
class Remote:
    """A repository at one revision.

    head: its commit; None if the repository does not exist.
    private: whether it is private.
    tags: name -> commit.
    files: path -> hashes.
    card: text of its README.
    branches: their names.
    """

    head: str | None = None
    private: bool = False
    tags: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, RemoteFile] = field(default_factory=dict)
    card: str | None = None
    branches: frozenset[str] = frozenset()


def look(api: HfApi, repository: str, revision: str = "main") -> Remote:
    """Return the state of a repository without changing it.

    Args:
        revision: branch, or refs/pr/NUMBER.

    Raises:
        PublishingError: the Hub does not answer, or refuses.
    """
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
    from huggingface_hub.hf_api import RepoFile

    with hub_errors(repository):
        try:
            info = api.repo_info(repository, revision=revision)
        except GatedRepoError:
            raise
        except RepositoryNotFoundError:
            return Remote()
        if info.sha is None:
            raise PublishingError(
                f"{repository} does not have a commit yet; create one on its page first, such as a README."
            )
        refs = api.list_repo_refs(repository)
        # by the commit, because the branch may move between the requests
        entries = api.list_repo_tree(repository, revision=info.sha)
        files = {
            entry.path: RemoteFile(entry.blob_id, entry.lfs.sha256 if entry.lfs else None)
            for entry in entries
            if isinstance(entry, RepoFile)
        }
        tags = {tag.name: tag.target_commit for tag in refs.tags}
        card = _read(api, repository, info.sha) if CARD in files else None
    return Remote(info.sha, bool(info.private), tags, files, card, frozenset(one.name for one in refs.branches))


def require_known(api: HfApi, repository: str) -> None:
    """Check that the Hub accepts the token; a mirror without this request passes.

    Raises:
        PublishingError: the Hub rejects the token.
    """
    from huggingface_hub.errors import HfHubHTTPError

    with hub_errors(repository):
        try:
            api.whoami()
        except HfHubHTTPError as error:
            if error.response.status_code == 401:
                raise


def _read(api: HfApi, repository: str, commit: str) -> str:
    """Read the README without the cache, so that it does not count as a download of the model."""
    with tempfile.TemporaryDirectory() as folder:
        path = api.hf_hub_download(repository, CARD, revision=commit, local_dir=folder)
        return Path(path).read_text("utf-8", "replace")


@contextmanager
def hub_errors(repository: str) -> Iterator[None]:
    """Convert the errors of the Hub's client.

    Raises:
        PublishingError: the Hub or the network failed; the message names the next step.
        InvalidRequest: the name of the repository is invalid.
    """
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    try:
        yield
    except NNCLRHubError:
        raise
    except HFValidationError as error:
        raise InvalidRequest(f"{repository} is not a valid repository: {_line(error)}") from error
    except OfflineModeIsEnabled as error:
        raise PublishingError("HF_HUB_OFFLINE is set, but publishing needs the network; unset it.") from error
    except GatedRepoError as error:
        raise PublishingError(
            f"{repository} is gated; accept its terms on its page with the account of your token."
        ) from error
    except RepositoryNotFoundError as error:
        raise PublishingError(
            f"{repository} does not exist, or the token has no access to it; check the name, and set HF_TOKEN (or run "
            "`hf auth login`) for an account with write permission."
        ) from error
    except HfHubHTTPError as error:
        raise _answered(error, repository) from error
    except UnicodeEncodeError as error:  # the token becomes an HTTP header
        raise PublishingError("HF_TOKEN contains invalid characters; set it to a valid token.") from error
    except (*network_errors(), ConnectionError, TimeoutError) as error:
        raise _unreachable(error, constants.ENDPOINT) from error
    except (RuntimeError, ValueError, OSError) as error:
        raise _interrupted(error, repository) from error


def is_unreachable(error: PublishingError) -> bool:
    """Return whether there is no connection to the Hub, or HF_HUB_OFFLINE is set."""
    from huggingface_hub.errors import OfflineModeIsEnabled

    cause = error.__cause__
    silent = isinstance(cause, (*network_errors(), ConnectionError, TimeoutError, OfflineModeIsEnabled))
    return silent and getattr(cause, "response", None) is None


def _answered(error: Exception, repository: str) -> PublishingError:
    """Return the error for an HTTP status."""
    response = getattr(error, "response", None)
    status = response.status_code if response is not None else 0
    if is_of_xet(error):
        return _without_xet()
    if status == 401:
        return PublishingError("The Hub rejects the token; set HF_TOKEN to a valid one, or run `hf auth login`.")
    if status == 403:
        return PublishingError(
            f"The token has no write permission for {repository}; create one that has it, and set HF_TOKEN."
        )
    if status == 412:
        return PublishingError(
            f"Another commit to {repository} was made during the upload, so nothing was committed; check it, then call "
            "again."
        )
    return PublishingError(
        f"The Hub refused a request for {repository} (status {status}: {_line(error)}); fix this, or try again later."
    )


def _unreachable(error: Exception, endpoint: str) -> PublishingError:
    if is_of_xet(error):
        return _without_xet()
    return PublishingError(
        f"{endpoint} cannot be reached ({_line(error) or type(error).__name__}); check the network, or set HF_ENDPOINT "
        "to a mirror. The next call sends only missing files."
    )


def _interrupted(error: Exception, repository: str) -> PublishingError:
    """Return the error for a failed upload of a large file, with its original cause."""
    if is_of_xet(error):
        return _without_xet()
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return PublishingError(
        f"The upload to {repository} was interrupted ({_line(cause)}); call again to send the missing files."
    )


def _without_xet() -> PublishingError:
    return PublishingError(
        f"This Hub does not support uploads over the Xet protocol; set {NO_XET}=1 before starting to use plain HTTP."
    )


def _line(error: BaseException) -> str:
    """Return the error's text as one line; URLs lose their query, which may contain an upload signature."""
    return re.sub(r"\?[^\s'\"]+", "", " ".join(str(error).split()))[:200]
