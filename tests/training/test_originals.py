"""Views cut from originals: the boxes and pixels of torchvision's crops, every kind of source, and exact resumption."""

import io
import json
import shutil
import tarfile
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from skimage import data as photographs
from tiny_runs import FAST, recipe, stop_in_step, weights
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import resized_crop

import nnclr_hub
from nnclr_hub.cache import cache_folder
from nnclr_hub.errors import InvalidRequest, TrainingError
from nnclr_hub.images.reading import PLAIN
from training.data import originals as originals_module
from training.data.augment import make_views
from training.data.batches import Batches, Order
from training.data.cutting import CROP_NUMBERS, CutRequest, crop_boxes, cut_views, enlarged_share
from training.data.image_index import COLUMNS, ImageIndex, training_files
from training.data.image_pack import build_pack
from training.data.originals import Originals
from training.data.views import View
from training.pretrain import pretrain

CPU = torch.device("cpu")
OF_ORIGINALS = ("cut_from=originals", "epochs=2", "workers=2")
VIEWS = [View(size=24), View(size=24, blur=0.1), View(size=12, scale=(0.05, 0.14))]


def jpeg(image: Image.Image, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=92, **options)
    return file.getvalue()


# ---- geometry and pixels


def views(*sizes: int) -> list[View]:
    return [View(size) for size in sizes]


