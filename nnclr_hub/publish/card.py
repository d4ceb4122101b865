"""The model card: the README.md of a model folder, which contains only measured and recorded facts.

    text = model_card("photos", read_config(folder))        # snippets that load ./photos
    is_ours(text)                                           # True until it is edited

The card of a registered encoder shows the scores on test splits, the floors and the limits of the registry, and labels
those of its run as such. Other cards show the scores of config.json.

A card ends with a hash of its text. So a later publication can tell a generated README from an edited one, which it
does not overwrite.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nnclr_hub.encoder.preprocessing import Preprocessing
from nnclr_hub.errors import InvalidRequest, ModelError
from nnclr_hub.file_replacement import replace_file
from nnclr_hub.hub.layout import (
    CARD,
    CONFIG,
    GRAPH,
    HEADS,
    HELD_OUT,
    SUPPORT_SET,
    TEST,
    VALIDATION,
    WEIGHTS,
    ModelConfig,
    read_config,
)
from nnclr_hub.hub.registry import BENCHMARKS, MODELS, ModelInfo
from nnclr_hub.publish.provenance import FORCED, NO_LICENSE, base_models, describe_training
from nnclr_hub.publish.snippets import loading, paragraph

_SEAL = re.compile(r"\n?<!-- nnclr card sha256:([0-9a-f]{64}) -->\n*\Z")
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_BODY = """
# {name}

{verdict}{summary}

## Load the model

{loading}

## Input and output

{input}

{output}

## Results

{metrics}

## Training

{training}

## Intended use

{use}

## Limits

{limits}

## Terms

{terms}

## Files

| file | sha256 |
|---|---|
{files}

{contents}

{verification}

## Citation

