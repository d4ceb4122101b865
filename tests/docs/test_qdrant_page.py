"""The blocks of docs/from_qdrant.md about this library run in their order, and give what the page says."""

import re
from pathlib import Path

from nnclr_hub import open_store

PAGE = (Path(__file__).parents[2] / "docs" / "from_qdrant.md").read_text()


def test_the_python_blocks_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert len(blocks) == len(re.findall(r"^```py\n# Qdrant", PAGE, re.MULTILINE)) - 1  # moving data is a command here
    names: dict = {}
    for block in blocks:
        exec(compile(block, "docs/from_qdrant.md", "exec"), names)
        if "facets(" in block:
            assert names["photos"].facets(["label"], names["where"])["label"].values == [("c", 4)]
    assert [item.id for item in names["items"]] == ["i2", "i4", "i6", "i8"]
    assert list((tmp_path / "backups").iterdir())
    with open_store("nnclr-store", read_only=True) as store:
        left = {item.id: item.metadata for item in store.get("live").scroll().items}
    assert left.keys() == {"i0", "i1", "i3", "i5", "i7", "tom"}
    assert left["i1"] == {"label": "fish"}
