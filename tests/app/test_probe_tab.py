"""The probe tab in a real browser: images are labeled by clicking, and the probe is that of those labels."""

import json
from collections.abc import Iterator

import pytest
from browsing import PHONE, open_tab, wait_for, wait_for_images
from labeling import ids_of
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
    """A store with the photos in a collection, and one of an encoder that nobody has."""
    folder = tmp_path_factory.mktemp("probes") / "store"
    with open_store(str(folder)) as opened:
        bench = Workbench(Encoders(str(model), device="cpu"), opened)
        bench.index_folder("photos", photos)
        bench.fit_probe("before", "photos", "label")
    return folder


@pytest.fixture(scope="module")
def served(model, store, serve) -> Iterator:
    yield from serve(model, store, page=True)


def label(page, name: str, ids: list[str]) -> None:
    page.fill("#labeler-label", name)
    for id in ids:
        page.locator(f'#labeler .tile[data-id="{id}"] .image').click()


def show_all(page) -> None:
    page.wait_for_selector("#labeler .tile")
    page.locator("#labeler > * button", has_text="Show more images").click()
    page.wait_for_function("() => document.querySelectorAll('#labeler .tile').length === 60")


@pytest.mark.browser
def test_labeled_by_clicking_fitted_and_tried(opened, served, pictures, tmp_path):
    page = opened("Probe", **PHONE)
    show_all(page)
    cats, coffees = ids_of(served, "cat", 6), ids_of(served, "coffee", 6)
    label(page, "a cat", [*cats, coffees[0]])
    page.locator(f'#labeler .tile[data-id="{coffees[0]}"] .image').click()  # taken off again
    label(page, "coffee", coffees)
    assert "12 images with 2 labels" in page.inner_text("#labeler .count")
    page.fill("#probe-name input, #probe-name textarea", "clicked")
    page.click("#probe-fit")
    wait_for(page, "clicked is ready", "#probe-status")
    kept = get_probe(served.bench.store.records, "clicked")
    assert kept.probe.classes == ("a cat", "coffee")
    assert kept.probe.fingerprint == served.bench.models.get().fingerprint
    assert (kept.about["rows"], kept.about["held_out"]) == (12, 2)
    wait_for(page, "Learned from 12 images of 2 labels", "#probe-report")
    assert page.inner_text("#probe-report .score strong") == f"{round(100 * kept.about['scores']['top1'])} %"
    cells = page.locator("#probe-report .confusion tbody td").all_inner_texts()
    assert [int(one or 0) for one in cells] == [n for row in kept.about["confusion"] for n in row]
    assert page.locator("#probe-report .curve circle").count() == len(kept.about["few_shot"])
    page.set_input_files("#probe-image input[type=file]", str(pictures[3]))
    page.wait_for_selector("#probe-prediction .answer:visible")
    [said] = served.bench.predict("clicked", images=[pictures[3]])
    assert page.inner_text("#probe-prediction .answer") == said.label
    assert page.locator("#probe-prediction .name").all_inner_texts() == [name for name, _ in said.top]
    with page.expect_download() as download:
        page.click("#probe-report header a")
    assert download.value.suggested_filename == "clicked.zip"
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.slow
@pytest.mark.browser
def test_a_reload_finds_the_job_again_and_tells_its_end_once(opened, served):
    """With what the report says of a label that was used once."""
    page = opened("Probe", allowed=("AbortError", "errored out"))  # Gradio's streams, which a reload breaks off
    show_all(page)
    label(page, "cat", ids_of(served, "cat", 4))
    label(page, "lonely", ids_of(served, "coffee", 1))
    page.fill("#probe-name input, #probe-name textarea", "lonely")
    page.click("#probe-fit")
    page.wait_for_function("() => /waits|Fitting|ready/.test(document.querySelector('#probe-status').innerText)")
    page.reload()
    open_tab(page, "Probe")
    wait_for(page, "lonely is ready", "#probe-status")
    wait_for(page, "Used only once: lonely", "#probe-report")
    looked: list[str] = []
    page.on("request", lambda request: looked.append(request.url) if request.url.endswith("/join") else None)
    page.reload()
    open_tab(page, "Probe")
    wait_for(page, "Used only once: lonely", "#probe-report")
    asked = len(looked)
    page.wait_for_timeout(2000)  # of which the page would have looked after the job twice
    assert len(looked) == asked
    assert page.inner_text("#probe-status").strip() == "", "it was told again"


