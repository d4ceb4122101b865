"""What each step that writes notes for the API tab: itself, and not the list that is shown after it."""

import shutil
from types import SimpleNamespace

import pytest

from app.actions import Action, collection_path, deletion
from app.additions import Additions, name_of, new_name
from app.page import GIVEN_BY, Page, Terms
from app.query import Query
from app.collection_handlers import CollectionPage, CollectionHandlers
from app.search_handlers import SearchHandlers
from nnclr_hub.store import open_store
from nnclr_hub.workbench import Encoders, Workbench


class Noting(Page):
    """Keeps what was noted last."""

    last_noted: Action | None = None

    def did(self, action: Action) -> None:
        self.last_noted = action


@pytest.fixture
def page(model, photos, tmp_path):
    with open_store(str(tmp_path / "store")) as store:
        bench = Workbench(Encoders(str(model), device="cpu"), store)
        bench.index_folder("photos", photos)
        yield Noting(bench)


def ids(page: Noting) -> list[str]:
    return [item.id for item in page.bench.collection("photos").scroll(limit=10).items]


def test_making_and_dropping_a_collection_stand_there(page):
    shelves = CollectionHandlers(page)
    shelves.create("mine")
    assert page.last_noted == Action(
        "PUT", "/api/v1/collections/mine", json={}, call="client.collections.create('mine')"
    )
    shelves.drop("mine")
    assert page.last_noted == Action("DELETE", "/api/v1/collections/mine", call="client.collections.drop('mine')")


@pytest.mark.parametrize("number", [1, 3])
def test_a_deletion_on_the_shelf_stands_there_with_all_that_it_deleted(page, number):
    gone = ids(page)[:number]
    CollectionHandlers(page).delete(CollectionPage("photos"), gone)
    assert page.last_noted == deletion("photos", gone)
    assert page.last_noted.call == f"client.collection('photos').delete({gone!r})"
    assert page.last_noted.path == (f"{collection_path('photos')}/items/{gone[0]}" if number == 1 else "")


def test_a_deletion_among_the_hits_stands_there(page):
    gone = ids(page)[:2]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("app.search_handlers.gr.Info", lambda text: None)
        SearchHandlers(page).delete(Query("photos"), {}, SimpleNamespace(ids=gone))  # type: ignore[arg-type]
    assert page.last_noted == deletion("photos", gone)


class Taking:
    """Jobs that are taken and never done."""

    def __init__(self) -> None:
        self.params: list[dict] = []

    def submit(self, kind, params, input=None) -> None:
        self.params.append(params)


def test_files_that_are_given_stand_there_all_of_them(page, pictures, tmp_path, monkeypatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    files = []
    for path in pictures[:5]:
        shutil.copy(path, tmp_path / path.name)
        files.append({"name": f"{path.parent.name}/{path.name}", "parts": [str(tmp_path / path.name)]})
    page.jobs = Taking()
    Additions(page).add("photos", files, None)
    assert page.last_noted.path == "/api/v1/collections/photos/items"
    assert page.last_noted.files == tuple(("files", one["name"]) for one in files)
    assert page.last_noted.form == {"items": [{"metadata": {"label": "astronaut"}}] * 5}


def test_a_folder_that_is_added_stands_there_below_the_servers(page, photos):
    page.terms, page.jobs = Terms(source_folders=(photos,)), Taking()
    Additions(page).add_folder("photos", photos.name, "cat", None)
    assert page.last_noted.path == "/api/v1/collections/photos/index"
    assert page.last_noted.json == {"source": photos.name, "folder": "cat"}
    assert page.jobs.params == [{"collection": "photos", "root": str(photos), "folder": "cat", "given_by": None}]


def test_a_browser_is_told_its_own_jobs_under_a_name_of_its_own(page):
    """However many there are: a folder of 60,000 images becomes more than a hundred."""
    mine, theirs = new_name(), new_name()
    ids = [f"{i:014x}" for i in range(300)]
    jobs = [SimpleNamespace(id=id, params={GIVEN_BY: (mine, theirs)[int(id, 16) % 2]}) for id in reversed(ids)]
    page.jobs = SimpleNamespace(list=lambda limit: (jobs[:limit], None))
    assert Additions(page).jobs(mine) == ids[::2]
    assert Additions(page).jobs(None) == []
    assert name_of(mine) == mine
    assert [name_of(wrong) for wrong in (None, "", 7, {"a": 1}, mine + "0", "../../../../../../../../../../a")] == [
        None
    ] * 6


def test_the_only_folder_of_a_server_needs_no_name(page, photos):
    """As a client sends it that ignores the page."""
    page.terms, page.jobs = Terms(source_folders=(photos,)), Taking()
    Additions(page).add_folder("photos", None, "cat", None)
    assert page.last_noted.json == {"source": None, "folder": "cat"}
    assert page.last_noted.call.endswith("index_there('cat', source=None)")


def test_pages_are_listed_up_to_the_one_that_is_shown(page):
    shelves = CollectionHandlers(page)
    shelf = shelves.choose("photos")[1]
    assert page.last_noted.path == "/api/v1/collections/photos/items?limit=24"
    shelves.next(shelf)
    assert page.last_noted.path == "/api/v1/collections/photos/items?limit=48"


def test_what_nobody_did_is_not_noted(page):
    """The end of a job draws the shelf anew."""
    CollectionHandlers(page).refresh(CollectionPage("photos"), None)
    assert page.last_noted is None
