"""Uploaded zips: valid ones are read, and others are refused with one line."""

import io
import random
import stat
import struct
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from image_bytes import encoded
from PIL import Image

from nnclr_hub.errors import ImageError, ImageTooLarge, InvalidRequest
from nnclr_hub.images import listing
from nnclr_hub.images.listing import find_images, list_archive
from nnclr_hub.images.source import Place, Source
from nnclr_hub.remote_files import RemoteBytes


def png(color: str = "red", side: int = 8) -> bytes:
    return encoded(Image.new("RGB", (side, side), color))


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


def place_of(path: Path) -> Place:
    """Return the place of an uploaded archive."""
    return Place(f"photos{path.suffix}", str(path), path.suffix, path.stat().st_mtime)


def listed(path: Path) -> dict[str, Source]:
    """Return the images of an uploaded zip by name."""
    return {one.path: one for one in list_archive(place_of(path), limited=True)[1]}


def refusal(path: Path) -> str:
    with pytest.raises(InvalidRequest) as caught:
        listed(path)
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
    images = listed(pack(files))
    assert list(images) == ["a/1.png", "a/b/2.PNG", "Grüße.png"]
    assert [image.read() for image in images.values()] == [files[name] for name in images]
    with zipfile.ZipFile(path := pack(files), "a") as file, pytest.warns(UserWarning, match="Duplicate"):
        file.writestr("a/1.png", png("blue"))
    assert listed(path)["a/1.png"].read() == png("blue")  # the last of two files of one name


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("../up.png", "up.png"),
        ("a/../../up.png", "a/up.png"),
        ("/etc/up.png", "etc/up.png"),
        ("//host/up.png", "host/up.png"),
        ("..\\up.png", "up.png"),
        ("C:/up.png", "up.png"),
        ("C:\\up.png", "up.png"),
        ("a\\b.png", "a/b.png"),
        ("a\\.b.png", None),
    ],
)
def test_names_are_the_same_for_uploaded_and_local_archives(pack, tmp_path, name, path):
    """Nothing is unpacked, so steps that lead outside are left out; backslashes are those of Windows."""
    zip = pack({"a.png": png(), name: png("blue")})
    expected = ["a.png", *([path] if path else [])]
    images = listed(zip)
    assert list(images) == [one.path for one in find_images([zip])] == expected
    assert images[expected[-1]].read() == png("blue" if path else "red")
    assert images[expected[-1]].label == find_images([zip])[-1].label
    if "\\" not in name:  # which a tar may have in a name
        tar = tmp_path / "photos.tar"
        with tarfile.open(tar, "w") as file:
            file.addfile(tarfile.TarInfo(name))
        assert [one.path for one in list_archive(place_of(tar), limited=True)[1]] == [path]
        assert [one.path for one in find_images([tar])] == [path]


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_links_are_counted_and_not_read(pack, tmp_path, caplog, kind):
    if kind == "zip":
        link = zipfile.ZipInfo("passwd.png")
        link.create_system = 3
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        path, count = pack({"a.png": png(), link: b"/etc/passwd"}), 1
    else:
        (tmp_path / "a.png").write_bytes(png())
        (tmp_path / "hard.png").hardlink_to(tmp_path / "a.png")
        (tmp_path / "soft.png").symlink_to("a.png")
        path, count = tmp_path / "photos.tar", 2
        with tarfile.open(path, "w") as file:
            for name in ("a.png", "hard.png", "soft.png"):
                file.add(tmp_path / name, name)
    place, images = list_archive(place_of(path), limited=True)
    assert [one.path for one in images] == [one.path for one in find_images([path])] == ["a.png"]
    assert dict(place.left_out) == {"links": count}
    assert f"{count} links" in caplog.text


def test_an_encrypted_zip_is_refused_and_one_without_images(pack):
    """The flag is set by hand, since Python cannot write encrypted zips."""
    assert listed(pack({"notes.txt": b"x"})) == {}
    path = pack({"a.png": png()})
    data = bytearray(path.read_bytes())
    place = data.find(listing.ZIP_ENTRY)
    data[place + 8] |= listing.ENCRYPTED
    path.write_bytes(data)
    assert "is encrypted" in refusal(path)


@pytest.mark.parametrize("data", [b"", b"not a zip", b"PK\x03\x04" + bytes(100), png(), None])
def test_a_file_that_is_not_a_whole_zip_is_refused(pack, data):
    path = pack({f"{i}.png": png() for i in range(10)})
    path.write_bytes(path.read_bytes()[:-40] if data is None else data)
    refusal(path)


