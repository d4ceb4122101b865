"""`nnclr eval`: run protocols on sources and data sets, and keep each result as soon as it is complete.

Called again with the same folder, it continues: existing results are not computed again.
"""

from __future__ import annotations

import inspect
import math
import time
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from nnclr_hub.arguments import checked
from nnclr_hub.encoder.backends.base import parse_backend
from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.encoder.features import FeatureSource
from nnclr_hub.encoder.hand_crafted import FLOORS
from nnclr_hub.encoder.loader import load_encoder
from nnclr_hub.errors import InvalidRequest, ModelFilesMissing, NNCLRHubError
from nnclr_hub.hub.sources import split_reading
from nnclr_hub.images.labels import first_names
from nnclr_hub.images.listing import is_packed
from nnclr_hub.images.reading import ImageReading
from nnclr_hub.plural import counted
from nnclr_hub.probe.uncertainty import confidence_interval
from nnclr_hub.progress import bar
from nnclr_hub.table_rows import LabelTable
from nnclr_hub.terminal import PlainConsole

from ..data.named_sets import find_folder
from ..recipes.recipe import NOT_NEGATIVE, POSITIVE, assignments, one_of, parse_settings, require
from .features import Features, Score, task_features
from .frozen import few_shot, knn, linear, retrieval
from .results import EvaluationRecord, Results, in_percent
from .supervised import ClassifierTrainer, finetune, linear_images, semi_supervised
from .task import TRANSFER_METRICS, Task, read_pair, read_task

PUBLISHED = ("timm:", "hf-hub:")
TORCH = parse_backend("torch")

# ------------------------------------------------------------------------------ protocols by name

Scores = Iterator[tuple[str, float]]
ON_FEATURES: dict[str, Callable[..., Scores]] = {
    "knn": knn,
    "linear": linear,
    "few_shot": few_shot,
    "retrieval": retrieval,
    "transfer": linear,
}
THROUGH_IMAGES: dict[str, Callable[..., Scores]] = {
    "linear_images": linear_images,
    "semi_supervised": semi_supervised,
    "finetune": finetune,
}
ZERO_ALLOWED = {"seed", "workers", "lr", "weight_decay", "image_size", "drop_path", "label_smoothing"}
PROTOCOLS = {**ON_FEATURES, **THROUGH_IMAGES}


@dataclass(frozen=True)
class Protocol:
    """A protocol with its settings.

    name: a key of PROTOCOLS.
    settings: every keyword argument with its value.
    """

    name: str
    settings: dict[str, Any]

    def run(self, subject: Features | ClassifierTrainer) -> Scores:
        """Yield the protocol's scores."""
        return PROTOCOLS[self.name](subject, **self.settings)


def find_protocols(names: Sequence[str], assignments: Sequence[str]) -> list[Protocol]:
    """Return the named protocols, with `--set` applied.

    Args:
        assignments: KEY=VALUE; a key applies to every protocol that has it.
    """
    if not names:
        raise InvalidRequest(f"No protocol is named; choose from {', '.join(PROTOCOLS)}.")
    for name in names:
        one_of("protocol", name, PROTOCOLS)
    everything = {key: value for name in names for key, value in settings_of(name).items()}
    for assignment in assignments:
        key = assignment.partition("=")[0]
        if key not in everything:
            parse_settings([assignment], dict.fromkeys(everything, str), everything)  # raises and suggests the nearest
    return [_configured(name, assignments) for name in dict.fromkeys(names)]


def _configured(name: str, assignments: Sequence[str]) -> Protocol:
    """Apply the assignments that concern this protocol; a key may have a different type in another protocol."""
    settings, hints = settings_of(name), typing.get_type_hints(PROTOCOLS[name])
    relevant = [one for one in assignments if one.partition("=")[0] in settings]
    changed = parse_settings(relevant, {key: hints[key] for key in settings}, settings)
    for key, value in changed.items():
        if typing.get_origin(hints[key]) is typing.Literal:
            one_of(key, value, typing.get_args(hints[key]))
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, int | float):
                rule, holds = NOT_NEGATIVE if key in ZERO_ALLOWED else POSITIVE
                require(holds(one) and one < math.inf, key, one, rule)
                size = key != "image_size" or not one or 8 <= one <= 2048
                require(size, key, one, "must be 0 (the encoder's size) or 8 to 2048 pixels")
                require(key != "seed" or one < 2**31, key, one, f"must be below {2**31}")
    return Protocol(name, {**settings, **changed})


