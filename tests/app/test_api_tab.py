"""The API tab: what it shows runs as it stands, and finds what the page found."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from browsing import PHONE, open_tab, wait_for, wait_for_images
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

KEY = "writer-0123456789abcdef"
OWN = "it's; a.jpg"
ODD = 'the "so" $HOME `id` \\ & é, {x} #1;.jpg'


@pytest.fixture(scope="module")
def served(model, photos, tmp_path_factory, serve) -> Iterator:
    folder = tmp_path_factory.mktemp("api") / "store"
    shutil.copytree(photos, folder.parent / "pets" / "mine")
    with open_store(str(folder)) as opened:
        bench = Workbench(Encoders(str(model), device="cpu"), opened)
        bench.index_folder("photos", photos)
        bench.fit_probe("things", "photos", "label")
    yield from serve(model, folder, page=True, source_folders=[str(folder.parent / "pets")])


def run(command: list[str], folder: Path, **variables: str) -> str:
    """What it prints; where the library is found, and with nothing else of ours."""
    root = str(Path(nnclr_hub.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": root} | variables
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def in_shell(text: str, folder: Path, **variables: str) -> dict:
    return json.loads(run(["sh", "-c", text], folder, **variables))


@pytest.mark.slow
@pytest.mark.browser
def test_a_search_stands_there_and_both_ways_of_it_find_the_same(opened, served, pictures, tmp_path):
    (tmp_path / ODD).write_bytes(pictures[5].read_bytes())
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
    printed = run([sys.executable, "-c", program], tmp_path)
    assert [printed.index(repr(id)) for id in found] == sorted(printed.index(repr(id)) for id in found)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def actions(served, pictures) -> list[ApiCall]:
    """One of each shape: a list, by an item, by an image and a box, by several, by an image that only
    the server has and a box on one, odd quotes, a map, why, fits."""
    [first, second, *_] = (item.id for item in served.bench.collection("photos").scroll(limit=2).items)
    finder = Finder(Page(served.bench))
    lent = finder.embed("photos", Sample(path=pictures[5], name="chelsea.png", box=(2, 2, 30, 30), unsaved=True))
    boxed = finder.embed("photos", Sample(id=first, box=(2, 2, 30, 30)))
    where = {"must_not": [{"key": "label", "match": 'it\'s; "so" $HOME `id` é'}]}
    items = [{"label": "ab"[i % 2], "vector": [float(i), 1.0, 0.5]} for i in range(6)]
    return [
        search_call(Query("photos", where=where)),
        search_call(Query("photos", positive=(Sample(id=first),), where=where)),
        search_call(
            Query("photos", positive=(Sample(path=pictures[5], name="it's; a.jpg", box=(2, 2, 30, 30)),), where=where)
        ),
        search_call(Query("photos", positive=(Sample(id=first), Sample(id=second)), negative=(Sample(id=second),))),
        search_call(Query("photos", positive=(lent,))),
        search_call(Query("photos", positive=(boxed,))),
        predict_call("things", ODD),
        predict_call("things", " a.jpg "),
        map_call(
            Selection(name=OWN, point=(3, 4), targets=(Uploaded(Path("x"), ODD),)), Settings("cosine", None, None)
        ),
        explain_match(served.bench, finder, Query("photos", positive=(Sample(id=first),)), second)[1],
        fit_folders_call("folders", one_request=True),
        ApiCall("POST", "/api/v1/probes", json={"name": "abc", "items": items, "replace": True}),
    ]


@pytest.mark.slow
def test_each_shape_of_a_call_runs_as_it_stands(served, pictures, tmp_path):
    for name in (OWN, ODD, " a.jpg "):
        (tmp_path / name).write_bytes(pictures[5].read_bytes())
    for path in (*pictures[:3], *pictures[-3:]):
        (tmp_path / path.parent.name).mkdir(exist_ok=True)
        shutil.copy(path, tmp_path / path.parent.name)
    for action in actions(served, pictures):
        answer = in_shell(action.curl(served.url), tmp_path)
        assert "status" not in answer or answer.get("kind"), (action, answer)
    programs = "\n".join(action.python(served.url) for action in actions(served, pictures))
    printed = run([sys.executable, "-W", "error", "-W", "ignore::ResourceWarning", "-c", programs], tmp_path)
    assert len(printed.splitlines()) >= 12
    assert (tmp_path / "map-0.png").is_file()


@pytest.fixture
def given(pictures, tmp_path):
    """Files as a person has them: with labels, odd names, one without a label, and two of one content."""
    names = ("cat/it's; 1.jpg", "coffee/2.jpg", "train/cat/3.jpg", OWN, "cat/again.jpg")
    for name, path in zip(names, (*pictures[:4], pictures[0]), strict=True):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, tmp_path / name)
    return [AddedFile(name, (tmp_path / name).stat().st_size) for name in names]


def held(served, name: str) -> dict[str, tuple]:
    """What a collection holds: names and labels by id."""
    items = served.bench.collection(name).scroll(limit=100).items
    return {item.id: (item.metadata.get("name"), item.metadata.get("label")) for item in items}


def added_by_job(served, given, folder) -> dict[str, tuple]:
    """What the page's own job makes of the files."""
    uploads = shutil.copytree(folder, folder.with_name(f"{folder.name}-uploads"))
    ticket = stage([(one.name, [uploads / one.name]) for one in given])
    jobs = served.app.state.jobs
    job = jobs.submit("add", {"collection": "by-job", "upload": ticket, "max_bytes": 10**7})
    until(lambda: jobs.get(job.id).has_ended)
    return held(served, "by-job")


