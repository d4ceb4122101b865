"""`nnclr eval`: protocols on sources and data sets, each answer kept as soon as it is there.

Called again with the same folder, it goes on: what is answered is not asked again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from nnclr_hub.encoder.encoder import Encoder, load_encoder
from nnclr_hub.encoder.features import FeatureSource
from nnclr_hub.encoder.labelled import some
from nnclr_hub.errors import InvalidRequest, ModelError, NNCLRHubError
from nnclr_hub.progress import bar

from ..data.named import find_data
from .features import Features, task_features
from .pixels import Pixels
from .protocols import Protocol
from .results import Record, Results
from .subject import Subject
from .task import Task, read_pair, read_task
from .transfer import SETS

PIXELS = "pixels"


@dataclass(frozen=True)
class Question:
    """What `nnclr eval` was asked.

    protocols: with their settings.
    sources: of encoders, or "pixels".
    data: folders or names; empty, for transfer alone, its twelve sets.
    out: folder of the results.
    queries, gallery: parts of each data folder, or folders or tables, for retrieval.
    device: None: the GPU if there is one.
    command: as it was typed.
    """

    protocols: Sequence[Protocol]
    sources: Sequence[str]
    data: Sequence[str]
    out: Path
    queries: str | None = None
    gallery: str | None = None
    device: str | None = None
    command: str = ""


def evaluate(question: Question, say: Console) -> list[Record]:
    """Answers it; gives the records, also those that were there.

    Raises:
        InvalidRequest: see `find_protocols` and `read_task`.
        ModelError: a source that cannot be had.
        Interrupted: by a signal, while training.
    """
    results, asked = Results(question.out), []
    if not question.sources:
        raise InvalidRequest("Name an encoder: nnclr eval knn SOURCE --data PICTURES.")
    for name in question.sources:
        try:
            source = Pixels() if name == PIXELS else load_encoder(name, device=question.device)
        except ModelError as error:
            if len(question.sources) == 1:
                raise
            say.print(f"[yellow]skipped[/] {name}: {error}", highlight=False)  # its row fills where it can be had
            continue
        for protocol in question.protocols:
            for task in _tasks(question, protocol, say):
                asked.append(_answer(question, protocol, name, source, task, results, say))
    results.write_page()
    return asked


def _tasks(question: Question, protocol: Protocol, say: Console) -> Iterator[Task]:
    """The data sets of a protocol; those of transfer that are not to be had are named and passed over."""
    if protocol.name != "transfer" and not question.data:
        raise InvalidRequest(f"Give labelled pictures: nnclr eval {protocol.name} SOURCE --data PICTURES.")
    for given in question.data or SETS:
        try:
            folder = find_data([given], say)[0]
            if protocol.name == "retrieval":
                yield read_pair(folder, question.queries, question.gallery)
            else:
                yield read_task(folder, metric=SETS.get(given) or SETS.get(folder.name))
        except NNCLRHubError as error:
            if question.data:
                raise
            say.print(f"[yellow]skipped[/] {given}: {error}", highlight=False)


def _answer(
    question: Question,
    protocol: Protocol,
    name: str,
    source: FeatureSource,
    task: Task,
    results: Results,
    say: Console,
) -> Record:
    made = Record(
        protocol.name,
        name,
        source.fingerprint,
        task.name,
        "map" if protocol.name == "retrieval" else task.metric,
        task.counts()
        if protocol.name != "retrieval"
        else {"gallery": len(task.train.paths), "queries": len(task.test.paths)},
        len(task.classes),
        protocol.settings,
        {},
        list(task.left_out),
        0.0,
        question.command,
    )
    before = results.answer(made)
    if before is not None:
        say.print(f"{protocol.name} of {name} on {task.name} is in {question.out} already", highlight=False)
        return before
    for sentence in task.left_out:
        say.print(f"[yellow]note[/] {sentence}", highlight=False)
    features = _features(protocol, source, task, question, say)
    began = time.perf_counter()
    made.values.update(
        (key.replace("linear/", "transfer/", 1) if protocol.name == "transfer" else key, value)
        for key, value in protocol.run(features)
    )
    if isinstance(features, Features) and features.broken:
        broken = [f"{path}: {reason}" for path, reason in features.broken]
        made.left_out.append(f"{len(broken)} files cannot be read: {some(broken)}")
        say.print(f"[yellow]note[/] {made.left_out[-1]}", highlight=False)
    made = Record(**{**vars(made), "seconds": round(time.perf_counter() - began, 3)})
    results.put(made)
    say.print(f"{protocol.name}  {name}  {task.name}  {made.main:.3f}", highlight=False)
    return made


def _features(
    protocol: Protocol, source: FeatureSource, task: Task, question: Question, say: Console
) -> Features | Subject:
    if protocol.on_features:
        return task_features(task, source, lambda part: bar(say, f"features of {part}"))
    if not isinstance(source, Encoder):
        raise InvalidRequest(f"{protocol.name} trains a network, and {source.name} is none: leave it out.")
    where = torch.device(source.device)
    return Subject(source, task, question.out / "encoders" / _as_file(source), where, say)


def _as_file(source: Encoder) -> str:
    return f"{Path(source.name).name.replace(':', '-')}-{source.fingerprint[:8]}"
