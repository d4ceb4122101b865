"""Labels of a user, as a job and as the REST call that starts it."""

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from labeling import ids_of

from app import probe_jobs
from app.page import Page
from app.probe_jobs import ProbeJobs, read_csv, read_labels
from nnclr_hub.errors import InvalidRequest


def test_a_command_for_many_items_contains_no_vectors(served, monkeypatch):
    monkeypatch.setattr(probe_jobs, "MAX_IN_COMMAND", 4)
    jobs = SimpleNamespace(submit=lambda *_: SimpleNamespace(id="started"))
    page_jobs = ProbeJobs(Page(served.bench, jobs=cast(Any, jobs)))
    ids = [*ids_of(served, "cat", 3), *ids_of(served, "coffee", 2)]
    few, many = ({id: str(i % 2) for i, id in enumerate(ids[:number])} for number in (4, 5))
    _, call = page_jobs.fit_labels("p", False, "photos", few)
    assert (call.path, len(call.json["items"])) == ("/api/v1/probes", 4)
    _, call = page_jobs.fit_labels("p", False, "photos", many)
    assert (call.path, call.json) == ("", None)
    assert all(repr(id) in call.call for id in ids)


def test_labels_of_missing_images_are_rejected(served):
    page_jobs = ProbeJobs(Page(served.bench))
    ids = ids_of(served, "cat", 2)
    with pytest.raises(InvalidRequest, match="'elsewhere' and 1 other"):
        page_jobs.tiles("photos", [ids[0], "elsewhere", ids[1], "nowhere"])
    assert [one.id for one in page_jobs.tiles("photos", ids[::-1])] == ids[::-1]


def test_labels_are_text_by_item_id(tmp_path):
    assert read_labels('{"a": "cat"}') == {"a": "cat"}
    for wrong in ("[1]", "{", '{"a": 1}', '{"a": ""}', json.dumps({"a": "x" * 81}), '{"": "cat"}'):
        with pytest.raises(InvalidRequest):
            read_labels(wrong)
    file = tmp_path / "labels.csv"
    file.write_text("\ufeffid,score,label\na.jpg,0.5,cat\nb.jpg,0.4,\n", encoding="utf-8")
    assert read_csv(file) == {"a.jpg": "cat"}
    for wrong in (b"", b"name,kind\na,b\n", b"\xff\xfe\x00", b"id,label\na,x\na,y\n", b"label,id\ncat\n"):
        file.write_bytes(wrong)
        with pytest.raises(InvalidRequest):
            read_csv(file)
