"""Publish a model folder on the Hugging Face Hub: check everything first, then make one commit and its tag.

    done = publish_model("models/photos", "org/photos", tag="v1.0")
    push_to_hub(encoder, "org/photos", tag="v1.0")      # an encoder in memory
    print(done.source)                  # hf-hub:org/photos@<commit>, for load_encoder

Another call sends only changed files, and makes a commit only if something changed. The tests use a local stand-in for
the Hub over plain HTTP; the Hub's own servers and the Xet protocol are not tested.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nnclr_hub.arguments import checked
from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.encoder.loader import load_encoder
from nnclr_hub.errors import (
    InvalidRequest,
    ModelFilesMissing,
    NNCLRHubError,
    PublishingError,
    TamperedModel,
    WeightsMismatch,
)
from nnclr_hub.hub.layout import CARD, CONFIG, OPTIONAL, WEIGHTS, read_config, read_weights, sha256_of
from nnclr_hub.hub.repositories import hub_failure, network_errors, require_endpoint
from nnclr_hub.publish.card import is_ours, model_card, require_repository, sealed
from nnclr_hub.publish.export import export_model
from nnclr_hub.publish.provenance import INHERITED, NO_LICENSE, check_license, license_of, parent_record, record_forced

LICENSE = "LICENSE"
# valid in git, and neither the branch nor a commit
_TAG = re.compile(r"(?!main$|[0-9a-f]{40}$)(?!.*\.\.|.*\.lock$|.*\.$)[A-Za-z0-9][A-Za-z0-9._+-]*")


@dataclass(frozen=True)
class Published:
    """The result of a publication, or the plan of a dry run.

    repository: ORGANIZATION/NAME.
    commit: that contains the model; None for a dry run that would make one.
    tag: tag of the commit.
    pull_request: number of the pull request that was opened.
    created: whether the repository is new.
    tagged: whether the tag is new.
    sent: changed file -> bytes.
    removed: files of the previous model that this one does not have.
    """

    repository: str
    commit: str | None
    tag: str | None = None
    pull_request: int | None = None
    created: bool = False
    tagged: bool = False
    sent: Mapping[str, int] = field(default_factory=dict)
    removed: Sequence[str] = ()

    @property
    def source(self) -> str | None:
        """The source for `load_encoder` of exactly this version."""
        return f"hf-hub:{self.repository}@{self.commit}" if self.commit else None


@checked
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
        folder: from `nnclr export`; heads are uploaded if it has them.
        repository: ORGANIZATION/NAME, created if necessary.
        private: make it private; a public repository is refused.
        tag: name of the release; never moved.
        pr: open a pull request.
        dry_run: run all checks, but change nothing. Without a token, a private repository counts as missing.
        overwrite_card: replace an edited README in the repository.
        token: default: HF_TOKEN, or the token of `hf auth login`.

    Raises:
        InvalidRequest: a name or a combination of options is invalid.
        ModelFilesMissing, TamperedModel, WeightsMismatch: the folder is incomplete or damaged.
        PublishingError: the tag exists elsewhere, the README was edited, or the Hub refuses.
    """
    _check_options(repository, tag, pr)
    from huggingface_hub import HfApi, get_token

    require_endpoint()
    with tempfile.TemporaryDirectory() as temporary, _hub_errors(repository):
        staged = _stage(Path(folder), Path(temporary), repository, tag)
        token = token or get_token()
        if not (token or dry_run):
            raise PublishingError("No token for the Hub was found; set HF_TOKEN, or log in with `hf auth login`.")
        api = HfApi(token=token, library_name="nnclr_hub")
        plan, head = _plan(api, staged, repository, tag, private, overwrite_card)
        if pr and plan.created:
            raise PublishingError(f"{repository} does not exist, so a pull request is not possible; leave out --pr.")
        if dry_run:
            if token is not None:
                api.whoami()  # without dry_run, the first write reports an unknown token
            return plan
        if plan.created:
            api.create_repo(repository, private=private)
            head = api.repo_info(repository).sha
        if plan.sent or plan.removed:
            made = api.upload_folder(
                repo_id=repository,
                folder_path=staged,
                allow_patterns=[*plan.sent],
                delete_patterns=[*plan.removed] or None,
                commit_message=f"nnclr_hub: {repository.partition('/')[2]}",
                create_pr=pr,
                parent_commit=head,
            )
            plan = replace(plan, commit=made.oid, pull_request=made.pr_num)
        if plan.tagged:
            api.create_tag(repository, tag=str(tag), revision=plan.commit)
    return plan


