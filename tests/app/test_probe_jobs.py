"""Labels that a person gave, as the job and as the REST call that begins it."""

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from labeling import ids_of

from app import probe_jobs
from app.page import Page
from app.probe_jobs import ProbeJobs, read_csv, read_labels
from nnclr_hub.errors import InvalidRequest


def test_of_many_items_the_program_stands_there_without_their_vectors(served, monkeypatch):
    monkeypatch.setattr(probe_jobs, "MOST_WRITTEN", 4)
    jobs = SimpleNamespace(submit=lambda *_: SimpleNamespace(id="begun"))
    prober = probe_jobs.ProbeJobs(Page(served.bench, jobs=cast(Any, jobs)))
    ids = [*ids_of(served, "cat", 3), *ids_of(served, "coffee", 2)]
    few, many = ({id: str(i % 2) for i, id in enumerate(ids[:number])} for number in (4, 5))
    _, action = prober.by_labels("p", False, "photos", few)
    assert (action.path, len(action.json["items"])) == ("/api/v1/probes", 4)
    _, action = prober.by_labels("p", False, "photos", many)
    assert (action.path, action.json) == ("", None)
    assert all(repr(id) in action.call for id in ids)


def test_labels_of_images_that_are_not_there_are_a_sentence(served):
    """Fewer are found than are named, in whatever order."""
    prober = ProbeJobs(Page(served.bench))
    ids = ids_of(served, "cat", 2)
    with pytest.raises(InvalidRequest, match="has no image 'elsewhere' and 1 other, which the labels name"):
        prober.tiles("photos", [ids[0], "elsewhere", ids[1], "nowhere"])
    assert [one.id for one in prober.tiles("photos", ids[::-1])] == ids[::-1]


def test_labels_are_texts_of_items(tmp_path):
    assert read_labels('{"a": "cat"}') == {"a": "cat"}
    for wrong in ("[1]", "{", '{"a": 1}', '{"a": ""}', json.dumps({"a": "x" * 81}), '{"": "cat"}'):
        with pytest.raises(InvalidRequest):
            read_labels(wrong)
    file = tmp_path / "labels.csv"
    file.write_text("\ufeffid,score,label\na.jpg,0.5,cat\nb.jpg,0.4,\n", encoding="utf-8")
    assert read_csv(file) == {"a.jpg": "cat"}
    for wrong in (b"", b"name,kind\na,b\n", b"\xff\xfe\x00", b"id,label\na,x\na,y\n"):
        file.write_bytes(wrong)
        with pytest.raises(InvalidRequest):
            read_csv(file)
    file.write_text("label,id\ncat\n")
    with pytest.raises(InvalidRequest, match="Item id None is not possible"):
        read_csv(file)
