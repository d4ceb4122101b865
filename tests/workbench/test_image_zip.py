"""Zips that anybody may have made: what is in an honest one, and one sentence for each that is none."""

import io
import stat
import struct
import zipfile
from pathlib import Path

import pytest
from PIL import Image

from nnclr_hub.errors import ImageError, InvalidRequest
from nnclr_hub.workbench import image_zip
from nnclr_hub.workbench.image_zip import ImageZip


def picture(color: str = "red", side: int = 8) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (side, side), color).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def pack(tmp_path):
    """pack({name: data}) -> a zip."""

    def make(files: dict[str | zipfile.ZipInfo, bytes], compression: int = zipfile.ZIP_DEFLATED) -> Path:
        path = tmp_path / "photos.zip"
        with zipfile.ZipFile(path, "w", compression) as file:
            for name, data in files.items():
                file.writestr(name, data, compress_type=compression)
        return path

    return make


def refusal(path: Path, **options) -> str:
    with pytest.raises(InvalidRequest) as caught:
        ImageZip(path, "photos.zip", **options)
    said = str(caught.value)
    assert said.startswith("photos.zip ")
    assert said.count(". ") == 0
    assert said.endswith(".")
    assert str(path.parent) not in said
    return said


def test_the_images_of_an_honest_zip_are_read(pack):
    """Folders, hidden files, what a Mac adds and what is no image are passed over in silence."""
    files = {"a/1.png": picture(), "a/b/2.PNG": picture("blue"), "notes.txt": b"x", ".hidden.png": b"x"}
    files |= {"__MACOSX/a/._1.png": b"x", "a/": b"", "Grüße.png": picture("green")}
    with ImageZip(pack(files), "photos.zip") as opened:
        assert opened.names == ["a/1.png", "a/b/2.PNG", "Grüße.png"]
        assert opened.left_out == []
        assert [opened.read(name) for name in opened.names] == [files[name] for name in opened.names]


@pytest.mark.parametrize(
    "name", ["../up.png", "a/../../up.png", "/etc/up.png", "..\\up.png", "C:/up.png", "C:\\up.png", "a\\b.png"]
)
def test_a_name_that_leads_elsewhere_is_refused(pack, name):
    assert "outside" in refusal(pack({"a.png": picture(), name: picture()}))


def test_links_are_refused(pack):
    link = zipfile.ZipInfo("passwd.png")
    link.create_system = 3
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    assert "holds a link" in refusal(pack({link: b"/etc/passwd"}))


def test_what_is_encrypted_is_refused(pack):
    """The flag is set by hand, as Python packs nothing with a password."""
    path = pack({"a.png": picture()})
    data = bytearray(path.read_bytes())
    place = data.find(image_zip.HEADING)
    data[place + 8] |= image_zip.ENCRYPTED
    path.write_bytes(data)
    assert "is encrypted" in refusal(path)


@pytest.mark.parametrize("data", [b"", b"no zip", b"PK\x03\x04" + bytes(100), picture()])
def test_what_is_no_zip_is_refused(tmp_path, data):
    (tmp_path / "photos.zip").write_bytes(data)
    assert "damaged" in refusal(tmp_path / "photos.zip")


def test_a_zip_that_breaks_off_is_refused(pack):
    path = pack({f"{i}.png": picture() for i in range(10)})
    path.write_bytes(path.read_bytes()[:-40])
    assert "damaged" in refusal(path)


def test_a_zip_without_images_says_so(pack):
    assert "holds no image" in refusal(pack({"notes.txt": b"x"}))


def test_a_bomb_is_refused_by_what_it_would_unpack_to(pack, monkeypatch):
    """A ratio that no image has; and a total that is too much at any ratio."""
    zeros = bytes(60_000_000)
    assert "times its size" in refusal(pack({"a.bmp": zeros}), most_bytes=100_000_000)
    monkeypatch.setattr(image_zip, "MOST_BYTES", 1000)
    assert "would unpack to" in refusal(pack({"a.bmp": bytes(1001)}))


def test_a_zip_of_very_many_files_is_refused_before_its_list_is_read(pack, monkeypatch):
    monkeypatch.setattr(image_zip, "MOST_FILES", 20)
    many = pack({f"{i}.png": b"x" for i in range(21)})
    opened = []
    real = zipfile.ZipFile
    monkeypatch.setattr(image_zip.zipfile, "ZipFile", lambda *a, **k: opened.append(a) or real(*a, **k))
    assert "more than 20 files" in refusal(many)
    assert opened == []


def test_a_file_that_is_larger_than_it_says_gives_no_more_than_it_says(pack):
    """The heading says 10 bytes of what unpacks to a million: the image is damaged, and the memory is not filled."""
    path = pack({"a.png": bytes(1_000_000), "b.png": picture()})
    data = bytearray(path.read_bytes())
    for mark, offset in ((image_zip.HEADING, 24), (b"PK\x03\x04", 22)):
        struct.pack_into("<I", data, data.find(mark) + offset, 10)
    path.write_bytes(data)
    with ImageZip(path, "photos.zip") as opened:
        with pytest.raises(ImageError):
            opened.read("a.png")
        assert opened.read("b.png") == picture()


def test_what_looks_like_a_image_and_is_not_taken_is_told(pack):
    files = {"a.png": picture(), "inner.zip": b"PK", "large.png": bytes(2000)}
    with ImageZip(pack(files), "photos.zip", most_bytes=1000) as opened:
        assert opened.names == ["a.png"]
        assert [name for name, _ in opened.left_out] == ["inner.zip", "large.png"]
        assert "zip within the zip" in opened.left_out[0][1]
        assert "limit" in opened.left_out[1][1]


def test_other_ways_to_pack_are_told_and_not_unpacked(pack):
    with ImageZip(pack({"a.png": picture()}, zipfile.ZIP_LZMA), "photos.zip") as opened:
        assert opened.names == []
        assert "deflate" in opened.left_out[0][1]


def test_damage_within_is_the_error_of_one_image(pack):
    path = pack({"a.png": picture(side=64), "b.png": picture()}, zipfile.ZIP_STORED)
    data = bytearray(path.read_bytes())
    data[80] ^= 0xFF
    path.write_bytes(data)
    with ImageZip(path, "photos.zip") as opened:
        with pytest.raises(ImageError):
            opened.read("a.png")
        assert opened.read("b.png") == picture()


def test_two_files_of_one_name_are_one_image(tmp_path):
    path = tmp_path / "photos.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a.png", picture("red"))
        with pytest.warns(UserWarning, match="Duplicate"):
            file.writestr("a.png", picture("blue"))
    with ImageZip(path, "photos.zip") as opened:
        assert opened.read("a.png") == picture("blue")
