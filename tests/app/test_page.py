"""What a mounted Gradio app must not give away, asked as by a client that ignores the page."""

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import gradio as gr
import httpx
import pytest
from gradio.state_holder import SessionState
from page_calls import call, events, get, post

from nnclr_hub.store import open_store
from nnclr_hub.workbench import Encoders, Workbench

READER = "reader-0123456789abcdef"
WRITER = "writer-0123456789abcdef"


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def store(model, photos, tmp_path_factory) -> Path:
    """A store with the photos in a collection; for those who copy it."""
    folder = tmp_path_factory.mktemp("page") / "store"
    with open_store(str(folder)) as opened:
        Workbench(Encoders(str(model), device="cpu"), opened).index_folder("photos", photos)
    return folder


@pytest.fixture(scope="module")
def served(model, store, tmp_path_factory, serve) -> Iterator:
    """A server with the page behind keys."""
    keys = {"api_keys": (f"phone:{READER}",), "write_keys": (f"desk:{WRITER}",)}
    own = shutil.copytree(store, tmp_path_factory.mktemp("keys") / "store")
    yield from serve(model, own, page=True, **keys)


def upload(url: str, path: Path, headers: dict[str, str]) -> dict:
    files = {"files": (path.name, path.read_bytes())}
    [there] = post(f"{url}/ui/gradio_api/upload", files=files, headers=headers).json()
    return {"path": there, "meta": {"_type": "gradio.FileData"}}


def test_without_a_key_there_is_nothing(served):
    """Neither the page, nor its settings, nor any of its endpoints, by either way to call them."""
    names = {event["api_name"] for event in events(served.url, bearer(READER))}
    assert {"start", "upload", "open", "delete"} <= names
    body = {"data": [], "fn_index": 0, "session_hash": "s"}
    for path in ("queue/join", "run/predict", "upload", "reset", "cancel", *(f"call/{n}" for n in names)):
        answer = post(f"{served.url}/ui/gradio_api/{path}", json=body)
        assert answer.status_code == 401, path
    for path in ("config", "gradio_api/info", "gradio_api/heartbeat/s", "gradio_api/queue/data", "theme.css", "token"):
        assert get(f"{served.url}/ui/{path}").status_code == 401, path


def test_what_a_browser_loads_first_does_not_describe_the_events_as_an_api(served):
    """Which nobody reads there, and which was a third of it."""
    page = get(f"{served.url}/ui/", headers=bearer(READER)).text
    assert 'gradio_api_info = {"named_endpoints":{},"unnamed_endpoints":{}}' in page


def test_every_event_takes_whatever_it_is_sent(served):
    """Each endpoint with nothing, with nonsense and with far too much: an answer, and never a traceback."""
    for event in events(served.url, bearer(READER)):
        for value in (None, "x" * 2000, -1e9, {"a": [1]}, [["x"]]):
            data = [value] * len(event["inputs"])
            body = {"data": data, "fn_index": event["id"], "session_hash": "s", "event_data": {"id": value}}
            answer = post(f"{served.url}/ui/gradio_api/run/predict", json=body, headers=bearer(READER), timeout=60)
            assert answer.status_code in (200, 400, 422, 500), event["api_name"]
            assert "Traceback" not in answer.text
            assert "/site-packages/" not in answer.text


@pytest.mark.parametrize("way", ["run/predict", "call", "queue/join"])
def test_server_files_are_not_given_away(served, tmp_path, way):
    """A path in place of an upload is refused by each way to an event, and the file route gives nothing out."""
    secret = tmp_path / "secret.png"
    secret.write_bytes(b"the secret")
    file = {"path": str(secret), "meta": {"_type": "gradio.FileData"}}
    event = next(one for one in events(served.url, bearer(READER)) if one["api_name"] == "upload")
    body = {"data": [file, None, None, 5], "fn_index": event["id"], "session_hash": "s"}
    url = f"{served.url}/ui/gradio_api/{way}" + ("/upload" if way == "call" else "")
    answer = post(url, json=body, headers=bearer(READER))
    assert "the secret" not in answer.text
    copies = [path for path in upload_folder().rglob("*") if path.is_file() and path.read_bytes() == b"the secret"]
    assert copies == []
    given = get(f"{served.url}/ui/gradio_api/file={secret}", headers=bearer(READER))
    assert given.status_code in (403, 404)


def upload_folder() -> Path:
    return Path(os.environ["GRADIO_TEMP_DIR"])


