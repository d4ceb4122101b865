"""Probe: a few labeled images to a classifier, how well it does, and what it says of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

from nnclr_hub.errors import InvalidRequest, JobNotFound, NNCLRHubError, ProbeNotFound
from nnclr_hub.workbench.probes import get_probe, list_probes

from ..class_folders import classes, take, ticket_of, what_waits
from ..finding import Finder
from ..page import Page
from ..probing import FIT, Prober, export_path, predict_action, read_csv, read_labels
from ..steps import plain
from ..widgets.intake import Intake, intake_value
from ..widgets.labeller import LABELS, Labeller, labeled
from ..widgets.probe_report import ProbeReport, report_of
from ..widgets.raw_image import raw_image
from ..widgets.uploaded import Uploaded
from ..widgets.verdict import Verdict, verdict_of

INTRO = (
    "Teach it **classes of your own**: label a handful of images, or give a folder of them for each class, and a "
    "*linear probe*, a small classifier on what the encoder already sees, learns to tell them apart in seconds."
)
INTRO_READ_ONLY = (
    "A *linear probe* is a small classifier on what the encoder already sees, which learned somebody's own classes "
    "from a few labeled images. Choose one: see how well it does, try it on an image of yours, download it. This "
    "server is **read-only**: probes are made where it is served without `--read-only`, by whoever runs it."
)
CLICK, FIELD = "I label images by clicking", "A field of their metadata has the labels"
FOLDERS = "I have a folder of images for each class"
FOLDERS_HINT = (
    "Choose the folder that holds one folder for each class, or a zip of it. The images serve for the fit alone and "
    "are not kept."
)
FIRST, STEP, MOST = 48, 48, 1000  # images that are shown to be labeled
NO_PROBE = "There is no probe yet: label images above, give it a name and press *Fit*."
NO_PROBE_READ_ONLY = (
    "There is no probe yet, and none can be made on this read-only server: whoever runs it makes one where it is "
    "served without `--read-only`, and it is here when the page is reloaded."
)
AS_IT_IS = (gr.skip(),) * 4  # the probes, and what is told of one
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
                self.picker = raw_image("Try it on an image", elem_id="probe-image")
                self.verdict = Verdict(elem_id="probe-verdict")
            with gr.Column(scale=3, min_width=300):
                self.no_probe = gr.Markdown(elem_id="no-probe")
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
        shown = [self.probe, self.no_probe, self.report, self.verdict]
        page.on(
            self.probe.input,
            self._choose_probe,
            self.probe,
            [self.no_probe, self.report, self.verdict],
            **ONE_AT_A_TIME,
        )
        said = page.on(self.picker.input, self._say, [self.picker, self.probe], self.verdict, show_progress="minimal")
        page.clear_on_failure(said, self.picker, self.verdict)
        page.on(page.blocks.load, self._start_probes, None, shown)
        if not page.writable:
            return
        kept, source = page.kept, [self.collection, self.field, self.labeller]
        begun = [kept.collection, kept.fit, kept.fit_told]
        page.on(page.blocks.load, self._start_fitting, begun, [*source, self.status, self.timer])
        there = [self.labeller, self.labeller, self.collection, kept.collection]
        page.on(page.tab.select, self._refresh, there, source, js=LABELS)
        page.on(
            self.collection.input,
            self._choose_collection,
            self.collection,
            [*source[1:], kept.collection],
            **ONE_AT_A_TIME,
        )
        ways = [self.collection, self.field, self.csv, self.labeller, self.intake, self.waiting]
        page.on(self.way.input, self._choose_way, [self.way, kept.folders], ways)
        given = page.on(self.intake.give, self._take_folders, kept.folders, [self.waiting, kept.folders], writes=True)
        self.intake.answered(given)
        page.on(self.labeller.more, self._more, self.collection, self.labeller)
        page.on(self.csv.upload, self._labels_of, [self.csv, self.collection], self.labeller)
        asked = [self.labeller, self.way, self.collection, self.field, self.name, self.replace, kept.folders]
        page.on(
            self.fit.click, self._fit, asked, [self.status, self.timer, kept.fit, self.waiting], writes=True, js=LABELS
        )
        page.on(self.timer.tick, self._look, kept.fit, [self.status, self.timer, kept.fit_told, *shown])

    # ---- what is labeled

    def _start_fitting(self, kept_collection: Any, fit: Any, fit_told: Any) -> tuple[Any, ...]:
        """The collection that was chosen last; and the job that went on while the page was closed, until it is told."""
        names, chosen = self._finder.names(), self._finder.chosen(kept_collection) or None
        picked = gr.Dropdown(choices=names, value=chosen)
        waits = fit != fit_told and self._job(fit) is not None
        status = "Looking after your probe ..." if waits else ""
        return picked, *self._shown_of(chosen), status, gr.Timer(active=waits)

    def _refresh(self, labels: str, wall: Any, collection: str | None, kept_collection: Any) -> tuple[Any, ...]:
        """The collections that there are by now, and of them the one that was chosen meanwhile; labels stay."""
        names = self._finder.names()
        stays = collection if read_labels(labels or "{}") else None
        chosen = self._finder.chosen(stays, kept_collection, collection) or None
        if chosen == collection and isinstance(wall, dict) and wall.get("tiles"):
            return gr.Dropdown(choices=names), gr.skip(), gr.skip()
        return gr.Dropdown(choices=names, value=chosen), *self._shown_of(chosen)

    def _choose_collection(self, collection: str | None) -> tuple[Any, ...]:
        return *self._shown_of(collection), collection

    def _shown_of(self, collection: str | None) -> tuple[Any, Any]:
        """The fields of a collection, and its images to be labeled."""
        if not collection:
            return gr.skip(), labeled("", [], more=False)
        keys = self._finder.keys(collection)
        field = gr.Dropdown(choices=keys, value="label" if "label" in keys else next(iter(keys), None))
        tiles, more = self._prober.pictures(collection, FIRST)
        return field, labeled(collection, tiles, more=more)

    def _choose_way(self, way: str, kept_ticket: Any) -> tuple[Any, ...]:
        """What each way needs; folders that were given before still wait."""
        click, field, folders = (gr.update(visible=way == one) for one in (CLICK, FIELD, FOLDERS))
        collection = gr.update(visible=way != FOLDERS)
        return (
            collection,
            field,
            click,
            click,
            folders,
            gr.update(value=self._waiting(kept_ticket), visible=way == FOLDERS),
        )

    def _waiting(self, kept_ticket: Any) -> str:
        ticket = ticket_of(kept_ticket)
        if ticket is None or self._prober.is_taken(ticket):
            return ""
        try:
            return what_waits(classes(ticket, self._page.terms.max_bytes))
        except InvalidRequest:  # they are gone
            return ""

    def _take_folders(self, kept_ticket: Any, event: gr.EventData) -> tuple[Any, ...]:
        """Class folders in place of those that waited before."""
        ticket = take(event.files, self._page.terms.max_bytes)
        before = ticket_of(kept_ticket)
        if before is not None:
            self._prober.forget_folders(before)
        return self._waiting(ticket), ticket

    def _more(self, collection: str | None, event: gr.EventData) -> dict[str, Any] | None:
        number = event.shown if isinstance(event.shown, int) else 0
        tiles, more = self._prober.pictures(collection or "", min(MOST, max(0, number) + STEP))
        return labeled(collection or "", tiles, more=more and len(tiles) < MOST)

    def _labels_of(self, path: str | None, collection: str | None) -> Any:
        """Labels from a file, all of them; the images that it names are shown first, as many as are shown at all."""
        if path is None or not collection:
            raise InvalidRequest("Choose the collection first that the file has labels of.")
        labels = read_csv(Path(path))
        named = self._prober.tiles(collection, list(labels))
        first, more = self._prober.pictures(collection, FIRST)
        tiles = [*named, *(one for one in first if one.id not in labels)][:MOST]
        return labeled(collection, tiles, more=more and len(tiles) < MOST, labels=labels)

    # ---- the fit

    def _fit(
        self,
        labels: str,
        way: str,
        collection: str | None,
        field: str | None,
        name: str,
        replace: bool,
        folders: Any,
    ) -> tuple[Any, ...]:
        called = (str(name or "").strip(), bool(replace))
        if way == FOLDERS:
            ticket = ticket_of(folders)
            if ticket is None:
                raise InvalidRequest("There is no folder to fit on: choose one that holds a folder for each class.")
            job, action = self._prober.by_folders(*called, ticket)
        elif not collection:
            raise InvalidRequest("There is no collection to fit on: choose one first.")
        elif way == FIELD:
            if not field:
                raise InvalidRequest("There is no field to fit on: choose the one that has the labels.")
            job, action = self._prober.by_field(*called, collection, field)
        else:
            job, action = self._prober.by_labels(*called, collection, read_labels(labels or "{}"))
        self._page.did(action)
        waiting = self._waiting(folders)
        return "Your probe waits for its turn ...", gr.Timer(active=True), job, waiting

    def _look(self, fit: Any) -> tuple[Any, ...]:
        """How far the job is; at its end the probe, and that its end is told."""
        job = self._job(fit)
        if job is None:
            return "", gr.Timer(active=False), fit, *AS_IT_IS
        if not job.has_ended:
            share = f" {job.done / job.total:.0%}" if job.total else ""
            return f"Fitting{share} ... You may close the page: it goes on.", gr.skip(), gr.skip(), *AS_IT_IS
        if job.state != "done":
            detail = job.error["detail"] if job.error else "it was cancelled."
            status = f"**It could not be fitted:** {plain(detail)}"
            return status, gr.Timer(active=False), fit, *AS_IT_IS
        name = job.result["probe"]
        status = f"**{plain(name)}** is ready: see below how well it does, and try it."
        return status, gr.Timer(active=False), fit, *self._probes(name)

    def _job(self, id: Any) -> Any:
        """The job of that id, if it is one that fits a probe."""
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
        probes = {one.name: one for one in list_probes(self._page.bench.store.records)}
        if not probes:
            sentence = NO_PROBE if self._page.writable else NO_PROBE_READ_ONLY
            return gr.Dropdown(choices=[], value=None), sentence, None, None
        last = max(probes.values(), key=lambda one: one.about["created"]).name
        name = chosen if chosen in probes else last
        return gr.Dropdown(choices=list(probes), value=name), "", report_of(probes[name], export_path(name)), None

    def _choose_probe(self, name: str | None) -> tuple[Any, ...]:
        if not name:
            raise ProbeNotFound("Choose one of the probes that there are.")
        probe = get_probe(self._page.bench.store.records, name)
        return "", report_of(probe, export_path(name)), None

    def _say(self, given: Uploaded | None, probe: str | None) -> Any:
        """What a probe says of an image."""
        if given is None:
            return None
        if not probe:
            how = "label some images and fit one" if self._page.writable else "this read-only server makes none"
            raise InvalidRequest(f"There is no probe to ask yet: {how}.")
        [said] = self._page.bench.predict(probe, images=[given.path])
        if isinstance(said, NNCLRHubError):
            raise said
        self._page.did(predict_action(probe, given.name))
        return verdict_of(said)
