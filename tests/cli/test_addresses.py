"""Verbs of a store work with the address of a server, too, or are refused as wrong calls."""

import numpy as np
from commands import nnclr
from contract.places import PLACES

from nnclr_hub import CollectionSpec, Item, open_store


def test_a_collection_of_a_server_is_exported_renamed_and_imported_elsewhere(tmp_path):
    with PLACES["http"](tmp_path) as url:
        with open_store(url) as store:
            store.create("c", CollectionSpec(4)).upsert([Item(f"i{i}", np.eye(4)[i], {"n": i}) for i in range(4)])
        code, _, err = nnclr("store", "export", "c", tmp_path / "out", "--server", url)
        assert code == 0, err
        code, _, err = nnclr("store", "import", tmp_path / "out", "--collection", "d", "--store", tmp_path / "local")
        assert code == 0, err
        code, _, err = nnclr("store", "rename", "c", "e", "--server", url)
        assert code == 0, err
        assert nnclr("store", "backup", "--server", url)[0] == 2
        assert nnclr("store", "repair", "e", "--server", url)[0] == 2
    with open_store(tmp_path / "local") as store:
        assert [dict(i.metadata) for i in store.get("d").scroll().items] == [{"n": i} for i in range(4)]