@pytest.mark.parametrize(("width", "error"), [(250, 0.0), (500, 0.0), (3000, 1.5)])
def test_crops_have_the_pixels_of_torchvisions(width, error):
    """Equal if the JPEG is decoded at its full size; within one gray level if the decoder scales it down."""
    photo = Image.fromarray(photographs.astronaut()).resize((width, width * 3 // 4))
    data, numbers = jpeg(photo), np.random.default_rng(0).random((6, CROP_NUMBERS + 1))
    numbers[:, 0] = np.linspace(0.3, 1, 6, endpoint=False)  # of the area
    decoded: Any = Image.open(io.BytesIO(data))
    sides = (width // 3 if width < 1000 else 96,) * 6  # a crop of the half width is scaled down from twice its view
    high, wide, *crops = cut_views(CutRequest(data, 7, numbers), views(*sides), PLAIN, 3)
    assert (high, wide) == decoded.size[::-1]
    size = np.tile((high, wide), (6, 1))
    boxes = crop_boxes(size, np.array((0.08, 1.0)), np.array((3 / 4, 4 / 3)), numbers[:, :CROP_NUMBERS])
    for crop, box, side, number in zip(crops, boxes.astype(int).tolist(), sides, numbers[:, -1], strict=True):
        top, left, height, width = box
        expected: Any = resized_crop(decoded, top, left, height, width, [side, side], InterpolationMode.BICUBIC)
        if number < 0.5:
            expected = expected.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        difference = np.abs(np.asarray(crop, int) - np.asarray(expected, int))
        assert difference.mean() <= error


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_boxes_are_those_of_the_upright_image_also_when_the_decoder_scales(orientation):
    photo = Image.fromarray(photographs.chelsea()).resize((902, 606))
    exif = Image.Exif()
    exif[0x0112] = orientation
    turns = {1: None, 3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}
    turned = photo if turns[orientation] is None else photo.transpose(turns[orientation])
    numbers = np.random.default_rng(1).random((2, CROP_NUMBERS + 1))
    results = [
        cut_views(CutRequest(one, 0, numbers), views(32, 24), PLAIN, 3)
        for one in (jpeg(photo), jpeg(turned, exif=exif.tobytes()))
    ]
    assert results[0][:2] == results[1][:2] == (606, 902)
    for one, other in zip(results[0][2:], results[1][2:], strict=True):
        assert np.abs(np.asarray(one, int) - np.asarray(other, int)).mean() < 2


def test_the_share_of_enlarged_views_is_that_of_the_papers_images():
    """28% of 224-pixel views from 500 x 375; most of them from squashed copies of 256 pixels."""
    size = np.array([[375, 500]])
    assert enlarged_share(size, size, 224, (0.08, 1.0)) == pytest.approx(0.28, abs=0.03)
    assert enlarged_share(size, np.array([[256, 256]]), 224, (0.08, 1.0)) == pytest.approx(0.93, abs=0.03)


# ---- sources


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Twelve photos in two classes, and a file that is not an image."""
    folder = tmp_path_factory.mktemp("originals") / "photos"
    photo = Image.fromarray(photographs.coffee())
    for number in range(12):
        place = folder / ("cup" if number < 6 else "table")
        place.mkdir(parents=True, exist_ok=True)
        photo.crop((number * 8, number * 5, 300 + number * 16, 260 + number * 10)).save(place / f"{number:02}.jpg")
    (folder / "cup" / "03.jpg").write_bytes(b"not an image")
    return folder


def tar_of(folder: Path, path: Path, names: slice = slice(None)) -> Path:
    with tarfile.open(path, "w") as tar:
        for image in sorted(folder.rglob("*.jpg"))[names]:
            tar.add(image, image.relative_to(folder).as_posix())
    return path


def parquet_of(folder: Path, path: Path) -> Path:
    images = sorted(folder.rglob("*.jpg"))
    table = pa.table(
        {
            "image": [{"bytes": image.read_bytes(), "path": image.name} for image in images],
            "label": [image.parent.name for image in images],
        }
    )
    pq.write_table(table, path, row_group_size=5)
    return path


def batches_of(files: ImageIndex, *, batch=4, rank=0, world=1, seed=0, workers=2) -> Batches:
    order = Order(files.folders, batch, seed)
    originals = Originals(files, workers=workers, replacement=order.replacement, where=CPU)
    views = lambda step: VIEWS[: 2 + step % 2]  # noqa: E731
    return Batches(originals, files.labels, order, views=views, where=CPU, rank=rank, world=world)


def made(batches: Batches, steps) -> list[tuple[torch.Tensor, ...]]:
    try:
        found = [batches.at(step) for step in steps]
        return [(one.ids, one.labels, *make_views(one.pixels, one.views, one.numbers)) for one in found]
    finally:
        batches.close()


def equal(one, other) -> bool:
    return all(
        torch.equal(a, b) for left, right in zip(one, other, strict=True) for a, b in zip(left, right, strict=True)
    )


def test_every_source_gives_the_same_views_and_labels(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(originals_module, "SEGMENT", 5000)  # less than an image
    tar_of(folder, tmp_path / "data-000.tar", slice(0, 7))
    tar_of(folder, tmp_path / "data-001.tar", slice(7, None))
    remote = fsspec.filesystem("memory")
    remote.pipe("/originals/all.tar", tar_of(folder, tmp_path / "all.tar").read_bytes())
    parquet = parquet_of(folder, tmp_path / "all.parquet")
    remote.pipe("/originals/all.parquet", parquet.read_bytes())
    expected = made(batches_of(training_files([folder])), range(4))
    packed = build_pack(training_files([folder]), 32, cache=tmp_path)
    for given in (
        f"{tmp_path}/data-{{000..001}}.tar", tmp_path / "all.tar", parquet, "memory://originals/all.tar",
        "memory://originals/all.parquet",
    ):  # fmt: skip
        files = training_files([given])
        assert (len(files), [name.split("/")[-1] for name in files.classes]) == (12, ["cup", "table"])
        assert equal(made(batches_of(files), range(4)), expected), given
        pack = build_pack(files, 32, cache=tmp_path)
        assert pack.kept.tolist() == [0, 1, 2, *range(4, 12)]
        assert np.array_equal(pack.pixels, packed.pixels)
        assert [Path(name).stem[-2:] for name, _ in pack.broken] == ["03"]
    mixed = training_files([folder, parquet, tmp_path / "all.tar"])
    assert mixed.folders.tolist() == [12, 12, 12]
    assert made(batches_of(mixed), range(2))[0][2].shape == (4, 3, 24, 24)


def test_the_label_of_a_sample_of_webdataset_is_its_cls(folder, tmp_path):
    with tarfile.open(tmp_path / "samples.tar", "w") as tar:
        for number, image in enumerate(sorted(folder.rglob("*.jpg"))[4:8]):
            for suffix, content in (("jpg", image.read_bytes()), ("cls", b"%d" % (number % 2)), ("json", b"{}")):
                info = tarfile.TarInfo(f"{number:04}.{suffix}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    files = training_files([tmp_path / "samples.tar"])
    assert files.labels.tolist() == [0, 1, 0, 1]


def written() -> set[int]:
    """Return the files of all listings in the cache folder."""
    return {file.stat().st_ino for file in (cache_folder() / "indexes").glob("*/index.json")}


def test_a_listing_of_archives_is_used_again_until_they_change(folder, tmp_path):
    path = tar_of(folder, tmp_path / "all.tar")
    before = written()
    first = training_files([path])
    listed = written()
    assert len(listed - before) == 1
    again = training_files([path])
    assert written() == listed
    assert (again.digest, again.fingerprints.tolist()) == (first.digest, first.fingerprints.tolist())
    tar_of(folder, path, slice(0, 9))
    assert len(training_files([path])) == 9


def test_programs_that_list_the_same_folder_at_once_do_not_disturb_each_other(folder, tmp_path, monkeypatch):
    """Each of them replaces the index in the cache folder, whose images also change."""
    monkeypatch.setenv("NNCLR_CACHE", str(tmp_path / "cache"))
    few, more = (tmp_path / name for name in ("few", "more"))
    for place, count in ((few, 3), (more, 5)):
        place.mkdir()
        for i in range(count):
            shutil.copy(folder / "cup" / "00.jpg", place / f"{i}.jpg")
    given = tmp_path / "images"
    given.symlink_to(few)
    index = training_files([given])
    given.unlink()
    given.symlink_to(more)

    def run(_: int) -> list[str]:
        files = training_files([given])
        again = training_files([given], listed=True)
        return [Path(image).name for image in (*files.keep(np.arange(4)), *again)]

    with ThreadPoolExecutor(8) as programs:
        for names in programs.map(run, range(60)):
            assert names == [f"{i}.jpg" for i in (0, 1, 2, 3, 0, 1, 2, 3, 4)]
    assert [path.name for path in index.keep(np.array([0, 2]))] == ["0.jpg", "2.jpg"]


def test_a_table_without_images_is_rejected(tmp_path):
    pq.write_table(pa.table({"image": ["a.jpg"], "label": [1]}), tmp_path / "names.parquet")
    with pytest.raises(InvalidRequest, match="column"):
        training_files([tmp_path / "names.parquet"])


# ---- resumption, ranks, and bad files


def test_batches_from_any_step_and_of_any_rank_equal_those_of_one_uninterrupted_process(folder):
    files = training_files([folder])
    whole = made(batches_of(files, workers=1), range(7))
    assert equal(made(batches_of(files, workers=3), range(4, 7)), whole[4:])
    for world in (2, 4):
        parts = [made(batches_of(files, rank=rank, world=world), range(3, 6)) for rank in range(world)]
        joined = [[torch.cat(one) for one in zip(*step, strict=True)] for step in zip(*parts, strict=True)]
        assert equal(joined, whole[3:6])
    assert not torch.equal(made(batches_of(files, seed=1), range(1))[0][0], whole[0][0])


def test_small_batches_are_decoded_further_ahead():
    """As many steps as fit into 256 MiB, but 2 to 8, are in work while one trains."""
    assert [originals_module.steps_ahead(size) for size in (1 << 30, 50 << 20, 1 << 10)] == [2, 5, 8]
    begun = []
    source = SimpleNamespace(ahead=3, fetch=lambda rows, views, numbers: begun.append(1) or (lambda: (None, rows)))
    order, labels = Order(np.array([40]), 4, 0), np.zeros(40, np.int64)
    batches = Batches(source, labels, order, views=lambda step: VIEWS, where=CPU)
    assert [(batches.at(step), len(begun))[1] for step in range(3)] == [4, 5, 6]


def test_an_image_that_cannot_be_read_is_named_and_replaced_by_the_same_one_each_time(folder, caplog):
    files = training_files([folder])
    bad = [str(path) for path in files].index(str(folder / "cup" / "03.jpg"))
    batches = batches_of(files)
    rows = [batch.ids.tolist() for batch in map(batches.at, range(3))]
    batches.close()
    expected = [Order(files.folders, 4, 0).rows(step).tolist() for step in range(3)]
    changed = [
        (one, other)
        for a, b in zip(rows, expected, strict=True)
        for one, other in zip(a, b, strict=True)
        if one != other
    ]
    assert [other for _, other in changed] == [bad], "once in an epoch"
    assert changed[0][0] == Order(files.folders, 4, 0).replacement(bad, 0)
    assert list(batches.pixels.unreadable) == [bad]
    assert [record.args[0] for record in caplog.records] == [str(folder / "cup" / "03.jpg")]


def test_a_set_that_cannot_be_read_at_all_ends_with_an_error(tmp_path):
    for number in range(8):
        (tmp_path / f"{number}.jpg").write_bytes(b"not an image")
    batches = batches_of(training_files([tmp_path]))
    with pytest.raises(TrainingError, match=r"\d\.jpg"):
        batches.at(0)
    batches.close()


def test_a_run_from_an_archive_resumes_bit_for_bit(data, tmp_path, monkeypatch):
    archive = tar_of(data / "train", tmp_path / "train.tar")
    settings = recipe(*OF_ORIGINALS)
    # under the name that the program has in a wheel, which the decoding processes must know too
    done = nnclr_hub.pretrain("small_cpu", archive, tmp_path / "whole", settings=[*FAST, *OF_ORIGINALS])
    assert done.finished
    with monkeypatch.context() as patch:
        stop_in_step(3, patch)
        assert not pretrain(settings, [archive], tmp_path / "run").finished
    assert pretrain(recipe("cut_from=auto", "epochs=2"), [archive], tmp_path / "run", resume=True).finished
    whole, resumed = weights(tmp_path / "whole"), weights(tmp_path / "run")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["cut_from"] == "originals"


# ---- memory


def test_a_step_of_a_hundred_million_images_needs_little_memory(tmp_path):
    """The columns are sparse files of zeros, so all images are the first one of an archive."""
    images, shards = 100_000_000, 10_000
    for name, kind in COLUMNS.items():
        with (tmp_path / name).open("wb") as file:
            file.truncate(images * np.dtype(kind).itemsize)
    (tmp_path / "names").write_bytes(b"")
    sources = [{"given": "s.tar", "absolute": "/s.tar", "archive": True, "changed": 0.0}]
    about = {"images": images, "bytes": images * 110_000, "classes": [], "folders": [images], "sources": sources}
    blocks = np.arange(1, shards + 1) * (images // shards)
    (tmp_path / "index.json").write_text(json.dumps({**about, "blocks": blocks.tolist(), "state": ""}))
    tracemalloc.start()
    files = ImageIndex(tmp_path)
    orders = [Order(files.folders, 4096, 0), Order(files.folders, 4096, 0, blocks=files.blocks, window=9_760)]
    for order in orders:
        for step in (0, 1, order.steps_per_epoch + 5):
            rows = order.rows(step)
            assert len(set(rows.tolist())) == 4096
            assert rows.max() < images
            assert files.labels[rows].tolist() == [0] * 4096
            assert str(files[int(rows[0])]) == "s.tar"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000_000
