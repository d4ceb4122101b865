"""Decoding processes: the same pixels as without them, limits, crashes, and nothing left behind."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import numpy as np
import pytest
from decoding_operations import (
    allocate,
    crash,
    describe,
    echo,
    exhaust,
    killed_always,
    killed_once,
    killed_while_it_answers,
    sleep,
    spin,
    spin_if_asked,
)
from hostile_images import repeated_scans
from image_bytes import encoded
from PIL import Image
from waiting import until

from nnclr_hub.encoder.preprocessing import EvalTransform, Preprocessing
from nnclr_hub.errors import ImageError, ImageTooExpensive, ImageTooLarge, InvalidRequest, NotReady
from nnclr_hub.images.decode import decode_any, decode_image
from nnclr_hub.images.pool import DecodingLimits, DecodingPool, decoding_processes, run_isolated, run_isolated_each
from nnclr_hub.images.reading import PLAIN
from training.data.cutting import decode_reduced


@pytest.fixture
def killed():
    return []


@pytest.fixture
def pool(killed):
    made = DecodingPool(1, DecodingLimits(cpu_s=1, memory=1_000_000_000), killed.append)
    yield made
    made.close()


def jpeg(size: tuple[int, int]) -> bytes:
    pixels = np.random.default_rng(size[0]).integers(0, 255, (9, 9, 3), np.uint8)
    return encoded(Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC), "JPEG", quality=90)


def results_of(images, transform) -> list[object]:
    """Crops, squashed images and full images; or the class and message of the error."""

    def attempt(work):
        try:
            return work()
        except ImageError as error:
            return type(error), str(error)

    def reduced(image):
        pixels, *size = run_isolated(decode_reduced, image, 32, 64, PLAIN, 3)
        return pixels.tobytes(), size

    return [
        attempt(work)
        for image in images
        for work in (
            lambda image=image: transform.read(image).tobytes(),
            lambda image=image: reduced(image),
            lambda image=image: decode_image(image).tobytes(),
        )
    ]


@pytest.mark.data
def test_the_nasty_pack_gives_the_same_with_and_without_processes(pack):
    files = [path for path in sorted(pack("nasty.tar").rglob("*.*")) if path.suffix not in (".csv", ".txt")]
    images = [path if number % 2 else path.read_bytes() for number, path in enumerate(files)]
    transform = EvalTransform(Preprocessing(64, 0.875))
    here = results_of(images, transform)
    with decoding_processes(2):
        assert results_of(images, transform) == here
    assert len(files) > 180


@pytest.mark.parametrize("size", [(1601, 2001), (30, 31)])
def test_jpegs_give_the_same(size, tmp_path):
    (tmp_path / "a.jpg").write_bytes(jpeg(size))
    images = [jpeg(size), tmp_path / "a.jpg", str(tmp_path / "a.jpg")]
    transform = EvalTransform(Preprocessing(64, 1.0))
    here = results_of(images, transform)
    with decoding_processes(1):
        assert results_of(images, transform) == here


def test_errors_keep_their_class(pool):
    for source, error in [
        (b"", ImageError),
        (b"no image", ImageError),
        (Path("/no/such/file"), ImageError),
        (encoded(Image.new("1", (6400, 6400))), ImageTooLarge),
    ]:
        with pytest.raises(error):
            pool.run(decode_any, source)


# ---- limits


@pytest.mark.parametrize(
    ("operation", "error", "reasons"),
    [
        (spin, ImageTooExpensive, ["cpu"]),
        (exhaust, ImageTooExpensive, []),
        (crash, ImageError, ["crash", "crash"]),  # a second process shows that it was the image
        (killed_always, NotReady, ["crash"] * 3),
    ],
)
def test_a_bad_image_is_one_error_and_the_next_image_is_decoded(pool, killed, operation, error, reasons):
    with pytest.raises(error) as caught:
        pool.run(operation, b"")
    assert type(caught.value) is error
    assert killed == reasons
    assert pool.run(echo, b"abc")[1] == 3


def test_the_other_images_of_a_batch_arrive(pool):
    small, bad, other = pool.run_each(spin_if_asked, [b"a", b"spin", b"abc"])
    assert (small, other) == (1, 3)
    assert isinstance(bad, ImageTooExpensive)


def test_a_call_may_have_other_limits(pool):
    """Such as an import of a file, which takes longer than an image."""
    begun = time.process_time()
    with pytest.raises(ImageTooExpensive, match=r"0\.1 CPU"):
        pool.run(spin, b"", limits=DecodingLimits(0.1))
    with pytest.raises(ImageTooExpensive):
        pool.run(allocate, b"", 300_000_000, limits=DecodingLimits(memory=100_000_000))
    assert pool.run(allocate, b"", 300_000_000) == 300_000_000
    assert time.process_time() - begun < 1


def test_processes_need_no_semaphores(monkeypatch):
    """In some containers /dev/shm cannot be written, so none can be made."""

    def refuse(*_: object) -> None:
        raise OSError(13, "Permission denied")

    monkeypatch.setattr("_multiprocessing.SemLock", refuse)
    with decoding_processes(1):
        assert decode_image(jpeg((5, 5))).size == (5, 5)


def test_a_process_that_cannot_start_is_reported(monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("socket.socketpair", refuse)
    pool = DecodingPool(1)
    with pytest.raises(NotReady):  # 503: clients try again
        pool.run_each(echo, [b"a", b"b"])
    monkeypatch.undo()
    assert pool.run(echo, b"abc")[1] == 3
    pool.close()


def test_a_start_that_fails_is_repeated(monkeypatch):
    """The system may kill the process that forks the others, which multiprocessing starts again at the next attempt."""
    start, attempts = ForkServerProcess.start, []

    def fail_once(process: ForkServerProcess) -> None:
        attempts.append(1)
        if len(attempts) == 1:
            raise EOFError("unexpected EOF")
        start(process)

    monkeypatch.setattr(ForkServerProcess, "start", fail_once)
    pool = DecodingPool(1)
    assert pool.run(echo, b"abc")[1] == 3
    assert len(attempts) == 2
    pool.close()


def test_a_costly_jpeg_is_ended_by_its_limit(killed):
    with decoding_processes(1, DecodingLimits(cpu_s=0.5), killed.append), pytest.raises(ImageTooExpensive):
        decode_image(repeated_scans(85))
    assert killed == ["cpu"]


def test_ordinary_images_wait_at_most_for_the_limit_of_one(killed):
    """Bad images keep one process of two busy; ordinary ones have no error."""
    pool = DecodingPool(2, DecodingLimits(cpu_s=0.5), killed.append)
    try:
        pool.run(echo, b"a")
        with ThreadPoolExecutor(2) as threads:
            bad = [threads.submit(pool.run, spin, b"") for _ in range(2)]
            begun = time.monotonic()
            assert pool.run(echo, b"abc")[1] == 3
            assert time.monotonic() - begun < 10
            assert all(isinstance(one.exception(), ImageTooExpensive) for one in bad)
    finally:
        pool.close()


def test_a_killed_process_is_not_the_fault_of_its_image(pool, tmp_path):
    """The system kills processes when memory is short: idle ones, and those that decode."""
    idle = pool.run(describe, b"")[0]
    os.kill(idle, signal.SIGKILL)
    assert pool.run(echo, b"abc")[1] == 3
    assert pool.run(killed_once, b"", str(tmp_path / "begun")) is True
    assert pool.run(killed_while_it_answers, b"", str(tmp_path / "answered")) is True
    assert [result[1] for result in pool.run_each(echo, [b"abc", b"de"])] == [3, 2]


@pytest.mark.parametrize(
    ("variable", "text"),
    [("NNCLR_DECODE_CPU_S", "0"), ("NNCLR_DECODE_CPU_S", "fast"), ("NNCLR_DECODE_MEMORY", "2 cows")],
)
def test_limits_come_from_the_environment(monkeypatch, variable, text):
    monkeypatch.setenv("NNCLR_DECODE_CPU_S", "1.5")
    monkeypatch.setenv("NNCLR_DECODE_MEMORY", "3GB")
    assert DecodingLimits.from_environment() == DecodingLimits(1.5, 3_000_000_000)
    monkeypatch.setenv(variable, text)
    with pytest.raises(InvalidRequest):
        DecodingLimits.from_environment()


# ---- life and death


def test_processes_are_light_and_used_again(pool):
    first = pool.run(describe, b"")
    assert first == (first[0], False)
    assert {pool.run(describe, b"")[0] for _ in range(5)} == {first[0]}


def test_nothing_runs_after_the_block(killed):
    with decoding_processes(2, DecodingLimits(cpu_s=1), killed.append):
        with ThreadPoolExecutor(8) as threads:
            assert len(list(threads.map(decode_image, [jpeg((60, 60))] * 40))) == 40
        process, _ = run_isolated(describe, b"")
        with decoding_processes(1):  # an inner block uses the outer pool
            assert len(run_isolated_each(echo, [b"a", b"b"])) == 2
    until(lambda: not Path(f"/proc/{process}").exists())
    assert decode_image(jpeg((5, 5))).size == (5, 5)


def test_closing_ends_what_runs(pool, tmp_path):
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(pool.run, sleep, b"", str(tmp_path / "begun"))
        until((tmp_path / "begun").exists)
        pool.close()
        assert isinstance(running.exception(), NotReady)


def test_a_reader_that_stays_busy_is_not_waited_for_forever(tmp_path):
    pool = DecodingPool(1, wait_s=0.2)
    with ThreadPoolExecutor(1) as thread:
        busy = thread.submit(pool.run, sleep, b"", str(tmp_path / "begun"))
        until((tmp_path / "begun").exists)
        with pytest.raises(NotReady, match="try again"):
            pool.run(echo, b"x")
        pool.close()
        assert isinstance(busy.exception(), NotReady)


@pytest.mark.skipif(sys.platform != "linux", reason="processes are listed in /proc")
def test_closing_fails_everything_that_is_decoded_at_that_moment():
    """Also what begins while the pool closes."""
    pool = DecodingPool(2)
    pool.run(echo, b"first")

    def decode_until_closed():
        while True:
            pool.run(echo, b"again")

    with ThreadPoolExecutor(6) as threads:
        ends = [threads.submit(decode_until_closed) for _ in range(6)]
        time.sleep(0.3)
        pool.close()
        assert [type(end.exception(timeout=20)) for end in ends] == [NotReady] * 6


def test_a_script_without_a_main_guard_runs_once_and_leaves_no_process(tmp_path):
    """Decoding processes must not import the script of the user, and end with a killed parent."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import os, sys, signal, threading, time
        from pathlib import Path
        from nnclr_hub.images.pool import DecodingPool
        from decoding_operations import describe, outlive
        print("begun", flush=True)
        pool = DecodingPool(1)
        print(pool.run(describe, b"")[0], flush=True)
        threading.Thread(target=pool.run, args=(outlive, b"", sys.argv[1])).start()
        while not Path(sys.argv[1]).exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(script), str(tmp_path / "begun")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL
    begun, process = done.stdout.split()
    assert begun == "begun"
    until(lambda: not Path(f"/proc/{process}").exists())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_decodes_by_itself():
    with decoding_processes(1):
        decode_image(jpeg((5, 5)))
        child = os.fork()
        if child == 0:
            os._exit(0 if decode_image(jpeg((6, 6))).size == (6, 6) else 1)
        assert os.waitpid(child, 0)[1] == 0
        child = os.fork()
        if child == 0:
            with decoding_processes(1):  # whose fork server is not that of the parent
                os._exit(0 if decode_image(jpeg((6, 6))).size == (6, 6) else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert decode_image(jpeg((7, 7))).size == (7, 7)
