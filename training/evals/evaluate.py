"""`nnclr eval`: protocols on sources and data sets, each answer kept as soon as it is there.

Called again with the same folder, it goes on: what is answered is not asked again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console

from nnclr_hub.encoder.encoder import Encoder, load_encoder
from nnclr_hub.encoder.features import FeatureSource
from nnclr_hub.encoder.labeled import some
from nnclr_hub.errors import InvalidRequest, ModelFilesMissing, NNCLRHubError
from nnclr_hub.progress import bar

from ..data.named import find_data
from .attention import BoxedSubject
from .boxes.boxed import BoxedSet, read_boxes
from .boxes.places import PLACES, Place
from .features import Features, task_features
from .pixels import Pixels
from .protocols import Protocol
from .results import Record, Results
from .subject import Subject
from .task import Task, read_pair, read_task
from .transfer import SETS

Source = FeatureSource | Place
Data = Task | BoxedSet
NOT_ENCODERS: dict[str, Source] = {"pixels": Pixels(), **PLACES}
PUBLISHED = ("timm:", "hf-hub:")


@dataclass(frozen=True)
class Question:
    """What `nnclr eval` was asked.

    protocols: with their settings.
    sources: of encoders, or "pixels"; for attention also a place: "center", "gaussian" or "area".
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
        InvalidRequest: see `find_protocols` and `read_task`; or nothing of what was asked fits together.
        ModelError: a source that cannot be had.
        Interrupted: by a signal, while training.
    """
    if "" in question.sources or "" in question.data:
        raise InvalidRequest("An encoder or a data set is given as nothing: name it, or leave it out.")
    if not question.sources:
        raise InvalidRequest("Name an encoder: nnclr eval knn SOURCE --data IMAGES.")
    results = Results(question.out)
    room = _Room(question, results, say)
    sources, tasks = room.sources(), {one.name: room.tasks(one) for one in question.protocols}
    asked, refused = [], None
    for name, source in sources.items():
        for protocol in question.protocols:
            for task in tasks[protocol.name]:
                try:
                    asked.append(room.answer(protocol, name, source, task))
                except InvalidRequest as error:  # k-NN on several labels, say: the others go on
                    refused = error
                    room.skip(f"{protocol.name} of {name} on {task.name}", error)
    if refused is not None and not asked:
        raise refused
    results.write_page()
    return asked


class _Room:
    """Where a question is answered: its sources and data sets, each found once."""

    def __init__(self, question: Question, results: Results, say: Console) -> None:
        self.question, self.results, self.say = question, results, say
        self._names: dict[str, Path] = {}

    def skip(self, what: str, error: Exception) -> None:
        """Says that something is passed over, on the screen and in results.md."""
        self.results.skipped.append(f"{what}: {error}")
        self.say.print(f"skipped {what}: {error}", style="yellow", highlight=False, markup=False)

    def sources(self) -> dict[str, Source]:
        """By name; published weights that cannot be fetched are passed over if there are other sources."""
        found: dict[str, Source] = {}
        for name in dict.fromkeys(self.question.sources):
            try:
                found[name] = NOT_ENCODERS.get(name) or load_encoder(name, device=self.question.device)
            except ModelFilesMissing as error:
                if len(self.question.sources) == 1 or not name.startswith(PUBLISHED):
                    raise
                self.skip(name, error)  # its row fills where it can be had
        return found

    def tasks(self, protocol: Protocol) -> list[Data]:
        """The data sets of a protocol; those of transfer that are not to be had are passed over."""
        data = self.question.data
        if protocol.name != "transfer" and not data:
            what = "images with boxes" if protocol.on_boxes else "labeled images"
            raise InvalidRequest(f"Give {what}: nnclr eval {protocol.name} SOURCE --data IMAGES.")
        found: list[Data] = []
        for given in dict.fromkeys(data or SETS):
            try:
                folder = find_data([given], self.say)[0]
                task: Data
                if protocol.on_boxes:
                    task = read_boxes(folder)
                elif protocol.name == "retrieval":
                    task = read_pair(folder, self.question.queries, self.question.gallery)
                else:
                    task = read_task(folder, metric=SETS.get(given) or SETS.get(folder.name))
            except NNCLRHubError as error:
                if data:
                    raise
                self.skip(given, error)
            else:
                found.append(replace(task, name=self._own_name(task.name, folder)))
        return found

    def _own_name(self, name: str, folder: Path) -> str:
        """Two folders of one name would share a cell of the table."""
        own, number = name, 2
        while self._names.setdefault(own, folder.resolve()) != folder.resolve():
            own, number = f"{name}-{number}", number + 1
        return own

    def answer(self, protocol: Protocol, name: str, source: Source, task: Data) -> Record:
        """One record, on the disk; the old one, if the question is."""
        asked = _asked(protocol, name, source, task, self.question.command)
        before = self.results.answer(asked)
        if before is not None:
            self.say.print(f"{protocol.name} of {name} on {task.name} is answered already", highlight=False)
            return before
        subject = self._subject(protocol, source, task)
        began = time.perf_counter()
        values = dict(protocol.run(subject))
        if protocol.name == "transfer":
            values = {key.replace("linear/", "transfer/", 1): value for key, value in values.items()}
        broken = dict(subject.broken)
        unread = [f"{path}: {reason}" for path, reason in broken.items()]
        record = replace(
            asked,
            values=values,
            left_out=[*task.left_out, *([f"{len(unread)} files cannot be read: {some(unread)}"] if unread else [])],
            seconds=round(time.perf_counter() - began, 3),
            made=[str(folder) for folder in getattr(subject, "made", [])],
        )
        for sentence in record.left_out:
            self.say.print(f"note: {sentence}", style="yellow", highlight=False, markup=False)
        self.results.put(record)
        self.say.print(f"{protocol.name}  {name}  {task.name}  {record.main:.3f}", highlight=False, markup=False)
        return record

    def _subject(self, protocol: Protocol, source: Source, task: Data) -> Features | Subject | BoxedSubject:
        if isinstance(task, BoxedSet):
            if not isinstance(source, Encoder | Place):
                raise InvalidRequest(f"{source.name} has no feature map to look at: leave it out.")
            return BoxedSubject(source, task, self.say)
        if isinstance(source, Place):
            raise InvalidRequest(f"{source.name} is a place in an image, for attention alone: leave it out.")
        if protocol.on_features:
            return task_features(task, source, lambda part: bar(self.say, f"features of {part}"))
        if not isinstance(source, Encoder):
            raise InvalidRequest(f"{protocol.name} trains a network, and {source.name} is none: leave it out.")
        name = f"{Path(source.name).name.replace(':', '-')}-{source.fingerprint[:8]}"
        return Subject(source, task, self.question.out / "encoders" / name, torch.device(source.device), self.say)


def _asked(protocol: Protocol, name: str, source: Source, task: Data, command: str) -> Record:
    """The record without its answer."""
    pictures, metric = task.counts(), task.metric
    if protocol.name == "retrieval" and isinstance(task, Task):
        pictures, metric = {"gallery": len(task.train.paths), "queries": len(task.test.paths)}, "map"
    settings, classes = protocol.settings, len(task.classes)
    return Record(
        *(
            protocol.name,
            name,
            source.fingerprint,
            task.name,
            metric,
            pictures,
            classes,
            settings,
            {},
            [],
            0.0,
            command,
        ),
        digest=task.digest(),
    )
