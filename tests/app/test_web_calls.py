"""The commands that the page API of the web app shows run unchanged, and have the results of the app."""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from explore_actions import found

from nnclr_hub.store import open_store
from nnclr_hub.workbench import Encoders, Workbench

pytestmark = pytest.mark.browser
KEY = "a-key-that-nobody-guesses-0123456789"
ODD = 'the "so" $HOME `id` \\ & é, {x} #1; true.jpg'
LABEL = 'it\'s "true" $HOME'


@pytest.fixture(scope="module")
def served(model, photos, tmp_path_factory, serve) -> Iterator:
    store = tmp_path_factory.mktemp("calls") / "store"
    with open_store(str(store)) as opened:
        Workbench(Encoders(str(model), device="cpu"), opened).index_folder("photos", photos)
    yield from serve(model, store, page=True, write_keys=[KEY], source_folders=[str(photos)])


def test_each_call_runs_as_curl_and_as_python(opened, served, photos, tmp_path):
    own = tmp_path / ODD
    own.write_bytes(sorted((photos / "cat").iterdir())[0].read_bytes())
    page = opened(path="/#/explore/photos", allowed=("401",))
    page.locator("dialog[open] input").fill(KEY)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_selector(".tile img")
    page.set_input_files("query-bar input[type=file]", own)  # embed, and search by a vector
    ids = found(page)
    page.locator(".sheet").focus()
    page.keyboard.press("l")
    page.get_by_role("combobox", name="Label", exact=True).fill(LABEL)
    page.get_by_role("button", name="Label", exact=True).last.click()  # PATCH
    page.wait_for_selector(".message")
    page.locator(".sheet").focus()
    page.keyboard.press("v")
    page.wait_for_selector(".neighbors li")
    with page.expect_response("**/attention"):
        page.get_by_role("button", name="Where it looks").click()  # a form with a downloaded image
    page.keyboard.press("Escape")
    page.get_by_role("link", name="API").click()
    page.wait_for_selector("pre")
    titles = page.locator("article h3").all_inner_texts()
    assert [title.split("/")[-1] for title in titles] == ["attention", "items", "search", "embed"]
    environment = {"NNCLR_API_KEY": KEY, "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    for text in page.get_by_label("curl").all_inner_texts():
        done = subprocess.run(["sh", "-c", text], cwd=tmp_path, env=environment, capture_output=True, text=True)
        answer = json.loads(done.stdout)
        assert "code" not in answer, (text, answer)
        if "matches" in answer:
            assert [one["id"] for one in answer["matches"]][: len(ids)] == ids
    programs = "\n".join(page.get_by_label("Python").all_inner_texts())
    done = subprocess.run(
        [sys.executable, "-c", programs], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 4), done.stderr
    assert served.bench.collection("photos").get(ids[:1])[0].metadata["label"] == LABEL
