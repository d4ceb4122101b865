"""What a collection of images contains: functions on vectors, ids and small images. No models, no HTTP.

    from nnclr_hub import inspect

    inspect.project(vectors).coordinates        # (N, 2) float32, a map
    inspect.clusters(vectors)                   # groups with a medoid each
    inspect.outliers(vectors)                   # (N,) float32, high is odd
    inspect.near_duplicates(vectors)            # groups of the same image in several versions

All functions are deterministic. Vectors are (N, D) float32 with rows of length 1, as encoders return them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

# name -> the module that defines it; importing this package imports neither torch nor faiss
_HOME = {
    "project": "projection",
    "Map": "projection",
    "clusters": "clustering",
    "Clusters": "clustering",
    "outliers": "local_density",
    "near_duplicates": "duplicates",
    "Duplicates": "duplicates",
    "equal_values": "duplicates",
    "find_leaks": "leaks",
    "Leak": "leaks",
    "suspect_labels": "label_issues",
    "Suspects": "label_issues",
    "class_overlap": "confusion",
    "Overlap": "confusion",
    "what_to_label_next": "label_next",
    "image_facts": "facts",
    "ImageFacts": "facts",
}

__all__ = [
    "Clusters",
    "Duplicates",
    "ImageFacts",
    "Leak",
    "Map",
    "Overlap",
    "Suspects",
    "class_overlap",
    "clusters",
    "equal_values",
    "find_leaks",
    "image_facts",
    "near_duplicates",
    "outliers",
    "project",
    "suspect_labels",
    "what_to_label_next",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"nnclr_hub.inspect.{_HOME[name]}"), name)


if TYPE_CHECKING:
    from nnclr_hub.inspect.clustering import Clusters, clusters
    from nnclr_hub.inspect.confusion import Overlap, class_overlap
    from nnclr_hub.inspect.duplicates import Duplicates, equal_values, near_duplicates
    from nnclr_hub.inspect.facts import ImageFacts, image_facts
    from nnclr_hub.inspect.label_issues import Suspects, suspect_labels
    from nnclr_hub.inspect.label_next import what_to_label_next
    from nnclr_hub.inspect.leaks import Leak, find_leaks
    from nnclr_hub.inspect.local_density import outliers
    from nnclr_hub.inspect.projection import Map, project
