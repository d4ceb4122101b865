"""The same images are listed in the same order, from folders and from archives."""

import io
import os
import re
import shutil
import subprocess
import tarfile
import threading
import tracemalloc
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from PIL import Image

from nnclr_hub import Item
from nnclr_hub.bulk.plan import digest_of
from nnclr_hub.errors import ImageError, InvalidRequest, NNCLRHubError, NoImages
from nnclr_hub.images.decode import decode_image
from nnclr_hub.images.listing import find_images, find_units, list_images, open_unit
from nnclr_hub.remote_files import expand
from nnclr_hub.store.checks import metadata_json
from nnclr_hub.workbench.folder_changes import metadata_of
from nnclr_hub.workbench.payload import image_file


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
    found = find_images([photos])
    assert list(map(str, found)) == [str(path) for path in list_images(photos)]
    assert [one.file for one in found] == [str(path.resolve()) for path in list_images(photos)]


def test_a_folder_can_be_walked_from_any_of_its_images(photos):
    """In the order of a listing, so that a process can go to its stretch of a folder of any size."""
    (photos.parent / "odd").mkdir(exist_ok=True)
    for name in ("b/1.jpg", "b.jpg", "b-c/2.jpg", "b/a/3.jpg", "a.jpg", ".hidden/4.jpg", "b/x.txt"):
        path = photos.parent / "odd" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    for folder in (photos, photos.parent / "odd"):
        found = find_images([folder])
        for start in range(len(found)):
            assert list(open_unit((str(folder),), found[start].path)[1]) == found[start:]


def test_images_in_an_archive_have_the_bytes_of_the_files(archive, photos, image_files):
    found = find_images([archive])
    assert [one.path for one in found] == [path.relative_to(photos).as_posix() for path in image_files]
    assert [one.read() for one in found] == [path.read_bytes() for path in image_files]
    with tarfile.open(archive) as tar:
        assert [one.mtime for one in found[:3]] == [tar.getmember(f"./{one.path}").mtime for one in found[:3]]


def test_several_sources_keep_their_order(archive, photos, image_files):
    found = find_images([image_files[5], archive, photos])
    assert [bool(one.place.archive) for one in found] == [False] + [True] * 60 + [False] * 60
    assert found[0].file == str(image_files[5].resolve())
    assert found[1].read() == found[61].read() == image_files[0].read_bytes()
    assert found[61].file == str(image_files[0].resolve())


def test_the_digest_of_a_listing_does_not_depend_on_its_location(photos, tmp_path):
    copy = tmp_path / "elsewhere"
    shutil.copytree(photos, copy)
    here, there = (digest_of(find_images([folder])) for folder in (photos, copy))
    assert here == there
    (copy / "cat" / "01.jpg").write_bytes(b"another image")
    assert digest_of(find_images([copy])) != here


def test_folders_of_equal_names_and_sizes_have_different_digests(tmp_path):
    """Two series of a microscope look like this."""
    for series, level in (("a", 10), ("b", 200)):
        (tmp_path / series).mkdir()
        for number in range(8):
            Image.new("RGB", (8, 8), (level, 0, 0)).save(tmp_path / series / f"{number}.bmp")
    one, other = (digest_of(find_images([tmp_path / series])) for series in ("a", "b"))
    assert one != other


def test_a_folder_of_archives_lists_the_images_in_them(archive, tmp_path):
    (tmp_path / "set").mkdir()
    for name in ("00001.tar", "00000.tar"):
        shutil.copy(archive, tmp_path / "set" / name)
    (tmp_path / "set" / "00000.json").write_text("{}")
    found = find_images([tmp_path / "set"])
    assert list(dict.fromkeys(Path(one.place.given).name for one in found)) == ["00000.tar", "00001.tar"]
    assert len(found) == 120


