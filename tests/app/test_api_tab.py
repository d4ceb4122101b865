"""The API tab: the commands that it shows run unchanged, and have the same results as the page."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from labeling import fit_probe
from page_actions import PHONE, open_tab, wait_for, wait_for_images
from waiting import until

import nnclr_hub
from app.api_calls import AddedFile, add_call, add_folder_call, fit_folders_call, predict_call
from app.finder import Finder
from app.item_views import explain_match
from app.page import Page
from app.query import Query, Sample, search_call
from app.tabs.attention import Selection, Settings, map_call
from app.widgets.inputs import Uploaded
from nnclr_hub.client.call_examples import ApiCall
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.workbench import Encoders, Workbench
from nnclr_hub.workbench.staging import stage

OWN = "it's; a.jpg"
ODD = 'the "so" $HOME `id` \\ & é, {x} #1;.jpg'


@pytest.fixture(scope="module")
def served(model, photos, tmp_path_factory, serve) -> Iterator:
    folder = tmp_path_factory.mktemp("api") / "store"
    shutil.copytree(photos, folder.parent / "pets" / "mine")
    with open_store(str(folder)) as opened:
        bench = Workbench(Encoders(str(model), device="cpu"), opened)
        bench.index_folder("photos", photos)
        fit_probe(bench, "things", "photos", "label")
    yield from serve(model, folder, page=True, source_folders=[str(folder.parent / "pets")])


def run(command: list[str], folder: Path) -> str:
    """Run a command with the library on its path; return its output."""
    environment = os.environ | {"PYTHONPATH": str(Path(nnclr_hub.__file__).parents[1])}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def in_shell(text: str, folder: Path) -> dict:
    return json.loads(run(["sh", "-c", text], folder))


def in_python(text: str, folder: Path) -> str:
    return run([sys.executable, "-c", text], folder)


@pytest.mark.slow
@pytest.mark.browser
def test_both_versions_of_a_search_have_the_results_of_the_page(opened, served, image_files, tmp_path):
    (tmp_path / ODD).write_bytes(image_files[5].read_bytes())
    page = opened("API", **PHONE)
    open_tab(page, "Search")
    wait_for(page, "24 of the 60")
    page.set_input_files("#query input[type=file]", str(tmp_path / ODD))
    wait_for(page, "24 most similar")
    found = page.locator("#tiles .tile").evaluate_all("tiles => tiles.map(one => one.dataset.id)")
    open_tab(page, "API")
    wait_for(page, "#1;.jpg", "#api-code")
    shell, program = page.locator("#api-code pre").all_inner_texts()
    assert served.url in shell
    assert [one["id"] for one in in_shell(shell, tmp_path)["matches"]] == found
    printed = in_python(program, tmp_path)
    assert [printed.index(repr(id)) for id in found] == sorted(printed.index(repr(id)) for id in found)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def one_call_of_each_form(served, image_files) -> list[ApiCall]:
    [first, second, *_] = (item.id for item in served.bench.collection("photos").scroll(limit=2).items)
    finder = Finder(Page(served.bench))
    box = (2, 2, 30, 30)
    pasted = finder.embed("photos", Sample(path=image_files[5], name="chelsea.png", box=box, unsaved=True))
    region = finder.embed("photos", Sample(id=first, box=box))
    where = {"must_not": [{"key": "label", "match": 'it\'s; "so" $HOME `id` é'}]}
    items = [{"label": "ab"[i % 2], "vector": [float(i), 1.0, 0.5]} for i in range(6)]
    uploaded = Sample(path=image_files[5], name=OWN, box=box)
    selection = Selection(name=OWN, point=(3, 4), targets=(Uploaded(Path("x"), ODD),))
    return [
        search_call(Query("photos", where=where)),
        search_call(Query("photos", positive=(Sample(id=first),), where=where)),
        search_call(Query("photos", positive=(uploaded,), where=where)),
        search_call(Query("photos", positive=(Sample(id=first), Sample(id=second)), negative=(Sample(id=second),))),
        search_call(Query("photos", positive=(pasted,))),
        search_call(Query("photos", positive=(region,))),
        predict_call("things", ODD),
        predict_call("things", " a.jpg "),
        map_call(selection, Settings("cosine", None, None)),
        explain_match(served.bench, finder, Query("photos", positive=(Sample(id=first),)), second)[1],
        fit_folders_call("folders", one_request=True),
        ApiCall("POST", "/api/v1/probes", json={"name": "abc", "items": items, "replace": True}),
    ]


@pytest.mark.slow
def test_each_form_of_a_call_runs_unchanged(served, image_files, tmp_path):
    for name in (OWN, ODD, " a.jpg "):
        (tmp_path / name).write_bytes(image_files[5].read_bytes())
    for path in (*image_files[:3], *image_files[-3:]):
        (tmp_path / path.parent.name).mkdir(exist_ok=True)
        shutil.copy(path, tmp_path / path.parent.name)
    calls = one_call_of_each_form(served, image_files)
    for call in calls:
        in_shell(call.curl(served.url), tmp_path)
    printed = in_python("\n".join(call.python(served.url) for call in calls), tmp_path)
    assert len(printed.splitlines()) >= len(calls)
    assert (tmp_path / "map-0.png").is_file()


@pytest.fixture
def files(image_files, tmp_path):
    """Files with labels, with odd names, without a label, and with equal content."""
    names = ("cat/it's; 1.jpg", "coffee/2.jpg", "train/cat/3.jpg", OWN, "cat/again.jpg")
    for name, path in zip(names, (*image_files[:4], image_files[0]), strict=True):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, tmp_path / name)
    return [AddedFile(name, (tmp_path / name).stat().st_size) for name in names]


def contents(served, name: str) -> dict[str, tuple]:
    """Return the file names and labels in a collection, by item id."""
    items = served.bench.collection(name).scroll(limit=100).items
    return {item.id: (item.metadata.get("name"), item.metadata.get("label")) for item in items}


def added_by_job(served, files, folder) -> dict[str, tuple]:
    """Return what the page's own job adds from the files."""
    uploads = shutil.copytree(folder, folder.with_name(f"{folder.name}-uploads"))
    ticket = stage([(one.name, [uploads / one.name]) for one in files])
    jobs = served.app.state.jobs
    job = jobs.submit("add", {"collection": "by-job", "upload": ticket, "max_bytes": 10**7})
    until(lambda: jobs.get(job.id).has_ended)
    return contents(served, "by-job")


