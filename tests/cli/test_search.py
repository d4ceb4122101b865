"""nnclr search: every kind of query, and its files."""

import csv
import json
from html import escape

import numpy as np
import pytest
from commands import output_of

from nnclr_hub import open_store
from nnclr_hub.store.base import Match
from nnclr_hub.store.items import percent_text
from nnclr_hub.workbench import Encoders, Example, SearchQuery, Workbench
from nnclr_hub.workbench.contact_sheet import SheetRow, write_contact_sheet


@pytest.fixture(scope="module")
def store(model, photos, tmp_path_factory):
    path = tmp_path_factory.mktemp("search") / "store"
    with open_store(str(path)) as opened:
        Workbench(Encoders(str(model), device="cpu"), opened).index_folder("c", photos)
    return path


@pytest.fixture
def bench(store, model):
    with open_store(str(store), read_only=True) as opened:
        yield Workbench(Encoders(str(model), device="cpu"), opened)


def found(*arguments):
    return json.loads(output_of("search", "--collection", "c", *arguments, "--json"))


def ids(answer) -> list[str]:
    return [match["id"] for match in answer["matches"]]


def test_options_become_the_query(bench, store, image_files, tmp_path):
    items = bench.collection("c").scroll(limit=3).items
    a, b = items[0].id, items[1].id
    np.save(tmp_path / "v.npy", np.stack([item.vector for item in items]))
    where = {"must": [{"key": "label", "match": "cat"}]}
    one, two = Example(image=image_files[4]), Example(id=b)
    cases = [
        ((image_files[4], "-k", 3), SearchQuery([one], k=3)),
        ((image_files[4], "--box", "0,0,32,32"), SearchQuery.of(image=image_files[4], box=(0, 0, 32, 32), k=5)),
        (("--id", a, "--where", json.dumps(where), "--exact"), SearchQuery.of(id=a, k=5, where=where, exact=True)),
        (("--id", a, "--group-by", "label"), SearchQuery.of(id=a, k=5, group_by="label")),
        (("--id", a, "--threshold", "0.99", "-k", 50), SearchQuery.of(id=a, k=50, score_threshold=0.99)),
        (("--positive", image_files[4], "--positive", b, "--negative", a), SearchQuery([one, two], [a], k=5)),
    ]
    for arguments, query in cases:
        expected = [match.id for match in bench.search("c", query)]
        assert ids(found("--store", store, *arguments)) == expected, arguments
    rows = found("--store", store, "--vector-from", tmp_path / "v.npy", "-k", 1, "--with-vector")
    assert [ids(row) for row in rows] == [[item.id] for item in items]
    assert len(rows[0]["matches"][0]["vector"]) == 32


def test_percentiles_are_next_to_the_scores(bench, store):
    id = bench.collection("c").scroll(limit=1).items[0].id
    expected = bench.search("c", SearchQuery.of(id=id, k=5, with_percentile=True))
    answer = found("--store", store, "--id", id)
    assert [match["percentile"] for match in answer["matches"]] == [match.percentile for match in expected]
    shown = output_of("search", "--collection", "c", "--store", store, "--id", id).splitlines()
    assert [line.split()[:2] for line in shown[1:4]] == [
        ["score", "percentile"],
        *([f"{match.score:.4f}", percent_text(match.percentile)] for match in expected[:2]),
    ]


def test_matches_are_written_as_html_and_csv(store, image_files, tmp_path):
    page, table = (tmp_path / f"matches.{suffix}" for suffix in ("html", "csv"))
    for path in (page, table):
        output_of("search", "--collection", "c", "--store", store, *image_files[:2], "-k", 4, "--out", path)
    html = page.read_text()
    assert html.count("data:image/jpeg;base64,") == 2 * (1 + 4), "each query, then its matches"
    assert "<script" not in html
    assert 'src="http' not in html
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert 0.5 < float(rows[0]["percentile"]) <= 1
    assert escape(f"({percent_text(float(rows[0]['percentile']))})") in html
    assert [(row["query"], row["rank"]) for row in rows[:4]] == [(str(image_files[0]), str(i)) for i in range(1, 5)]
    assert rows[0]["label"]


def test_a_metadata_key_may_be_called_percentile(tmp_path):
    matches = [Match("a", 0.5, {"percentile": "metadata", "z": 1}, percentile=0.9), Match("b", 0.4, {"z": 2})]
    write_contact_sheet(tmp_path / "m.csv", [SheetRow("query", matches)], lambda id: None)
    assert list(csv.reader((tmp_path / "m.csv").read_text().splitlines())) == [
        ["query", "rank", "id", "score", "percentile", "z", "percentile_"],
        ["query", "1", "a", "0.500000", "metadata", "1", "0.9000"],
        ["query", "2", "b", "0.400000", "", "2", ""],
    ]
    write_contact_sheet(tmp_path / "m.csv", [SheetRow("query", matches[1:])], lambda id: None)
    assert (tmp_path / "m.csv").read_text().splitlines()[0] == "query,rank,id,score,z"


def test_the_printed_path_is_the_one_that_a_filter_matches(bench, store, photos):
    item = bench.collection("c").scroll(limit=1).items[0]
    text = output_of("search", "--collection", "c", "--store", store, "--id", item.id, "-k", 1)
    path = text.split()[-1]
    assert str(photos) in text
    assert bench.collection("c").count({"must": [{"key": "path", "match": path}]}) == 1