@checked
def push_to_hub(
    encoder: Encoder,
    repository: str,
    *,
    license: str | None = None,
    data: str | None = None,
    private: bool = False,
    tag: str | None = None,
    pr: bool = False,
    token: str | None = None,
    force_license: bool = False,
) -> Published:
    """Publish the network of an encoder, as it is in memory: `export_model` and `publish_model` in one.

    License, images, terms and parents of the model folder from which it was loaded are recorded, and timm as a parent.
    Heads and results are not, since the weights may have changed: publish the folder for these.

    Args:
        license: license of the weights, for the card; None: that of the model folder or of timm.
        data: the training images and their terms, for the card; None: those of the model folder.
        private, tag, pr, token: see `publish_model`.

    Raises:
        NNCLRHubError: see `export_model` and `publish_model`.
    """
    _check_options(repository, tag, pr)
    before: dict[str, Any] = {}
    known = NO_LICENSE
    if encoder.config is not None and not encoder.name.startswith("random:"):  # true of weights that were changed, too
        about, known = encoder.config.nnclr, license_of(encoder.config)
        before = {name: about[name] for name in INHERITED if name in about}
    elif encoder.name.startswith("timm:"):
        parent = parent_record(encoder.name, encoder)
        known, before = parent["license"], {"parents": [parent]}
    before |= {} if known == NO_LICENSE else {"license": known}
    given = {key: value for key, value in (("license", license), ("data", data)) if value is not None}
    with record_forced(force_license, given):
        if license not in (None, before.get("license")):
            check_license(license, {}, before)
    config, cfg = encoder.config, encoder.backbone.pretrained_cfg
    with tempfile.TemporaryDirectory() as temporary:
        folder = export_model(
            encoder.backbone,
            Path(temporary) / repository.rpartition("/")[2],
            provenance={**before, **given},
            architecture=config.architecture if config else cfg["architecture"],  # type: ignore[index]
            model_args=config.model_args if config else {},
            preprocessing=encoder.transform.preprocessing,
        )
        return publish_model(folder, repository, private=private, tag=tag, pr=pr, token=token)


def _check_options(repository: str, tag: str | None, pr: bool) -> None:
    require_repository(repository)
    if tag is not None and not _TAG.fullmatch(tag):
        raise InvalidRequest(
            f"{tag!r} is not a valid tag; use letters, digits, '.', '_', '+' and '-', such as v1.0. It must be neither "
            "main nor the hash of a commit."
        )
    if tag is not None and pr:
        raise InvalidRequest("A pull request cannot have a tag until it is merged; leave out --tag or --pr.")


