"""Packs, orders, batches, degradation and named sets: nothing is lost, decoded twice or mixed up."""

import os
import pickle
import shutil
import tarfile
import threading

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from rich.console import Console

from nnclr_hub.encoder.labeled import read_labeled
from nnclr_hub.errors import NoImages, NoRoom
from training.data import image_pack as pack_module
from training.data import named_sets as named_module
from training.data.batches import Batches, epoch_order, seed_of
from training.data.datasets import evaluation_sets, training_files, typical_side
from training.data.degrade import degrade, jpeg_like, shrink_and_enlarge
from training.data.image_pack import ImagePack, build_pack
from training.data.named_sets import find_data

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
    original = pack_module._squash
    monkeypatch.setattr(pack_module, "_squash", lambda path, size: (seen.append(path), original(path, size))[1])
    resumed = build_pack(paths, 32, cache=tmp_path / "cut")
    assert len(seen) == len(paths) - 16, "two blocks of eight were in the journal"
    assert np.array_equal(whole.pixels, resumed.pixels)
    assert np.array_equal(whole.kept, resumed.kept)
    assert resumed.broken[0][0] == str(bad)


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


# ---- orders and batches


def test_an_epoch_is_a_permutation_that_depends_on_seed_and_epoch():
    origin = np.zeros(100, np.int64)
    orders = [epoch_order(origin, 10, seed, epoch) for seed, epoch in ((0, 0), (0, 0), (0, 1), (1, 0))]
    assert all(sorted(order.tolist()) == list(range(100)) for order in orders)
    assert torch.equal(orders[0], orders[1])
    assert not torch.equal(orders[0], orders[2])
    assert not torch.equal(orders[0], orders[3])
    assert seed_of(1, 2) != seed_of(2, 1)


def test_batches_can_come_mostly_from_one_folder():
    """Three quarters of a batch share a folder while it has unused images; no image occurs twice."""
    origin = np.repeat([0, 1, 2], [400, 200, 47])
    order = epoch_order(origin, 20, seed=0, epoch=3, one_folder=0.75)
    assert len(order) == 640
    assert len(set(order.tolist())) == 640
    largest = [np.bincount(origin[batch]).max() / 20 for batch in order.view(-1, 20).numpy()]
    assert sum(share >= 0.75 for share in largest) >= 400 // 20 + 200 // 20 + 47 // 20
    mixed = epoch_order(origin, 20, seed=0, epoch=3).numpy()[:640].reshape(-1, 20)
    assert np.mean([np.bincount(origin[batch]).max() / 20 for batch in mixed]) < np.mean(largest)


@pytest.fixture
def numbered() -> ImagePack:
    """40 images whose pixels equal their number."""
    pixels = np.broadcast_to(np.arange(40, dtype=np.uint8)[:, None, None, None], (40, 8, 8, 3)).copy()
    return ImagePack(pixels, np.ones(40, np.float32), np.arange(40), ())


@pytest.mark.parametrize("residency", ["device", "host"])
def test_a_batch_holds_the_images_of_its_ids(numbered, residency, monkeypatch):
    """From memory and from the prefetching thread, also after a jump to another step."""
    if residency == "host":
        monkeypatch.setattr(Batches, "_fits", lambda self: False)
    labels = np.arange(40) % 3
    batches = Batches(
        numbered, labels, np.zeros(40, np.int64), batch_size=8, seed=0, where=torch.device("cpu"), residency=residency
    )
    batches.resident = residency == "device"
    if residency == "host":
        from concurrent.futures import ThreadPoolExecutor

        batches._thread = ThreadPoolExecutor(1)
    order = torch.cat([epoch_order(np.zeros(40, np.int64), 8, 0, epoch) for epoch in range(3)])
    for step in (0, 1, 2, 9, 10, 4):
        batch = batches.at(step)
        assert batch.ids.tolist() == order[step * 8 : step * 8 + 8].tolist()
        assert batch.images[:, 0, 0, 0].tolist() == batch.ids.tolist()
        assert batch.labels.tolist() == (batch.ids % 3).tolist()
    batches.close()