{citation}
"""
_USE = """
Use the vectors to find, group and classify images that are similar to the training images. The vectors do not contain
classes: to classify, label some images and fit a linear classifier.
"""
_FORCED = """
The license or the terms of the images were forced, for these weights or an earlier version. The record did not allow
them, or they could not be compared.
"""
_LIMITS = """
The vectors have the gaps and biases of the training images. Nobody has examined these for fairness, so do not use the
vectors for decisions about people. Details smaller than a few pixels of the {size} x {size} input are lost.
"""
_VERIFICATION = f"""
nnclr_hub compares every file with its hash in `{CONFIG}`. This detects damage, but not who made a file, so load a fixed
commit. timm and transformers do not check any hash, and load a changed file without a warning.
"""
_PAPER = """```bibtex
@inproceedings{dwibedi2021nnclr,
  title     = {With a Little Help from My Friends: Nearest-Neighbor Contrastive Learning of Visual Representations},
  author    = {Dwibedi, Debidatta and Aytar, Yusuf and Tompson, Jonathan and Sermanet, Pierre and Zisserman, Andrew},
  booktitle = {IEEE/CVF International Conference on Computer Vision (ICCV)},
  year      = {2021}
}
```"""


_SIDES = {
    "center": "Its short side is resized to {resize} pixels ({interpolation}, antialiased)",
    "squash": "Both of its sides are resized to {resize} pixels ({interpolation}, antialiased)",
    "border": "Its long side is resized to {resize} pixels ({interpolation}, antialiased), padded with the mean color",
}


def model_card(name: str, config: ModelConfig, *, repository: str | None = None, revision: str | None = None) -> str:
    """Return the text of the card, with front matter and seal.

    Args:
        name: of the model; its folder's.
        config: its config.json; config.nnclr may hold "metrics" {name: value}, "rechecked" {name: value or None} and
            "commands" {name: command} of them, "splits" {set: where its metrics are from}, "verdict" with its
            "sentence" in words, "measured_at_step" next to the weights' "step", "license" of the weights and
            "license_forced", and of the training images their "data" (a name or several) and "data_terms".
        repository: ORGANIZATION/NAME that the snippets load; None for the folder itself.
        revision: tag or commit of it.

    Raises:
        WeightsMismatch, InvalidRequest: its preprocessing cannot be read.
    """
    about, preprocessing = config.nnclr, Preprocessing.from_pretrained_cfg(config.pretrained_cfg)
    info = _registered(about, preprocessing)
    source = f"hf-hub:{repository}" + (f"@{revision}" if revision else "") if repository else f"./{name}"
    pooled = "the [CLS] token" if config.global_pool == "token" else "the mean over the last feature map"
    body = _BODY.format(
        name=name,
        verdict=_verdict(about),
        summary=paragraph(
            f"A {config.architecture} that turns an image into a vector of {config.num_features} numbers. Similar "
            f"images have similar vectors. {_origin(about)}"
        ),
        loading=loading(name, config, repository, revision),
        input=paragraph(_input(preprocessing)),
        output=f"The output is {pooled}. Compare vectors by their cosine similarity.",
        metrics=_table(about, source) if info is None else _published_tables(info, about, source),
        training=paragraph(describe_training(about, name)),
        use=paragraph(_USE),
        limits=paragraph(f"{info.limits if info else ''} {_LIMITS.format(size=preprocessing.input_size)}"),
        terms=paragraph(
            f"Weights: {about.get('license') or 'license not stated'}. Training images: {_images(about)}."
            + (_FORCED if about.get(FORCED) else "")
        ),
        files="\n".join(f"| `{file}` | `{digest}` |" for file, digest in (about.get("sha256") or {}).items()),
        contents=paragraph(_contents(about)),
        verification=paragraph(_VERIFICATION),
        citation=_PAPER if "method" in about else "Cite the work that these weights come from.",
    )
    return sealed("\n".join(["---", *_front_matter(name, about, info), "---"]) + "\n" + body)


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


def _registered(about: Mapping[str, Any], preprocessing: Preprocessing) -> ModelInfo | None:
    """Return the registry entry of weights and input, whatever their folder is called; None if there is none."""
    digest, size = (about.get("sha256") or {}).get(WEIGHTS), preprocessing.input_size
    return next((one for one in MODELS.values() if (one.sha256.get(WEIGHTS), one.input.size) == (digest, size)), None)


def _front_matter(name: str, about: Mapping[str, Any], info: ModelInfo | None) -> list[str]:
    """Return the lines of the Hub's YAML; values are written as JSON, which is valid YAML."""
    tags = ["image-feature-extraction", "timm", "transformers", "nnclr_hub", "self-supervised"]
    tags += [str(about["method"])] if "method" in about else []
    lines = [
        "library_name: timm",
        "pipeline_tag: image-feature-extraction",
        f"license: {json.dumps(str(about.get('license') or NO_LICENSE))}",
        f"tags: {json.dumps(tags)}",
    ]
    if bases := base_models(about):
        lines += [f"base_model: {json.dumps(bases)}", "base_model_relation: finetune"]
    if info:
        results = [_result(metric, value, TEST) for metric, value in info.metrics.items()]
    else:
        results = [_result(metric, value, _split(metric, about)) for metric, value in _metrics(about).items()]
    if results:
        lines.append(f"model-index: {json.dumps([{'name': name, 'results': results}])}")
    return lines


def _result(metric: str, value: float, split: str) -> dict[str, Any]:
    """Return one entry of the model index; a metric is named KIND/DATASET, such as knn20/imagenette128."""
    kind, _, dataset = metric.partition("/")
    dataset = dataset or "not stated"
    return {
        "task": {"type": "image-classification", "name": kind},
        "dataset": {"type": dataset, "name": dataset, "split": split},
        "metrics": [{"type": "accuracy", "name": metric, "value": value}],
    }


def _published_tables(info: ModelInfo, about: Mapping[str, Any], source: str) -> str:
    """Return the scores of the registry next to floors, and those of the run with the split that they are from."""
    rows = ["| metric, on the test split | value | best floor | command |", "|---|---|---|---|"]
    for name, value in info.metrics.items():
        data = BENCHMARKS[name.partition("/")[2]]
        best = f"{data.floors[data.best_floor]} ({data.best_floor})"
        rows.append(f"| {name} | {value} | {best} | {_command(name, about, source)} |")
    rows += ["", paragraph(_FLOORS)]
    metrics, checks = _metrics(about), about.get("rechecked") or {}
    if metrics:
        rows += ["", "The run and `nnclr export` measured these, on validation images where the data has them:", ""]
        rows += ["| metric | split | value | rechecked at export |", "|---|---|---|---|"]
    for name, value in metrics.items():
        data, again = BENCHMARKS.get(name.partition("/")[2]), checks.get(name)
        split = _split(name, about)
        if split == NOT_KNOWN and data is not None:
            split = VALIDATION if data.validation else TEST
        rows.append(f"| {name} | {split} | {value} | {'not checked' if again is None else again} |")
    return "\n".join(rows)


