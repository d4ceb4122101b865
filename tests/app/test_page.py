"""What a mounted Gradio app must not expose, requested as by a client other than the page."""

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
    """A store with the photos in a collection; tests that write copy it."""
    folder = tmp_path_factory.mktemp("page") / "store"
    with open_store(str(folder)) as opened:
        Workbench(Encoders(str(model), device="cpu"), opened).index_folder("photos", photos)
    return folder


@pytest.fixture(scope="module")
def served(model, store, tmp_path_factory, serve) -> Iterator:
    """A server with the page, which requires keys."""
    keys = {"api_keys": (f"phone:{READER}",), "write_keys": (f"desk:{WRITER}",)}
    own = shutil.copytree(store, tmp_path_factory.mktemp("keys") / "store")
    yield from serve(model, own, page=True, **keys)


def upload(url: str, path: Path, headers: dict[str, str]) -> dict:
    files = {"files": (path.name, path.read_bytes())}
    [uploaded] = post(f"{url}/ui/gradio_api/upload", files=files, headers=headers).json()
    return {"path": uploaded, "meta": {"_type": "gradio.FileData"}}


def test_nothing_is_available_without_a_key(served):
    names = {event["api_name"] for event in events(served.url, bearer(READER))}
    assert {"start", "upload", "open", "delete"} <= names
    body = {"data": [], "fn_index": 0, "session_hash": "s"}
    for path in ("queue/join", "run/predict", "upload", "reset", "cancel", *(f"call/{n}" for n in names)):
        answer = post(f"{served.url}/ui/gradio_api/{path}", json=body)
        assert answer.status_code == 401, path
    for path in ("config", "gradio_api/info", "gradio_api/heartbeat/s", "gradio_api/queue/data", "theme.css", "token"):
        assert get(f"{served.url}/ui/{path}").status_code == 401, path


def test_the_first_response_does_not_describe_the_events(served):
    """The description would be a third of it, and nobody reads it."""
    page = get(f"{served.url}/ui/", headers=bearer(READER)).text
    assert 'gradio_api_info = {"named_endpoints":{},"unnamed_endpoints":{}}' in page


def test_every_event_survives_arbitrary_values(served):
    for event in events(served.url, bearer(READER)):
        for value in (None, "x" * 2000, -1e9, {"a": [1]}, [["x"]]):
            data = [value] * len(event["inputs"])
            body = {"data": data, "fn_index": event["id"], "session_hash": "s", "event_data": {"id": value}}
            answer = post(f"{served.url}/ui/gradio_api/run/predict", json=body, headers=bearer(READER), timeout=60)
            assert answer.status_code in (200, 400, 422, 500), event["api_name"]
            assert "Traceback" not in answer.text
            assert "/site-packages/" not in answer.text


@pytest.mark.parametrize("way", ["run/predict", "call", "queue/join"])
def test_files_of_the_server_cannot_be_read(served, tmp_path, way):
    """Neither through a path in place of an upload, nor through the file route."""
    secret = tmp_path / "secret.png"
    secret.write_bytes(b"the secret")
    file = {"path": str(secret), "meta": {"_type": "gradio.FileData"}}
    event = next(one for one in events(served.url, bearer(READER)) if one["api_name"] == "upload")
    body = {"data": [file, None, None, 5], "fn_index": event["id"], "session_hash": "s"}
    url = f"{served.url}/ui/gradio_api/{way}" + ("/upload" if way == "call" else "")
    assert "the secret" not in post(url, json=body, headers=bearer(READER)).text
    uploads = Path(os.environ["GRADIO_TEMP_DIR"]).rglob("*")
    assert [path for path in uploads if path.is_file() and path.read_bytes() == b"the secret"] == []
    answer = get(f"{served.url}/ui/gradio_api/file={secret}", headers=bearer(READER))
    assert answer.status_code in (403, 404)