def test_ranks_share_a_batch(numbered):
    def ids(rank, world):
        zeros, cpu = np.zeros(40, np.int64), torch.device("cpu")
        batches = Batches(numbered, zeros, zeros, batch_size=8, seed=0, where=cpu, rank=rank, world=world)
        return batches.at(3).ids.tolist()

    assert ids(0, 2) + ids(1, 2) == ids(0, 1)


# ---- degradation


def test_jpeg_like_rounding_is_near_pillows_jpeg():
    """For gray images at several qualities our error is within a fifth of Pillow's."""
    import io

    from skimage import data

    photo = Image.fromarray(data.astronaut()[40:168, 150:278]).convert("L")
    x = torch.from_numpy(np.asarray(photo, np.float32) / 255).expand(1, 3, -1, -1).contiguous()
    for quality in (20, 50, 90):
        file = io.BytesIO()
        photo.save(file, "JPEG", quality=quality)
        theirs = torch.from_numpy(np.asarray(Image.open(file), np.float32) / 255)
        ours = jpeg_like(x, torch.tensor([float(quality)]))[0, 0]
        error_ours, error_theirs = (ours - x[0, 0]).square().mean(), (theirs - x[0, 0]).square().mean()
        assert error_ours == pytest.approx(float(error_theirs), rel=0.2), quality
        assert (ours - theirs).abs().mean() < (theirs - x[0, 0]).abs().mean() / 2, quality


def test_shrinking_removes_detail_and_keeps_flat_images():
    checker = ((torch.arange(32)[:, None] + torch.arange(32)) % 2).float().expand(2, 3, 32, 32)
    flat = torch.full((2, 3, 32, 32), 0.3)
    half = torch.tensor([0.5, 0.5])
    torch.testing.assert_close(shrink_and_enlarge(checker, half), torch.full((2, 3, 32, 32), 0.5), atol=1e-5, rtol=0)
    torch.testing.assert_close(shrink_and_enlarge(flat, half), flat)
    torch.testing.assert_close(shrink_and_enlarge(checker, torch.ones(2)), checker, atol=1e-5, rtol=0)


def test_degrade_changes_some_images_and_not_the_others():
    x = torch.rand(200, 3, 20, 20)
    before = x.clone()
    degrade(x, 0.3, torch.Generator().manual_seed(0))
    changed = (x != before).flatten(1).any(1).float().mean()
    assert 0.2 < changed < 0.4
    degrade(before_again := before.clone(), 0.0, torch.Generator())
    assert torch.equal(before_again, before)


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


@pytest.mark.parametrize("name", ["unlabeled", "unlabelled"])
def test_training_reads_train_and_unlabeled_images_without_labels(name, photos, tmp_path):
    for label in ("astronaut", "cat"):
        shutil.copytree(photos / label, tmp_path / "set" / "train" / label)
        shutil.copytree(photos / label, tmp_path / "set" / "test" / label)
    shutil.copytree(photos / "coffee", tmp_path / "set" / name / "coffee")
    files = training_files([tmp_path / "set"])
    assert {path.relative_to(tmp_path / "set").parts[0] for path in files.paths} == {"train", name}
    assert np.bincount(files.labels + 1).tolist() == [20, 20, 20]


def test_a_failed_download_and_an_unknown_name_are_explained(monkeypatch, tmp_path):
    def no_network(*args, **kwargs):
        raise OSError("Name or service not known")

    monkeypatch.setattr(torchvision.datasets, "STL10", no_network)
    with pytest.raises(NoImages, match="network"):
        find_data(["stl10"], Console(quiet=True))
    with pytest.raises(NoImages, match="did you mean 'cifar10'"):
        find_data(["cifar"], Console(quiet=True))
    assert find_data([tmp_path], Console(quiet=True)) == [tmp_path]
    assert set(named_module.NAMED_SETS) >= {"cifar10", "imagenette", "stl10"}


def test_a_named_pipe_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "a.jpg")
    Image.new("RGB", (30, 20)).save(tmp_path / "b.jpg")
    assert typical_side(sorted(tmp_path.iterdir())) == 20