@pytest.fixture
def empty(served):
    """Collections for what is added in one way and another, gone afterwards."""
    names = ("by-job", "by-curl", "by-request", "by-program")
    for name in names:
        served.bench.store.create(name, CollectionSpec.of(served.bench.models.get()))
    yield
    for name in names:
        served.bench.drop(name)


def test_files_are_added_as_the_page_adds_them(served, empty, given, tmp_path):
    """By one request, with their labels; and by the program that is shown of more than a request takes."""
    action = add_call("by-curl", given, 64, 10**6)
    answer = in_shell(action.curl(served.url), tmp_path)
    assert len(answer["results"]) == 5
    assert add_call("by-program", given, 64, 10**3).path == ""
    both = (add_call("by-request", given, 64, 10**6), add_call("by-program", given, 4, 10**6))
    programs = "\n".join(action.python(served.url) for action in both)
    assert run([sys.executable, "-c", programs], tmp_path).count("is added") == 5
    made = added_by_job(served, given, tmp_path)
    assert {label for _, label in made.values()} == {"cat", "coffee", None}
    assert made == held(served, "by-curl") == held(served, "by-request") == held(served, "by-program")


def test_a_zip_is_added_as_the_page_adds_it(served, empty, pictures, tmp_path):
    with zipfile.ZipFile(tmp_path / "it's all.zip", "w") as file:
        for path in pictures[:3]:
            file.write(path, f"photos/{path.parent.name}/{path.name}")
        file.write(pictures[3], "photos/none.jpg")
        file.writestr("photos/._none.jpg", b"no image")
        file.writestr("photos/notes.txt", b"no image")
    size = (tmp_path / "it's all.zip").stat().st_size
    given = [AddedFile("it's all.zip", size, "photos")]
    printed = run([sys.executable, "-c", python(add_call("by-program", given, 64, 10**7), served.url)], tmp_path)
    assert printed.count("is added") == 4
    assert added_by_job(served, given, tmp_path) == held(served, "by-program")


def test_a_folder_of_the_server_is_added_as_the_page_adds_it(served, empty, tmp_path):
    jobs = served.app.state.jobs
    for way in ("by-curl", "by-program"):
        action = add_folder_call(way, "pets", "mine")
        if way == "by-curl":
            in_shell(action.curl(served.url), tmp_path)
        else:
            run([sys.executable, "-c", action.python(served.url)], tmp_path)
        [job] = jobs.list(1)[0]
        until(lambda: jobs.get(job.id).has_ended)  # noqa: B023
        assert jobs.get(job.id).result["added"] == 60
    assert held(served, "by-curl") == held(served, "by-program")
    assert {label for _, label in held(served, "by-curl").values()} == {"astronaut", "cat", "coffee"}


def test_a_box_finds_the_same_on_a_image_that_only_the_server_has(served, tmp_path):
    finder = Finder(Page(served.bench))
    [first] = (item.id for item in served.bench.collection("photos").scroll(limit=1).items)
    query = Query("photos", positive=(finder.embed("photos", Sample(id=first, box=(20, 20, 90, 90))),))
    found = [match.id for match in finder.find(query).matches]
    assert [one["id"] for one in in_shell(curl(search_call(query), served.url), tmp_path)["matches"]] == found


def test_why_says_what_it_looks_for_and_its_call_has_that_box(served):
    """The part of the box that lies on the image, of the first example that has one."""
    there = served.bench.collection("photos")
    [first, second] = there.scroll(limit=2).items
    finder = Finder(Page(served.bench))
    there.upsert([Item("bare", first.vector)])
    try:
        samples = (Sample(id="bare"), Sample(id=first.id, box=(-9, -9, 30, 5000)))
        boxed, action = explain_match(served.bench, finder, Query("photos", more=samples), second.id)
        height = finder.image("photos", samples[1]).height
        assert action.form["query"]["box"] == [0, 0, 30, height]
        assert "your box (example 2 of 2)" in boxed["note"]
        whole, _ = explain_match(served.bench, finder, Query("photos", positive=(Sample(id=first.id),)), second.id)
        assert "what it sees in the image that you chose" in whole["note"]
    finally:
        served.bench.delete("photos", ["bare"])


def test_why_of_a_image_that_the_person_has_no_file_of_says_to_save_one(served, pictures):
    there = [item.id for item in served.bench.collection("photos").scroll(limit=1).items]
    told = []
    for lent in (False, True):
        sample = Sample(path=pictures[0], name="image.png", unsaved=lent)
        _, action = explain_match(
            served.bench, Finder(Page(served.bench)), Query("photos", positive=(sample,)), there[0]
        )
        told.append(action.where)
    assert told[0] == ""
    assert "save one as image.png first" in told[1]


def test_a_key_is_taken_from_the_environment_and_never_shown(model, tmp_path, serve):
    for there in serve(model, tmp_path / "store", write_keys=(f"desk:{KEY}",)):
        action = ApiCall("GET", "/api/v1/probes", call="client.probes.list()")
        for text in (action.curl(there.url, key=True), action.python(there.url, key=True)):
            assert KEY not in text
        assert in_shell(action.curl(there.url, key=True), tmp_path, NNCLR_API_KEY=KEY) == {"probes": []}
        assert run([sys.executable, "-c", action.python(there.url, key=True)], tmp_path, NNCLR_API_KEY=KEY) == "[]\n"


@pytest.mark.browser
def test_a_button_copies(opened, served):
    page = opened("Search")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    wait_for(page, "24 of the 60")
    wait_for_images(page, "#tiles img")
    open_tab(page, "API")
    page.wait_for_selector("#api-code pre")
    page.locator("#api-code button").first.click()
    page.wait_for_selector("#api-code button:has-text('Copied')")
    assert page.evaluate("navigator.clipboard.readText()") == page.locator("#api-code pre").first.text_content()
