"""Packs, orders, batches, degradation and named sets: nothing is lost, decoded twice or mixed up."""

import os
import pickle
import shutil
import tarfile
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from packed_batches import copy_in, pack_of, packed_batches
from PIL import Image
from rich.console import Console

from nnclr_hub.errors import InvalidRequest, NoImages, NoRoom
from nnclr_hub.images.labels import read_labeled
from nnclr_hub.workbench.inspection.subject import inspected_files
from training.data import image_pack as pack_module
from training.data import named_sets as named_module
from training.data.augment import NUMBERS, make_views
from training.data.batches import Batches, Order, Permutation, seed_of
from training.data.image_index import sampled_sizes, training_files, typical_side
from training.data.image_pack import PackedPixels, build_pack, stored_sizes
from training.data.named_sets import find_data
from training.data.views import View
from training.evals.task import evaluation_sets, read_task, table_set

# ---- packs


def test_an_interrupted_decoding_continues_where_it_stopped(image_files, tmp_path, monkeypatch):
    """Images in the journal are not decoded again, and the pack is the same."""
    monkeypatch.setattr(pack_module, "BLOCK", 8)
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"garbage")
    paths = [*image_files[:10], bad, *image_files[10:30]]
    whole = build_pack(paths, 32, cache=tmp_path / "whole")

    class Killed(Exception):
        pass

    def kill(done, total):
        if done == 20:
            raise Killed

    with pytest.raises(Killed):
        build_pack(paths, 32, cache=tmp_path / "cut", progress=kill)
    seen = []
    original = pack_module._reduced
    monkeypatch.setattr(pack_module, "_reduced", lambda path, form: (seen.append(path), original(path, form))[1])
    resumed = build_pack(paths, 32, cache=tmp_path / "cut")
    assert len(seen) == len(paths) - 16, "two blocks of eight were in the journal"
    assert np.array_equal(whole.pixels, resumed.pixels)
    assert np.array_equal(whole.kept, resumed.kept)
    assert resumed.broken[0][0] == str(bad)


def test_a_file_that_can_be_read_later_is_in_the_next_pack(image_files, tmp_path):
    """As HEIC after its package is installed; the file itself stays as it is."""
    late, content = tmp_path / "late.jpg", image_files[3].read_bytes()
    late.write_bytes(bytes(len(content)))
    paths, state = [late, *image_files[:3]], late.stat()
    assert len(build_pack(paths, 32, cache=tmp_path / "cache").broken) == 1
    late.write_bytes(content)
    os.utime(late, ns=(state.st_atime_ns, state.st_mtime_ns))
    pack = build_pack(paths, 32, cache=tmp_path / "cache")
    assert (len(pack), pack.broken, pack.kept.tolist()) == (4, (), [0, 1, 2, 3])


def test_a_file_replaced_by_one_of_equal_size_is_decoded_again(image_files, tmp_path):
    path, paths = tmp_path / "a.bmp", [tmp_path / "a.bmp", *image_files[:2]]
    for value in (10, 200):
        Image.new("RGB", (40, 40), (value,) * 3).save(path)
        os.utime(path, ns=(value, value))
        assert copy_in(build_pack(paths, 32, cache=tmp_path / "cache"), 0).mean() == value


