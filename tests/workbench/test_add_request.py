"""AddRequest: validation, its JSON form, and images without a thumbnail."""

import hashlib
import json

import pytest

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.store import open_store
from nnclr_hub.workbench import AddRequest, Encoders, FolderRequest, NewImage, Workbench


def test_an_image_without_an_id_gets_a_hash_of_its_bytes(image_files):
    data = image_files[0].read_bytes()
    assert NewImage(None, data).id == hashlib.sha256(data).hexdigest()[:32]
    assert len(AddRequest([NewImage(None, data), NewImage(None, data)]).images) == 2
    with pytest.raises(InvalidRequest):
        NewImage(None, image_files[0])


def test_the_json_form_holds_every_field(image_files):
    request = AddRequest([NewImage("a", image_files[0], {"label": "cat"}, thumbnail=False), NewImage(None, b"x")])
    body = json.loads(json.dumps(request.to_json()))
    again = AddRequest.from_json(body)
    assert again.to_json() == body
    assert again.images[0].image == image_files[0].read_bytes()
    assert [one.thumbnail for one in again.images] == [False, True]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"items": "a"},
        {"items": [{}]},
        {"items": [{"image": "YQ==", "unknown": 1}]},
        {"items": [{"image": "***"}]},
        {"items": [{"image": "YQ==", "id": "no!"}]},
        {"items": [{"image": "YQ==", "metadata": []}]},
        {"items": [{"image": "YQ==", "thumbnail": 1}]},
        {"items": [{"image": "YQ==", "id": "a"}, {"image": "Yg==", "id": "a"}]},
        {"items": [], "more": 1},
    ],
)
def test_an_invalid_request_cannot_be_made(body):
    with pytest.raises(InvalidRequest):
        AddRequest.from_json(body)


def test_images_can_be_added_without_a_thumbnail(image_files, photos, model, tmp_path):
    with open_store(str(tmp_path / "store")) as store:
        bench = Workbench(Encoders(str(model), device="cpu"), store)
        bench.ensure_collection("photos")
        images = [NewImage("with", image_files[0]), NewImage("without", image_files[1], thumbnail=False)]
        assert bench.add_images("photos", AddRequest(images)) == [None, None]
        assert bench.collection("photos").thumbnail("with") is not None
        assert bench.collection("photos").thumbnail("without") is None
        bench.index_folder("indexed", FolderRequest(photos, thumbnails=False))
        [item] = bench.collection("indexed").scroll(limit=1).items
        assert bench.collection("indexed").thumbnail(item.id) is None
