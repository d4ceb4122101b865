"""Publish a model folder on the Hugging Face Hub: check everything first, then make one commit and its tag.

    done = publish_model("models/photos", "org/photos", tag="v1.0")
    print(done.source)                  # hf-hub:org/photos@<commit>, for load_encoder

Another call sends only missing files, and makes a commit only if something changed. The tests use a local stand-in for
the Hub over plain HTTP; the Hub's own servers and the Xet protocol are not tested.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nnclr_hub.errors import InvalidRequest, PublishingError
from nnclr_hub.hub.layout import CARD, OPTIONAL
from nnclr_hub.hub.repositories import require_endpoint
from nnclr_hub.publish.card import is_ours, require_repository
from nnclr_hub.publish.remote import Remote, hub_errors, is_unreachable, look, require_known
from nnclr_hub.publish.upload_files import OutgoingFile, outgoing, outgoing_card

if TYPE_CHECKING:
    from huggingface_hub import HfApi

MAIN = "main"
# valid in git, and neither the branch nor a commit
_TAG = re.compile(r"(?!main$|[0-9a-f]{40}$)(?!.*\.\.|.*\.lock$|.*\.$)[A-Za-z0-9][A-Za-z0-9._+-]*")


@dataclass(frozen=True)
class Published:
    """The result of a publication, or the plan of a dry run.

    repository: ORGANIZATION/NAME.
    commit: that contains the model; None for a dry run that would make one.
    tag: of the commit.
    pull_request: number of the pull request that was opened or continued.
    created: whether the repository is new.
    tagged: whether the tag is new.
    sent: changed file -> bytes.
    removed: files of the previous model that this one does not have.
    compared: whether the Hub was reached; a dry run without it plans for a new repository.
    """

    repository: str
    commit: str | None
    tag: str | None = None
    pull_request: int | None = None
    created: bool = False
    tagged: bool = False
    sent: Mapping[str, int] = field(default_factory=dict)
    removed: Sequence[str] = ()
    compared: bool = True

    @property
    def source(self) -> str | None:
        """The source for `load_encoder` of exactly this version."""
        return f"hf-hub:{self.repository}@{self.commit}" if self.commit else None


def publish_model(
    folder: str | Path,
    repository: str,
    *,
    private: bool = False,
    tag: str | None = None,
    pr: bool = False,
    dry_run: bool = False,
    overwrite_card: bool = False,
    token: str | None = None,
) -> Published:
    """Publish a model folder.

    Args:
        folder: from `nnclr export`; heads and support set are uploaded if it has them.
        repository: ORGANIZATION/NAME, created if necessary.
        private: make it private; a public repository is refused.
        tag: name of the release; never moved.
        pr: open a pull request, or continue an open one of the same user.
        dry_run: run all checks, but change nothing. Without a token, a private repository counts as missing; without a
            network, every repository does.
        overwrite_card: replace an edited README in the repository.
        token: default: HF_TOKEN, or the token of `hf auth login`.

    Raises:
        InvalidRequest: a name or a combination of options is invalid.
        ModelFilesMissing, TamperedModel, WeightsMismatch: the folder is incomplete or damaged.
        PublishingError: the tag exists elsewhere, the README was edited, or the Hub refuses.
    """
    check_options(repository, tag, pr)
    files = outgoing(Path(folder), repository, tag)
    api, has_token = _client(token, dry_run)
    try:
        remote = look(api, repository)
        if dry_run and has_token:
            require_known(api, repository)  # without dry_run, the first write reports an unknown repository or token
    except PublishingError as error:
        if not dry_run or not is_unreachable(error):
            raise
        sizes = {name: file.size() for name, file in files.items()}
        return Published(repository, None, tag, None, True, tag is not None, sizes, compared=False)
    number, base = None, remote
    if pr:
        if remote.head is None:
            raise PublishingError(f"{repository} does not exist, so a pull request is not possible; leave out --pr.")
        number = _open_request(api, repository) if has_token else None
        base = look(api, repository, f"refs/pr/{number}") if number else remote
    if tag is None:
        files = _as_released(files, base, Path(folder), repository)
    changed = {name: file for name, file in files.items() if not _is_there(base, name, file)}
    gone = [name for name in OPTIONAL if name in base.files and name not in files]
    _refuse(remote, base, repository, files, bool(changed or gone), private, tag, overwrite_card)
    plan = Published(
        repository,
        base.head if not (changed or gone) else None,
        tag,
        number,
        remote.head is None,
        tag is not None and tag not in remote.tags,
        {name: file.size() for name, file in changed.items()},
        gone,
    )
    return plan if dry_run else _carry_out(api, plan, base, changed, private, pr)


def check_options(repository: str, tag: str | None, pr: bool) -> None:
    """Check the repository, the tag and their combination.

    Raises:
        InvalidRequest: one is invalid.
    """
    require_repository(repository)
    if tag is not None and not _TAG.fullmatch(tag):
        raise InvalidRequest(
            f"{tag!r} is not a valid tag; use letters, digits, '.', '_', '+' and '-', such as v1.0. It must be neither "
            "main nor the hash of a commit."
        )
    if tag is not None and pr:
        raise InvalidRequest("A pull request cannot have a tag until it is merged; leave out --tag or --pr.")


def _client(token: str | None, dry_run: bool) -> tuple[HfApi, bool]:
    """Return the client, and whether it has a token; a dry run needs none for what everyone can see."""
    from huggingface_hub import HfApi, get_token

    require_endpoint()
    has_token = bool(token or get_token())
    if not (has_token or dry_run):
        raise PublishingError("No token for the Hub was found; set HF_TOKEN, or log in with `hf auth login`.")
    return HfApi(token=token, library_name="nnclr_hub"), has_token


def _open_request(api: HfApi, repository: str) -> int | None:
    """Return the number of an open pull request that the user made with nnclr_hub."""
    with hub_errors(repository):
        user = api.whoami()["name"]
        requests = api.get_repo_discussions(
            repository, author=user, discussion_type="pull_request", discussion_status="open"
        )
        ours = [request.num for request in requests if request.title == _title(repository)]
    return max(ours, default=None)


def _title(repository: str) -> str:
    return f"nnclr_hub: {repository.partition('/')[2]}"


def _is_there(remote: Remote, name: str, file: OutgoingFile) -> bool:
    return name in remote.files and remote.files[name].is_the_same_as(file)


def _as_released(
    files: dict[str, OutgoingFile], remote: Remote, folder: Path, repository: str
) -> dict[str, OutgoingFile]:
    """Return the files with the card of a tag at the head if they are all published, so that snippets stay pinned."""
    for tag in (name for name, at in remote.tags.items() if at == remote.head):
        released = {**files, CARD: outgoing_card(folder, repository, tag)}
        if all(_is_there(remote, name, file) for name, file in released.items()):
            return released
    return files


def _refuse(
    remote: Remote,
    base: Remote,
    repository: str,
    files: Mapping[str, OutgoingFile],
    changes: bool,
    private: bool,
    tag: str | None,
    overwrite_card: bool,
) -> None:
    """Run all checks before anything is uploaded."""
    if private and remote.head is not None and not remote.private:
        raise PublishingError(
            f"{repository} is public, but --private is set; make it private on its page first, or use another one."
        )
    if tag in remote.branches:
        raise PublishingError(
            f"{repository} has a branch {tag}, which a tag of that name would shadow; choose another tag."
        )
    at = remote.tags.get(tag or "")
    if at is not None and (changes or at != remote.head):
        raise PublishingError(
            f"The tag {tag} of {repository} exists at commit {at[:12]} and is never moved; choose a new tag."
        )
    if (
        base.card is not None
        and not overwrite_card
        and not is_ours(base.card)
        and not _is_there(base, CARD, files[CARD])
    ):
        raise PublishingError(
            f"The {CARD} of {repository} was edited; copy the edits into your {CARD}, then use --overwrite-card."
        )


def _carry_out(
    api: HfApi, plan: Published, base: Remote, changed: Mapping[str, OutgoingFile], private: bool, pr: bool
) -> Published:
    """Create repository, commit and tag, in this order, so that the next call can complete an interrupted one."""
    repository = plan.repository
    with hub_errors(repository):
        if plan.created:
            api.create_repo(repository, private=private, exist_ok=False)
            base = look(api, repository)
            plan = replace(plan, commit=base.head if not changed else None)
        if changed or plan.removed:
            plan = _commit(api, plan, base, changed, pr)
        if plan.tagged:
            _tag(api, plan)
    return plan


def _commit(api: HfApi, plan: Published, base: Remote, changed: Mapping[str, OutgoingFile], pr: bool) -> Published:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    operations: list[CommitOperationAdd | CommitOperationDelete] = [
        CommitOperationAdd(name, file.content) for name, file in changed.items()
    ]
    operations += [CommitOperationDelete(name) for name in plan.removed]
    made = api.create_commit(
        plan.repository,
        operations,
        commit_message=_title(plan.repository),
        revision=f"refs/pr/{plan.pull_request}" if plan.pull_request else MAIN,
        create_pr=pr and plan.pull_request is None,
        parent_commit=base.head,
    )
    return replace(plan, commit=made.oid, pull_request=plan.pull_request or made.pr_num)


def _tag(api: HfApi, plan: Published) -> None:
    from huggingface_hub.errors import HfHubHTTPError

    assert plan.tag is not None
    try:
        api.create_tag(plan.repository, tag=plan.tag, revision=plan.commit)
    except HfHubHTTPError as error:
        if error.response.status_code != 409:
            raise
        raise PublishingError(
            f"Another process created the tag {plan.tag} of {plan.repository}. Commit {plan.commit} was uploaded "
            "without a tag; choose another tag and call again."
        ) from error
