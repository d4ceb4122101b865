"""What a collection of images contains: functions on vectors, ids and small images. No models, no HTTP.

    from nnclr_hub import inspect

    inspect.project(vectors).coordinates        # (N, 2) float32, a map
    inspect.clusters(vectors)                   # groups with a medoid each
    inspect.outliers(vectors)                   # (N,) float32, high is odd
    inspect.near_duplicates(vectors)            # groups of the same image in several versions

All functions are deterministic. Vectors are (N, D) float32 with rows of length 1, as encoders return them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnclr_hub.lazy_names import lazy_names

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


__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "clustering": ("clusters", "Clusters"),
        "duplicates": ("near_duplicates", "Duplicates", "equal_values", "find_leaks", "Leak"),
        "facts": ("image_facts", "ImageFacts"),
        "label_issues": ("suspect_labels", "Suspects", "class_overlap", "Overlap"),
        "label_next": ("what_to_label_next",),
        "neighbors": ("outliers",),
        "projection": ("project", "Map"),
    },
)


if TYPE_CHECKING:
    from nnclr_hub.inspect.clustering import Clusters, clusters
    from nnclr_hub.inspect.duplicates import Duplicates, Leak, equal_values, find_leaks, near_duplicates
    from nnclr_hub.inspect.facts import ImageFacts, image_facts
    from nnclr_hub.inspect.label_issues import Overlap, Suspects, class_overlap, suspect_labels
    from nnclr_hub.inspect.label_next import what_to_label_next
    from nnclr_hub.inspect.neighbors import outliers
    from nnclr_hub.inspect.projection import Map, project