@pytest.fixture
def webdataset(image_files, tmp_path) -> list[Path]:
    """Two archives as WebDataset and img2dataset write them; the last sample has two images."""
    archives = []
    for shard in range(2):
        archives.append(tmp_path / f"data-{shard:03}.tar")
        with tarfile.open(archives[-1], "w") as tar:
            for number in range(3):
                key = f"{shard:03}/{number:04}"
                files = {
                    "cls": b"7\n",
                    "json": b'{"caption": "a cat", "width": 64}',
                    "jpg": image_files[number].read_bytes(),
                }
                files |= {"txt": "ein Bär".encode(), "seg.png": b""} if number == 1 else {}
                files |= {"b.jpg": files["jpg"]} if number == 2 else {}
                for suffix, data in files.items():
                    member = tarfile.TarInfo(f"{key}.{suffix}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    return archives


def test_images_of_webdataset_keep_their_keys_captions_and_labels(webdataset, tmp_path):
    found = find_images([str(tmp_path / "data-{000..001}.tar")])
    assert list(dict.fromkeys(one.place.given for one in found)) == [str(path) for path in webdataset]
    about = [metadata_of(one) for one in found[:5]]
    common = {"cls": 7, "caption": "a cat", "width": 64}
    assert about[0] == {**common, "__key__": "000/0000"}
    # the texts are those of the image with their name, not of the mask
    assert [one.path for one in found[1:5]] == ["000/0001.jpg", "000/0001.seg.png", "000/0002.jpg", "000/0002.b.jpg"]
    assert about[1:] == [{**common, "txt": "ein Bär", "__key__": "000/0001"}, {}, {**common, "__key__": "000/0002"}, {}]
    assert [one.label for one in found[:5]] == ["7", "7", None, "7", None]


def pack(archive: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(archive, "w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def test_texts_that_no_collection_stores_are_left_out_and_named(tmp_path, caplog):
    texts = {
        "finite": b'{"caption": 1}',
        "nan": b'{"caption": NaN}',
        "huge": b'{"caption": 1e999}',
        "deep": b'{"a": ' * 200 + b"1" + b"}" * 200,
        "nul": b'{"caption": "\\u0000"}',
    }
    pack(tmp_path / "a.tar", {f"{k}.{s}": t for k, text in texts.items() for s, t in (("jpg", b""), ("json", text))})
    kept = [metadata_of(one) for one in find_images([tmp_path / "a.tar"])]
    as_text = [{"json": texts[key].decode(), "__key__": key} for key in ("nan", "huge", "deep", "nul")]
    assert kept == [{"caption": 1, "__key__": "finite"}, *as_text]
    for about in kept:
        metadata_json(Item("id", np.zeros(2), about))
    assert {name for name in texts if f"a.tar/{name}.jpg" in caplog.text} == {"nan", "huge", "deep", "nul"}
    pack(tmp_path / "b.tar", {"k.jpg": b"", "k.txt": b"a\0b"})
    [found] = find_images([tmp_path / "b.tar"])
    assert metadata_of(found) == {"__key__": "k"}


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("d-{000..002}.tar", ["d-000.tar", "d-001.tar", "d-002.tar"]),
        ("d-{8..11}{a,b}", ["d-8a", "d-8b", "d-9a", "d-9b", "d-10a", "d-10b", "d-11a", "d-11b"]),
        ("{one}.tar", ["{one}.tar"]),
        ("memory://nowhere/*.tar", []),
        ("s3://b/{a,b}.tar", ["s3://b/a.tar", "s3://b/b.tar"]),
    ],
)
def test_patterns_name_several_files(pattern, names):
    assert expand(pattern) == names


def test_patterns_that_name_too_much_or_nothing_are_refused(tmp_path):
    for pattern in ("d-{0..100000000}.tar", "{0..999}{0..999}", "{a,b}" * 20, "d-{9..0}.tar"):
        with pytest.raises(InvalidRequest):
            expand(pattern)
    for pattern in (tmp_path / "d-{0..1}.tar", tmp_path / "*.tar"):
        with pytest.raises(NoImages):
            find_images([pattern])


def test_an_address_lists_and_reads_the_images_that_a_folder_has(photos, image_files, webdataset):
    files = fsspec.filesystem("memory")
    files.put(str(photos), "/lake/photos", recursive=True)
    files.pipe("/lake/photos/notes.txt", b"no image")
    files.pipe("/lake/photos/.hidden/a.jpg", b"hidden")
    for path in webdataset:
        files.put(str(path), f"/lake/shards/{path.name}")
    found = find_images(["memory://lake/photos"])
    assert [one.path for one in found] == [path.relative_to(photos).as_posix() for path in image_files]
    assert [one.read() for one in found] == [path.read_bytes() for path in image_files]
    assert str(found[0]) == f"memory://lake/photos/{found[0].path}"
    local = find_images(webdataset)
    for given in (["memory://lake/shards"], ["memory://lake/shards/data-*.tar"]):
        found = find_images(given)
        assert [(one.path, one.key, one.offset) for one in found] == [(i.path, i.key, i.offset) for i in local]
        assert list(map(metadata_of, found)) == list(map(metadata_of, local))
        assert [one.read() for one in found] == [one.read() for one in local]
    assert digest_of(found) == digest_of(local)
    # one part of a run lists one archive, and not all of them
    assert find_units(["memory://lake/shards"]) == [(f"memory://lake/shards/{one.name}",) for one in webdataset]
    assert find_units(["memory://lake/photos"]) == [("memory://lake/photos",)]
    address = f"memory://lake/photos/{image_files[0].relative_to(photos).as_posix()}"
    for decode in (decode_image, lambda source: decode_image(image_file(source)[1])):  # here, and as a client sends it
        np.testing.assert_array_equal(np.asarray(decode(address)), np.asarray(decode_image(image_files[0])))
        with pytest.raises(ImageError):
            decode("memory://lake/photos/none.png")
    for nothing in ("memory://lake/nowhere", "memory://lake/photos/none/"):
        with pytest.raises(NoImages):
            find_images([nothing])


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view(), "dictionary"])
def test_the_bytes_in_a_table_may_have_any_type(kind, image_files, tmp_path):
    files = [path.read_bytes() for path in (*image_files[:3], image_files[0])]
    column = pa.array(files).dictionary_encode() if kind == "dictionary" else pa.array(files, kind)
    pq.write_table(pa.table({"image": column}), tmp_path / "images.parquet")
    assert [one.read() for one in find_images([tmp_path / "images.parquet"])] == files