def test_addresses_are_not_fetched_for_clients(served):
    """No look-up leaves this server, by the routes nor by an address in place of an upload."""
    asked = []
    with pytest.MonkeyPatch.context() as patched:
        real = socket.getaddrinfo
        patched.setattr(socket, "getaddrinfo", lambda host, *a, **k: asked.append(host) or real("127.0.0.1", *a, **k))
        for path in (
            "file=http://photos.example/x",
            "file=https://photos.example/x",
            "proxy=http://photos.example/x",
            "file%3Dhttp://photos.example/x",
            "file%253Dhttp://photos.example/x",
            "file/http://photos.example/x",
            "FILE=http://photos.example/x",
        ):
            given = get(f"{served.url}/ui/gradio_api/{path}", headers=bearer(READER))
            assert given.status_code in (403, 404), path
        file = {"path": "http://photos.example/a.jpg", "meta": {"_type": "gradio.FileData"}}
        answer = call(served.url, "upload", [file, None, None, 5], bearer(READER))
    assert answer.status_code != 200
    assert "photos.example" not in asked


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "process_recording"),
        ("GET", "deep_link?session_hash=a"),
        ("POST", "vibe-edit"),
        ("GET", "dev/reload"),
        ("GET", "openapi.json"),
        ("GET", "stream/a/b/1/playlist.m3u8"),
        ("POST", "component_server"),
    ],
)
def test_what_the_page_does_not_use_is_not_there(served, method, path):
    answer = httpx.request(method, f"{served.url}/ui/gradio_api/{path}", headers=bearer(WRITER), verify=False)
    assert (answer.status_code, answer.text) == (404, "The page has nothing here.")


def test_a_key_that_reads_searches_and_deletes_nothing(served, pictures):
    """One that may write does: what is asked for is the scope, as REST asks for it."""
    file = upload(served.url, pictures[5], bearer(READER))
    session = {"session_hash": "both"}
    link = "collection=photos&k=3"
    assert "3 of the 60" in call(served.url, "start", [link, None, None], bearer(READER), **session).text
    assert "3 most similar" in call(served.url, "upload", [file, None, None, 3], bearer(READER), **session).text
    [item] = served.bench.collection("photos").scroll(limit=1).items
    erase = {"event_data": {"ids": [item.id]}} | session
    refused = call(served.url, "delete", [None, None], bearer(READER), **erase)
    assert "This key may read but not write" in refused.text
    assert served.bench.collection("photos").count() == 60
    done = call(served.url, "delete", [None, None], bearer(WRITER), **erase)
    assert done.status_code == 200, done.text
    assert served.bench.collection("photos").count() == 59


def test_the_rates_of_rest_hold_for_the_page(model, store, tmp_path, serve, pictures):
    """Images that an event embeds count as those of a request do."""
    key = (f"phone:{READER}",)
    own = shutil.copytree(store, tmp_path / "store")
    for served in serve(model, own, page=True, api_keys=key, rate_images=1):  # a bucket holds a request's 64
        file = upload(served.url, pictures[5], bearer(READER))
        session = {"session_hash": "r"}
        call(served.url, "start", ["collection=photos", None, None], bearer(READER), **session)
        search = ("upload", [file, None, None, 3], bearer(READER))
        assert "most similar" in call(served.url, *search, **session).text
        several = [("files", (path.name, path.read_bytes())) for path in [*pictures, *pictures][:63]]
        assert post(f"{served.url}/api/v1/embed", files=several, headers=bearer(READER)).status_code == 200
        refused = call(served.url, *search, **session)
        assert "images a minute" in refused.text


def test_a_read_only_page_has_no_event_that_writes(model, store, serve):
    for served in serve(model, store, page=True, read_only=True):
        names = {event["api_name"] for event in events(served.url)}
        assert "upload" in names
        assert "delete" not in names


def test_an_empty_store_says_what_to_do(model, tmp_path, serve):
    for served in serve(model, tmp_path / "store", page=True):
        assert "Make a collection" in call(served.url, "start", ["", None, None]).text


def test_the_offline_gallery_is_made_of_photos_that_are_installed(tmp_path):
    from app.gallery import PHOTOS, offline_gallery

    folder = offline_gallery(tmp_path / "photos")
    assert sorted(path.name for path in folder.iterdir()) == sorted(PHOTOS)
    assert len(list(folder.rglob("*.jpg"))) == 25 * len(PHOTOS)
    assert offline_gallery(Path(folder)) == folder


def test_a_download_that_fails_falls_back_to_the_photos(tmp_path, monkeypatch):
    from app import gallery

    def cut_off(*_, **__):
        (tmp_path / "imagenette2-160" / "val").mkdir(parents=True)
        raise RuntimeError("the connection broke")

    monkeypatch.setattr(gallery, "_reachable", lambda: True)
    monkeypatch.setattr("torchvision.datasets.Imagenette", cut_off)
    folder, told = gallery.default_gallery(tmp_path)
    assert folder == tmp_path / "photos"
    assert "no network" in told


def test_a_visitor_costs_no_description_of_all_components(served):
    """Which Gradio would make for each of them, on the event loop; the layout's descriptions are all there."""
    with gr.Blocks() as demo:
        gr.Textbox(elem_id="words")
    assert not any(SessionState(demo).config_values.values())
    assert "words" in [one["props"].get("elem_id") for one in demo.get_config_file()["components"]]
