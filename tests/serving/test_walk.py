"""A search by image runs through few files: a reader of its way must be able to hold them all in mind."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST = 24  # files; the decoding process is a separate program, which is not counted
SEARCH = """
import io, sys, threading, time
from PIL import Image

ours, walked, on = sys.argv[1] + "/", set(), False

def profile(frame, event, argument):
    name = frame.f_code.co_filename
    if on and event == "call" and name.startswith(ours) and "/.venv/" not in name:
        walked.add(name.removeprefix(ours))

sys.setprofile(profile)
threading.setprofile(profile)
from starlette.testclient import TestClient
from serving.api import opened_app
from serving.settings import Settings

image = io.BytesIO()
Image.new("RGB", (160, 120), "teal").save(image, "JPEG")
file = ("a.jpg", image.getvalue(), "image/jpeg")
with opened_app(Settings(backend="onnx"), sys.argv[2], None) as app, TestClient(app, "http://127.0.0.1") as client:
    while client.get("/readyz").status_code != 200:
        time.sleep(0.05)
    client.put("/api/v1/collections/photos", json={}).raise_for_status()
    client.post("/api/v1/collections/photos/items", files={"files": file}).raise_for_status()
    for on in (False, False, True):
        found = client.post("/api/v1/collections/photos/search", files={"image": file}).json()
    on = False
assert len(found["matches"]) == 1, found
print("\\n".join(sorted(walked)))
"""


def test_a_search_by_image_walks_few_files(tmp_path):
    command = [sys.executable, "-c", SEARCH, str(ROOT), str(tmp_path / "store")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    files = done.stdout.split()
    assert {"serving/routes/search.py", "serving/engine.py", "nnclr_hub/store/index/state.py"} <= set(files)
    assert len(files) <= MOST, files
