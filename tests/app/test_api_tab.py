"""The API tab: what it shows runs as it stands, and finds what the page found."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from browsing import PHONE, open_tab, wait_for, wait_for_pictures

import nnclr_hub
from app.actions import Action
from app.finding import Finder
from app.looking import why
from app.page import Page
from app.probing import fit_folders_action, predict_action
from app.queries import Query, Sample, action_of
from app.snippets import curl, python
from app.tabs.attention import Look, Ways, attention_action
from nnclr_hub.store import open_store
from nnclr_hub.store.base import Item
from nnclr_hub.workbench import Encoders, Workbench

KEY = "writer-0123456789abcdef"
OWN = "it's; a.jpg"


@pytest.fixture(scope="module")
def served(model, photos, tmp_path_factory, serve) -> Iterator:
    folder = tmp_path_factory.mktemp("api") / "store"
    with open_store(str(folder)) as opened:
        bench = Workbench(Encoders(str(model), device="cpu"), opened)
        bench.index_folder("photos", photos)
        bench.fit_probe("things", "photos", "label")
    yield from serve(model, folder, page=True)


def run(command: list[str], folder: Path, **variables: str) -> str:
    """What it prints; where the library is found, and with nothing else of ours."""
    root = str(Path(nnclr_hub.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": root} | variables
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def in_shell(text: str, folder: Path, **variables: str) -> dict:
    return json.loads(run(["sh", "-c", text], folder, **variables))


@pytest.mark.browser
def test_a_search_stands_there_and_both_ways_of_it_find_the_same(opened, served, pictures, tmp_path):
    (tmp_path / "own.jpg").write_bytes(pictures[5].read_bytes())
    page = opened("API", **PHONE)
    open_tab(page, "Search")
    wait_for(page, "24 of the 60")
    page.set_input_files("#query input[type=file]", str(tmp_path / "own.jpg"))
    wait_for(page, "24 most similar")
    found = page.locator("#tiles .tile").evaluate_all("tiles => tiles.map(one => one.dataset.id)")
    open_tab(page, "API")
    wait_for(page, "own.jpg", "#api-code")
    shell, program = page.locator("#api-code pre").all_inner_texts()
    assert served.url in shell
    assert [one["id"] for one in in_shell(shell, tmp_path)["matches"]] == found
    printed = run([sys.executable, "-c", program], tmp_path)
    assert [printed.index(repr(id)) for id in found] == sorted(printed.index(repr(id)) for id in found)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def actions(served, pictures) -> list[Action]:
    """One of each shape: a list, by an item, by a picture and a box, by several, by a picture that only
    the server has and a box on one, odd quotes, a map, why, fits."""
    [first, second, *_] = (item.id for item in served.bench.collection("photos").scroll(limit=2).items)
    finder = Finder(Page(served.bench))
    lent = finder.embedded("photos", Sample(path=pictures[5], name="chelsea.png", box=(2, 2, 30, 30), lent=True))
    boxed = finder.embedded("photos", Sample(id=first, box=(2, 2, 30, 30)))
    where = {"must_not": [{"key": "label", "match": 'it\'s; "so" $HOME `id` é'}]}
    items = [{"label": "ab"[i % 2], "vector": [float(i), 1.0, 0.5]} for i in range(6)]
    return [
        action_of(Query("photos", where=where)),
        action_of(Query("photos", more=(Sample(id=first),), where=where)),
        action_of(
            Query("photos", more=(Sample(path=pictures[5], name="it's; a.jpg", box=(2, 2, 30, 30)),), where=where)
        ),
        action_of(Query("photos", more=(Sample(id=first), Sample(id=second)), less=(Sample(id=second),))),
        action_of(Query("photos", more=(lent,))),
        action_of(Query("photos", more=(boxed,))),
        predict_action("things", OWN),
        attention_action(Look(name=OWN, point=(3, 4), others=(Path(OWN),)), Ways("cosine", None, None)),
        why(served.bench, finder, Query("photos", more=(Sample(id=first),)), second)[1],
        fit_folders_action("folders", True, at_once=True),
        Action("POST", "/api/v1/probes", json={"name": "abc", "items": items, "replace": True}),
    ]


def test_each_shape_of_a_call_runs_as_it_stands(served, pictures, tmp_path):
    (tmp_path / OWN).write_bytes(pictures[5].read_bytes())
    for path in (*pictures[:3], *pictures[-3:]):
        (tmp_path / path.parent.name).mkdir(exist_ok=True)
        shutil.copy(path, tmp_path / path.parent.name)
    for action in actions(served, pictures):
        answer = in_shell(curl(action, served.url), tmp_path)
        assert "status" not in answer or answer.get("kind"), (action, answer)
    programs = "\n".join(python(action, served.url) for action in actions(served, pictures))
    printed = run([sys.executable, "-W", "error", "-W", "ignore::ResourceWarning", "-c", programs], tmp_path)
    assert len(printed.splitlines()) >= 11
    assert (tmp_path / "map-0.png").is_file()


def test_a_box_finds_the_same_on_a_picture_that_only_the_server_has(served, tmp_path):
    finder = Finder(Page(served.bench))
    [first] = (item.id for item in served.bench.collection("photos").scroll(limit=1).items)
    query = Query("photos", more=(finder.embedded("photos", Sample(id=first, box=(20, 20, 90, 90))),))
    found = [match.id for match in finder.find(query).hits]
    assert [one["id"] for one in in_shell(curl(action_of(query), served.url), tmp_path)["matches"]] == found


def test_why_says_what_it_looks_for_and_its_call_has_that_box(served):
    """The part of the box that lies on the picture, of the first example that has one."""
    there = served.bench.collection("photos")
    [first, second] = there.scroll(limit=2).items
    finder = Finder(Page(served.bench))
    there.upsert([Item("bare", first.vector)])
    try:
        samples = (Sample(id="bare"), Sample(id=first.id, box=(-9, -9, 30, 5000)))
        boxed, action = why(served.bench, finder, Query("photos", more=samples), second.id)
        height = finder.picture("photos", samples[1]).height
        assert action.form["query"]["box"] == [0, 0, 30, height]
        assert "your box (example 2 of 2)" in boxed["note"]
        whole, _ = why(served.bench, finder, Query("photos", more=(Sample(id=first.id),)), second.id)
        assert "what it sees in the picture that you chose" in whole["note"]
    finally:
        served.bench.delete("photos", ["bare"])


def test_a_key_is_taken_from_the_environment_and_never_shown(model, tmp_path, serve):
    for there in serve(model, tmp_path / "store", write_keys=(f"desk:{KEY}",)):
        action = Action("GET", "/api/v1/probes", call="client.probes.list()")
        for text in (curl(action, there.url, key=True), python(action, there.url, key=True)):
            assert KEY not in text
        assert in_shell(curl(action, there.url, key=True), tmp_path, NNCLR_API_KEY=KEY) == {"probes": []}
        assert run([sys.executable, "-c", python(action, there.url, key=True)], tmp_path, NNCLR_API_KEY=KEY) == "[]\n"


@pytest.mark.browser
def test_a_button_copies(opened, served):
    page = opened("Search")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    wait_for(page, "24 of the 60")
    wait_for_pictures(page, "#tiles img")
    open_tab(page, "API")
    page.wait_for_selector("#api-code pre")
    page.locator("#api-code button").first.click()
    page.wait_for_selector("#api-code button:has-text('Copied')")
    assert page.evaluate("navigator.clipboard.readText()") == page.locator("#api-code pre").first.text_content()