@pytest.fixture
def collections(served):
    """Empty collections, one for each way to add images."""
    names = ("by-job", "by-curl", "by-request", "by-program")
    for name in names:
        served.bench.store.create(name, CollectionSpec.of(served.bench.models.get()))
    yield
    for name in names:
        served.bench.drop(name)


def test_the_commands_add_files_as_the_page_does(served, collections, files, tmp_path):
    """By one request, or by a program if there are too many files for a request."""
    answer = in_shell(add_call("by-curl", files, 64, 10**6).curl(served.url), tmp_path)
    assert len(answer["results"]) == 5
    assert add_call("by-program", files, 64, 10**3).path == ""
    for call in (add_call("by-request", files, 64, 10**6), add_call("by-program", files, 4, 10**6)):
        in_python(call.python(served.url), tmp_path)
    by_job = added_by_job(served, files, tmp_path)
    assert {label for _, label in by_job.values()} == {"cat", "coffee", None}
    assert by_job == contents(served, "by-curl") == contents(served, "by-request") == contents(served, "by-program")


def test_the_program_adds_a_zip_as_the_page_does(served, collections, image_files, tmp_path):
    with zipfile.ZipFile(tmp_path / "it's all.zip", "w") as file:
        for path in image_files[:3]:
            file.write(path, f"photos/{path.parent.name}/{path.name}")
        file.write(image_files[3], "photos/none.jpg")
        file.writestr("photos/._none.jpg", b"no image")
        file.writestr("photos/notes.txt", b"no image")
    files = [AddedFile("it's all.zip", (tmp_path / "it's all.zip").stat().st_size, "photos")]
    in_python(add_call("by-program", files, 64, 10**7).python(served.url), tmp_path)
    by_job = added_by_job(served, files, tmp_path)
    assert len(by_job) == 4
    assert by_job == contents(served, "by-program")


def test_the_commands_add_a_folder_of_the_server(served, collections, tmp_path):
    jobs = served.app.state.jobs
    for name in ("by-curl", "by-program"):
        call = add_folder_call(name, "pets", "mine")
        if name == "by-curl":
            in_shell(call.curl(served.url), tmp_path)
        else:
            in_python(call.python(served.url), tmp_path)
        [job] = jobs.list(1)[0]
        until(lambda: jobs.get(job.id).has_ended)  # noqa: B023
    assert contents(served, "by-curl") == contents(served, "by-program")
    assert {label for _, label in contents(served, "by-curl").values()} == {"astronaut", "cat", "coffee"}


def test_a_box_on_an_item_has_the_same_results_over_rest(served, tmp_path):
    """The command first downloads the image, which only the server has."""
    finder = Finder(Page(served.bench))
    [first] = (item.id for item in served.bench.collection("photos").scroll(limit=1).items)
    query = Query("photos", positive=(finder.embed("photos", Sample(id=first, box=(20, 20, 60, 60))),))
    found = [match.id for match in finder.find(query).matches]
    assert [one["id"] for one in in_shell(search_call(query).curl(served.url), tmp_path)["matches"]] == found


def test_an_explanation_uses_the_first_example_with_an_image(served, image_files):
    """The call has the box; for a pasted image it says to save a file first."""
    collection = served.bench.collection("photos")
    [first, second] = collection.scroll(limit=2).items
    finder = Finder(Page(served.bench))
    collection.upsert([Item("bare", first.vector)])
    try:
        samples = (Sample(id="bare"), Sample(id=first.id, box=(0, 0, 30, 40)))
        value, call = explain_match(served.bench, finder, Query("photos", positive=samples), second.id)
        assert call.form["query"]["box"] == [0, 0, 30, 40]
        assert "your box (example 2 of 2)" in value["note"]
        assert call.note == ""
        pasted = Sample(path=image_files[0], name="image.png", unsaved=True)
        _, call = explain_match(served.bench, finder, Query("photos", positive=(pasted,)), first.id)
        assert "image.png" in call.note
    finally:
        served.bench.delete("photos", ["bare"])


@pytest.mark.browser
def test_a_button_copies_the_command(opened, served):
    page = opened("Search")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    wait_for(page, "24 of the 60")
    wait_for_images(page, "#tiles img")
    open_tab(page, "API")
    page.wait_for_selector("#api-code pre")
    page.locator("#api-code button").first.click()
    page.wait_for_selector("#api-code button:has-text('Copied')")
    assert page.evaluate("navigator.clipboard.readText()") == page.locator("#api-code pre").first.text_content()
