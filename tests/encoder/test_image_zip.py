"""Uploaded zips: valid ones are read, and others are refused with one line."""

import io
import random
import stat
import struct
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from nnclr_hub.encoder import image_zip
from nnclr_hub.encoder.image_list import image_files
from nnclr_hub.encoder.image_zip import ImageZip
from nnclr_hub.errors import ImageError, InvalidRequest
from nnclr_hub.remote_files import RemoteBytes


def png(color: str = "red", side: int = 8) -> bytes:
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


def test_the_images_of_a_valid_zip_are_read(pack):
    """Folders, hidden files, files of macOS and other formats are skipped."""
    files = {"a/1.png": png(), "a/b/2.PNG": png("blue"), "notes.txt": b"x", ".hidden.png": b"x"}
    files |= {"__MACOSX/a/._1.png": b"x", "a/": b"", "Grüße.png": png("green")}
    with ImageZip(pack(files), "photos.zip") as opened:
        assert opened.names == ["a/1.png", "a/b/2.PNG", "Grüße.png"]
        assert opened.left_out == []
        assert [opened.read(name) for name in opened.names] == [files[name] for name in opened.names]


@pytest.mark.parametrize(
    "name", ["../up.png", "a/../../up.png", "/etc/up.png", "..\\up.png", "C:/up.png", "C:\\up.png", "a\\b.png"]
)
def test_a_path_outside_the_zip_is_refused(pack, name):
    assert "outside" in refusal(pack({"a.png": png(), name: png()}))


def test_links_are_refused(pack):
    link = zipfile.ZipInfo("passwd.png")
    link.create_system = 3
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    assert "holds a link" in refusal(pack({link: b"/etc/passwd"}))


def test_an_encrypted_zip_is_refused(pack):
    """The flag is set by hand, since Python cannot write encrypted zips."""
    path = pack({"a.png": png()})
    data = bytearray(path.read_bytes())
    place = data.find(image_zip.HEADING)
    data[place + 8] |= image_zip.ENCRYPTED
    path.write_bytes(data)
    assert "is encrypted" in refusal(path)


@pytest.mark.parametrize("data", [b"", b"not a zip", b"PK\x03\x04" + bytes(100), png()])
def test_a_file_that_is_not_a_zip_is_refused(tmp_path, data):
    (tmp_path / "photos.zip").write_bytes(data)
    assert "damaged" in refusal(tmp_path / "photos.zip")


def test_a_truncated_zip_is_refused(pack):
    path = pack({f"{i}.png": png() for i in range(10)})
    path.write_bytes(path.read_bytes()[:-40])
    assert "damaged" in refusal(path)


def test_a_zip_without_images_is_refused(pack):
    assert "holds no image" in refusal(pack({"notes.txt": b"x"}))


def test_a_zip_bomb_is_refused_by_its_unpacked_size(pack, monkeypatch):
    """Both the compression ratio and the total size are limited."""
    zeros = bytes(60_000_000)
    assert "times its size" in refusal(pack({"a.bmp": zeros}), most_bytes=100_000_000)
    monkeypatch.setattr(image_zip, "MOST_BYTES", 1000)
    assert "would unpack to" in refusal(pack({"a.bmp": bytes(1001)}))


def test_a_zip_with_too_many_files_is_refused_before_its_directory_is_read(pack, monkeypatch):
    monkeypatch.setattr(image_zip, "MOST_FILES", 20)
    many = pack({f"{i}.png": b"x" for i in range(21)})
    opened = []
    real = zipfile.ZipFile
    monkeypatch.setattr(image_zip.zipfile, "ZipFile", lambda *a, **k: opened.append(a) or real(*a, **k))
    assert "more than 20 files" in refusal(many)
    assert opened == []