def test_a_zip_that_is_cut_behind_a_zip_in_it_is_refused(pack):
    """The directory of the inner zip is then the last one of the file."""
    inner = pack({"in/1.png": png()}).read_bytes()
    path = pack({"a.png": png("blue"), "inner.zip": inner}, zipfile.ZIP_STORED)
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.index(inner) + len(inner)])
    assert zipfile.ZipFile(path).namelist() == ["in/1.png"]
    assert "truncated" in refusal(path)
    with pytest.raises(InvalidRequest):
        find_images([path])


def test_a_zip_bomb_is_refused_by_its_unpacked_size(pack, monkeypatch):
    """Both the compression ratio and the total size are limited."""
    zeros = bytes(60_000_000)
    assert "times its size" in refusal(pack({"a.bmp": zeros}))
    monkeypatch.setattr(listing, "MOST_UNPACKED", 1000)
    assert "would unpack to" in refusal(pack({"a.bmp": bytes(1001)}))


def test_an_archive_with_too_many_files_is_refused_before_its_directory_is_read(pack, tmp_path, monkeypatch):
    monkeypatch.setattr(listing, "MOST_FILES", 20)
    many = pack({f"{i}.png": b"x" for i in range(21)})
    with monkeypatch.context() as patch:
        patch.setattr(zipfile, "ZipFile", lambda *_, **__: pytest.fail("opened"))
        assert "more than 20 files" in refusal(many)
    with tarfile.open(tmp_path / "many.tar", "w") as tar:
        for i in range(21):
            tar.addfile(tarfile.TarInfo(f"{i}.txt"))
    with pytest.raises(InvalidRequest, match="more than 20 files"):
        list_archive(place_of(tmp_path / "many.tar"), limited=True)


def test_a_file_with_a_false_size_is_read_only_up_to_that_size(pack):
    """The header claims 10 bytes for a file of a million, so the image is damaged and memory stays small."""
    path = pack({"a.png": bytes(1_000_000), "b.png": png()})
    data = bytearray(path.read_bytes())
    for mark, offset in ((listing.ZIP_ENTRY, 24), (b"PK\x03\x04", 22)):
        struct.pack_into("<I", data, data.find(mark) + offset, 10)
    path.write_bytes(data)
    images = listed(path)
    with pytest.raises(ImageError):
        images["a.png"].read()
    assert images["b.png"].read() == png()


def test_large_images_are_refused_and_archives_within_the_zip_counted(pack):
    path = pack({"a.png": png(), "inner.zip": b"PK", "large.png": bytes(2000)})
    images = listed(path)
    assert list(images) == ["a.png", "large.png"]
    with pytest.raises(ImageTooLarge):
        images["large.png"].read(1000)
    assert dict(list_archive(place_of(path), limited=True)[0].left_out) == {".zip": 1}


def test_unsupported_compression_is_not_unpacked(pack):
    with pytest.raises(ImageError, match="deflate"):
        listed(pack({"a.png": png()}, zipfile.ZIP_LZMA))["a.png"].read()


def test_damage_inside_a_zip_is_an_error_of_one_image(pack):
    path = pack({"a.png": png(side=64), "b.png": png()}, zipfile.ZIP_STORED)
    data = bytearray(path.read_bytes())
    data[80] ^= 0xFF
    path.write_bytes(data)
    images = listed(path)
    with pytest.raises(ImageError):
        images["a.png"].read()
    assert images["b.png"].read() == png()


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_flipped_byte_of_an_image_of_the_users_own_zip_is_found(pack, method):
    path = pack({"a.bmp": encoded(Image.effect_noise((40, 40), 90), "BMP"), "b.png": png()}, method)
    data = bytearray(path.read_bytes())
    data[1000] ^= 0x10
    path.write_bytes(data)
    images = find_images([path])
    assert images[1].read() == png()
    for one in (images[0], replace(images[0], zipped=None)):
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
        images = find_images([path])
        images += [replace(one, zipped=None) for one in images]
        assert [one.read() for one in images] == [png(side=64), png("blue")] * 2


def test_a_packed_image_at_an_address_is_fetched_by_its_packed_size(pack, monkeypatch):
    bmp = encoded(Image.new("RGB", (400, 400), "red"), "BMP")
    path = pack({"a.bmp": bmp, "noise": random.Random(0).randbytes(1_000_000)})
    fetched = []
    read = RemoteBytes.read
    monkeypatch.setattr(RemoteBytes, "read", lambda self: fetched.append(read(self)) or fetched[-1])
    [image] = find_images([f"file://{path}"])
    assert image.read() == bmp
    assert sum(map(len, fetched)) < 5000