@pytest.mark.slow
@pytest.mark.browser
def test_a_file_labels_and_one_label_is_refused_in_a_sentence(opened, served, tmp_path, monkeypatch):
    ids = ids_of(served, "cat", 3)
    (tmp_path / "labels.csv").write_text("id,label\n" + "".join(f"{id},cat\n" for id in ids))
    page = opened("Probe")
    page.wait_for_selector("#labeler .tile")
    page.set_input_files("input[type=file][accept='.csv']", str(tmp_path / "labels.csv"))
    wait_for(page, "3 images with 1 label", "#labeler .count")
    wait_for_images(page, "#labeler img")
    shown = page.locator("#labeler .tile").evaluate_all("tiles => tiles.slice(0, 3).map(one => one.dataset.id)")
    assert shown == ids
    page.fill("#probe-name input, #probe-name textarea", "one")
    page.click("#probe-fit")
    page.wait_for_selector(".toast-body")
    assert "a probe tells at least two apart" in page.inner_text(".toast-body")
    with pytest.raises(ProbeNotFound):
        get_probe(served.bench.store.records, "one")
    monkeypatch.setattr(probe_tab, "MAX_SHOWN", 2)
    (tmp_path / "more.csv").write_text("id,label\n" + "".join(f"{id},{i % 2}\n" for i, id in enumerate(ids)))
    page.set_input_files("input[type=file][accept='.csv']", str(tmp_path / "more.csv"))
    wait_for(page, "3 images with 2 labels", "#labeler .count")
    assert "1 of them is not shown here" in page.inner_text("#labeler .count")
    assert page.locator("#labeler .tile").count() == 2
    assert len(json.loads(page.locator("#labeler .labeler").get_attribute("data-labels"))) == 3


@pytest.mark.browser
@pytest.mark.slow
def test_labels_are_text_and_never_code_here_either(opened, served, pictures):
    """In the labeler, in a probe's report, in what it says, and on the shelf of the collection."""
    evil = [
        "${window.hurt = 1}",
        "<img src=x onerror='hurt=1'>",
        "\\x3cimg src\\x3dx onerror\\x3dwindow.hurt\\x3d1\\x3e",
    ]
    there = served.bench.store.create("a-first", CollectionSpec.of(served.bench.models.get()))
    images = [NewImage(f"evil{i}", pictures[i], {"label": evil[i % 3]}) for i in range(12)]
    try:
        served.bench.add_images(there.name, images)
        page = opened("Probe")
        page.wait_for_selector("#labeler .tile[data-id=evil0]")
        assert set(page.locator("#labeler .caption").all_inner_texts()) == set(evil)
        for i, name in enumerate(evil):
            label(page, name, [f"evil{i}", f"evil{i + 3}", f"evil{i + 6}"])
        assert page.locator("#labeler .badge:visible").first.inner_text() == evil[0]
        assert [text.rpartition(" \u00b7")[0] for text in page.locator("#labeler .chip").all_inner_texts()] == evil
        page.fill("#probe-name input, #probe-name textarea", "evil")
        page.click("#probe-fit")
        wait_for(page, "evil is ready", "#probe-status")
        wait_for(page, "Learned from 9 images of 3 labels", "#probe-report")
        assert all(name in page.locator("#probe-report").text_content() for name in evil)
        page.set_input_files("#probe-image input[type=file]", str(pictures[3]))
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
        served.bench.drop(there.name)


def test_a_collection_of_another_encoder_is_a_sentence(served, photos, make_model):
    other = load_encoder(make_model(seed=7), device="cpu")
    spec_of = served.bench.collection("photos").spec
    spec = type(spec_of)(spec_of.dim, fingerprint=other.fingerprint, model="nowhere/at-all")
    there = served.bench.store.create("others", spec)
    items = served.bench.collection("photos").scroll(limit=4, with_vector=True).items
    there.upsert(list(items))
    labels = json.dumps({item.id: "ab"[i % 2] for i, item in enumerate(items)})
    session = {"session_hash": "other"}  # which knows the collections that there are
    call(served.url, "_load_sources", [None, None, None], **session)
    answer = call(served.url, "_fit", [labels, CLICK, "others", None, "p", False, None], **session)
    assert answer.status_code != 200
    assert "nowhere/at-all" in answer.json()["error"] or "encoder" in answer.json()["error"]
    served.bench.store.drop("others")


def test_read_only_shows_and_asks_probes_and_fits_none(model, store, serve, monkeypatch):
    """And its words ask nobody to label, but say who makes probes."""
    for there in serve(model, store, page=True, read_only=True):
        config = get(f"{there.url}/ui/config").json()
        [intro] = [one["props"] for one in config["components"] if one["props"].get("elem_id") == "probe-intro"]
        assert "This server is **read-only**" in intro["value"]
        assert "label a handful" not in intro["value"]
        names = {event["api_name"] for event in config["dependencies"]}
        assert {"_predict", "_choose_probe"} <= names
        assert not {"_fit", "_poll", "_load_csv", "_upload_folders"} & names
        assert "before" in call(there.url, "_load_probes", []).text
        with monkeypatch.context() as patched:
            patched.setattr(probe_tab, "list_probes", lambda records: [])
            told = call(there.url, "_load_probes", []).text
        assert "none can be made on this read-only server" in told
        assert "Fit" not in told
