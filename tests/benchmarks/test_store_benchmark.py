"""The store's benchmark measures what it says: its truth is the truth, and all of its sections run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.store_data import CHUNK, FILTERS, Clusters, exact, item_id, recall

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def data() -> Clusters:
    return Clusters(CHUNK + 500, 24)


def test_the_truth_is_what_sorting_all_scores_gives(data):
    queries = data.queries(20)
    chunks = list(data.chunks())
    vectors = np.concatenate([rows.vectors for rows in chunks])
    truth = exact(data, queries, 10, tuple(FILTERS))
    for name, found in truth.items():
        passing = np.concatenate([rows.passing(name) if name else np.ones(len(rows.ids()), bool) for rows in chunks])
        wanted = np.argsort(np.where(passing, -(queries @ vectors.T), np.inf), axis=1)[:, :10]
        some = min(10, int(passing.sum()))
        assert np.array_equal(found[:, :some], wanted[:, :some]), name
        assert (found[:, some:] == -1).all()


def test_vectors_are_unit_and_clusters_as_tight_as_promised(data):
    rows = next(data.chunks())
    assert np.allclose(np.linalg.norm(rows.vectors, axis=1), 1, atol=1e-5)
    same = rows.cluster[:, None] == rows.cluster
    cosine = (rows.vectors @ rows.vectors.T)[same & ~np.eye(len(rows.cluster), dtype=bool)]
    assert 0.6 < cosine.mean() < 0.8


def test_recall_counts_what_was_found_of_what_there_is():
    truth = np.array([[1, 2, -1], [3, -1, -1]])
    assert recall([[item_id(1), item_id(9)], [item_id(3)]], truth) == pytest.approx(2 / 3)


def test_every_section_gives_its_figures(tmp_path):
    command = [sys.executable, str(ROOT / "benchmarks/store.py"), "--items", "3000", "--dim", "16", "--turns", "1"]
    figures = tmp_path / "figures.json"
    subprocess.run([*command, "--queries", "128", "--json", str(figures)], check=True, capture_output=True, timeout=300)
    found = json.loads(figures.read_text())
    assert {"ingest_1000", "ingest_100", "search_batch", "search_one", "memory"} <= set(found)
    assert found["recall"]["store"] == 1
    assert all(found[f"filter {name}"]["recall"] == 1 for name in FILTERS)
