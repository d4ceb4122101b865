"""Each handler that writes records its own REST call, not that of the list that is shown afterwards."""

import shutil
from types import SimpleNamespace

import pytest

from app.additions import Additions, new_browser_name, read_browser_name
from app.api_calls import collection_path, delete_call
from app.collection_handlers import CollectionHandlers, CollectionPage
from app.page import GIVEN_BY, Page, PageSettings
from app.query import Query
from app.search_handlers import SearchHandlers
from nnclr_hub.client.call_examples import ApiCall
from nnclr_hub.store import open_store
from nnclr_hub.workbench import Encoders, Workbench


class RecordingPage(Page):
    """A page that keeps the last recorded call."""

    last: ApiCall | None = None

    def note(self, call: ApiCall) -> None:
        self.last = call


@pytest.fixture
def page(model, photos, tmp_path):
    with open_store(str(tmp_path / "store")) as store:
        bench = Workbench(Encoders(str(model), device="cpu"), store)
        bench.index_folder("photos", photos)
        yield RecordingPage(bench)


def test_creating_and_dropping_a_collection_are_recorded(page):
    handlers = CollectionHandlers(page)
    handlers.create("mine")
    assert (page.last.method, page.last.path) == ("PUT", "/api/v1/collections/mine")
    assert page.last.call == "client.collections.create('mine')"
    handlers.drop("mine")
    assert (page.last.method, page.last.path) == ("DELETE", "/api/v1/collections/mine")
    assert page.last.call == "client.collections.drop('mine')"


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("tab", ["Collections", "Search"])
def test_a_deletion_is_recorded_with_all_ids(page, monkeypatch, tab, number):
    ids = [item.id for item in page.bench.collection("photos").scroll(limit=number).items]
    if tab == "Collections":
        CollectionHandlers(page).delete(CollectionPage("photos"), ids)
    else:
        monkeypatch.setattr("app.search_handlers.gr.Info", lambda text: None)
        SearchHandlers(page).delete(Query("photos"), {}, SimpleNamespace(ids=ids))  # type: ignore[arg-type]
    assert page.last == delete_call("photos", ids)
    assert page.last.call == f"client.collection('photos').delete({ids!r})"
    assert page.last.path == (f"{collection_path('photos')}/items/{ids[0]}" if number == 1 else "")


class QueuedJobs:
    """A job queue that never runs a job."""

    def __init__(self) -> None:
        self.params: list[dict] = []

    def submit(self, kind, params, input=None) -> None:
        self.params.append(params)


def test_adding_files_is_recorded_with_their_labels(page, image_files, tmp_path, monkeypatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    files = []
    for path in image_files[:5]:
        shutil.copy(path, tmp_path / path.name)
        files.append({"name": f"{path.parent.name}/{path.name}", "parts": [str(tmp_path / path.name)]})
    page.jobs = QueuedJobs()
    Additions(page).add("photos", files, None)
    assert page.last.path == "/api/v1/collections/photos/items"
    assert page.last.files == tuple(("files", one["name"]) for one in files)
    assert page.last.form == {"items": [{"metadata": {"label": "astronaut"}}] * 5}


@pytest.mark.parametrize("named", [True, False])
def test_adding_a_folder_is_recorded_with_its_relative_path(page, photos, named):
    """A server with a single source folder needs no name for it."""
    source = photos.name if named else None
    page.settings, page.jobs = PageSettings(source_folders=(photos,)), QueuedJobs()
    Additions(page).add_folder("photos", source, "cat", None)
    assert page.last.path == "/api/v1/collections/photos/index"
    assert page.last.json == {"source": source, "folder": "cat"}
    assert page.last.call.endswith(f"index_there('cat', source={source!r})")
    assert page.jobs.params == [{"collection": "photos", "root": str(photos), "folder": "cat", "given_by": None}]


def test_a_browser_sees_only_its_own_jobs(page):
    """Also if there are many: a folder of 60,000 images becomes more than a hundred jobs."""
    own, other = new_browser_name(), new_browser_name()
    ids = [f"{i:014x}" for i in range(300)]
    jobs = [SimpleNamespace(id=id, params={GIVEN_BY: (own, other)[int(id, 16) % 2]}) for id in reversed(ids)]
    page.jobs = SimpleNamespace(list=lambda limit: (jobs[:limit], None))
    assert Additions(page).jobs(own) == ids[::2]
    assert Additions(page).jobs(None) == []
    assert read_browser_name(own) == own
    assert not any(map(read_browser_name, (None, "", 7, {"a": 1}, own + "0", "../" * 10 + "aa")))


def test_a_list_is_recorded_up_to_the_page_that_is_shown(page):
    handlers = CollectionHandlers(page)
    shown = handlers.choose("photos")[1]
    assert page.last.target == "/api/v1/collections/photos/items?limit=24"
    handlers.next(shown)
    assert page.last.target == "/api/v1/collections/photos/items?limit=48"
    page.last = None
    handlers.refresh(shown, None)
    assert page.last is None, "a refresh at the end of a job is not an action of the user"
