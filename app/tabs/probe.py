"""The Probe tab: fit a classifier on a few labeled images, see its accuracy, and try it on an image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

from nnclr_hub.errors import InvalidRequest, JobNotFound, NNCLRHubError, ProbeNotFound
from nnclr_hub.workbench.probes import get_probe, list_probes

from ..api_calls import export_path, predict_call
from ..finder import Finder
from ..handlers import escape_markdown
from ..page import Page
from ..probe_jobs import (
    FIT,
    ProbeJobs,
    count_classes,
    describe_folders,
    read_csv,
    read_labels,
    read_ticket,
    store_folders,
)
from ..widgets.inputs import Uploaded, raw_image
from ..widgets.labeler import LABELS, Labeler, labeler_value
from ..widgets.outputs import Prediction, prediction_value
from ..widgets.probe_report import ProbeReport, report_value
from ..widgets.uploader import Uploader, uploader_value

INTRO = (
    "Train a **classifier for your own classes** in seconds. Label a few images, or upload one folder of images per "
    "class. The classifier is a *linear probe*: a linear layer on the embeddings of the encoder."
)
INTRO_READ_ONLY = (
    "A *linear probe* is a small classifier on the embeddings of the encoder, fitted on a few labeled images. Choose a "
    "probe to see its accuracy, try it on an image, or download it. This server is **read-only**, so probes cannot be "
    "fitted here."
)
CLICK, FIELD, FOLDERS = "Label images by clicking", "Use a metadata field", "Upload one folder of images per class"
FOLDERS_HINT = (
    "Choose a folder that contains one folder per class, or a zip of it. The images are used for the fit and then "
    "deleted."
)
FIRST, STEP, MAX_SHOWN = 48, 48, 1000  # images to label
NO_PROBE = "There is no probe yet. Label images above, enter a name and press *Fit*."
NO_PROBE_READ_ONLY = (
    "There is no probe yet. This server is read-only; its operator can fit probes without `--read-only`."
)
UNCHANGED = (gr.skip(),) * 4  # the probes, and the report of one
LAST_WINS: dict[str, Any] = {"trigger_mode": "always_last"}


class ProbeTab:
    """Build the tab inside an open gr.Tab."""

    def __init__(self, page: Page) -> None:
        self._page, self._jobs, self._finder = page, ProbeJobs(page), Finder(page)
        gr.Markdown(INTRO if page.writable else INTRO_READ_ONLY, elem_id="probe-intro")
        if page.writable:
            with gr.Row(elem_classes="search-row"):
                with gr.Column(scale=1, min_width=280):
                    self._build_controls()
                with gr.Column(scale=3, min_width=300):
                    self.labeler = Labeler(elem_id="labeler")
        gr.Markdown("### Accuracy and predictions", elem_classes="step")
        with gr.Row(elem_classes="search-row"):
            with gr.Column(scale=1, min_width=280):
                self.probe = gr.Dropdown([], label="Probe", elem_id="probe", interactive=True)
                self.picker = raw_image("Try it on an image", elem_id="probe-image")
                self.prediction = Prediction(elem_id="probe-prediction")
            with gr.Column(scale=3, min_width=300):
                self.no_probe = gr.Markdown(elem_id="no-probe")
                self.report = ProbeReport(elem_id="probe-report")
        self._wire(page)

    def _build_controls(self) -> None:
        self.source = gr.Radio(
            [CLICK, FIELD, FOLDERS], value=CLICK, label="Labels", elem_id="probe-source", interactive=True
        )
        self.collection = gr.Dropdown([], label="Collection", elem_id="probe-collection", interactive=True)
        self.field = gr.Dropdown([], label="Field", elem_id="probe-field", interactive=True, visible=False)
        self.csv = gr.UploadButton(
            "Load labels from a CSV file (id, label)", file_types=[".csv"], elem_id="probe-csv", size="sm"
        )
        self.uploader = Uploader(
            uploader_value("probe"),
            max_bytes=self._page.settings.max_bytes,
            whole=True,
            hint=FOLDERS_HINT,
            elem_id="probe-uploader",
            visible=False,
        )
        self.uploaded = gr.Markdown(elem_id="probe-uploaded", visible=False)
        self.name = gr.Textbox("", label="Name of the probe", placeholder="my-pets", max_lines=1, elem_id="probe-name")
        self.replace = gr.Checkbox(
            False, label="Replace a probe with this name", elem_id="probe-replace", interactive=True
        )
        self.fit = gr.Button("Fit", elem_id="probe-fit", variant="primary")
        self.status = gr.Markdown(elem_id="probe-status")
        self.timer = gr.Timer(0.7, active=False)

    def _wire(self, page: Page) -> None:
        shown = [self.probe, self.no_probe, self.report, self.prediction]
        page.on(self.probe.input, self._choose_probe, self.probe, shown[1:], **LAST_WINS)
        predicted = page.on(
            self.picker.input, self._predict, [self.picker, self.probe], self.prediction, show_progress="minimal"
        )
        page.clear_on_failure(predicted, self.picker, self.prediction)
        page.on(page.blocks.load, self._load_probes, None, shown)
        if not page.writable:
            return
        stored, source = page.stored, [self.collection, self.field, self.labeler]
        started = [stored.collection, stored.fit, stored.fit_reported]
        page.on(page.blocks.load, self._load_sources, started, [*source, self.status, self.timer])
        current = [self.labeler, self.labeler, self.collection, stored.collection]
        page.on(page.tab.select, self._refresh, current, source, js=LABELS)
        chosen = [*source[1:], stored.collection]
        page.on(self.collection.input, self._choose_collection, self.collection, chosen, **LAST_WINS)
        controls = [self.collection, self.field, self.csv, self.labeler, self.uploader, self.uploaded]
        page.on(self.source.input, self._choose_source, [self.source, stored.folders], controls)
        added = page.on(
            self.uploader.submit, self._upload_folders, stored.folders, [self.uploaded, stored.folders], writes=True
        )
        self.uploader.continue_after(added)
        page.on(self.labeler.more, self._show_more, self.collection, self.labeler)
        page.on(self.csv.upload, self._load_csv, [self.csv, self.collection], self.labeler)
        inputs = [self.labeler, self.source, self.collection, self.field, self.name, self.replace, stored.folders]
        outputs = [self.status, self.timer, stored.fit, self.uploaded]
        page.on(self.fit.click, self._fit, inputs, outputs, writes=True, js=LABELS)
        page.on(self.timer.tick, self._poll, stored.fit, [self.status, self.timer, stored.fit_reported, *shown])

    # ---- the images to label

    def _load_sources(self, stored_collection: Any, fit: Any, fit_reported: Any) -> tuple[Any, ...]:
        """Show the collection that was chosen last, and poll a job that ran while the page was closed."""
        names, chosen = self._finder.names(), self._finder.choose_collection(stored_collection) or None
        picker = gr.Dropdown(choices=names, value=chosen)
        pending = fit != fit_reported and self._job(fit) is not None
        status = "Loading the state of your probe ..." if pending else ""
        return picker, *self._source_of(chosen), status, gr.Timer(active=pending)

    def _refresh(self, labels: str, grid: Any, collection: str | None, stored_collection: Any) -> tuple[Any, ...]:
        """Update the collections when the tab is selected; a collection with labels stays."""
        names = self._finder.names()
        labeled = collection if read_labels(labels or "{}") else None
        chosen = self._finder.choose_collection(labeled, stored_collection, collection) or None
        if chosen == collection and isinstance(grid, dict) and grid.get("tiles"):
            return gr.Dropdown(choices=names), gr.skip(), gr.skip()
        return gr.Dropdown(choices=names, value=chosen), *self._source_of(chosen)

    def _choose_collection(self, collection: str | None) -> tuple[Any, ...]:
        return *self._source_of(collection), collection

    def _source_of(self, collection: str | None) -> tuple[Any, Any]:
        """Return the fields of a collection, and its first images."""
        if not collection:
            return gr.skip(), labeler_value("", [], more=False)
        keys = self._finder.keys(collection)
        field = gr.Dropdown(choices=keys, value="label" if "label" in keys else next(iter(keys), None))
        tiles, more = self._jobs.first_tiles(collection, FIRST)
        return field, labeler_value(collection, tiles, more=more)

    def _choose_source(self, source: str, stored_ticket: Any) -> tuple[Any, ...]:
        """Show the controls of a source of labels; folders that were uploaded earlier are still there."""
        click, field, folders = (gr.update(visible=source == one) for one in (CLICK, FIELD, FOLDERS))
        uploaded = gr.update(value=self._uploaded(stored_ticket), visible=source == FOLDERS)
        return gr.update(visible=source != FOLDERS), field, click, click, folders, uploaded

    def _uploaded(self, stored_ticket: Any) -> str:
        ticket = read_ticket(stored_ticket)
        if ticket is None or self._jobs.is_taken(ticket):
            return ""
        try:
            return describe_folders(count_classes(ticket, self._page.settings.max_bytes))
        except InvalidRequest:  # they were deleted
            return ""

    def _upload_folders(self, stored_ticket: Any, event: gr.EventData) -> tuple[Any, ...]:
        """Replace the class folders that were uploaded earlier."""
        ticket = store_folders(event.files, self._page.settings.max_bytes)
        previous = read_ticket(stored_ticket)
        if previous is not None:
            self._jobs.delete_folders(previous)
        return self._uploaded(ticket), ticket

    def _show_more(self, collection: str | None, event: gr.EventData) -> dict[str, Any] | None:
        number = event.shown if isinstance(event.shown, int) else 0
        tiles, more = self._jobs.first_tiles(collection or "", min(MAX_SHOWN, max(0, number) + STEP))
        return labeler_value(collection or "", tiles, more=more and len(tiles) < MAX_SHOWN)

    def _load_csv(self, path: str | None, collection: str | None) -> Any:
        """Replace the labels by those of a file, and show the labeled images first."""
        if path is None or not collection:
            raise InvalidRequest("No collection is selected. Select the one that contains the labeled images.")
        labels = read_csv(Path(path))
        labeled = self._jobs.tiles(collection, list(labels))
        first, more = self._jobs.first_tiles(collection, FIRST)
        tiles = [*labeled, *(one for one in first if one.id not in labels)][:MAX_SHOWN]
        return labeler_value(collection, tiles, more=more and len(tiles) < MAX_SHOWN, labels=labels)

    # ---- the fit

    def _fit(
        self,
        labels: str,
        source: str,
        collection: str | None,
        field: str | None,
        name: str,
        replace: bool,
        folders: Any,
    ) -> tuple[Any, ...]:
        target = (str(name or "").strip(), bool(replace))
        if source == FOLDERS:
            ticket = read_ticket(folders)
            if ticket is None:
                raise InvalidRequest("No folder is uploaded. Choose a folder that contains one folder per class.")
            job, call = self._jobs.fit_folders(*target, ticket)
        elif not collection:
            raise InvalidRequest("No collection is selected. Select one first.")
        elif source == FIELD:
            if not field:
                raise InvalidRequest("No field is selected. Select the field that contains the labels.")
            job, call = self._jobs.fit_field(*target, collection, field)
        else:
            job, call = self._jobs.fit_labels(*target, collection, read_labels(labels or "{}"))
        self._page.note(call)
        return "Your probe is queued ...", gr.Timer(active=True), job, self._uploaded(folders)

    def _poll(self, fit: Any) -> tuple[Any, ...]:
        """Show the progress of the job; when it ends, show the probe and record that its end was reported."""
        job = self._job(fit)
        if job is None:
            return "", gr.Timer(active=False), fit, *UNCHANGED
        if not job.has_ended:
            share = f" {job.done / job.total:.0%}" if job.total else ""
            return f"Fitting{share} ... This continues if you close the page.", gr.skip(), gr.skip(), *UNCHANGED
        if job.state != "done":
            detail = job.error["detail"] if job.error else "It was cancelled."
            return f"**The fit failed:** {escape_markdown(detail)}", gr.Timer(active=False), fit, *UNCHANGED
        name = job.result["probe"]
        status = f"**{escape_markdown(name)}** is ready. Its accuracy is shown under *Accuracy and predictions*."
        return status, gr.Timer(active=False), fit, *self._probes(name)

    def _job(self, id: Any) -> Any:
        """Return the job if it exists and fits a probe."""
        if not isinstance(id, str) or self._page.jobs is None:
            return None
        try:
            job = self._page.jobs.get(id)
        except JobNotFound:
            return None
        return job if job.kind == FIT else None

    # ---- the probes

    def _load_probes(self) -> tuple[Any, ...]:
        return self._probes(None)

    def _probes(self, chosen: str | None) -> tuple[Any, ...]:
        """Return all probes, and the report of the chosen one or of the newest one."""
        probes = {one.name: one for one in list_probes(self._page.bench.store.records)}
        if not probes:
            message = NO_PROBE if self._page.writable else NO_PROBE_READ_ONLY
            return gr.Dropdown(choices=[], value=None), message, None, None
        newest = max(probes.values(), key=lambda one: one.about["created"]).name
        name = chosen if chosen in probes else newest
        return gr.Dropdown(choices=list(probes), value=name), "", report_value(probes[name], export_path(name)), None

    def _choose_probe(self, name: str | None) -> tuple[Any, ...]:
        if not name:
            raise ProbeNotFound("No probe is selected.")
        probe = get_probe(self._page.bench.store.records, name)
        return "", report_value(probe, export_path(name)), None

    def _predict(self, file: Uploaded | None, probe: str | None) -> Any:
        """Predict the label of an image."""
        if file is None:
            return None
        if not probe:
            hint = "Label images and fit one first." if self._page.writable else "This server is read-only."
            raise InvalidRequest(f"There is no probe yet. {hint}")
        [labeling] = self._page.bench.predict(probe, images=[file.path])
        if isinstance(labeling, NNCLRHubError):
            raise labeling
        self._page.note(predict_call(probe, file.name))
        return prediction_value(labeling)