def settings_of(name: str) -> dict[str, Any]:
    """Return the protocol's settings with their defaults."""
    parameters = inspect.signature(PROTOCOLS[name]).parameters.values()
    return {one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY}


# ------------------------------------------------------------------------------ the verb


@checked
def evaluate(
    protocols: str | Sequence[str],
    sources: str | Path | Sequence[str | Path],
    data: str | Path | Sequence[str | Path] = (),
    out: str | Path = "results",
    *,
    settings: Sequence[str] | Mapping[str, Any] = (),
    queries: str | None = None,
    gallery: str | None = None,
    device: str | torch.device | None = None,
    crops: int = 1,
    labels: LabelTable | Path | None = None,
    backend: str = "torch",
    command: str = "",
    console: Console | None = None,
) -> list[EvaluationRecord]:
    """Run every protocol on every source and data set; return the records, including existing ones.

    Args:
        protocols: their names, such as "knn".
        sources: of encoders, or a floor such as "hog+color".
        data: folders, archives or names; empty, for transfer only, means its twelve sets.
        out: folder of the results.
        settings: settings of the protocols, {"k": 5} or ["k=5"].
        queries: for retrieval: a part of each data folder, or a folder or table.
        gallery: for retrieval: what is searched, like queries.
        device: None: the GPU if there is one.
        crops: per image, for protocols on features; see `Encoder.embed`.
        labels: a table of labels for folders without train/ and test/; see `read_task`.
        backend: what runs the networks for protocols on features, as in `load_encoder`. Another one than torch is a
            part of the source's name in the results.
        command: as typed, for the record.
        console: for progress and messages; default standard error.

    Raises:
        InvalidRequest: see `find_protocols`, `read_task` and `parse_backend`; fine-tuning in another backend than
            torch; or no combination is possible.
        ModelError: a source that is not available.
        Interrupted: a signal stopped the training.
    """
    chosen, results = find_protocols(_several(protocols), assignments(settings)), Results(Path(out))
    sources, data = _several(sources), _several(data)
    if "" in (*sources, *data):
        raise InvalidRequest("An encoder or data set name is empty; name it, or leave it out.")
    if not sources:
        raise InvalidRequest("No encoder is named; use nnclr eval knn SOURCE --data IMAGES.")
    if parse_backend(backend) != TORCH and any(one.name == "finetune" for one in chosen):
        raise InvalidRequest("Fine-tuning runs in torch; leave out --backend (and NNCLR_BACKEND), or finetune.")
    journal = _Journal(results, console or PlainConsole(stderr=True), command)
    loaded = _load_sources(sources, device, backend, crops, journal)
    names: dict[str, Path] = {}
    tasks = {one.name: _tasks(one, data, queries, gallery, labels, names, journal) for one in chosen}
    records, refused = [], None
    for name, source in loaded.items():
        for protocol in chosen:
            for task in tasks[protocol.name]:
                try:
                    records.append(journal.record(protocol, name, source, task))
                except InvalidRequest as error:  # for example k-NN on several labels: the others continue
                    refused = error
                    journal.skip(f"{protocol.name} of {name} on {task.name}", error)
    if refused is not None and not records:
        raise refused
    results.write_page()
    return records


def _several(given: str | Path | Sequence[str | Path]) -> list[str]:
    return [str(one) for one in ([given] if isinstance(given, str | Path) else given)]


def _load_sources(
    names: Sequence[str], device: str | torch.device | None, backend: str, crops: int, journal: _Journal
) -> dict[str, FeatureSource]:
    """Return the sources by name; published weights that are unavailable are skipped if there are other sources."""
    sources: dict[str, FeatureSource] = {}
    for name in dict.fromkeys(names):
        try:
            plain, text = split_reading(name)
            if plain in FLOORS:
                source: FeatureSource = replace(FLOORS[plain], reading=ImageReading.parse(text))
            else:
                source = load_encoder(name, device=device, backend=backend)
        except ModelFilesMissing as error:
            if len(names) == 1 or not name.startswith(PUBLISHED):
                raise
            journal.skip(name, error)  # a later call on a machine with access adds its row
            continue
        if isinstance(source, Encoder):
            name += f", {source.backend.name}" if source.backend.name != "torch" else ""
            if crops != 1:
                name, source = f"{name}, {crops} crops", source.with_crops(crops)
        sources[name] = source
    return sources


