"""If no item can be re-embedded, the error names the next step, and that step works."""

import shutil

import pytest

from nnclr_hub.errors import StoreError
from nnclr_hub.store import open_store
from nnclr_hub.workbench import Encoders, Workbench
from nnclr_hub.workbench.reembedding import reembed


def test_a_folder_whose_files_all_changed_must_be_indexed_again(model, make_model, image_files, tmp_path):
    folder, other = tmp_path / "photos", str(make_model(seed=1))
    folder.mkdir()
    for name in "ab":
        shutil.copy(image_files[0], folder / f"{name}.jpg")
    with open_store(str(tmp_path / "store")) as store:
        bench = Workbench(Encoders(str(model), device="cpu"), store)
        bench.index_folder("c", folder)
        for name in "ab":
            shutil.copy(image_files[1], folder / f"{name}.jpg")
        for skip_missing in (False, True):
            with pytest.raises(StoreError) as refusal:
                reembed(bench, "c", other, skip_missing=skip_missing)
            assert "another machine" not in str(refusal.value)
            assert store.aliases() == {}
        assert bench.index_folder("c", folder).updated == 2
        assert reembed(bench, "c", other).items == 2
