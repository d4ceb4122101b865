"""Large images are read, embedded, indexed and inspected in tiles."""

import numpy as np
import pytest
import tifffile
from PIL import Image

from nnclr_hub.bulk import embed_shards, open_shards
from nnclr_hub.bulk.collection_import import collect
from nnclr_hub.encoder.loader import load_encoder
from nnclr_hub.errors import ImageError, ImageTooLarge, InvalidRequest
from nnclr_hub.images import tiles
from nnclr_hub.images.decode import MAX_PIXELS, decode_any, decode_image
from nnclr_hub.images.pool import DecodingLimits, decoding_processes
from nnclr_hub.images.reading import PLAIN, ImageReading
from nnclr_hub.images.source import Source
from nnclr_hub.images.tiles import Tiling, tiles_of
from nnclr_hub.store import open_store
from nnclr_hub.workbench import Encoders, FolderRequest, SearchQuery, Workbench
from nnclr_hub.workbench.inspection.subject import folder_subject
from nnclr_hub.workbench.sources import read_original

RNG = np.random.default_rng(0)
SLIDE = RNG.integers(0, 256, (20, 26, 3), dtype=np.uint8).repeat(10, 0).repeat(10, 1)  # 260 x 200
SLIDE[100:200, :100] = 240  # background
TILING = Tiling(100, 20)
LAYOUTS = {
    "tiles": {"tile": (64, 64), "compression": "zlib"},
    "strips": {"rowsperstrip": 9, "compression": "zlib"},
    "raw": {},
    "planes": {"planarconfig": "separate"},
    "lossy": {"tile": (64, 64), "compression": "jpeg"},
}


@pytest.fixture
def slides(tmp_path):
    folder = tmp_path / "slides"
    folder.mkdir()
    tifffile.imwrite(folder / "a.tif", SLIDE, photometric="rgb", tile=(64, 64), compression="zlib")
    return folder


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tiles_cover_the_image_and_have_its_pixels(layout, tmp_path):
    path = tmp_path / "slide.svs"
    pixels = SLIDE.transpose(2, 0, 1) if layout == "planes" else SLIDE
    tifffile.imwrite(path, pixels, photometric="rgb", **LAYOUTS[layout])
    whole = tifffile.imread(path) if layout == "lossy" else SLIDE
    tiles = tiles_of(path, TILING)
    assert [tile.box for tile in tiles] == [(x, y, x + 100, y + 100) for y in (0, 80, 100) for x in (0, 80, 160)]
    for tile in tiles:
        left, top, right, bottom = tile.box
        np.testing.assert_array_equal(np.asarray(decode_image(tile)), whole[top:bottom, left:right])
    with decoding_processes(1):
        np.testing.assert_array_equal(np.asarray(decode_image(tiles[4])), whole[80:180, 80:180])
        with pytest.raises(ImageError):
            decode_image(Source.tile_of(path, (200, 0, 300, 100)))


def test_other_formats_are_cut_too_and_small_images_are_one_tile(tmp_path):
    Image.fromarray(SLIDE).save(tmp_path / "a.png")
    for tile in tiles_of(tmp_path / "a.png", TILING):
        left, top, right, bottom = tile.box
        np.testing.assert_array_equal(np.asarray(decode_image(tile)), SLIDE[top:bottom, left:right])
    [one] = tiles_of(tmp_path / "a.png", Tiling(300))
    assert one.box == (0, 0, 260, 200)
    for invalid in ((8, 0), (100, 100), (100, -1)):
        with pytest.raises(InvalidRequest):
            Tiling(*invalid)


@pytest.mark.parametrize("scale", ["depth", "range"])
def test_all_tiles_of_a_16_bit_image_have_one_scale(scale, tmp_path):
    values = np.arange(200 * 150 * 2, dtype=np.uint16).reshape(200, 150, 2)
    tifffile.imwrite(tmp_path / "a.tif", values, photometric="minisblack", planarconfig="contig")
    reading = ImageReading(scale=scale)
    whole = np.asarray(decode_any(tmp_path / "a.tif", reading))
    for tile in tiles_of(tmp_path / "a.tif", Tiling(64), reading):
        left, top, right, bottom = tile.box
        np.testing.assert_array_equal(np.asarray(decode_any(tile, reading)), whole[top:bottom, left:right])


def test_the_scale_of_a_slide_is_found_once(tmp_path, monkeypatch):
    monkeypatch.setenv("NNCLR_CACHE", str(tmp_path / "cache"))
    slide = tmp_path / "a.tif"
    tifffile.memmap(slide, shape=(7000, 7000), dtype=np.uint16, photometric="minisblack")[5, 5] = 9999
    with decoding_processes(1, DecodingLimits(cpu_s=0.01)):  # of an image; all of a slide is read
        first = tiles_of(slide, Tiling(1000))
    assert {one.window for one in first} == {((0.0,), (65535.0,))}
    monkeypatch.setattr(tiles, "window_of", None)
    assert tiles_of(slide, Tiling(1000)) == first
    tifffile.imwrite(slide, np.full((700, 700), 3, np.uint16))
    with pytest.raises(ImageError):  # another file
        tiles_of(slide, Tiling(1000))