def test_a_file_with_a_false_size_is_read_only_up_to_that_size(pack):
    """The header claims 10 bytes for a file of a million, so the image is damaged and memory stays small."""
    path = pack({"a.png": bytes(1_000_000), "b.png": png()})
    data = bytearray(path.read_bytes())
    for mark, offset in ((image_zip.HEADING, 24), (b"PK\x03\x04", 22)):
        struct.pack_into("<I", data, data.find(mark) + offset, 10)
    path.write_bytes(data)
    with ImageZip(path, "photos.zip") as opened:
        with pytest.raises(ImageError):
            opened.read("a.png")
        assert opened.read("b.png") == png()


def test_skipped_files_are_listed_with_a_reason(pack):
    files = {"a.png": png(), "inner.zip": b"PK", "large.png": bytes(2000)}
    with ImageZip(pack(files), "photos.zip", most_bytes=1000) as opened:
        assert opened.names == ["a.png"]
        assert [name for name, _ in opened.left_out] == ["inner.zip", "large.png"]
        assert "zip within the zip" in opened.left_out[0][1]
        assert "limit" in opened.left_out[1][1]


def test_unsupported_compression_is_listed_and_not_unpacked(pack):
    with ImageZip(pack({"a.png": png()}, zipfile.ZIP_LZMA), "photos.zip") as opened:
        assert opened.names == []
        assert "deflate" in opened.left_out[0][1]


def test_damage_inside_a_zip_is_an_error_of_one_image(pack):
    path = pack({"a.png": png(side=64), "b.png": png()}, zipfile.ZIP_STORED)
    data = bytearray(path.read_bytes())
    data[80] ^= 0xFF
    path.write_bytes(data)
    with ImageZip(path, "photos.zip") as opened:
        with pytest.raises(ImageError):
            opened.read("a.png")
        assert opened.read("b.png") == png()


def test_two_files_of_one_name_are_one_image(tmp_path):
    path = tmp_path / "photos.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a.png", png("red"))
        with pytest.warns(UserWarning, match="Duplicate"):
            file.writestr("a.png", png("blue"))
    with ImageZip(path, "photos.zip") as opened:
        assert opened.read("a.png") == png("blue")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_flipped_byte_of_an_image_of_the_users_own_zip_is_found(pack, method):
    file = io.BytesIO()
    Image.effect_noise((40, 40), 90).save(file, "BMP")
    path = pack({"a.bmp": file.getvalue(), "b.png": png()}, method)
    data = bytearray(path.read_bytes())
    data[1000] ^= 0x10
    path.write_bytes(data)
    images = image_files([path])
    assert images[1].read() == png()
    for one in (images[0], replace(images[0], image=replace(images[0].image, zipped=None))):
        with pytest.raises(ImageError):
            one.read()


def test_long_headings_and_streamed_files_of_a_zip_are_read(tmp_path):
    """zipalign writes long extra fields; a zip written to a pipe has neither sizes nor CRC in its headings."""

    class Pipe(io.BytesIO):
        def seekable(self):
            return False

    aligned = zipfile.ZipInfo("a.png")
    aligned.extra = struct.pack("<HH", 0xD900, 5000) + bytes(5000)
    for number, stream in enumerate((io.BytesIO(), Pipe())):
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr(aligned, png(side=64))
            file.writestr("b.png", png("blue"))
        path = tmp_path / f"{number}.zip"
        path.write_bytes(stream.getvalue())
        images = image_files([path])
        images += [replace(one, image=replace(one.image, zipped=None)) for one in images]
        assert [one.read() for one in images] == [png(side=64), png("blue")] * 2


def test_a_packed_image_at_an_address_is_fetched_by_its_packed_size(pack, monkeypatch):
    file = io.BytesIO()
    Image.new("RGB", (400, 400), "red").save(file, "BMP")
    path = pack({"a.bmp": file.getvalue(), "noise": random.Random(0).randbytes(1_000_000)})
    fetched = []
    read = RemoteBytes.read
    monkeypatch.setattr(RemoteBytes, "read", lambda self: fetched.append(read(self)) or fetched[-1])
    [image] = image_files([f"file://{path}"])
    assert image.read() == file.getvalue()
    assert sum(map(len, fetched)) < 5000
