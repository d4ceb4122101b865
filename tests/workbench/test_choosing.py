"""Which encoder answers: the one that is named, or the one whose vectors a collection holds."""

import numpy as np
import pytest

from nnclr_hub import CollectionSpec, Point, load_encoder, open_store
from nnclr_hub.encoder.attention import AttentionSettings
from nnclr_hub.errors import CollectionNotFound, FingerprintMismatch
from nnclr_hub.workbench import Workbench
from nnclr_hub.workbench.models import Encoders

VIT = "random:test_vit"


@pytest.fixture
def bench(model, tmp_path):
    with open_store(str(tmp_path / "store")) as store:
        yield Workbench(Encoders(str(model), device="cpu"), store)


def test_maps_are_those_of_the_encoder_that_is_meant(bench, model, image_files):
    vit = load_encoder(VIT, device="cpu")
    spec = CollectionSpec.of(vit)
    bench.store.create("moved", CollectionSpec(spec.dim, fingerprint=spec.fingerprint, model="local-dir:/gone"))
    question = AttentionSettings(Point(9, 9))
    bench.models.get(VIT)  # by any name: the collection's own is gone
    for encoder, meant in (
        (load_encoder(model, device="cpu"), {}),
        (vit, {"model": VIT}),
        (vit, {"collection": "moved"}),
        (vit, {"collection": "moved", "model": VIT}),
    ):
        for targets in ([], image_files[1:3]):
            found = bench.look(question, image_files[0], targets, **meant)
            for one, want in zip(found, encoder.attention_maps(question, image_files[0], targets), strict=True):
                np.testing.assert_allclose(one.values, want.values, atol=1e-5)
    assert bench.embedder(collection="moved").fingerprint == vit.fingerprint
    with pytest.raises(FingerprintMismatch):
        bench.look(question, image_files[0], collection="moved", model=str(model))
    with pytest.raises(CollectionNotFound):
        bench.look(question, image_files[0], collection="none")
