"""Where weights come from: parents, data and its terms, and the license that these allow.

config.json's block "nnclr" has "parents", a list with an entry per encoder that the weights started from. An entry has
its source, fingerprint, license and data, and its own parents. "data" and "data_terms" describe the training images.
"license_forced" is true if `check_license` or `check_terms` refused the license or the terms of these weights or of an
earlier version, and the refusal was overridden.
"commit" is that of the code; it ends with DIRTY if the code had uncommitted changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.hub.layout import ModelConfig
from nnclr_hub.hub.registry import MODELS
from nnclr_hub.plural import counted

if TYPE_CHECKING:
    from nnclr_hub.encoder.encoder import Encoder

NO_LICENSE = "unknown"  # the Hub's word for weights whose license nobody has stated
DIRTY = "-dirty"  # as `git describe --dirty` appends it
FORCED = "license_forced"
INHERITED = ("data", "data_terms", "parents", FORCED)  # keys that stay true of weights that are changed

# What others may do with a work, from little to everything. The first pattern that occurs in a license or in the terms
# of images decides, so a text about several sources has the terms of the narrowest.
_WIDTHS = (
    (0, r"non-?\s?commercial|\bnc\b|research|no.?derivatives|\bnd\b|all rights reserved|proprietary"),
    (1, r"\ba?gpl|\bsa\b|share.?alike"),
    (2, r"\bcc.by\b|odc-by|attribution"),
    (3, r"\bmit\b|apache|\bbsd|\bisc\b"),
    (4, r"cc0|public.domain|unlicense|pddl"),
)
_KINDS = ("restricted use", "share-alike terms", "attribution", "a permissive license", "the public domain")


def parent_record(source: str, encoder: Encoder) -> dict[str, Any]:
    """Return the entry of an encoder that another one starts from.

    Args:
        source: as it was named, such as hf-hub:org/name.
        encoder: loaded from there. timm states the license of its weights in the network; a function of Python may
            build the same network with other weights.
    """
    about: Mapping[str, Any] = {}
    license = NO_LICENSE
    if encoder.config is not None:
        about, license = encoder.config.nnclr, license_of(encoder.config)
    elif source.startswith("timm:"):
        timm_cfg: Any = getattr(encoder.backbone, "pretrained_cfg", None) or {}
        license = str(timm_cfg.get("license") or NO_LICENSE)
    kept = {name: about[name] for name in INHERITED if name in about}
    return {**kept, "source": source, "fingerprint": encoder.fingerprint, "license": license}


def license_of(config: ModelConfig) -> str:
    """Return the license of a model folder's weights; NO_LICENSE if none is stated."""
    return str(config.nnclr.get("license") or config.pretrained_cfg.get("license") or NO_LICENSE)


def width(terms: str) -> int | None:
    """Return how much a license or the terms of images allow, from 0 to 4; None if the text is not recognized."""
    text = terms.lower().replace("_", "-")
    return next((number for number, pattern in _WIDTHS if re.search(pattern, text)), None)