def test_two_programs_decode_a_pack_once(image_files, tmp_path, monkeypatch):
    calls = []
    original = pack_module._decode
    monkeypatch.setattr(pack_module, "_decode", lambda *a: (calls.append(1), original(*a))[1])
    packs = []
    threads = [
        threading.Thread(target=lambda: packs.append(build_pack(image_files[:9], 24, cache=tmp_path))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert all(np.array_equal(pack.pixels, packs[0].pixels) for pack in packs)


def test_a_pack_that_is_too_large_for_the_disk_is_rejected_before_decoding(image_files, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(pack_module.shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(NoRoom, match="NNCLR_CACHE"):
        build_pack(image_files[:5], 32, cache=tmp_path)


def test_copies_keep_proportions_and_are_never_enlarged(tmp_path):
    """A wide image, a tall one, one of extreme proportions, and a small one."""
    sizes = [(300, 200), (200, 300), (1000, 50), (20, 12)]
    paths = [tmp_path / f"{number}.png" for number in range(len(sizes))]
    for path, size in zip(paths, sizes, strict=True):
        Image.linear_gradient("L").resize(size).convert("RGB").save(path)
    pack = build_pack(paths, 40, cache=tmp_path)
    assert pack.sizes.tolist() == [[high, wide] for wide, high in sizes]
    assert pack.stored.tolist() == [[40, 60], [60, 40], [40, 80], [12, 20]]
    assert pack.stored.tolist() == stored_sizes(pack.sizes, 40).tolist()
    assert np.array_equal(copy_in(pack, 3), np.asarray(Image.open(paths[3])))
    pixels = PackedPixels(pack, torch.device("cpu"))
    gathered, _ = pixels.fetch(np.array([1, 3, 0]), [View()], torch.zeros(1, 3, NUMBERS))()
    for image, row in zip(gathered.images.numpy(), (1, 3, 0), strict=True):
        high, wide = pack.stored[row]
        assert np.array_equal(image[:high, :wide], copy_in(pack, row))


# ---- orders and batches


def rows_of(order: Order, epoch: int) -> np.ndarray:
    steps = range(epoch * order.steps_per_epoch, (epoch + 1) * order.steps_per_epoch)
    return np.concatenate([order.rows(step) for step in steps])


ARCHIVES = np.array([30, 1, 70, 11, 200, 5, 83])


def test_archives_are_read_in_windows_whose_order_depends_on_the_epoch():
    """40 archives of 25 images, of which 4 are read at a time."""
    order = Order(np.array([1000]), 50, 0, blocks=np.full(40, 25), window=100)
    windows = []
    for epoch in range(5):
        rows = [order.rows(epoch * order.steps_per_epoch + step) for step in range(order.steps_per_epoch)]
        assert sorted(np.concatenate(rows).tolist()) == list(range(1000))
        windows.append(frozenset((np.concatenate(rows[:2]) // 25).tolist()))
    assert [len(one) for one in windows] == [4] * 5
    assert len(set(windows)) == 5


@pytest.mark.parametrize("options", [{}, {"blocks": ARCHIVES, "window": 90}, {"blocks": ARCHIVES, "window": 1}])
def test_an_epoch_is_a_permutation_that_depends_on_seed_and_epoch(options):
    orders = [rows_of(Order(np.array([400]), 16, seed, **options), epoch) for seed, epoch in ((0, 0), (0, 1), (1, 0))]
    assert all(sorted(rows.tolist()) == list(range(400)) for rows in orders)
    assert np.array_equal(orders[0], rows_of(Order(np.array([400]), 16, 0, **options), 0))
    assert not any(np.array_equal(orders[0], other) for other in orders[1:])
    # no trace of the original order: neighbors in an epoch are far apart, except within small windows
    if not options:
        assert abs(np.corrcoef(orders[0][:-1], orders[0][1:])[0, 1]) < 0.15
    assert seed_of(1, 2) != seed_of(2, 1)


def test_the_order_is_fixed():
    """A run that is resumed after an update continues with the images that it has not seen."""

    def rows(*folders, **options):
        return Order(np.array(folders), 16, 3, **options).rows(27).tolist()

    assert rows(400)[:6] == [189, 152, 211, 65, 373, 151]
    assert rows(400, blocks=ARCHIVES, window=90)[:6] == [97, 43, 75, 51, 73, 322]
    assert (Order(np.array([400]), 16, 3).replacement(7, 2), seed_of(1, 2, 3)) == (314, 6498626229777268288)
    assert Permutation(10**11, 5)(np.array([0, 10**11 - 1])).tolist() == [71849617495, 37048094512]


def test_images_of_archives_are_mixed_within_windows():
    order = Order(np.array([400]), 16, 0, blocks=ARCHIVES, window=90)
    archive = np.repeat(np.arange(len(ARCHIVES)), ARCHIVES)[rows_of(order, 0)]
    for one in range(len(ARCHIVES)):
        places = np.flatnonzero(archive == one)
        assert places.max() - places.min() < 90 + ARCHIVES.max(), "an archive is in use for one window only"
    assert np.count_nonzero(np.diff(archive)) > 60, "images of several archives are mixed"


@pytest.mark.parametrize("n", [1, 2, 3, 40, 1000])
def test_a_permutation_has_every_element_at_every_place(n):
    assert sorted(Permutation(n, 5)(np.arange(n)).tolist()) == list(range(n))
    if n == 40:
        first = [int(Permutation(n, key)(np.array([7]))[0]) for key in range(1200)]
        assert np.bincount(first, minlength=n).min() > 15, "uniform: 30 on average"


@pytest.fixture
def numbered() -> np.ndarray:
    """40 images whose pixels equal their number."""
    return np.broadcast_to(np.arange(40, dtype=np.uint8)[:, None, None, None], (40, 8, 8, 3)).copy()


def views_of(step: int) -> list[View]:
    return [View(size=8), View(size=8 if step % 2 else 10)]


def test_the_random_numbers_of_views_are_those_of_their_step_and_seed(numbered):
    def numbers(step: int, seed: int = 0) -> torch.Tensor:
        order, pixels = (
            Order(np.array([40]), 8, seed),
            PackedPixels(pack_of(numbered), torch.device("cpu")),
        )
        options = {"views": views_of, "where": torch.device("cpu")}
        return Batches(pixels, np.full(40, -1), order, **options).draw(step).numbers

    assert torch.equal(numbers(3), numbers(3))
    for other in (numbers(4), numbers(8), numbers(3, seed=1)):  # the next step, the same place of the next epoch
        assert not torch.isclose(numbers(3), other).any(dim=2).any()


def test_images_that_are_left_out_take_their_labels_along(photos):
    files = training_files([photos])
    assert len(files.labels) == 60  # read before
    kept = files.keep(np.array([1, 25, 59]))
    assert kept.labels.tolist() == files.labels[[1, 25, 59]].tolist()
    assert [kept[row] for row in range(3)] == [files[row] for row in (1, 25, 59)]


@pytest.mark.parametrize("resident", [True, False])
def test_a_batch_holds_the_images_of_its_ids(numbered, resident, monkeypatch):
    """From memory and from the prefetching thread, also after a jump to another step."""
    monkeypatch.setattr(PackedPixels, "_fits", lambda self: resident)
    batches = packed_batches(numbered, 8, views_of, labels=np.arange(40) % 3, residency="auto" if resident else "host")
    order = Order(np.array([40]), 8, 0)
    for step in (0, 1, 2, 9, 10, 4):
        batch = batches.at(step)
        assert batch.ids.tolist() == order.rows(step).tolist()
        assert batch.pixels.images[:, 0, 0, 0].tolist() == batch.ids.tolist()
        assert batch.labels.tolist() == (batch.ids % 3).tolist()
        assert [view.size for view in batch.views] == [view.size for view in views_of(step)]
    batches.close()


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_share_images_and_views_of_a_batch(world):
    squares = np.random.default_rng(0).integers(0, 256, (40, 12, 12, 3), dtype=np.uint8)

    def made(rank, world):
        batch = packed_batches(squares, 8, views_of, rank=rank, world=world).at(3)
        return batch.ids, *make_views(batch.pixels, batch.views, batch.numbers)

    parts = [made(rank, world) for rank in range(world)]
    for whole, some in zip(made(0, 1), zip(*parts, strict=True), strict=True):
        assert torch.equal(whole, torch.cat(some))


# ---- named sets


@pytest.fixture
def cifar10_download(monkeypatch, tmp_path):
    """A CIFAR-10 of 60 images, in the archive's layout, where torchvision expects the real one."""
    root = tmp_path / "cache" / "datasets" / "cifar10"
    monkeypatch.setenv("NNCLR_CACHE", str(tmp_path / "cache"))
    inside = root / "cifar-10-batches-py"
    inside.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        batch = {"data": rng.integers(0, 256, (10, 3072), dtype=np.uint8), "labels": list(range(10))}
        (inside / name).write_bytes(pickle.dumps(batch))
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    (inside / "batches.meta").write_bytes(pickle.dumps({"label_names": names}))
    with tarfile.open(root / "cifar-10-python.tar.gz", "w:gz") as tar:
        tar.add(inside, inside.name)
    monkeypatch.setattr(torchvision.datasets.cifar, "check_integrity", lambda *a: True)
    monkeypatch.setattr(torchvision.datasets.utils, "check_integrity", lambda *a: True)
    return root


def test_a_named_set_becomes_a_folder_of_lossless_images(cifar10_download):
    console = Console(quiet=True)
    folder = find_data(["cifar10"], console)[0]
    assert len(list((folder / "train").rglob("*.png"))) == 50
    assert sorted(path.name for path in (folder / "test").iterdir())[:2] == ["airplane", "automobile"]
    with (cifar10_download / "cifar-10-batches-py" / "data_batch_1").open("rb") as file:
        first = pickle.load(file)["data"][3].reshape(3, 32, 32).transpose(1, 2, 0)
    assert np.array_equal(np.asarray(Image.open(folder / "train" / "cat" / "000003.png")), first)
    times = folder.stat().st_mtime_ns
    assert find_data(["cifar10"], console) == [folder]
    assert folder.stat().st_mtime_ns == times, "written once"


def test_voc_becomes_a_table_in_which_difficult_objects_count_neither_way(monkeypatch, tmp_path):
    monkeypatch.setenv("NNCLR_CACHE", str(tmp_path))
    root = tmp_path / "datasets" / "voc2007" / "VOCdevkit" / "VOC2007"
    for folder in ("ImageSets/Main", "JPEGImages", "Annotations"):
        (root / folder).mkdir(parents=True)
    objects = {"1": [("cat", 0), ("dog", 1)], "2": [("dog", 0), ("dog", 1)], "3": [("cat", 1)]}
    for number, (name, found) in enumerate(objects.items()):
        Image.new("RGB", (8, 8)).save(root / "JPEGImages" / f"{name}.jpg")
        inside = "".join(f"<object><name>{kind}</name><difficult>{d}</difficult></object>" for kind, d in found)
        (root / "Annotations" / f"{name}.xml").write_text(f"<annotation>{inside}</annotation>")
        (root / "ImageSets" / "Main" / f"{('train', 'val', 'test')[number]}.txt").write_text(f"{name}\n")
    folder = find_data(["voc2007"], Console(quiet=True))[0]
    train, test = read_labeled(folder / "train"), read_labeled(folder / "test")
    assert (train.labels, train.uncertain) == ((("cat",),), (("dog",),))
    assert (test.labels, test.uncertain) == (((),), (("cat",),))
    assert read_labeled(folder / "val").labels == (("dog",),)


def test_a_set_without_splits_gets_equal_splits_per_class(monkeypatch, tmp_path):
    monkeypatch.setenv("NNCLR_CACHE", str(tmp_path))
    root = tmp_path / "datasets" / "caltech101" / "caltech101"
    for name, count in (("ant", 33), ("BACKGROUND_Google", 2), ("bass", 40)):
        (root / "101_ObjectCategories" / name).mkdir(parents=True)
        (root / "Annotations" / name).mkdir(parents=True)
        for number in range(1, count + 1):
            Image.new("RGB", (8, 8)).save(root / "101_ObjectCategories" / name / f"image_{number:04}.jpg")
            (root / "Annotations" / name / f"annotation_{number:04}.mat").touch()
    folder = find_data(["caltech101"], Console(quiet=True))[0]
    for part, count in {"train/ant": 30, "test/ant": 3, "train/bass": 30, "test/bass": 10}.items():
        assert len(list((folder / part).iterdir())) == count, part
    assert not (folder / "train" / "BACKGROUND_Google").exists()


def test_scores_of_equally_named_folders_do_not_overwrite_each_other(photos, tmp_path):
    for parent in ("a", "b"):
        for split in ("train", "test"):
            shutil.copytree(photos, tmp_path / parent / "set" / split)
    names = [one.name for one in evaluation_sets([tmp_path / "a" / "set", tmp_path / "b" / "set"])]
    assert names == ["set", "set-2"]


def test_a_single_folder_is_not_a_class(photos, tmp_path):
    """Every neighbor would have the right class; with a second folder both are classes."""
    (tmp_path / "mine" / "holiday").mkdir(parents=True)
    some = [path for path in photos.rglob("*") if path.is_file()][:4]
    for number, path in enumerate(some):
        shutil.copy(path, tmp_path / "mine" / "holiday" / f"{number}{path.suffix}")
    assert set(training_files([tmp_path / "mine"]).labels) == {-1}
    shutil.copytree(tmp_path / "mine" / "holiday", tmp_path / "mine" / "work")
    assert set(training_files([tmp_path / "mine"]).labels) == {0, 1}


@pytest.mark.parametrize("split", [False, True])
def test_every_verb_reads_the_labels_of_a_folder_by_the_same_rule(split, tmp_path, bench):
    """Of the folder names, or of a labels.csv in the folder or next to its splits."""
    place = tmp_path / "set"
    for part in ("train", "test") if split else (".",):
        for number in range(24):
            path = place / part / "IMG" / f"{number:02}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (number, 0, 0)).save(path)
    paths = sorted(path.relative_to(place).as_posix() for path in place.rglob("*.png"))
    rows = [f"{path},{'even' if number % 2 else 'odd'}" for number, path in enumerate(paths)]
    (place / "labels.csv").write_text("\n".join(["path,label", *rows]))
    counts = {"even": 12, "odd": 12}

    part = place / "train" if split else place
    assert Counter(one[0] for one in read_labeled(part).labels) == counts  # nnclr probe
    assert Counter(inspected_files(part).labels) == counts
    task = read_task(place)  # nnclr eval
    assert task.classes == ("even", "odd")
    assert len(task.train.paths) + len(task.test.paths) == len(paths)
    assert np.bincount(training_files([place]).labels).tolist() == [12, 12]  # nnclr pretrain, nnclr ablate
    [scored] = evaluation_sets([place])
    assert scored.classes == ("even", "odd")
    assert len(scored.train.paths) + len(scored.test.paths) == len(paths)
    bench.index_folder("c", part)
    assert dict(bench.collection("c").facets(["label"])["label"].values) == counts


def test_a_table_names_images_of_several_folders(tmp_path):
    for place in ("a", "b"):
        for number in range(10):
            path = tmp_path / place / "photos" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8)).save(path)
    (tmp_path / "tables").mkdir()
    table = tmp_path / "tables" / "t.csv"
    rows = [f"{place}/photos/{number}.png,{number % 2}" for place in "ab" for number in range(10)]
    table.write_text("\n".join(["path,label", *rows]))
    found = table_set(table, [tmp_path / "a" / "photos", tmp_path / "b" / "photos"])
    assert len(found.train.paths) + len(found.test.paths) == 20
    table.write_text("path,label\n0.png,1\n")
    with pytest.raises(InvalidRequest):
        table_set(table, [tmp_path / "a" / "photos", tmp_path / "b" / "photos"])


@pytest.mark.parametrize("name", ["unlabeled", "unlabelled"])
def test_training_reads_train_and_unlabeled_images_without_labels(name, photos, tmp_path):
    for label in ("astronaut", "cat"):
        shutil.copytree(photos / label, tmp_path / "set" / "train" / label)
        shutil.copytree(photos / label, tmp_path / "set" / "test" / label)
    shutil.copytree(photos / "coffee", tmp_path / "set" / name / "coffee")
    files = training_files([tmp_path / "set"])
    assert {path.relative_to(tmp_path / "set").parts[0] for path in map(Path, map(str, files))} == {"train", name}
    assert np.bincount(files.labels + 1).tolist() == [20, 20, 20]


def test_a_failed_download_and_an_unknown_name_are_explained(monkeypatch, tmp_path):
    def no_network(*args, **kwargs):
        raise OSError("Name or service not known")

    monkeypatch.setattr(torchvision.datasets, "STL10", no_network)
    with pytest.raises(NoImages, match="network"):
        find_data(["stl10"], Console(quiet=True))
    with pytest.raises(NoImages, match="did you mean 'cifar10'"):
        find_data(["cifar"], Console(quiet=True))
    with pytest.raises(NoImages, match=r"^s3://photos is an address or a pattern; name a folder of this machine\.$"):
        named_module.find_folder("s3://photos", Console(quiet=True))
    assert find_data([tmp_path], Console(quiet=True)) == [tmp_path]
    assert set(named_module.NAMED_SETS) >= {"cifar10", "imagenette", "stl10"}


def test_a_named_pipe_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "a.jpg")
    Image.new("RGB", (30, 20)).save(tmp_path / "b.jpg")
    assert typical_side(sampled_sizes(sorted(tmp_path.iterdir()))) == 20


def test_addresses_and_patterns_are_not_looked_for_on_the_disk(tmp_path):
    given = ["s3://photos/train", str(tmp_path / "*.tar"), str(tmp_path)]
    assert find_data(given, Console(quiet=True)) == [*given[:2], tmp_path]


@pytest.mark.parametrize(("residency", "resident"), [("device", True), ("auto", True), ("host", False)])
def test_residency_decides_where_a_pack_is(residency, resident):
    pack = pack_of(np.zeros((8, 4, 4, 3), np.uint8))
    assert PackedPixels(pack, torch.device("cpu"), residency).resident == resident
