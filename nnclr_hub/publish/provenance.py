"""Where weights come from: parents, data and its terms, and the license that these allow.

config.json's block "nnclr" has "parents", a list with an entry per encoder that the weights started from. An entry has
its source, fingerprint, license and data, and its own parents. "data" and "data_terms" describe the training images.
"commit" is that of the code; it ends with DIRTY if the code had uncommitted changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.hub.layout import ModelConfig
from nnclr_hub.hub.registry import MODELS

DIRTY = "-dirty"  # as `git describe --dirty` appends it

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


def parent_record(source: str, fingerprint: str, config: ModelConfig | None) -> dict[str, Any]:
    """Return the entry of an encoder that another one starts from.

    Args:
        source: as it was named, such as hf-hub:org/name.
        fingerprint: of its vectors.
        config: its config.json; None for weights of timm.
    """
    about = {} if config is None else config.nnclr
    kept = {name: about[name] for name in ("license", "data", "data_terms", "parents") if name in about}
    if config is None:
        license = "see timm"
    else:
        license = str(about.get("license") or config.pretrained_cfg.get("license") or "unknown")
    return {**kept, "source": source, "fingerprint": fingerprint, "license": license}


def width(terms: str) -> int | None:
    """Return how much a license or the terms of images allow, from 0 to 4; None if the text is not recognized."""
    text = terms.lower().replace("_", "-")
    return next((number for number, pattern in _WIDTHS if re.search(pattern, text)), None)


def check_license(license: str, about: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> None:
    """Refuse a license that allows more than a parent or the training images do, or may do so.

    Args:
        license: of the weights, such as apache-2.0. One that is not recognized is refused if a parent or the images are
            for restricted use.
        about: the record with "parents" and "data_terms".
        before: the record of the weights until now, with the "license" that they have.

    Raises:
        InvalidRequest: with the terms that are narrower.
    """
    wanted, terms_of = width(license), list(_terms(about))
    if before is not None:
        terms_of += [("the exported encoder", str(before.get("license", "unknown"))), *_terms(before)]
    for whose, terms in terms_of:
        allowed = width(terms)
        if allowed is not None and (allowed == 0 if wanted is None else wanted > allowed):
            kind = "is not known" if wanted is None else f"grants {_KINDS[wanted]}"
            raise InvalidRequest(
                f"The license {license!r} {kind}, and {whose} grants only {_KINDS[allowed]} ({terms!r}). Choose a "
                "narrower license, or use --force-license if you hold the rights."
            )


def _terms(about: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (whose terms, the terms) of the images and of all parents."""
    if about.get("data_terms"):
        yield "the training data", str(about["data_terms"])
    for parent in about.get("parents") or ():
        yield f"the parent {parent.get('source')}", str(parent.get("license", "unknown"))
        yield from _terms(parent)


def base_models(about: Mapping[str, Any]) -> list[str]:
    """Return the parents that are repositories on the Hub, as `base_model` of a card lists them."""
    sources = [str(parent.get("source", "")) for parent in about.get("parents") or ()]
    return [one.removeprefix("hf-hub:").partition("@")[0] for one in sources if one.startswith("hf-hub:")]


def describe_training(about: Mapping[str, Any], name: str = "") -> str:
    """Return what is recorded of the training, as sentences.

    Args:
        about: the record.
        name: of the encoder; parents of the same published name are earlier versions of it.
    """
    if "converted" in about:
        record = about["converted"]
        file, digest, origin, branch = (record.get(key) for key in ("file", "sha256", "from", "branch"))
        return (
            f"The weights come from `{file}` (sha256 `{digest}`), read as {origin}, branch {branch}. Only their names "
            "were changed. The file does not record the preprocessing, so the usual one is assumed."
        )
    known = [str(about[key]) for key in ("method", "recipe") if key in about]
    known += [f"{about['encoder']} weights"] if "encoder" in about else []
    unfinished = about.get("step") != about.get("steps") and "steps" in about
    if unfinished:
        known += [f"stopped at step {about.get('step')} of {about['steps']}: unfinished"]
    elif "step" in about:
        known += [f"{about['step']} steps"]
    known += [f"{about['epochs']:g} epochs" + (" planned" if unfinished else "")] if "epochs" in about else []
    known += [f"temperature {about['temperature']}"] if "temperature" in about else []
    known += [f"support set of {about['support_set_size']}"] if about.get("support_set_size") else []
    known += [f"seed {about['seed']}"] if "seed" in about else []
    commit, dirty, _ = str(about.get("commit") or "").partition(DIRTY)
    known += [f"code at commit {commit[:12]}" + (" with uncommitted changes" if dirty else "")] if commit else []
    return _describe_parents(about, name) + (", ".join(known) + "." if known else "Not recorded.")


def _describe_parents(about: Mapping[str, Any], name: str) -> str:
    """Return a sentence with the chain of parents; empty without any."""
    chain, found = about.get("parents") or [], []
    while chain:
        parent = chain[0]
        source = str(parent.get("source"))
        same = "hf-hub:" not in source and PurePath(source).name == PurePath(name).name in MODELS
        which = "an earlier version" if same else source
        found.append(f"{which} (fingerprint {str(parent.get('fingerprint'))[:8]}, {parent['license']})")
        chain = parent.get("parents") or []
    return f"Started from {', which started from '.join(found)}. " if found else ""
