"""The Probe tab in a real browser: images are labeled by clicking, and the probe is fitted on those labels."""

import json
from collections.abc import Iterator

import pytest
from labeling import fit_probe, ids_of, label, label_ids, show_all
from page_actions import INTERRUPTED, PHONE, open_tab, toast, wait_for, wait_for_images
from page_calls import call, get

from app.tabs import probe as probe_tab
from app.tabs.probe import CLICK
from nnclr_hub import load_encoder
from nnclr_hub.errors import ProbeNotFound
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec
from nnclr_hub.workbench import Encoders, NewImage, Workbench
from nnclr_hub.workbench.probes import get_probe


@pytest.fixture(scope="module")
def store(model, photos, tmp_path_factory):
    folder = tmp_path_factory.mktemp("probes") / "store"
    with open_store(str(folder)) as opened:
        bench = Workbench(Encoders(str(model), device="cpu"), opened)
        bench.index_folder("photos", photos)
        fit_probe(bench, "before", "photos", "label")
    return folder


@pytest.fixture(scope="module")
def served(model, store, serve) -> Iterator:
    yield from serve(model, store, page=True)


def fit(page, name: str) -> None:
    page.fill("#probe-name input, #probe-name textarea", name)
    page.click("#probe-fit")


@pytest.mark.browser
def test_a_probe_is_fitted_on_clicked_labels_and_tried(opened, served, image_files):
    page = opened("Probe", **PHONE)
    show_all(page)
    cats, coffees = ids_of(served, "cat", 6), ids_of(served, "coffee", 6)
    label_ids(page, "a cat", [*cats, coffees[0], coffees[0]])  # the second click removes the label
    label_ids(page, "coffee", coffees)
    assert "12 images with 2 labels" in page.inner_text("#labeler .count")
    fit(page, "clicked")
    wait_for(page, "clicked is ready", "#probe-status")
    stored = get_probe(served.bench.store.records, "clicked")
    assert stored.probe.classes == ("a cat", "coffee")
    assert stored.probe.fingerprint == served.bench.models.get().fingerprint
    assert (stored.about["rows"], stored.about["held_out"]) == (12, 2)
    wait_for(page, "12 images with 2 labels", "#probe-report")
    assert page.inner_text("#probe-report .score strong") == f"{round(100 * stored.about['scores']['top1'])}%"
    cells = page.locator("#probe-report .confusion tbody td").all_inner_texts()
    assert [int(one or 0) for one in cells] == [n for row in stored.about["confusion"] for n in row]
    assert page.locator("#probe-report .curve circle").count() == len(stored.about["few_shot"])
    page.set_input_files("#probe-image input[type=file]", str(image_files[3]))
    page.wait_for_selector("#probe-prediction .answer:visible")
    [prediction] = served.bench.predict("clicked", images=[image_files[3]])
    assert page.inner_text("#probe-prediction .answer") == prediction.label
    assert page.locator("#probe-prediction .name").all_inner_texts() == [name for name, _ in prediction.top]
    with page.expect_download() as download:
        page.click("#probe-report header a")
    assert download.value.suggested_filename == "clicked.zip"
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.slow
@pytest.mark.browser
def test_a_reload_finds_the_job_and_reports_its_end_once(opened, served):
    page = opened("Probe", allowed=INTERRUPTED)
    show_all(page)
    label(page, served, "cat", 4)
    label_ids(page, "lonely", ids_of(served, "coffee", 1))
    fit(page, "lonely")
    page.wait_for_function("() => localStorage.getItem('nnclr_hub_fit') !== null")
    page.reload()
    open_tab(page, "Probe")
    wait_for(page, "lonely is ready", "#probe-status")
    wait_for(page, "Only one image has the label: lonely", "#probe-report")
    polls: list[str] = []
    page.on("request", lambda request: polls.append(request.url) if request.url.endswith("/join") else None)
    page.reload()
    open_tab(page, "Probe")
    wait_for(page, "lonely", "#probe-report")
    count = len(polls)
    page.wait_for_timeout(2000)  # in which the page would have polled the job twice
    assert len(polls) == count
    assert page.inner_text("#probe-status").strip() == ""