def test_the_server_does_not_fetch_web_addresses(served):
    """Neither through a route, nor through an address in place of an upload."""
    hosts = []
    with pytest.MonkeyPatch.context() as patched:
        real = socket.getaddrinfo
        patched.setattr(socket, "getaddrinfo", lambda host, *a, **k: hosts.append(host) or real("127.0.0.1", *a, **k))
        for prefix in ("file=", "proxy=", "file%3D", "file%253D", "file/", "FILE="):
            for scheme in ("http", "https"):
                path = f"{prefix}{scheme}://photos.example/x"
                answer = get(f"{served.url}/ui/gradio_api/{path}", headers=bearer(READER))
                assert answer.status_code in (403, 404), path
        file = {"path": "http://photos.example/a.jpg", "meta": {"_type": "gradio.FileData"}}
        answer = call(served.url, "upload", [file, None, None, 5], bearer(READER))
    assert answer.status_code != 200
    assert "photos.example" not in hosts


def test_routes_that_the_page_does_not_use_do_not_exist(served):
    for method, path in (
        ("POST", "process_recording"),
        ("GET", "deep_link?session_hash=a"),
        ("POST", "vibe-edit"),
        ("GET", "dev/reload"),
        ("GET", "openapi.json"),
        ("GET", "stream/a/b/1/playlist.m3u8"),
        ("POST", "component_server"),
    ):
        answer = httpx.request(method, f"{served.url}/ui/gradio_api/{path}", headers=bearer(WRITER), verify=False)
        assert (answer.status_code, answer.text) == (404, "Not found."), path


def test_a_reading_key_searches_and_only_a_writing_key_deletes(served, image_files):
    file = upload(served.url, image_files[5], bearer(READER))
    session = {"session_hash": "both"}
    link = "collection=photos&k=3"
    assert "3 of the 60" in call(served.url, "start", [link, None, None], bearer(READER), **session).text
    assert "3 most similar" in call(served.url, "upload", [file, None, None, 3], bearer(READER), **session).text
    [item] = served.bench.collection("photos").scroll(limit=1).items
    erase = {"event_data": {"ids": [item.id]}} | session
    assert call(served.url, "delete", [None, None], bearer(READER), **erase).status_code != 200
    assert served.bench.collection("photos").count() == 60
    done = call(served.url, "delete", [None, None], bearer(WRITER), **erase)
    assert done.status_code == 200, done.text
    assert served.bench.collection("photos").count() == 59


def test_the_rate_limits_of_rest_apply_to_the_page(model, store, tmp_path, serve, image_files):
    """An image that an event embeds counts like one of a REST request."""
    key = (f"phone:{READER}",)
    own = shutil.copytree(store, tmp_path / "store")
    for served in serve(model, own, page=True, api_keys=key, rate_images=1):  # a burst of 64 images is allowed
        file = upload(served.url, image_files[5], bearer(READER))
        session = {"session_hash": "r"}
        call(served.url, "start", ["collection=photos", None, None], bearer(READER), **session)
        search = ("upload", [file, None, None, 3], bearer(READER))
        assert call(served.url, *search, **session).status_code == 200
        several = [("files", (path.name, path.read_bytes())) for path in [*image_files, *image_files][:63]]
        assert post(f"{served.url}/api/v1/embed", files=several, headers=bearer(READER)).status_code == 200
        assert call(served.url, *search, **session).status_code != 200


def test_an_empty_store_offers_to_create_a_collection(model, tmp_path, serve):
    for served in serve(model, tmp_path / "store", page=True):
        assert "Collections tab" in call(served.url, "start", ["", None, None]).text


def test_a_session_does_not_describe_all_components(served):
    """Gradio would do so for each session, on the event loop."""
    with gr.Blocks() as demo:
        gr.Textbox(elem_id="words")
    assert not any(SessionState(demo).config_values.values())
    assert "words" in [one["props"].get("elem_id") for one in demo.get_config_file()["components"]]
