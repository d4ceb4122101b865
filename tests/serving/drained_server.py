"""A server for tests of the shutdown. Arguments: PORT STORE SECONDS_PER_IMAGE IMAGES_TO_WAIT_FOR DRAIN_S."""

import sys
import time

from fake_encoder import FakeEncoder

from nnclr_hub.store import open_store
from nnclr_hub.workbench import Workbench
from serving.api import create_app
from serving.models import Engines
from serving.run import run
from serving.settings import Settings

port, folder, seconds, image_count = int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
drain_s = float(sys.argv[5])
WARM_UP = 2  # batches
settings = Settings(port=port, max_batch=1, decode_threads=2, drain_s=drain_s)


def load(_: str) -> FakeEncoder:
    encoder = FakeEncoder()

    def slow() -> None:
        if not engines.in_work:
            return  # the warm-up takes no permit
        while len(encoder.batches) == WARM_UP + 1 and engines.in_work < image_count:
            time.sleep(0.01)
        print("begun", flush=True)  # noqa: T201
        time.sleep(seconds)

    encoder.before = slow
    return encoder


engines = Engines("fake", settings, load=load)
with open_store(folder) as store:
    try:
        run(create_app(settings, engines, Workbench(engines, store)), settings)
    finally:
        engines.close()
print("closed", flush=True)  # noqa: T201