def _tasks(
    protocol: Protocol,
    data: Sequence[str],
    queries: str | None,
    gallery: str | None,
    labels: LabelTable | Path | None,
    names: dict[str, Path],
    journal: _Journal,
) -> list[Task]:
    """Return the data sets of a protocol; unavailable sets of transfer are skipped.

    Args:
        names: those of all protocols. Equal names of different folders, which would share a cell of the table, get
            numbers.
    """
    if protocol.name != "transfer" and not data:
        raise InvalidRequest(f"No labeled images are named; use nnclr eval {protocol.name} SOURCE --data IMAGES.")
    tasks: list[Task] = []
    for given in dict.fromkeys(data or TRANSFER_METRICS):
        try:
            packed = protocol.name != "retrieval" and is_packed(given)
            folder = Path(given) if packed else find_folder(given, journal.console)
            if protocol.name == "retrieval":
                task = read_pair(folder, queries, gallery)
            else:
                metric = TRANSFER_METRICS.get(given) or TRANSFER_METRICS.get(folder.name)
                task = read_task(given if packed else folder, metric=metric, labels=labels)
        except NNCLRHubError as error:
            if data:
                raise
            journal.skip(given, error)
            continue
        name, number = task.name, 2
        while names.setdefault(name, folder.resolve()) != folder.resolve():
            name, number = f"{task.name}-{number}", number + 1
        tasks.append(replace(task, name=name))
    return tasks


@dataclass(frozen=True)
class _Journal:
    """Computes records, writes them to the results, and prints them."""

    results: Results
    console: Console
    command: str

    def skip(self, what: str, error: Exception) -> None:
        """Report a skipped item, on the console and in results.md."""
        self.results.skipped.append(f"{what}: {error}")
        self.console.print(f"skipped {what}: {error}", style="yellow")

    def record(self, protocol: Protocol, name: str, source: FeatureSource, task: Task) -> EvaluationRecord:
        """Return the existing record, or compute and write a new one."""
        empty = self._empty_record(protocol, name, source, task)
        before = self.results.existing(empty)
        if before is not None:
            self.console.print(f"{protocol.name} of {name} on {task.name} is complete already")
            return before
        subject = self._subject(protocol, source, task)
        began = time.perf_counter()
        values = dict(protocol.run(subject))
        if protocol.name == "transfer":
            values = {key.replace("linear/", "transfer/", 1): value for key, value in values.items()}
        each = {key: value.each for key, value in values.items() if isinstance(value, Score)}
        broken = dict(subject.broken)
        unread = [f"{path}: {reason}" for path, reason in broken.items()]
        record = replace(
            empty,
            values=values,
            intervals={key: confidence_interval(one) for key, one in each.items()},
            left_out=[
                *task.left_out,
                *([f"{counted(len(unread), 'file')} cannot be read: {first_names(unread)}"] if unread else []),
            ],
            seconds=round(time.perf_counter() - began, 3),
            made=[str(folder) for folder in getattr(subject, "made", [])],
        )
        for sentence in record.left_out:
            self.console.print(f"note: {sentence}", style="yellow")
        self.results.put(record, each)
        shown = in_percent(record)
        self.console.print(f"{protocol.name}  {name}  {task.name}  {shown} %")
        return record

    def _subject(self, protocol: Protocol, source: FeatureSource, task: Task) -> Features | ClassifierTrainer:
        if protocol.name in ON_FEATURES:
            return task_features(task, source, lambda part: bar(self.console, f"features of {part}"))
        if not isinstance(source, Encoder):
            raise InvalidRequest(f"{protocol.name} trains a network, but {source.name} is not a network; leave it out.")
        name = f"{Path(source.name).name.replace(':', '-')}-{source.fingerprint[:8]}"
        folder = self.results.folder / "encoders" / name
        return ClassifierTrainer(source, task, folder, torch.device(source.device), self.console)

    def _empty_record(self, protocol: Protocol, name: str, source: FeatureSource, task: Task) -> EvaluationRecord:
        """Return the record of a protocol, source and data set, without values."""
        images, metric = task.counts(), task.metric
        if protocol.name == "retrieval":
            images, metric = {"gallery": len(task.train.paths), "queries": len(task.test.paths)}, "map"
        return EvaluationRecord(
            protocol=protocol.name,
            source=name,
            fingerprint=source.fingerprint,
            data=task.name,
            metric=metric,
            images=images,
            classes=len(task.classes),
            settings=protocol.settings,
            command=self.command,
            digest=task.digest(),
        )