def check_terms(about: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    """Refuse terms of the training images that allow more than those in the record until now.

    Raises:
        InvalidRequest: they do.
    """
    now, recorded = str(about.get("data_terms", "")), str(before.get("data_terms", ""))
    allowed, wanted = width(recorded), width(now)
    if now != recorded and allowed is not None and (wanted is None or wanted > allowed):
        raise InvalidRequest(
            f"The record says that the training images have the terms {recorded!r}, and {now!r} may allow more. Leave "
            "out --data-terms, or use --force-license if the record is wrong."
        )


def check_license(license: str, about: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> None:
    """Refuse a license that allows more than a parent or the training images do, or may do so.

    Args:
        license: license of the weights, such as apache-2.0. One that is not recognized is refused if a parent or the
            images are for restricted use. Any is refused if a parent's license is not recognized, unless the two are
            equal.
        about: the record with "parents" and "data_terms". Terms of images that are not recognized allow every license,
            because people describe their own images in free words, such as "our photos".
        before: the record of the weights until now, with the "license" that they have, if one is stated.

    Raises:
        InvalidRequest: with the terms that are narrower, or that are not recognized.
    """
    before = before or {}
    own = str(before.get("license") or NO_LICENSE)
    licenses = [("the exported encoder", own)] if own != NO_LICENSE else []
    images = []
    for record in (about, before):
        ancestors = [*_ancestors(record)]
        licenses += [(f"the parent {one.get('source')}", str(one.get("license") or NO_LICENSE)) for one in ancestors]
        images += [
            ("the training data", str(one["data_terms"])) for one in (record, *ancestors) if one.get("data_terms")
        ]
    for whose, terms in licenses:
        if width(terms) is None and terms != license:
            raise InvalidRequest(
                f"The license {license!r} cannot be compared with that of {whose} ({terms!r}); leave --license out, or "
                "use --force-license if those terms allow it."
            )
    wanted = width(license)
    for whose, terms in (*images, *licenses):
        allowed = width(terms)
        if allowed is not None and (allowed == 0 if wanted is None else wanted > allowed):
            kind = "is not known" if wanted is None else f"grants {_KINDS[wanted]}"
            raise InvalidRequest(
                f"The license {license!r} {kind}, and {whose} grants only {_KINDS[allowed]} ({terms!r}). Choose a "
                "narrower license, or use --force-license if you hold the rights."
            )


@contextmanager
def record_forced(force: bool, about: dict[str, Any]) -> Iterator[None]:
    """Raise refusals of a license; with `force`, record that there was one instead."""
    try:
        yield
    except InvalidRequest:
        if not force:
            raise
        about[FORCED] = True


def _ancestors(about: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for parent in about.get("parents") or ():
        yield parent
        yield from _ancestors(parent)


def base_models(about: Mapping[str, Any]) -> list[str]:
    """Return the parents that are repositories on the Hub, as `base_model` of a card lists them."""
    sources = [str(parent.get("source", "")) for parent in about.get("parents") or ()]
    return [one.removeprefix("hf-hub:").partition("@")[0] for one in sources if one.startswith("hf-hub:")]


def describe_training(about: Mapping[str, Any], name: str = "") -> str:
    """Return what is recorded of the training, as sentences.

    Args:
        name: name of the encoder. A published name that occurs again in the chain is an earlier version.
    """
    if "converted" in about:
        record = about["converted"]
        return (
            f"The weights come from `{record.get('file')}` (sha256 `{record.get('sha256')}`), read as "
            f"{record.get('from')}, branch {record.get('branch')}. Only their names were changed. The file does not "
            "record the preprocessing, so the usual one is assumed."
        )
    step, steps = about.get("step"), about.get("steps")
    unfinished = steps is not None and step != steps
    commit, dirty, _ = str(about.get("commit") or "").partition(DIRTY)
    facts = {
        "method": "{}",
        "recipe": "{}",
        "encoder": "{} weights",
        "step": f"stopped at step {{}} of {steps}: unfinished" if unfinished else counted(step or 0, "step"),
        "epochs": f"{{:g}} epoch{'s' * (about.get('epochs') != 1)}" + (" planned" if unfinished else ""),
        "temperature": "temperature {}",
        "support_set_size": "support set of {}",
        "seed": "seed {}",
    }
    known = [text.format(about[key]) for key, text in facts.items() if about.get(key) is not None]
    known += [f"code at commit {commit[:12]}" + (" with uncommitted changes" if dirty else "")] if commit else []
    return _describe_parents(about, name) + (", ".join(known) + "." if known else "Not recorded.")


def _describe_parents(about: Mapping[str, Any], name: str) -> str:
    """Return a sentence with the chain of parents; empty without any."""
    chain, names, starts = about.get("parents") or [], {PurePath(name).name}, []
    while chain:
        parent = chain[0]
        source = str(parent.get("source"))
        published = PurePath(source).name if "hf-hub:" not in source else ""
        which = f"an earlier version of {published}" if published in names & MODELS.keys() else source
        names.add(published)
        forced = ", forced" if parent.get(FORCED) else ""
        license = parent.get("license") or NO_LICENSE
        starts.append(f"{which} (fingerprint {str(parent.get('fingerprint'))[:8]}, {license}{forced})")
        chain = parent.get("parents") or []
    return f"Started from {', which started from '.join(starts)}. " if starts else ""