def test_an_image_above_the_limit_is_read_in_tiles(tmp_path):
    side = 9000
    assert side * side > MAX_PIXELS
    path = tmp_path / "large.tif"
    canvas = tifffile.memmap(path, shape=(side, side), dtype=np.uint8, photometric="minisblack")
    canvas[5000:5064, 7000:7064] = np.arange(64)
    canvas.flush()
    del canvas
    with pytest.raises(ImageTooLarge):
        decode_image(path)
    assert len(tiles_of(path, Tiling(1000))) == 81
    found = np.asarray(decode_image(Source.tile_of(path, (7000, 5000, 7064, 5064))))
    np.testing.assert_array_equal(found[..., 0], np.tile(np.arange(64), (64, 1)))


def test_a_collection_of_tiles(slides, model, tmp_path):
    with open_store(tmp_path / "store") as store:
        bench = Workbench(Encoders(str(model), device="cpu"), store)
        report = bench.index_folder("slides", FolderRequest(slides, tiling=Tiling(100, 20, skip_empty=True)))
        assert (report.added, report.empty, report.left_out) == (8, 1, {})
        collection = bench.collection("slides")
        items = collection.scroll().items
        assert {tuple(item.metadata["box"]) for item in items} == {
            (x, y, x + 100, y + 100) for y in (0, 80, 100) for x in (0, 80, 160)
        } - {(0, 100, 100, 200)}
        part = Image.fromarray(SLIDE[80:180, 160:260])
        [match] = bench.search("slides", SearchQuery.of(image=part, k=1))
        assert match.metadata["box"] == [160, 80, 260, 180]
        original = read_original(collection, match.id, None)
        assert original.of == "source"
        np.testing.assert_array_equal(np.asarray(decode_image(original.data)), np.asarray(part))
        again = bench.index_folder("slides", FolderRequest(slides, tiling=Tiling(100, 20, skip_empty=True)))
        assert (again.added, again.unchanged, again.empty) == (0, 8, 1)
        for other in (None, Tiling(64)):
            with pytest.raises(InvalidRequest) as refused:
                bench.index_folder("slides", FolderRequest(slides, tiling=other))
            assert "with box [" in str(refused.value)
        written = [one.id for one in collection.scroll(limit=2).items]
        for id, box in zip(written, ([1, 2], ["a", 0, 1, 1]), strict=True):  # clients can write metadata
            collection.update_each({id: {"box": box}})
        with pytest.raises(InvalidRequest):
            bench.index_folder("slides", slides)
        replaced = bench.index_folder("slides", FolderRequest(slides, prune=True))
        assert (replaced.added, replaced.removed) == (1, 8)


def test_a_damaged_slide_keeps_its_tiles_and_does_not_block_its_folder(slides, model, tmp_path):
    (slides / "b.tif").write_bytes((slides / "a.tif").read_bytes())
    with open_store(tmp_path / "store") as store:
        bench = Workbench(Encoders(str(model), device="cpu"), store)
        assert bench.index_folder("slides", FolderRequest(slides, tiling=TILING)).added == 18
        (slides / "b.tif").write_bytes(b"II*\0\0")
        for prune in (False, True):
            report = bench.index_folder("slides", FolderRequest(slides, tiling=TILING, prune=prune))
            assert (report.unchanged, report.removed, report.added) == (9, 0, 0)
            assert [path for path, _ in report.broken] == [str(slides / "b.tif")]
            assert len(bench.collection("slides").scroll(limit=100).items) == 18
        (slides / "b.tif").unlink()
        assert bench.index_folder("slides", FolderRequest(slides, tiling=TILING, prune=True)).removed == 9


def test_shards_and_inspections_of_tiles(slides, model, tmp_path):
    encoder = load_encoder(model, device="cpu")
    embed_shards(tmp_path / "vectors", [slides], encoder, tiling=TILING)
    [shard] = open_shards(tmp_path / "vectors")
    assert shard.paths[4] == f"{slides}/a.tif#80,80,180,180"
    part = decode_image(Source.tile_of(slides / "a.tif", (80, 80, 180, 180)))
    np.testing.assert_allclose(shard.vectors[4], encoder.embed([part])[0], atol=1e-5)
    with open_store(tmp_path / "store") as store:
        assert collect(open_shards(tmp_path / "vectors"), store, "slides") == (9, 9)
        boxes = {tuple(item.metadata["box"]) for item in store.get("slides").scroll().items}
        assert boxes == {tile.box for tile in tiles_of(slides / "a.tif", TILING)}
        bench = Workbench(Encoders(str(model), device="cpu"), store)
        assert bench.index_folder("slides", FolderRequest(slides, tiling=TILING)).unchanged == 9
    subject = folder_subject(slides, encoder, tiling=TILING)
    assert subject.items[4] == "a.tif#80,80,180,180"
    np.testing.assert_allclose(subject.vectors, shard.vectors, atol=1e-5)
    assert encoder.reading == PLAIN
