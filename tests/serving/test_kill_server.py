"""kill -9 during uploads over HTTP: acknowledged images exist exactly once, and clients continue after the restart."""

import random
import shutil
import threading
import time

import pytest
from PIL import Image
from server_process import ServerProcess

from nnclr_hub import Client
from nnclr_hub.store import open_store
from nnclr_hub.workbench import NewImage

WRITERS = 3
IDS = 40
BATCH = 6


class Writers:
    """Upload new and changed images without end. Each writer has separate ids, so that each id has one history.

    acknowledged: the last version of each id that the server confirmed.
    """

    def __init__(self, url: str, image_files: list[bytes], seed: int) -> None:
        self.acknowledged: dict[str, int] = {}
        self.failure: Exception | None = None
        self._url, self._images = url, image_files
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        # a client is patient with a server that has answered it once
        self._answered = threading.Barrier(WRITERS + 1, timeout=60)
        self._threads = [
            threading.Thread(target=self._write, args=(i, random.Random(f"{seed} {i}"))) for i in range(WRITERS)
        ]
        for thread in self._threads:
            thread.start()
        self._answered.wait()

    def confirmed(self) -> dict[str, int]:
        with self._lock:
            return dict(self.acknowledged)

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        if self.failure is not None:
            raise self.failure

    def _write(self, writer: int, rng: random.Random) -> None:
        try:
            with Client(self._url, timeout=120) as client:
                collection = client.collection("photos")
                collection.count()
                self._answered.wait()
                version = 0
                while not self._stopping.is_set():
                    version += 1
                    ids = [f"w{writer}-{n}" for n in rng.sample(range(IDS), BATCH)]
                    errors = collection.add_images(
                        [NewImage(id, rng.choice(self._images), {"version": version}) for id in ids]
                    )
                    assert errors == [None] * BATCH
                    with self._lock:
                        self.acknowledged |= dict.fromkeys(ids, version)
        except Exception as error:  # noqa: BLE001 - stop() raises it in the test
            self.failure = error


def held(client: Client) -> dict[str, int]:
    """Return versions by id, listed in pages; fail if an id appears twice."""
    pages = client.collection("photos").pages(limit=50, with_vector=False)
    found = [(item.id, item.metadata["version"]) for page in pages for item in page]
    versions = dict(found)
    assert len(versions) == len(found)
    return versions


def rounds(server: ServerProcess, image_files: list[bytes], count: int, seed: int) -> None:
    rng = random.Random(seed)
    with Client(server.url, timeout=60) as client:
        client.create_collection("photos")
        writers = Writers(server.url, image_files, seed)
        try:
            for _ in range(count):
                heard = len(writers.confirmed())
                end = time.monotonic() + 60
                while len(writers.confirmed()) == heard < WRITERS * IDS and time.monotonic() < end:
                    time.sleep(0.01)
                time.sleep(rng.uniform(0, 0.5))
                server.kill()
                before = writers.confirmed()
                assert before
                server.start()
                now = held(client)
                missing = {id: version for id, version in before.items() if now.get(id, -1) < version}
                assert not missing, f"acknowledged but lost: {missing}"
        finally:
            writers.stop()
        # every upload has been answered by now, by one process or another
        assert held(client) == writers.acknowledged
        assert client.collection("photos").count() == len(writers.acknowledged)


def check_store(path) -> None:
    """Check that a reader finds the store whole, and the same items by search and by listing."""
    with open_store(str(path)) as store:
        collection = store.get("photos")
        assert collection.verify().ok
        items = [item for page in collection.pages() for item in page]
        found = collection.search(items[0].vector, k=len(items), exact=True)
        assert {match.id for match in found} == {item.id for item in items}


@pytest.fixture
def files(image_files) -> list[bytes]:
    return [path.read_bytes() for path in image_files[:12]]


@pytest.mark.slow
def test_kills_lose_nothing_and_a_folder_upload_survives_them(model, files, photos, tmp_path):
    """Kill during mixed uploads, then during the upload of a folder, which continues with the next process."""
    folder = shutil.copytree(photos, tmp_path / "photos")
    for i, path in enumerate(sorted(photos.rglob("*.jpg"))):
        Image.open(path).rotate(90).save(folder / path.parent.name / f"more-{i}.png")
    reached = threading.Event()
    reports = []

    def advance(done: int, total: int) -> None:
        if done >= total / 4:
            reached.set()

    with ServerProcess(tmp_path / "store", model=str(model)) as server, Client(server.url, timeout=120) as client:
        rounds(server, files, 5, seed=1)
        client.create_collection("folder")
        collection = client.collection("folder")
        upload = threading.Thread(target=lambda: reports.append(collection.index_folder(folder, progress=advance)))
        upload.start()
        assert reached.wait(60)
        server.kill()
        server.start()
        upload.join()
        assert (reports[0].added, reports[0].broken) == (120, ())
        assert collection.count() == 120
        assert collection.index_folder(folder).unchanged == 120
        assert server.terminate() == 0
    check_store(tmp_path / "store")