@pytest.mark.slow
@pytest.mark.browser
def test_labels_come_from_a_file_and_one_class_is_rejected(opened, served, tmp_path, monkeypatch):
    ids = ids_of(served, "cat", 3)
    (tmp_path / "labels.csv").write_text("id,label\n" + "".join(f"{id},cat\n" for id in ids))
    page = opened("Probe")
    page.wait_for_selector("#labeler .tile")
    page.set_input_files("input[type=file][accept='.csv']", str(tmp_path / "labels.csv"))
    wait_for(page, "3 images with 1 label", "#labeler .count")
    wait_for_images(page, "#labeler img")
    shown = page.locator("#labeler .tile").evaluate_all("tiles => tiles.slice(0, 3).map(one => one.dataset.id)")
    assert shown == ids
    fit(page, "one")
    assert "two classes" in toast(page)
    with pytest.raises(ProbeNotFound):
        get_probe(served.bench.store.records, "one")
    monkeypatch.setattr(probe_tab, "MAX_SHOWN", 2)
    (tmp_path / "more.csv").write_text("id,label\n" + "".join(f"{id},{i % 2}\n" for i, id in enumerate(ids)))
    page.set_input_files("input[type=file][accept='.csv']", str(tmp_path / "more.csv"))
    wait_for(page, "1 of them is not shown here", "#labeler .count")
    assert page.locator("#labeler .tile").count() == 2
    assert len(json.loads(page.locator("#labeler .labeler").get_attribute("data-labels"))) == 3


@pytest.mark.browser
@pytest.mark.slow
def test_labels_are_never_run_as_code(opened, served, image_files):
    """In the labeler, in a report, in a prediction, in a collection and in the viewer."""
    evil = [
        "${window.hurt = 1}",
        "<img src=x onerror='hurt=1'>",
        "\\x3cimg src\\x3dx onerror\\x3dwindow.hurt\\x3d1\\x3e",
    ]
    collection = served.bench.store.create("a-first", CollectionSpec.of(served.bench.models.get()))
    images = [NewImage(f"evil{i}", image_files[i], {"label": evil[i % 3]}) for i in range(12)]
    try:
        served.bench.add_images(collection.name, images)
        page = opened("Probe")
        page.wait_for_selector("#labeler .tile[data-id=evil0]")
        assert set(page.locator("#labeler .caption").all_inner_texts()) == set(evil)
        for i, name in enumerate(evil):
            label_ids(page, name, [f"evil{i}", f"evil{i + 3}", f"evil{i + 6}"])
        assert page.locator("#labeler .badge:visible").first.inner_text() == evil[0]
        assert [text.rpartition(" \u00b7")[0] for text in page.locator("#labeler .chip").all_inner_texts()] == evil
        fit(page, "evil")
        wait_for(page, "evil is ready", "#probe-status")
        wait_for(page, "9 images with 3 labels", "#probe-report")
        assert all(name in page.locator("#probe-report").text_content() for name in evil)
        page.set_input_files("#probe-image input[type=file]", str(image_files[3]))
        page.wait_for_selector("#probe-prediction .answer:visible")
        assert set(page.locator("#probe-prediction .name").all_inner_texts()) == set(evil)
        open_tab(page, "Collections")
        wait_for(page, "of 12", "#items-status")
        assert set(page.locator("#items .caption").all_inner_texts()) == set(evil)
        page.locator("#items .image").first.click()
        wait_for(page, "label", "#items-viewer dialog")
        assert any(name in page.inner_text("#items-viewer dialog") for name in evil)
        assert page.evaluate("window.hurt") is None
    finally:
        served.bench.drop(collection.name)


def test_a_collection_of_another_encoder_cannot_be_fitted_on(served, make_model):
    other = load_encoder(make_model(seed=7), device="cpu")
    own = served.bench.collection("photos").spec
    spec = type(own)(own.dim, fingerprint=other.fingerprint, model="nowhere/at-all")
    items = served.bench.collection("photos").scroll(limit=4, with_vector=True).items
    served.bench.store.create("others", spec).upsert(list(items))
    labels = json.dumps({item.id: "ab"[i % 2] for i, item in enumerate(items)})
    session = {"session_hash": "other"}  # it must know the collections
    call(served.url, "_load_sources", [None, None, None], **session)
    answer = call(served.url, "_fit", [labels, CLICK, "others", None, "p", False, None], **session)
    assert answer.status_code != 200
    assert "nowhere/at-all" in answer.json()["error"] or "encoder" in answer.json()["error"]
    served.bench.store.drop("others")


def test_a_read_only_page_predicts_but_does_not_fit(model, store, serve, monkeypatch):
    for server in serve(model, store, page=True, read_only=True):
        config = get(f"{server.url}/ui/config").json()
        names = {event["api_name"] for event in config["dependencies"]}
        assert {"_predict", "_choose_probe"} <= names
        assert not {"_fit", "_poll", "_load_csv", "_upload_folders"} & names
        assert "before" in call(server.url, "_load_probes", []).text
        monkeypatch.setattr(probe_tab, "list_probes", lambda records: [])
        assert "read-only" in call(server.url, "_load_probes", []).text
