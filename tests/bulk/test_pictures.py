"""What a bulk run finds to do: the same pictures in the same order, from folders and from archives."""

import tarfile

import pytest

from nnclr_hub.bulk.pictures import contents, digest_of, list_pictures, named
from nnclr_hub.encoder.image_folder import list_images
from nnclr_hub.errors import InvalidRequest, NoImages


@pytest.fixture
def archive(photos, pictures, tmp_path):
    """The photos in an archive, with a note and a hidden file that are none."""
    (tmp_path / "note.txt").write_text("no picture")
    with tarfile.open(tmp_path / "photos.tar", "w") as tar:
        tar.add(tmp_path / "note.txt", "note.txt")
        tar.add(pictures[0], ".hidden/00.jpg")
        for path in pictures:
            tar.add(path, f"./{path.relative_to(photos)}")
    return tmp_path / "photos.tar"


def test_a_folder_is_listed_as_indexing_lists_it(photos):
    sources, found = list_pictures([photos])
    assert [named(sources, one) for one in found] == [str(path) for path in list_images(photos)]
    assert list(contents(sources, found)) == [str(path.resolve()) for path in list_images(photos)]


def test_an_archive_holds_the_bytes_of_its_files(archive, photos, pictures):
    sources, found = list_pictures([archive])
    assert [one.path for one in found] == [path.relative_to(photos).as_posix() for path in pictures]
    assert list(contents(sources, found)) == [path.read_bytes() for path in pictures]
    with tarfile.open(archive) as tar:
        assert [one.mtime for one in found[:3]] == [tar.getmember(f"./{one.path}").mtime for one in found[:3]]


def test_several_sources_keep_their_order_and_are_told_apart(archive, photos, pictures):
    sources, found = list_pictures([pictures[5], archive, photos])
    assert [one.source for one in found] == [0] + [1] * 60 + [2] * 60
    read = list(contents(sources, found))
    assert read[0] == str(pictures[5].resolve())
    assert read[1] == pictures[0].read_bytes()
    assert read[61] == str(pictures[0].resolve())


def test_a_listing_is_told_by_names_and_sizes_wherever_it_lies(photos, tmp_path):
    import shutil

    copy = tmp_path / "elsewhere"
    shutil.copytree(photos, copy)
    here, there = (digest_of(list_pictures([folder])[1]) for folder in (photos, copy))
    assert here == there
    (copy / "cat" / "00.jpg").write_bytes(b"another picture")
    assert digest_of(list_pictures([copy])[1]) != here


def test_what_cannot_be_listed_is_said(photos, tmp_path, archive):
    with pytest.raises(NoImages, match="does not exist"):
        list_pictures([tmp_path / "nowhere"])
    with tarfile.open(tmp_path / "packed.tar.gz", "w:gz") as tar:
        tar.add(photos, "photos")
    with pytest.raises(InvalidRequest, match="is compressed"):
        list_pictures([tmp_path / "packed.tar.gz"])
    (tmp_path / "no.tar").write_bytes(b"something else, and long enough to be a header of an archive" * 20)
    with pytest.raises(InvalidRequest, match="is no whole tar file"):
        list_pictures([tmp_path / "no.tar"])
    with tarfile.open(tmp_path / "empty.tar", "w") as tar:
        tar.add(tmp_path / "note.txt", "note.txt")
    with pytest.raises(NoImages, match="holds no picture"):
        list_pictures([tmp_path / "empty.tar"])


def test_an_archive_that_breaks_off_is_refused_before_anything_is_embedded(archive, tmp_path):
    cut = tmp_path / "cut.tar"
    cut.write_bytes(archive.read_bytes()[:70_000])
    with pytest.raises(InvalidRequest, match="is no whole tar file"):
        list_pictures([cut])
