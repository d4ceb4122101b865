"""Decoding processes: the same pixels as without them, limits, crashes, and nothing left behind."""

import io
import os
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from decoding_operations import crash, describe, echo, exhaust, killed_always, killed_once, sleep, spin
from hostile_images import repeated_scans
from PIL import Image
from waiting import until

from nnclr_hub.encoder.preprocessing import EvalTransform, Preprocessing
from nnclr_hub.errors import ImageError, ImageTooExpensive, ImageTooLarge, InvalidRequest, NotReady, ServiceError
from nnclr_hub.images import decoding_process, decoding_worker
from nnclr_hub.images.decode import decode_image, run_isolated, run_isolated_each
from nnclr_hub.images.folder import list_images
from nnclr_hub.images.pool import DecodingLimits, DecodingPool, decoding_processes
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
    file = io.BytesIO()
    pixels = np.random.default_rng(size[0]).integers(0, 255, (9, 9, 3), np.uint8)
    Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    return file.getvalue()


def children() -> set[int]:
    return set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))


# ---- the same results


def results_of(images, transform) -> list[object]:
    """Crops, squashed images and full images; or the class and message of the error."""

    def attempt(work):
        try:
            return work()
        except ImageError as error:
            return type(error), str(error)

    return [
        attempt(work)
        for image in images
        for work in (
            lambda image=image: transform.read(image).tobytes(),
            lambda image=image: run_isolated(
                decode_reduced, image, 32, 64, PLAIN, 3, take=lambda pixels, *size: (pixels.tobytes(), size)
            ),
            lambda image=image: decode_image(image).tobytes(),
        )
    ]


@pytest.mark.data
def test_the_nasty_pack_gives_the_same_with_and_without_processes(pack, caplog):
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


def test_any_size_passes_through_the_shared_memory(pool, monkeypatch):
    monkeypatch.setattr(decoding_process, "KEPT", 1_000_000)
    rng = np.random.default_rng(0)
    for size in (1, 70_000, 6_000_000, 5, 300_000, 1_100_000):
        data = rng.bytes(size)
        (returned, length) = pool.run(echo, data)
        assert returned.tobytes() == data
        assert length == size


def test_results_stay_as_they_are_when_their_memory_is_used_again():
    with decoding_processes(1):
        first, _ = run_isolated(echo, b"a" * 300_000)
        [(second, _)] = run_isolated_each(echo, [b"b" * 300_000])
        run_isolated(echo, b"c" * 300_000)
    assert (first.tobytes(), second.tobytes()) == (b"a" * 300_000, b"b" * 300_000)


def test_errors_keep_their_class(pool):
    from nnclr_hub.images.decode import _decode

    for source, error in [
        (b"", ImageError),
        (b"no image", ImageError),
        (Path("/no/such/file"), ImageError),
        (png_of_zeros((6400, 6400)), ImageTooLarge),
    ]:
        with pytest.raises(error):
            pool.run(_decode, source)


def png_of_zeros(size) -> bytes:
    file = io.BytesIO()
    Image.new("1", size).save(file, "PNG")
    return file.getvalue()


# ---- limits


def test_an_endless_decoder_is_killed_and_the_next_image_is_decoded(pool, killed):
    with pytest.raises(ImageTooExpensive):
        pool.run(spin, b"", (1,))
    assert killed == ["cpu", "cpu"]  # in the quick lane, then in the heavy lane
    assert pool.run(echo, b"abc")[1] == 3


def test_large_images_go_to_the_heavy_lane_at_once(pool, killed):
    with pytest.raises(ImageTooExpensive):
        pool.run(spin, b"", (decoding_worker.QUICK_PIXELS + 1,))
    assert killed == ["cpu"]