class Ranges(SimpleHTTPRequestHandler):
    """Send the range that a client asks for, after which an address may have a signature; or the whole file."""

    ignored = False

    def do_GET(self):
        data = Path(self.translate_path(self.path)).read_bytes()
        first, last = re.findall(r"\d+", self.headers.get("Range", "")) or (0, len(data))
        whole = "Range" not in self.headers or self.ignored
        part = data if whole else data[int(first) : int(last) + 1]
        self.send_response(200 if whole else 206)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.end_headers()
        self.wfile.write(part)

    def log_message(self, *arguments):
        pass


@pytest.mark.parametrize("suffix", ["tar", "zip"])
def test_an_archive_on_a_web_server_is_read_in_parts_or_refused(photos, image_files, tmp_path, suffix):
    shutil.make_archive(str(tmp_path / "photos"), suffix, photos)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Ranges, directory=str(tmp_path))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            images = find_images([f"http://127.0.0.1:{server.server_port}/photos.{suffix}?X-Signature=a%2Fb"])
            found = {one.path: one.read() for one in images}
            assert found == {path.relative_to(photos).as_posix(): path.read_bytes() for path in image_files}
            Ranges.ignored = True
            with pytest.raises(NNCLRHubError):
                images[-1].read()
        finally:
            Ranges.ignored = False
            server.shutdown()


def test_an_unreachable_or_unknown_address_is_one_sentence(monkeypatch):
    class Broken(MemoryFileSystem):
        def info(self, path, **options):
            raise RuntimeError("Could not connect\n to the endpoint")

    with monkeypatch.context() as patch:
        patch.setattr("nnclr_hub.images.listing.open_file_system", lambda address: (Broken(), "/bucket"))
        with pytest.raises(NNCLRHubError) as caught:
            find_images(["memory://bucket"])
        assert "\n" not in str(caught.value)
    with pytest.raises(InvalidRequest):
        find_images(["nothing://bucket/photos"])


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
    assert [one.path for one in find_images([tmp_path / "odd.tar"])] == ["abs/x.jpg", "z.jpg", "up.jpg", "a/b.jpg"]


def test_a_sparse_file_in_an_archive_is_refused(tmp_path):
    with (tmp_path / "holes.bmp").open("wb") as file:
        file.seek(1 << 20)
        file.write(b"end")
    subprocess.run(["tar", "cSf", "sparse.tar", "holes.bmp"], cwd=tmp_path, check=True)
    with pytest.raises(InvalidRequest):
        find_images([tmp_path / "sparse.tar"])


@pytest.mark.parametrize(
    "headers",
    [
        {"GNU.sparse.map": "1,x"},
        {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "?"},
        {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"},
        {"GNU.sparse.size": "ten", "GNU.sparse.map": "1"},
    ],
)
def test_a_tar_with_a_damaged_sparse_header_is_refused_with_a_sentence(tmp_path, headers):
    with tarfile.open(tmp_path / "bad.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("a.bmp")
        member.pax_headers, member.size = headers, 600
        tar.addfile(member, io.BytesIO(b"x" * 600))
    with pytest.raises(InvalidRequest):
        find_images([tmp_path / "bad.tar"])


def test_an_archive_that_changed_after_listing_is_refused(archive):
    found = find_images([archive])
    os.utime(archive, (1, 1))
    with pytest.raises(InvalidRequest):
        found[0].read()


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