def _table(about: Mapping[str, Any], source: str) -> str:
    metrics, checks = _metrics(about), about.get("rechecked") or {}
    if not metrics:
        return "No results are recorded."
    rows = ["| metric | split | value | rechecked at export | command |", "|---|---|---|---|---|"]
    for name, value in metrics.items():
        again = checks.get(name)
        command = (about.get("commands") or {}).get(name) or _command(name, about, source)
        shown = "not checked" if again is None else again
        rows.append(f"| {name} | {_split(name, about)} | {value} | {shown} | {command} |")
    if any(_split(name, about) in (VALIDATION, NOT_KNOWN) for name in set(metrics) - set(about.get("commands") or {})):
        rows += ["", paragraph(_SPLITS)]
    step = about.get("step")
    if (at := about.get("measured_at_step", step)) != step:
        rows += ["", f"Measured at step {at} of {about.get('steps')}; the weights are those of step {step}."]
    return "\n".join(rows)


NOT_KNOWN = "validation if the data has it, else test"  # split of scores by earlier versions
_FLOORS = """
Floors are vectors that need no training: `hog` has histograms of gradients, `color` has a histogram of colors, and
`hog+color` has both. The table shows the best of the three.
"""
_SPLITS = """
Results on validation images are from the folder `val/` of the data, where training and `nnclr export` measure.
`nnclr eval` measures on `test/` and gives a different result.
"""


def _metrics(about: Mapping[str, Any]) -> Mapping[str, float]:
    return about.get("metrics") or {}


def _split(metric: str, about: Mapping[str, Any]) -> str:
    """Return the split that a metric of the run is from."""
    return str((about.get("splits") or {}).get(metric.partition("/")[2], NOT_KNOWN))


def _command(metric: str, about: Mapping[str, Any], source: str) -> str:
    kind, _, data = metric.partition("/")
    if kind.startswith("knn") and _split(metric, about) != HELD_OUT:
        return f"`nnclr eval knn {source} --data {data}`"
    return f"by `nnclr pretrain {about['recipe']}`, at {_measured_at(about)}" if "recipe" in about else "not recorded"


def _measured_at(about: Mapping[str, Any]) -> str:
    steps = about.get("steps")
    if "measured_at_step" not in about and about.get("step", steps) != steps:
        return "a step that is not recorded"  # of a stopped run without its log
    at = about.get("measured_at_step", steps)
    return "its last step" if at == steps else f"step {at}"


def _verdict(about: Mapping[str, Any]) -> str:
    """Return the verdict of the run that made the encoder, as the card's first paragraph."""
    sentence = (about.get("verdict") or {}).get("sentence")
    return paragraph(f"**Verdict of its training run:** {sentence}") + "\n\n" if sentence else ""


def _origin(about: Mapping[str, Any]) -> str:
    if "converted" in about:
        return f"It was converted from a checkpoint of {about['converted'].get('from')}."
    return "It was trained without labels." if "method" in about else "How it was trained is not recorded."


def _input(preprocessing: Preprocessing) -> str:
    size = preprocessing.input_size
    resized = _SIDES[preprocessing.crop_mode].format(
        resize=math.floor(size / preprocessing.crop_pct), interpolation=preprocessing.interpolation
    )
    return (
        f"The input is an upright RGB image. {resized}, and the center {size} x {size} pixels are kept. Values in "
        f"[0, 1] are normalized with mean {list(preprocessing.mean)} and standard deviation {list(preprocessing.std)}."
    )


def _images(about: Mapping[str, Any]) -> str:
    data = about.get("data", "not recorded")
    data = ", ".join(map(str, data)) if isinstance(data, list | tuple) else str(data)
    return f"{data}; {about['data_terms']}" if "data_terms" in about else data


def _contents(about: Mapping[str, Any]) -> str:
    """Return what the files contain."""
    texts = {
        HEADS: f" `{HEADS}` contains the heads, which continued training needs.",
        SUPPORT_SET: f" `{SUPPORT_SET}` contains the support set: `bank`, with one unit row per remembered image.",
        GRAPH: f" `{GRAPH}` is the network in ONNX with these weights; ONNX Runtime opens it without torch.",
    }
    recorded = about.get("sha256") or {}
    return f"`{CONFIG}` has timm's format. Its block `nnclr` records how the encoder was made." + "".join(
        text for file, text in texts.items() if file in recorded
    )
