"""Probe: a few labelled pictures to a classifier, how well it does, and what it says of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

from nnclr_hub.errors import InvalidRequest, JobNotFound, NNCLRHubError, ProbeNotFound
from nnclr_hub.workbench.probes import get_probe, list_probes

from ..class_folders import WAITING, classes, take, ticket_of, told
from ..finding import Finder
from ..page import Page
from ..probing import FIT, Prober, export_path, predict_action, read_csv, read_labels
from ..steps import plain
from ..widgets.intake import Intake, intake_value
from ..widgets.labeller import LABELS, Labeller, labelled
from ..widgets.probe_report import ProbeReport, report_of
from ..widgets.raw_image import raw_image
from ..widgets.uploaded import Uploaded
from ..widgets.verdict import Verdict, verdict_of

INTRO = (
    "Teach it **classes of your own**: label a handful of pictures, or give a folder of them for each class, and a "
    "*linear probe*, a small classifier on what the encoder already sees, learns to tell them apart in seconds."
)
INTRO_READ_ONLY = (
    "A *linear probe* is a small classifier on what the encoder already sees, which learned somebody's own classes "
    "from a few labelled pictures. Choose one: see how well it does, try it on a picture of yours, download it. This "
    "server is **read-only**: probes are made where it is served without `--read-only`, by whoever runs it."
)
CLICK, FIELD = "I label pictures by clicking", "A field of their metadata has the labels"
FOLDERS = "I have a folder of pictures for each class"
FOLDERS_HINT = (
    "Choose the folder that holds one folder for each class, or a zip of it. The pictures serve for the fit alone and "
    "are not kept."
)
FIRST, STEP, MOST = 48, 48, 1000  # pictures that are shown to be labelled
NOTHING = "There is no collection whose pictures could be labelled: make one on the tab Collections."
NO_PROBE = "There is no probe yet: label pictures above, give it a name and press *Fit*."
NO_PROBE_READ_ONLY = (
    "There is no probe yet, and none can be made on this read-only server: whoever runs it makes one where it is "
    "served without `--read-only`, and it is here when the page is reloaded."
)
AS_IT_IS = (gr.skip(),) * 4  # the probes, and what is told of one
JOB = "probe_job"  # in what the browser keeps
ONE_AT_A_TIME: dict[str, Any] = {"trigger_mode": "always_last"}


class ProbeTab:
    """Builds the tab inside an open gr.Tab."""

    def __init__(self, page: Page) -> None:
        self._page, self._prober, self._finder = page, Prober(page), Finder(page)
        gr.Markdown(INTRO if page.writable else INTRO_READ_ONLY, elem_id="probe-intro")
        if page.writable:
            with gr.Row(elem_classes="search-row"):
                with gr.Column(scale=1, min_width=280):
                    self._ask()
                with gr.Column(scale=3, min_width=300):
                    self.labeller = Labeller(elem_id="labeller")
        gr.Markdown("### How well it does, and what it says", elem_classes="step")
        with gr.Row(elem_classes="search-row"):
            with gr.Column(scale=1, min_width=280):
                self.probe = gr.Dropdown([], label="Probe", elem_id="probe", interactive=True)
                self.picker = raw_image("Try it on a picture", elem_id="probe-image")
                self.verdict = Verdict(elem_id="probe-verdict")
            with gr.Column(scale=3, min_width=300):
                self.told = gr.Markdown(elem_id="probe-told")
                self.report = ProbeReport(elem_id="probe-report")
        self._wire(page)

    def _ask(self) -> None:
        self.way = gr.Radio(
            [CLICK, FIELD, FOLDERS], value=CLICK, label="Where the labels are", elem_id="probe-way", interactive=True
        )
        self.collection = gr.Dropdown([], label="Collection", elem_id="probe-collection", interactive=True)
        self.field = gr.Dropdown([], label="Field", elem_id="probe-field", interactive=True, visible=False)
        self.csv = gr.UploadButton(
            "Take labels from a CSV file (id, label)", file_types=[".csv"], elem_id="probe-csv", size="sm"
        )
        self.intake = Intake(
            intake_value("probe"),
            most_bytes=self._page.terms.max_bytes,
            whole=True,
            hint=FOLDERS_HINT,
            elem_id="probe-intake",
            visible=False,
        )
        self.waiting = gr.Markdown(elem_id="probe-waiting", visible=False)
        self.name = gr.Textbox("", label="Name of the probe", placeholder="my-pets", max_lines=1, elem_id="probe-name")
        self.replace = gr.Checkbox(False, label="Replace one of that name", elem_id="probe-replace", interactive=True)
        self.fit = gr.Button("Fit", elem_id="probe-fit", variant="primary")
        self.status = gr.Markdown(elem_id="probe-status")
        self.timer = gr.Timer(0.7, active=False)

    def _wire(self, page: Page) -> None:
        shown = [self.probe, self.told, self.report, self.verdict]
        page.on(
            self.probe.input, self._choose_probe, self.probe, [self.told, self.report, self.verdict], **ONE_AT_A_TIME
        )
        said = page.on(self.picker.input, self._say, [self.picker, self.probe], self.verdict, show_progress="minimal")
        page.on(said.failure, self._say_nothing, None, self.verdict)
        page.on(page.blocks.load, self._start_probes, None, shown)
        if not page.writable:
            return
        source = [self.collection, self.field, self.labeller]
        page.on(page.blocks.load, self._start_fitting, page.kept, [*source, self.status, self.timer])
        there = [self.collection, self.labeller, self.status]
        page.on(page.tab.select, self._refresh, there, [*source, self.status])
        page.on(self.collection.input, self._choose_collection, self.collection, source[1:], **ONE_AT_A_TIME)
        ways = [self.collection, self.field, self.csv, self.labeller, self.intake, self.waiting]
        page.on(self.way.input, self._choose_way, [self.way, page.kept], ways)
        given = page.on(self.intake.give, self._take_folders, page.kept, [self.waiting, page.kept], writes=True)
        self.intake.answered(given)
        page.on(self.labeller.more, self._more, self.collection, self.labeller)
        page.on(self.csv.upload, self._labels_of, [self.csv, self.collection], self.labeller)
        asked = [self.labeller, self.way, self.collection, self.field, self.name, self.replace, page.kept]
        page.on(
            self.fit.click, self._fit, asked, [self.status, self.timer, page.kept, self.waiting], writes=True, js=LABELS
        )
        page.on(self.timer.tick, self._look, page.kept, [self.status, self.timer, *shown])

    # ---- what is labelled

    def _start_fitting(self, kept: dict[str, Any]) -> tuple[Any, ...]:
        """The first collection; and the job that went on while the page was closed."""
        names = self._finder.names()
        picked = gr.Dropdown(choices=names, value=names[0] if names else None)
        fields, wall = self._choose_collection(names[0]) if names else (gr.skip(), None)
        status = "" if names else NOTHING
        running = self._job(kept) is not None
        return picked, fields, wall, "Looking after your probe ..." if running else status, gr.Timer(active=running)

    def _refresh(self, collection: str | None, wall: Any, status: str) -> tuple[Any, ...]:
        """The collections that there are by now; what is labelled stays."""
        names = self._finder.names()
        if isinstance(wall, dict) and wall.get("tiles") and collection in names:
            return gr.Dropdown(choices=names), gr.skip(), gr.skip(), gr.skip()
        chosen = collection if collection in names else next(iter(names), None)
        fields, wall = self._choose_collection(chosen)
        told = NOTHING if not names else "" if status == NOTHING else gr.skip()
        return gr.Dropdown(choices=names, value=chosen), fields, wall, told

    def _choose_collection(self, collection: str | None) -> tuple[Any, ...]:
        if not collection:
            return gr.skip(), None
        keys = self._finder.keys(collection)
        field = gr.Dropdown(choices=keys, value="label" if "label" in keys else next(iter(keys), None))
        tiles, more = self._prober.pictures(collection, FIRST)
        return field, labelled(collection, tiles, more=more)

    def _choose_way(self, way: str, kept: dict[str, Any]) -> tuple[Any, ...]:
        """What each way needs; folders that were given before still wait."""
        click, field, folders = (gr.update(visible=way == one) for one in (CLICK, FIELD, FOLDERS))
        collection = gr.update(visible=way != FOLDERS)
        return (
            collection,
            field,
            click,
            click,
            folders,
            gr.update(value=self._told_waiting(kept), visible=way == FOLDERS),
        )

    def _told_waiting(self, kept: dict[str, Any] | None) -> str:
        ticket = ticket_of(kept)
        if ticket is None or self._prober.is_taken(ticket):
            return ""
        try:
            return told(classes(ticket, self._page.terms.max_bytes))
        except InvalidRequest:  # they are gone
            return ""

    def _take_folders(self, kept: dict[str, Any], event: gr.EventData) -> tuple[Any, ...]:
        """Class folders in place of those that waited before."""
        ticket = take(event.files, self._page.terms.max_bytes)
        before = ticket_of(kept)
        if before is not None:
            self._prober.forget_folders(before)
        kept = {**(kept or {}), WAITING: ticket}
        return self._told_waiting(kept), kept

    def _more(self, collection: str | None, event: gr.EventData) -> dict[str, Any] | None:
        number = event.shown if isinstance(event.shown, int) else 0
        tiles, more = self._prober.pictures(collection or "", min(MOST, max(0, number) + STEP))
        return labelled(collection or "", tiles, more=more and len(tiles) < MOST)

    def _labels_of(self, path: str | None, collection: str | None) -> Any:
        """Labels from a file, all of them; the pictures that it names are shown first, as many as are shown at all."""
        if path is None or not collection:
            raise InvalidRequest("Choose the collection first that the file has labels of.")
        labels = read_csv(Path(path))
        named = self._prober.tiles(collection, list(labels))
        first, more = self._prober.pictures(collection, FIRST)
        tiles = [*named, *(one for one in first if one.id not in labels)][:MOST]
        return labelled(collection, tiles, more=more and len(tiles) < MOST, labels=labels)

    # ---- the fit

    def _fit(
        self,
        labels: str,
        way: str,
        collection: str | None,
        field: str | None,
        name: str,
        replace: bool,
        kept: dict[str, Any],
    ) -> tuple[Any, ...]:
        called, kept = (str(name or "").strip(), bool(replace)), dict(kept or {})
        if way == FOLDERS:
            ticket = ticket_of(kept)
            if ticket is None:
                raise InvalidRequest("There is no folder to fit on: choose one that holds a folder for each class.")
            job, action = self._prober.by_folders(*called, ticket)
            del kept[WAITING]  # it is the job's now
        elif not collection:
            raise InvalidRequest("There is no collection to fit on: choose one first.")
        elif way == FIELD:
            if not field:
                raise InvalidRequest("There is no field to fit on: choose the one that has the labels.")
            job, action = self._prober.by_field(*called, collection, field)
        else:
            job, action = self._prober.by_labels(*called, collection, read_labels(labels or "{}"))
        self._page.did(action)
        waiting = self._told_waiting(kept)
        return "Your probe waits for its turn ...", gr.Timer(active=True), {**kept, JOB: job}, waiting

    def _look(self, kept: dict[str, Any]) -> tuple[Any, ...]:
        """How far the job is; at its end the probe."""
        job = self._job(kept)
        if job is None:
            return "", gr.Timer(active=False), *AS_IT_IS
        if not job.has_ended:
            share = f" {job.done / job.total:.0%}" if job.total else ""
            return f"Fitting{share} ... You may close the page: it goes on.", gr.skip(), *AS_IT_IS
        if job.state != "done":
            detail = job.error["detail"] if job.error else "it was cancelled."
            status = f"**It could not be fitted:** {plain(detail)}"
            return status, gr.Timer(active=False), *AS_IT_IS
        name = job.result["probe"]
        status = f"**{plain(name)}** is ready: see below how well it does, and try it."
        return status, gr.Timer(active=False), *self._probes(name)

    def _job(self, kept: dict[str, Any] | None) -> Any:
        """The job that this browser waits for; None if there is none."""
        id = kept.get(JOB) if isinstance(kept, dict) else None
        if not isinstance(id, str) or self._page.jobs is None:
            return None
        try:
            job = self._page.jobs.get(id)
        except JobNotFound:
            return None
        return job if job.kind == FIT else None

    # ---- the probes

    def _start_probes(self) -> tuple[Any, ...]:
        return self._probes(None)

    def _probes(self, chosen: str | None) -> tuple[Any, ...]:
        """All probes, and the report of one of them, which has said nothing yet."""
        kept = {one.name: one for one in list_probes(self._page.bench.store.records)}
        if not kept:
            told = NO_PROBE if self._page.writable else NO_PROBE_READ_ONLY
            return gr.Dropdown(choices=[], value=None), told, None, None
        last = max(kept.values(), key=lambda one: one.about["created"]).name
        name = chosen if chosen in kept else last
        return gr.Dropdown(choices=list(kept), value=name), "", report_of(kept[name], export_path(name)), None

    def _choose_probe(self, name: str | None) -> tuple[Any, ...]:
        if not name:
            raise ProbeNotFound("Choose one of the probes that there are.")
        kept = get_probe(self._page.bench.store.records, name)
        return "", report_of(kept, export_path(name)), None

    def _say_nothing(self) -> None:
        """Of a picture that cannot be read; what was said of the one before would stand under it."""

    def _say(self, given: Uploaded | None, probe: str | None) -> Any:
        """What a probe says of a picture."""
        if given is None:
            return None
        if not probe:
            how = "label some pictures and fit one" if self._page.writable else "this read-only server makes none"
            raise InvalidRequest(f"There is no probe to ask yet: {how}.")
        [said] = self._page.bench.predict(probe, images=[given.path])
        if isinstance(said, NNCLRHubError):
            raise said
        self._page.did(predict_action(probe, given.name))
        return verdict_of(said)
