"""The encoder of a workbench: the one that is named, or the one whose vectors a collection holds."""

import pytest

from nnclr_hub import CollectionSpec, load_encoder, open_store
from nnclr_hub.errors import CollectionNotFound, FingerprintMismatch
from nnclr_hub.workbench import Workbench
from nnclr_hub.workbench.models import Encoders

VIT = "random:test_vit"


def test_a_collection_uses_the_encoder_of_its_vectors(model, tmp_path):
    default = load_encoder(model, device="cpu").fingerprint
    with open_store(str(tmp_path / "store")) as store:
        bench = Workbench(Encoders(str(model), device="cpu"), store)
        vit = bench.models.get(VIT)
        spec = CollectionSpec.of(vit)
        store.create("moved", CollectionSpec(spec.dim, fingerprint=spec.fingerprint, model="local-dir:/gone"))

        assert bench.embedder().fingerprint == default
        assert bench.embedder(VIT).fingerprint == vit.fingerprint
        assert bench.embedder(collection="moved").fingerprint == vit.fingerprint
        assert bench.embedder(VIT, "moved").fingerprint == vit.fingerprint
        with pytest.raises(FingerprintMismatch):
            bench.embedder(str(model), "moved")
        with pytest.raises(CollectionNotFound):
            bench.embedder(collection="none")
