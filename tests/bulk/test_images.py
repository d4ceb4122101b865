"""A bulk run lists the same images in the same order, from folders and from archives."""

import os
import shutil
import subprocess
import tarfile
import tracemalloc
from pathlib import Path

import pytest
from PIL import Image

from nnclr_hub.bulk.image_list import contents, digest_of, find_images, named
from nnclr_hub.encoder.image_folder import list_images
from nnclr_hub.errors import InvalidRequest, NoImages


@pytest.fixture
def archive(photos, image_files, tmp_path):
    """The photos in an archive, with a text file and a hidden file that are not listed."""
    (tmp_path / "note.txt").write_text("no image")
    with tarfile.open(tmp_path / "photos.tar", "w") as tar:
        tar.add(tmp_path / "note.txt", "note.txt")
        tar.add(image_files[0], ".hidden/00.jpg")
        for path in image_files:
            tar.add(path, f"./{path.relative_to(photos)}")
    return tmp_path / "photos.tar"


def test_a_folder_is_listed_as_indexing_lists_it(photos):
    sources, found = find_images([photos])
    assert [named(sources, one) for one in found] == [str(path) for path in list_images(photos)]
    assert list(contents(sources, found)) == [str(path.resolve()) for path in list_images(photos)]


def test_images_in_an_archive_have_the_bytes_of_the_files(archive, photos, image_files):
    sources, found = find_images([archive])
    assert [one.path for one in found] == [path.relative_to(photos).as_posix() for path in image_files]
    assert [one.read() for one in contents(sources, found)] == [path.read_bytes() for path in image_files]
    with tarfile.open(archive) as tar:
        assert [one.mtime for one in found[:3]] == [tar.getmember(f"./{one.path}").mtime for one in found[:3]]


def test_several_sources_keep_their_order(archive, photos, image_files):
    sources, found = find_images([image_files[5], archive, photos])
    assert [one.source for one in found] == [0] + [1] * 60 + [2] * 60
    read = list(contents(sources, found))
    assert read[0] == str(image_files[5].resolve())
    assert read[1].read() == image_files[0].read_bytes()
    assert read[61] == str(image_files[0].resolve())


def test_the_digest_of_a_listing_does_not_depend_on_its_location(photos, tmp_path):
    copy = tmp_path / "elsewhere"
    shutil.copytree(photos, copy)
    here, there = (digest_of(*find_images([folder])) for folder in (photos, copy))
    assert here == there
    (copy / "cat" / "01.jpg").write_bytes(b"another image")
    assert digest_of(*find_images([copy])) != here


def test_folders_of_equal_names_and_sizes_have_different_digests(tmp_path):
    """Two series of a microscope look like this."""
    for series, level in (("a", 10), ("b", 200)):
        (tmp_path / series).mkdir()
        for number in range(8):
            Image.new("RGB", (8, 8), (level, 0, 0)).save(tmp_path / series / f"{number}.bmp")
    one, other = (digest_of(*find_images([tmp_path / series])) for series in ("a", "b"))
    assert one != other


def test_a_folder_of_archives_lists_the_images_in_them(archive, tmp_path):
    (tmp_path / "set").mkdir()
    for name in ("00001.tar", "00000.tar"):
        shutil.copy(archive, tmp_path / "set" / name)
    (tmp_path / "set" / "00000.json").write_text("{}")
    sources, found = find_images([tmp_path / "set"])
    assert [Path(one.given).name for one in sources] == ["00000.tar", "00001.tar"]
    assert len(found) == 120


def test_invalid_paths_and_archives_are_refused(photos, tmp_path, archive):
    with pytest.raises(NoImages):
        find_images([tmp_path / "nowhere"])
    with tarfile.open(tmp_path / "packed.tar.gz", "w:gz") as tar:
        tar.add(photos, "photos")
    with pytest.raises(InvalidRequest):
        find_images([tmp_path / "packed.tar.gz"])
    (tmp_path / "no.tar").write_bytes(b"something else, and long enough to be a header of an archive" * 20)
    with pytest.raises(InvalidRequest):
        find_images([tmp_path / "no.tar"])
    with tarfile.open(tmp_path / "empty.tar", "w") as tar:
        tar.add(tmp_path / "note.txt", "note.txt")
    with pytest.raises(NoImages):
        find_images([tmp_path / "empty.tar"])


@pytest.mark.parametrize("at", ["in an image", "before a header", "in a header", "before the end"])
def test_a_truncated_archive_is_refused_before_embedding(archive, tmp_path, at):
    with tarfile.open(archive) as tar:
        member, last = tar.getmembers()[20], tar.getmembers()[-1]
    end = -(-(last.offset_data + last.size) // 512) * 512
    where = {
        "in an image": member.offset_data + 100,
        "before a header": member.offset,
        "in a header": member.offset + 100,
        "before the end": end,
    }
    cut = tmp_path / "cut.tar"
    cut.write_bytes(archive.read_bytes()[: where[at]])
    with pytest.raises(InvalidRequest):
        find_images([cut])


def test_data_after_damage_or_after_the_end_of_an_archive_is_refused(archive, tmp_path):
    with tarfile.open(archive) as tar:
        header = tar.getmembers()[20].offset
    content = bytearray(archive.read_bytes())
    (tmp_path / "two.tar").write_bytes(content * 2)
    for name, damage in (("ff.tar", b"\xff" * 512), ("00.tar", bytes(512))):
        (tmp_path / name).write_bytes(content[:header] + damage + content[header + 512 :])
    for name in ("two.tar", "ff.tar", "00.tar"):
        with pytest.raises(InvalidRequest):
            find_images([tmp_path / name])


def test_paths_in_an_archive_stay_inside_it(image_files, tmp_path):
    with tarfile.open(tmp_path / "odd.tar", "w") as tar:
        for name in ("/abs/x.jpg", ".//z.jpg", "../up.jpg", "a/../b.jpg"):
            member = tarfile.TarInfo(name)
            member.size = image_files[0].stat().st_size
            with image_files[0].open("rb") as file:
                tar.addfile(member, file)
    assert [one.path for one in find_images([tmp_path / "odd.tar"])[1]] == ["abs/x.jpg", "z.jpg", "up.jpg", "a/b.jpg"]


def test_a_sparse_file_in_an_archive_is_refused(tmp_path):
    with (tmp_path / "holes.bmp").open("wb") as file:
        file.seek(1 << 20)
        file.write(b"end")
    subprocess.run(["tar", "cSf", "sparse.tar", "holes.bmp"], cwd=tmp_path, check=True)
    with pytest.raises(InvalidRequest):
        find_images([tmp_path / "sparse.tar"])


def test_an_archive_that_changed_after_listing_is_refused(archive):
    sources, found = find_images([archive])
    os.utime(archive, (1, 1))
    with pytest.raises(InvalidRequest):
        next(iter(contents(sources, found))).read()


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE])
def test_a_header_of_an_archive_that_is_too_large_is_refused_before_it_is_read(tmp_path, kind):
    header = tarfile.TarInfo("a.jpg")
    header.type, header.size = kind, 200_000_000
    path = tmp_path / "large.tar"
    path.write_bytes(header.tobuf(tarfile.GNU_FORMAT))
    os.truncate(path, header.size + 10 * 512)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest):
            find_images([path])
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()