def _stage(folder: Path, staged: Path, repository: str, revision: str | None) -> Path:
    """Link the files to upload into a folder, verified: config.json, what it records, LICENSE; and write the card."""
    config = read_config(folder)
    recorded = config.sha256
    if WEIGHTS not in recorded:
        raise WeightsMismatch(
            f"{folder} does not record the hash of its weights; make a folder with `nnclr export` to publish it."
        )
    for name, digest in recorded.items():
        if not (folder / name).is_file():
            raise ModelFilesMissing(f"{folder / name} is listed in {CONFIG} but missing; export the model again.")
        if sha256_of(folder / name) != digest:
            raise TamperedModel(f"{folder / name} differs from its hash in {CONFIG}; export the model again.")
        if name.endswith(".safetensors"):
            read_weights(folder, name)  # raises for NaN and infinity
    encoder = load_encoder(f"local-dir:{folder}", device="cpu", backend="torch")  # checks that every weight fits
    if encoder.embed_dim != config.num_features:
        raise WeightsMismatch(
            f"{folder / CONFIG} records vectors of length {config.num_features}, but the network gives "
            f"{encoder.embed_dim}; export the model again."
        )
    try:
        card = (folder / CARD).read_text("utf-8") if (folder / CARD).is_file() else None
    except (UnicodeDecodeError, OSError) as error:
        raise WeightsMismatch(f"{folder / CARD} cannot be read as UTF-8; save it in this encoding.") from error
    if card is None or is_ours(card):
        card = model_card(repository.partition("/")[2], config, repository=repository, revision=revision)
    (staged / CARD).write_bytes(sealed(card).encode())  # an edited card keeps its text and gets a new seal
    for name in (CONFIG, *recorded, *([LICENSE] if (folder / LICENSE).is_file() else [])):
        (staged / name).symlink_to((folder / name).resolve())
    return staged


def _plan(
    api: Any, staged: Path, repository: str, tag: str | None, private: bool, overwrite_card: bool
) -> tuple[Published, str | None]:
    """Compare the repository with the staged files, before anything is uploaded; return the plan and its head."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
    from huggingface_hub.utils.sha import git_hash

    sizes = {path.name: path.stat().st_size for path in sorted(staged.iterdir())}
    try:
        info = api.repo_info(repository)
    except RepositoryNotFoundError as error:
        if isinstance(error, GatedRepoError):
            raise
        return Published(repository, None, tag, created=True, tagged=tag is not None, sent=sizes), None
    if info.sha is None:
        raise PublishingError(f"{repository} has no commit yet; create one on its page first, such as a README.")
    if private and not info.private:
        raise PublishingError(
            f"{repository} is public, but --private is set; make it private on its page first, or use another one."
        )
    refs = api.list_repo_refs(repository)
    if tag in {branch.name for branch in refs.branches}:
        raise PublishingError(
            f"{repository} has a branch {tag}, which a tag of that name would shadow; choose another tag."
        )

    def is_same(entry: Any, path: Path) -> bool:  # only large files have a sha256
        return entry.lfs.sha256 == sha256_of(path) if entry.lfs else entry.blob_id == git_hash(path.read_bytes())

    # by the commit, because the branch may move between the requests
    there: dict[str, Any] = {entry.path: entry for entry in api.list_repo_tree(repository, revision=info.sha)}
    sent = {name: n for name, n in sizes.items() if name not in there or not is_same(there[name], staged / name)}
    removed = [name for name in OPTIONAL if name in there and name not in sizes]
    at = {one.name: one.target_commit for one in refs.tags}.get(tag or "")
    if at is not None and (sent or removed or at != info.sha):
        raise PublishingError(
            f"The tag {tag} of {repository} exists at commit {at[:12]} and is never moved; choose a new tag."
        )
    if CARD in sent and CARD in there and not overwrite_card:
        with tempfile.TemporaryDirectory() as folder:  # not the cache, which holds models
            path = Path(api.hf_hub_download(repository, CARD, revision=info.sha, local_dir=folder))
            if not is_ours(path.read_text("utf-8", "replace")):
                raise PublishingError(
                    f"The {CARD} of {repository} was edited; copy the edits into your {CARD}, then use "
                    "--overwrite-card."
                )
    commit, tagged = None if sent or removed else info.sha, tag is not None and at is None
    return Published(repository, commit, tag, tagged=tagged, sent=sent, removed=removed), info.sha


@contextmanager
def _hub_errors(repository: str) -> Iterator[None]:
    try:
        yield
    except NNCLRHubError:
        raise
    except (OSError, RuntimeError, ValueError, *network_errors()) as error:
        failure = hub_failure(error, repository)
        raise (failure if isinstance(failure, InvalidRequest) else PublishingError(str(failure))) from error
