"""The model card: the README.md of a model folder, which contains only measured and recorded facts.

    text = model_card("photos", read_config(folder))        # snippets that load ./photos
    is_ours(text)                                           # True until it is edited

`card.md` is its template. The card of a registered encoder shows the scores on test splits, the floors and the limits
of the registry, and labels those of its run as such. A card ends with a hash of its text, so a later publication can
tell a generated README from an edited one, which it does not overwrite.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnclr_hub.encoder.backbones import timm_name
from nnclr_hub.encoder.preprocessing import Preprocessing
from nnclr_hub.errors import InvalidRequest, ModelError
from nnclr_hub.file_replacement import replace_file
from nnclr_hub.hub.layout import CARD, HELD_OUT, TEST, VALIDATION, WEIGHTS, ModelConfig, read_config
from nnclr_hub.hub.registry import ARCHITECTURES, BENCHMARKS, MODELS
from nnclr_hub.publish.provenance import NO_LICENSE, base_models, describe_training

if TYPE_CHECKING:
    import jinja2

TEMPLATE = Path(__file__).with_suffix(".md")
NOT_RECORDED = "not recorded"
_SEAL = re.compile(r"\n?<!-- nnclr card sha256:([0-9a-f]{64}) -->\n*\Z")
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def model_card(name: str, config: ModelConfig, *, repository: str | None = None, revision: str | None = None) -> str:
    """Return the text of the card, with front matter and seal.

    Args:
        name: name of the model, which is that of its folder.
        config: its config.json; config.nnclr may hold "metrics" {name: value}, "rechecked" {name: value or None} and
            "commands" {name: command} of them, "splits" {set: where its metrics are from}, "verdict" with its
            "sentence" in words, the "step" of the weights, "license" of the weights and "license_forced", and of the
            training images their "data" (a name or several) and "data_terms".
        repository: ORGANIZATION/NAME that the snippets load; None for the folder itself.

    Raises:
        WeightsMismatch, InvalidRequest: its preprocessing cannot be read.
    """
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    about, preprocessing = config.nnclr, Preprocessing.from_pretrained_cfg(config.pretrained_cfg)
    files, size = about.get("sha256") or {}, preprocessing.input_size
    # by weights and input, whatever their folder is called
    registered = {(one.sha256.get(WEIGHTS), one.input.size): one for one in MODELS.values()}
    info = registered.get((files.get(WEIGHTS), size))
    scores: Mapping[str, float] = about.get("metrics") or {}
    source = f"hf-hub:{repository}" + (f"@{revision}" if revision else "") if repository else f"./{name}"

    def split(metric: str) -> str:
        return str((about.get("splits") or {}).get(metric.partition("/")[2], NOT_RECORDED))

    def command(metric: str) -> str:
        kind, _, data = metric.partition("/")
        if stated := (about.get("commands") or {}).get(metric):
            return stated
        if kind.startswith("knn") and split(metric) != HELD_OUT:
            return f"`nnclr eval knn {source} --data {data}`"
        return f"by `nnclr pretrain {about['recipe']}`, at {_measured_at(about)}" if "recipe" in about else NOT_RECORDED

    results = [
        EvalResult(
            task_type="image-classification",
            task_name=metric.partition("/")[0],
            dataset_type=metric.partition("/")[2] or "not stated",
            dataset_name=metric.partition("/")[2] or "not stated",
            dataset_split=TEST if info else split(metric),
            metric_type="accuracy",
            metric_name=metric,
            metric_value=value,
        )
        for metric, value in (info.metrics if info else scores).items()
    ]
    bases = base_models(about)
    tags = ["image-feature-extraction", "timm", "transformers", "nnclr_hub", "self-supervised"]
    front_matter = ModelCardData(
        library_name="timm",
        pipeline_tag="image-feature-extraction",
        license=str(about.get("license") or NO_LICENSE),
        tags=tags + ([str(about["method"])] if "method" in about else []),
        base_model=bases or None,
        base_model_relation="finetune" if bases else None,
        model_name=name if results else None,
        eval_results=results or None,
    )
    same = [entry for entry, made in ARCHITECTURES.items() if timm_name(made) == config.architecture]
    data = about.get("data", NOT_RECORDED)
    images = ", ".join(map(str, data)) if isinstance(data, list | tuple) else str(data)
    text = _template().render(
        card_data=front_matter.to_yaml(),
        name=name,
        config=config,
        about=about,
        info=info,
        source=source,
        repository=repository,
        revision=revision,
        ours_alone=config.architecture.startswith("nnclr_"),
        entries=[(name, False)] if name in MODELS else [(entry, True) for entry in same],  # names in torch.hub
        steps=preprocessing.steps,
        side=math.floor(size / preprocessing.crop_pct),
        scores=scores,
        validation=any(split(metric) == VALIDATION for metric in scores),
        split=split,
        command=command,
        benchmarks=BENCHMARKS,
        training=describe_training(about, name),
        images=f"{images}; {about['data_terms']}" if "data_terms" in about else images,
        files=files,
    )
    return sealed(str(ModelCard(text)))


@cache
def _template() -> jinja2.Template:
    # compiling takes longer than writing the rest of a small model folder
    import jinja2

    return jinja2.Template(TEMPLATE.read_text("utf-8"))


def _measured_at(about: Mapping[str, Any]) -> str:
    step, steps = about.get("step"), about.get("steps")
    return "its last step" if step is None or step == steps else f"step {step}"


def require_repository(name: str) -> None:
    """Check the name of a repository on the Hub.

    Raises:
        InvalidRequest: it is invalid.
    """
    if not _REPOSITORY.fullmatch(name):
        raise InvalidRequest(f"{name!r} is not a valid repository; expected ORGANIZATION/NAME.")


def write_card(
    folder: Path, *, repository: str | None = None, revision: str | None = None, overwrite: bool = False
) -> Path:
    """Write the folder's README.md from its config.json.

    Raises:
        ModelFilesMissing, WeightsMismatch: there is no valid config.json.
        InvalidRequest: the README was edited, and `overwrite` is False.
        ModelError: it cannot be written.
    """
    config, path = read_config(folder), Path(folder) / CARD
    if is_edited(path) and not overwrite:
        raise InvalidRequest(f"{path} was edited by hand; use --overwrite to discard the edits.")
    name = repository.partition("/")[2] if repository else Path(folder).resolve().name
    text = model_card(name, config, repository=repository, revision=revision)
    try:
        replace_file(path, text)
    except OSError as error:
        raise ModelError(
            f"{path} cannot be written ({error.strerror}); free some space, or copy the folder."
        ) from error
    return path


def is_edited(path: Path) -> bool:
    """Return whether there is a README that differs from the generated one."""
    return path.exists() and not is_ours(path.read_text("utf-8", "replace"))


def sealed(text: str) -> str:
    """Return the text with a line at its end that `is_ours` recognizes."""
    text = _SEAL.sub("", text).rstrip("\n") + "\n"
    return f"{text}\n<!-- nnclr card sha256:{hashlib.sha256(text.encode()).hexdigest()} -->\n"


def is_ours(text: str) -> bool:
    """Return whether a README is unchanged since `sealed`."""
    return _SEAL.search(text) is not None and sealed(text) == text
