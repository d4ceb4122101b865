"""The Python blocks of the guides about stores run, in their order, on the store that the pages describe."""

import re
from pathlib import Path

import numpy as np

from nnclr_hub import CollectionSpec, Item, open_store
from nnclr_hub.store.exchange import export_collection

DOCS = Path(__file__).parents[2] / "docs"
NAMES = ("indexing.md", "search.md", "label.md", "operate.md", "reference/collections.md")
PAGES = "\n".join((DOCS / name).read_text() for name in NAMES)


def test_the_python_blocks_run(tmp_path, monkeypatch, model, photos):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NNCLR_DEVICE", "cpu")
    vectors = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    with open_store("nnclr-store") as store:
        spec = CollectionSpec(4)
        store.create("photos", spec).upsert(
            [Item(f"i{n}", v, {"label": "ab"[n % 2], "pixel_sha256": str(n // 2)}) for n, v in enumerate(vectors)]
        )
        export_collection(store.get("photos"), Path("photos-export"))
    blocks = re.findall(r"^```python\n(.*?)^```", PAGES, re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 7
    names: dict = {}
    for block in blocks:
        if "reembed(" in block:  # its images must exist
            from nnclr_hub.workbench import Encoders, Workbench

            with open_store("nnclr-store") as store:
                store.drop("photos")
                Workbench(Encoders(str(model), device="cpu"), store).index_folder("photos", photos)
            (tmp_path / "runs/my").mkdir(parents=True)
            (tmp_path / "runs/my/encoder").symlink_to(model)
        exec(compile(block, "docs", "exec"), names)
    assert len(names["vectors"]) == 9
    assert names["where"]["must"]
