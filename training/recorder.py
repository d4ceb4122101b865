"""What a run writes: log lines, scores, checkpoints, the encoder, neighbors and the report.

RUN/neighbors.jsonl has the nearest neighbors of a few fixed images in the support set, with thumbnails: the data of the
paper's figure "Evolution of Nearest-Neighbors".
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.encoder.features import FeatureSource
from nnclr_hub.encoder.loader import load_encoder
from nnclr_hub.errors import ModelError, TrainingDiverged
from nnclr_hub.file_replacement import replace_file
from nnclr_hub.hub.sources import resolve
from nnclr_hub.images.channels import for_people
from nnclr_hub.images.readers.stack import as_image
from nnclr_hub.publish.export import export_model
from nnclr_hub.publish.provenance import DIRTY, NO_LICENSE, parent_record

from .checkpoint import save_checkpoint, state_of
from .data.augment import make_views
from .data.batches import WHOLE, Batches
from .evals.results import versions
from .evaluation import LabeledSet, encoder_of, exact_inference, scores_of
from .monitor import (
    EXAMPLES,
    LOG,
    NEIGHBORS,
    Metrics,
    finite,
    peak_memory_mb,
    rankme,
    read_lines,
    read_log,
    stop_if_diverged,
)
from .network import read_heads
from .report import write_report
from .run import CHECKPOINT, Run, StepResult
from .setup import Setup
from .verdict import RUN, TRAINED, UNTRAINED, References, as_jpeg, judge, symptoms

ROOT = Path(__file__).parents[1]
NOTHING = (0, 0)  # sum and count of what another rank has
RECENT = 20  # last lines of the log that are searched for symptoms
QUERIES, SHOWN = 8, 5  # images whose neighbors are recorded, and neighbors of each
THUMBNAIL = 56  # pixels of the longer side


class Recorder:
    """Logs, evaluates and saves a run. All processes of a distributed run call its methods, and the first one writes.

    Args:
        saved: the checkpoint that the run resumes from, if any. Lines of the log of later steps are dropped.
    """

    def __init__(self, run: Run, setup: Setup, saved: Mapping[str, Any] | None, console: Console) -> None:
        self._run, self._setup, self._console = run, setup, console
        self._warned: set[str] = set()
        recipe, ranks = run.recipe, run.ranks
        self._lineage = lineage_of(run, setup) if ranks.first else {}
        self._chance = run.learner.chance_loss(recipe.batch_size)
        self._lines = [line for line in read_log(run.out) if line["step"] <= run.step] if ranks.first else []
        if ranks.first:
            replace_file(run.out / LOG, "".join(json.dumps(line) + "\n" for line in self._lines))
        unlogged = saved["unlogged"] if saved else {}  # so that the next line equals that of a run that never stopped
        self._sums: Metrics = dict(unlogged) if ranks.first else dict.fromkeys(unlogged, NOTHING)
        self._since = time.perf_counter()  # the last step, without pauses
        before = saved.get("references") if saved else None
        labeled = setup.sets if ranks.first else ()
        self._sets = [LabeledSet(one, recipe.preprocessing, recipe.eval_images, console) for one in labeled]
        self._references = References(labeled, recipe, before, console)

    def start(self) -> None:
        """Score what the run is compared with, and the encoder that it starts from as the start of its curve."""
        run, init = self._run, self._setup.init
        run.tested = {one.name: one.tested for one in self._sets}
        if run.ranks.first:
            write_run_json(run, self._setup)
            known = run.step == 0 or init is not None  # the first step changes the untrained network
            self._references.measure(init or UNTRAINED, self._initial_encoder if known else None, self._setup.teacher)
        if run.step == 0 and init:
            self.evaluate()

    def _initial_encoder(self) -> FeatureSource:
        parent = self._parent()
        if parent is not None and parent.transform.preprocessing.in_chans == self._run.recipe.in_chans:
            return parent
        return encoder_of(self._run)

    def _parent(self) -> Encoder | None:
        init = self._setup.init
        try:
            return None if init is None else load_encoder(init, device=str(self._run.ranks.where))
        except ModelError as error:
            self._console.print(f"note: {init} is scored in this run: {error}")
            return None

    def add(self, result: StepResult) -> None:
        """Count a step: its metrics, its images over all ranks, and the seconds it waited for data."""
        now = time.perf_counter()
        seconds, self._since = now - self._since, now
        rates: Metrics = {
            "images_per_s": (self._run.recipe.batch_size, seconds),
            "data_wait": (result.data_seconds, seconds),
        }
        for name, (total, count) in {**result.metrics, **rates}.items():
            before = self._sums.get(name, NOTHING)
            self._sums[name] = before[0] + total, before[1] + count

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the enclosed work from the training time."""
        seconds = time.perf_counter() - self._since
        try:
            yield
        finally:
            self._since = time.perf_counter() - seconds

    def _collect(self) -> None:
        """Move the sums of all ranks to the first, before a line and before a checkpoint."""
        ranks = self._run.ranks
        if ranks.world == 1:
            return
        of_ranks = ranks.collect({name: (float(total), float(count)) for name, (total, count) in self._sums.items()})
        for name in self._sums:  # all ranks have the same names
            pairs = [one[name] for one in of_ranks]
            self._sums[name] = (sum(one for one, _ in pairs), sum(one for _, one in pairs)) if ranks.first else NOTHING

    def _write(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """Append a line to RUN/log.jsonl, and return it."""
        line = {"step": self._run.step, "epoch": round(self._run.epoch, 4), **numbers}
        self._lines.append(finite(line))
        with (self._run.out / LOG).open("a") as file:
            file.write(json.dumps(self._lines[-1]) + "\n")
        return line

    def stop_if_diverged(self, loss: float, saved_at: int | None) -> None:
        """Raise TrainingDiverged, after the log and the report show it; see `training.monitor.stop_if_diverged`."""
        run = self._run
        try:
            stop_if_diverged(run.learner, loss, run.step, run.out, saved_at)
        except TrainingDiverged:
            if run.ranks.first:
                self._write({"loss": loss, **({"weights": math.nan} if math.isfinite(loss) else {})})
                write_report([run.out], run.out / "report.html")
            raise

    def log(self, result: StepResult) -> None:
        """Write a line of the log, and warn of symptoms of a run that does not learn."""
        run, ranks = self._run, self._run.ranks
        self._collect()
        z, sums = ranks.gather(result.z1), self._sums
        of_ranks = ranks.collect((peak_memory_mb(ranks.where), set(run.batches.pixels.unreadable)))
        self._sums = {}
        if not ranks.first:
            return
        # without known labels there is no accuracy
        means = {name: round(float(total) / float(count), 5) for name, (total, count) in sums.items() if float(count)}
        extra = {"lr": result.lr, "rankme": rankme(z), **self._chance}
        extra["peak_memory_mb"] = max(peak for peak, _ in of_ranks)
        if unreadable := set[int]().union(*(rows for _, rows in of_ranks)):  # several ranks may have met an image
            extra["unreadable"] = len(unreadable)
        line = self._write({**means, **{name: round(value, 8) for name, value in extra.items()}})
        warmup = run.recipe.warmup_epochs / run.recipe.epochs
        for symptom, sentence in symptoms(self._lines[-RECENT:], run.steps, warmup=warmup).items():
            if symptom not in self._warned:
                self._console.print(f"warning: {sentence}")
                self._warned.add(symptom)
        run.call("on_log", line)

    def evaluate(self) -> None:
        """Score the encoder on the labeled images, if there are any."""
        run = self._run
        if run.ranks.first:
            run.scores.update(scores_of(self._sets, encoder_of(run)) if self._sets else {})
            line = self._write(run.scores)
            if run.scores:  # without labels there are none
                shown = "  ".join(f"{key} {value:.3f}" for key, value in run.scores.items())
                self._console.print(f"epoch {run.epoch:g}  {shown}")
                run.call("on_log", line)
                run.call("on_evaluation", run.scores)
        run.ranks.wait_for_first()  # which scores for longer than other operations may take

    def save(self, *, checkpoint_only: bool = False) -> None:
        """Write the checkpoint and, unless it is one between two evaluations, the encoder, neighbors and report."""
        run = self._run
        self._collect()
        if run.ranks.first:
            save_checkpoint(run.out, state_of(run, self._setup, self._sums, self._references.state))
            if not checkpoint_only:
                self._export()
                every = run.recipe.keep_every * run.batches.steps_per_epoch
                if every and run.step % every == 0:
                    keep_milestone(run)
                record_neighbors(run)
                write_report([run.out], run.out / "report.html")
            run.call("on_checkpoint")
        run.ranks.wait_for_first()

    def finish(self) -> None:
        """Reach the verdict of the finished run, and write it into the encoder, run.json and the report.

        `--resume` takes a run as finished once run.json has the verdict, so it is written after the encoders.
        """
        run = self._run
        if not run.ranks.first:
            return
        with exact_inference():
            self._references.score(RUN, encoder_of(run))
        if self._references.examples:
            replace_file(run.out / EXAMPLES, json.dumps(self._references.examples) + "\n")
        parent = self._parent()
        same_input = parent is not None and parent.transform.preprocessing == run.recipe.preprocessing
        log, init = self._lines, self._setup.init
        run.verdict = judge(self._references, init, run.recipe, log, run.steps, same_input=same_input)
        self._export()
        shutil.rmtree(run.out / TRAINED, ignore_errors=True)
        if run.verdict.kept and parent is not None:
            keep_parent(run, parent)
        write_run_json(run, self._setup)
        write_report([run.out], run.out / "report.html")
        self._console.print(f"verdict: {run.verdict.sentence}", style="bold")
        done = f"done: the encoder is in {run.out / 'encoder'}, the report in {run.out / 'report.html'}"
        self._console.print(done)

    def _export(self) -> None:
        run, about = self._run, dict(self._lineage)
        # a stopped run was last scored at an earlier step, with other weights
        if any(line["step"] == run.step and line.keys() & run.scores.keys() for line in self._lines):
            about["metrics"] = {key: round(value, 4) for key, value in run.scores.items()}
            about["measured_on"] = {one.name: one.images for one in self._sets}
            about["splits"] = {one.name: one.split for one in self._sets}
        export_encoder(run, about)


# ------------------------------------------------------------------------------ neighbors


@torch.no_grad()
def record_neighbors(run: Run) -> None:
    """Append a line to RUN/neighbors.jsonl and drop lines of later steps; nothing without a support set."""
    learner, batches, recipe = run.learner, run.batches, run.recipe
    if learner.support_set is None:
        return
    draws = torch.Generator().manual_seed(recipe.seed)
    queries = torch.randperm(len(batches), generator=draws)[:QUERIES].sort().values
    plain = replace(WHOLE, size=recipe.eval_size, mean=recipe.mean, std=recipe.std)
    batch = batches.of(queries, [plain], recipe.seed)
    [view] = make_views(batch.pixels, [plain], batch.numbers)
    learner.eval()
    with exact_inference():
        z = torch.nn.functional.normalize(learner.project(view, batch.ids).float(), dim=1)
    learner.train()
    similarity = z @ learner.support_set.queue.T
    similarity[:, learner.support_set.ids < 0] = -2  # initial random rows, or rows without an id
    similarity[batch.ids[:, None] == learner.support_set.ids[None]] = -2
    value, place = similarity.topk(min(SHOWN, similarity.shape[1]), dim=1)
    ids = learner.support_set.ids[place].cpu()
    line = {
        "step": run.step,
        "epoch": round(run.epoch, 4),
        "queries": queries.tolist(),
        "neighbors": ids.tolist(),
        "similarity": [[round(v, 4) for v in row] for row in value.tolist()],
        "thumbnails": _thumbnails(torch.cat([queries, ids[ids >= 0]]).unique(), batches, recipe.in_chans),
    }
    lines = [json.dumps(one) for one in read_lines(run.out / NEIGHBORS) if one["step"] < run.step]
    replace_file(run.out / NEIGHBORS, "\n".join([*lines, json.dumps(line)]) + "\n")


def _thumbnails(ids: Tensor, batches: Batches, channels: int) -> dict[str, str]:
    """Return small JPEGs in base64, with the proportions of the original images."""
    plain = replace(WHOLE, size=THUMBNAIL, mean=(0.0,) * channels, std=(1.0,) * channels)
    batch = batches.of(ids, [plain], 0)
    [squares] = make_views(batch.pixels, [plain], batch.numbers)
    pixels = (squares.permute(0, 2, 3, 1) * 255).round().to(torch.uint8).cpu().numpy()
    thumbnails = {}
    for number, square, size in zip(ids.tolist(), pixels, batch.pixels.sizes, strict=True):
        height, width = (max(1, round(THUMBNAIL * side / max(size))) for side in size)
        thumbnails[str(number)] = as_jpeg(for_people(as_image(square)).resize((width, height)))
    return thumbnails


# ------------------------------------------------------------------------------ records


def lineage_of(run: Run, setup: Setup) -> dict[str, Any]:
    """Return "data", "data_images", "data_terms", "parents" and "commit", as far as they are known."""
    found: dict[str, Any] = {"data": [Path(one).resolve().name for one in setup.folders]}
    found["data_images"] = len(setup.files)
    if run.terms:
        found["data_terms"] = run.terms
    parents = [] if setup.init is None else [parent_record(setup.init, load_encoder(setup.init, device="cpu"))]
    if isinstance(setup.teacher, Encoder):
        parents.append(parent_record(setup.teacher.name, setup.teacher))
    elif setup.teacher is not None:
        about = {"source": setup.teacher.name, "fingerprint": setup.teacher.fingerprint, "license": NO_LICENSE}
        parents.append(about)
    if parents:
        found["parents"] = parents
    return {**found, **({"commit": commit} if (commit := commit_of_code()) else {})}


@cache
def commit_of_code() -> str | None:
    """Return the commit of the checkout that this code was imported from; None for an installed package.

    It ends with "-dirty" if tracked files have uncommitted changes.
    """
    if not (ROOT / ".git").exists():
        return None
    command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", f"--dirty={DIRTY}"]  # no tags, whole hash
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def write_run_json(run: Run, setup: Setup) -> None:
    """Write RUN/run.json, which the report shows at the end of the page."""
    recipe, where = run.recipe, run.ranks.where
    about = {
        **({"verdict": run.verdict.record} if run.verdict else {}),
        "recipe": recipe.name,
        "init": setup.init,
        "steps": run.steps,
        "data": [folder.name for folder in map(Path, setup.folders)],
        "images": len(setup.files),
        "scored_on": run.tested,
        "device": str(where) if where.type == "cpu" else torch.cuda.get_device_name(where),
        "processes": run.ranks.world,
        "threads": torch.get_num_threads(),
        "versions": versions(),
        **({"plugins": dict(run.plugins)} if run.plugins else {}),
        **recipe.values(),
    }
    replace_file(run.out / "run.json", json.dumps(about, indent=2) + "\n")


def export_encoder(run: Run, about: Mapping[str, Any]) -> None:
    """Write RUN/encoder/: the backbone as a model folder, with the heads.

    `about` has the lineage and, if there are scores, "metrics", "measured_on" (digests of the sets) and "splits" (names
    of their parts that score).
    """
    recipe, learner = run.recipe, run.learner
    backbone, projection = run.network
    heads = {"projection": projection, "prediction": learner.prediction}
    export_model(
        backbone,
        run.out / "encoder",
        architecture=recipe.backbone,
        model_args=recipe.model_args,
        preprocessing=recipe.preprocessing,
        heads={name: head for name, head in heads.items() if head.state_dict()},
        provenance={
            "recipe": recipe.name,
            **{name: getattr(recipe, name) for name in ("method", "encoder", "epochs", "seed", "temperature")},
            "step": run.step,
            "steps": run.steps,
            "images_seen": run.step * recipe.batch_size,
            "support_set_size": recipe.queue_size if learner.support_set is not None else 0,
            **about,
            **({"verdict": run.verdict.record} if run.verdict else {}),
        },
        graph=False,
    )


def keep_parent(run: Run, parent: Encoder) -> None:
    """Copy RUN/encoder to RUN/trained, and replace it by the encoder that the run started from, with its heads."""
    assert run.verdict is not None
    half = run.out / f"{TRAINED}.part"
    shutil.rmtree(half, ignore_errors=True)
    shutil.copytree(run.out / "encoder", half)
    half.rename(run.out / TRAINED)
    recipe, verdict = run.recipe, replace(run.verdict, below_parent=False)
    export_model(
        parent.backbone,
        run.out / "encoder",
        architecture=recipe.backbone,
        model_args=recipe.model_args,
        preprocessing=recipe.preprocessing,
        heads=read_heads(resolve(run.verdict.kept).folder),
        provenance={"parents": [parent_record(parent.name, parent)], "verdict": verdict.record},
        graph=False,
    )


def keep_milestone(run: Run) -> None:
    """Keep the checkpoint and the encoder in RUN/kept/epoch-N, a run folder from which `--resume` continues."""
    kept, half = (run.out / "kept" / f"epoch-{round(run.epoch)}{end}" for end in ("", ".part"))
    for folder in (kept, half):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(run.out / "encoder", half / "encoder")
    shutil.copyfile(run.out / CHECKPOINT, half / CHECKPOINT)
    half.rename(kept)