def test_many_scans_go_to_the_heavy_lane_at_once(killed):
    """They do not end a process of the quick lane, which small images would have to wait for."""
    data = repeated_scans(85, (4000, 2500))
    with decoding_processes(1, DecodingLimits(cpu_s=0.5), killed.append), pytest.raises(ImageTooExpensive):
        decode_image(data)
    assert killed == ["cpu"]
    with decoding_processes(1):
        assert decode_image(repeated_scans(10, (64, 64))).size == (64, 64)


def test_an_ordinary_image_does_not_wait_for_a_costly_one(pool):
    """All processes of the heavy lane are busy, and more costly images wait."""
    with ThreadPoolExecutor(2) as threads:
        costly = [threads.submit(pool.run, spin, b"", (20_000_000,)) for _ in range(2)]
        for _ in range(20):
            assert pool.run(describe, b"")[1] == 0
        assert not costly[1].done()
        for one in costly:
            assert isinstance(one.exception(), ImageTooExpensive)


def test_the_memory_of_one_image_is_limited(pool, killed):
    with pytest.raises(ImageTooExpensive):
        pool.run(exhaust, b"")
    assert killed == []
    assert pool.run(echo, b"abc")[1] == 3


def test_a_crash_is_the_error_of_its_image(pool, killed):
    with pytest.raises(ImageError) as caught:
        pool.run(crash, b"")
    assert type(caught.value) is ImageError
    assert killed == ["crash", "crash"], "a second process showed that it was the image"
    assert pool.run(echo, b"abc")[1] == 3


def test_a_killed_process_is_not_the_fault_of_its_image(pool, killed, tmp_path):
    """The system kills processes when memory is short: idle ones, and those that decode."""
    idle = pool.run(describe, b"")[0]
    os.kill(idle, signal.SIGKILL)
    assert pool.run(echo, b"abc")[1] == 3
    assert pool.run(killed_once, b"", (str(tmp_path / "begun"),)) == (True,)
    results = pool.run_each(echo, [b"abc", b"de"])
    assert [result[1] for result in results] == [3, 2]
    assert killed == ["crash", "crash"]


def test_an_image_whose_processes_are_all_killed_can_be_sent_again(pool, tmp_path):
    with pytest.raises(NotReady):
        pool.run(killed_always, b"")
    assert pool.run(echo, b"abc")[1] == 3


@pytest.mark.parametrize("times", [1, 9])
def test_a_process_that_is_killed_while_it_starts_is_replaced(pool, monkeypatch, times):
    started = subprocess.Popen

    def start(*arguments, **options):
        nonlocal times
        process = started(*arguments, **options)
        if times:
            times -= 1
            process.kill()
        return process

    monkeypatch.setattr(subprocess, "Popen", start)
    if times == 1:
        assert pool.run(echo, b"abc")[1] == 3
    else:
        with pytest.raises(NotReady):
            pool.run(echo, b"abc")


def test_a_process_that_waits_for_a_file_for_long_is_ended(pool, killed, tmp_path, monkeypatch):
    monkeypatch.setattr(decoding_process, "STALL_S", 0.3)
    with pytest.raises(ImageError) as caught:
        pool.run(sleep, b"", (str(tmp_path / "begun"),))
    assert type(caught.value) is ImageError
    assert killed == ["stalled"]
    monkeypatch.undo()
    assert pool.run(echo, b"abc")[1] == 3


@pytest.mark.parametrize(
    ("variable", "text"),
    [("NNCLR_DECODE_CPU_S", "0"), ("NNCLR_DECODE_CPU_S", "fast"), ("NNCLR_DECODE_MEMORY", "2 cows")],
)
def test_limits_come_from_the_environment(monkeypatch, variable, text):
    monkeypatch.setenv("NNCLR_DECODE_CPU_S", "1.5")
    monkeypatch.setenv("NNCLR_DECODE_MEMORY", "3GB")
    assert DecodingLimits.from_environment() == DecodingLimits(1.5, 3_000_000_000)
    monkeypatch.setenv(variable, text)
    with pytest.raises(InvalidRequest, match=variable):
        DecodingLimits.from_environment()


# ---- life and death


