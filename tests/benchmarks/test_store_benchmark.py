"""The store's benchmark measures what it says: its truth is the truth, and all of its figures are there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.store_data import CHUNK, FILTERS, Clusters, exact

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def data() -> Clusters:
    return Clusters(CHUNK + 500, 24)


def test_the_truth_is_what_sorting_all_scores_gives(data):
    queries = data.queries(20)
    chunks = list(data.chunks())
    vectors = np.concatenate([rows.vectors for rows in chunks])
    for name, found in exact(data, queries, 10).items():
        passing = np.concatenate([rows.passing(name) for rows in chunks])
        wanted = np.argsort(np.where(passing, -(queries @ vectors.T), np.inf), axis=1)[:, :10]
        some = min(10, int(passing.sum()))
        assert np.array_equal(found[:, :some], wanted[:, :some]), name
        assert (found[:, some:] == -1).all()


def test_filters_pass_what_the_truth_says(data):
    rows = next(data.chunks())
    for name, where in FILTERS.items():
        [condition] = where["must"]
        values = [item[condition["key"]] for item in rows.metadata()]
        if "range" in condition:
            passes = [value < condition["range"]["lt"] for value in values]
        else:
            passes = [value == condition["match"] for value in values]
        assert passes == rows.passing(name).tolist(), name


def test_vectors_are_unit_and_clusters_as_tight_as_promised(data):
    rows = next(data.chunks())
    assert np.allclose(np.linalg.norm(rows.vectors, axis=1), 1, atol=1e-5)
    same = rows.cluster[:, None] == rows.cluster
    cosine = (rows.vectors @ rows.vectors.T)[same & ~np.eye(len(rows.cluster), dtype=bool)]
    assert 0.6 < cosine.mean() < 0.8


def test_every_figure_is_measured(tmp_path):
    command = [sys.executable, str(ROOT / "benchmarks/store.py"), "--items", "3000", "--dim", "16", "--queries", "128"]
    figures = tmp_path / "figures.json"
    command += ["--only", "nnclr_hub,SQLite,faiss HNSW", "--json", str(figures)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    found = json.loads(figures.read_text())
    ours = found["nnclr_hub"]
    assert ours["recall"] == 1
    for name in FILTERS:
        assert ours[f"{name}, recall"] == 1
        assert min(ours[f"{name}, {kind}ms"] for kind in ("", "first ", "after a write ")) > 0
    assert ours["memory, compacting"] >= ours["memory, searching"] > 0
    assert ours["disk"] > 1
    assert found["faiss HNSW"]["recall"] >= 0.98
    assert found["SQLite"]["items/s"] > 0