def test_processes_are_light_and_used_again(pool):
    first = pool.run(describe, b"")
    assert first == (first[0], 0, False)
    assert {pool.run(describe, b"")[0] for _ in range(5)} == {first[0]}


@pytest.mark.skipif(sys.platform != "linux", reason="children are listed in /proc")
def test_nothing_is_left_after_the_block(killed):
    before, files = children(), len(os.listdir("/proc/self/fd"))
    with decoding_processes(2, DecodingLimits(cpu_s=1), killed.append):
        with ThreadPoolExecutor(8) as threads:
            assert len(list(threads.map(decode_image, [jpeg((60, 60))] * 40))) == 40
        with pytest.raises(ImageTooExpensive):
            run_isolated(spin, b"", 1)
        assert 1 <= len(children() - before) <= 3
    assert children() == before
    assert len(os.listdir("/proc/self/fd")) == files
    assert decode_image(jpeg((5, 5))).size == (5, 5)


def test_inner_blocks_use_the_outer_pool():
    with decoding_processes(1):
        outer = run_isolated(describe, b"")
        with decoding_processes(1):
            assert run_isolated(describe, b"") == outer
        assert run_isolated(describe, b"") == outer


def test_closing_ends_what_runs(pool, tmp_path):
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(pool.run, sleep, b"", (str(tmp_path / "begun"),))
        until((tmp_path / "begun").exists)
        pool.close()
        assert isinstance(running.exception(), NotReady)


def test_an_interrupted_wait_does_not_confuse_the_next_image(pool, tmp_path):
    """Ctrl-C arrives in the main thread while it waits for a process."""

    def interrupt() -> None:
        until((tmp_path / "begun").exists)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    # a shell starts processes in the background with SIGINT ignored
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            pool.run(sleep, b"", (str(tmp_path / "begun"),))
        thread.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert pool.run(echo, b"abc")[1] == 3


@pytest.mark.skipif(sys.platform != "linux", reason="processes are listed in /proc")
def test_processes_end_silently_with_a_killed_parent(tmp_path):
    """The process is busy at that time, and cannot send its result."""
    program = textwrap.dedent("""
        import os, sys, signal, threading, time
        from nnclr_hub.images.pool import DecodingPool
        from pathlib import Path
        from decoding_operations import describe, outlive
        pool = DecodingPool(1)
        print(pool.run(describe, b"")[0], flush=True)
        threading.Thread(target=pool.run, args=(outlive, b"", (sys.argv[1],))).start()
        while not Path(sys.argv[1]).exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    path = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", program, str(tmp_path / "begun")]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (-signal.SIGKILL, "")
    until(lambda: not Path(f"/proc/{int(done.stdout)}").exists())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_decodes_by_itself():
    with decoding_processes(1):
        decode_image(jpeg((5, 5)))
        child = os.fork()
        if child == 0:
            os._exit(0 if decode_image(jpeg((6, 6))).size == (6, 6) else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert decode_image(jpeg((7, 7))).size == (7, 7)


def test_images_of_a_folder_of_several_pages_warn_once(tmp_path, caplog):
    for name in ("a", "b"):
        Image.new("L", (4, 4)).save(tmp_path / f"{name}.tif", save_all=True, append_images=[Image.new("L", (4, 4))])
    with decoding_processes(1):
        for path in list_images(tmp_path) * 2:
            decode_image(path)
    assert len([one for one in caplog.records if "several pages" in one.message]) == 1


@pytest.mark.parametrize("step", ["decoding_process._unnamed_file", "decoding_process.subprocess.Popen"])
def test_a_process_that_cannot_start_is_a_service_error(monkeypatch, step):
    def refuse(*arguments: object, **options: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(f"nnclr_hub.encoder.{step}", refuse)
    before = os.listdir("/dev/fd")
    with pytest.raises(ServiceError):
        DecodingPool(1).run(len, b"image")
    assert len(os.listdir("/dev/fd")) == len(before)
