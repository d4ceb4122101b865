"""Load model folders by every method, in a process whose Hub is the stand-in; run by test_loading_methods.py.

    python loading_methods.py JOB.json OUT.npz [JOB.json OUT.npz ...]

It writes arrays (N, D), not normalized, under the names MODEL|METHOD|OUTPUT. OUTPUT is "x" for a random tensor, "jpeg"
for an image with the method's preprocessing, and "classes", "gray", "map" and "larger" for adapted networks.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Output = tuple[str, Tensor]


def inputs(size: int) -> Tensor:
    """Return (3, 3, S, S), equal in every process."""
    return torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(1))


def adapted(load: Callable[..., Any], size: int, sized: bool) -> Iterator[Output]:
    """Yield the outputs of a classifier, gray images, feature maps and another input size."""
    x = inputs(size)
    ten = load(num_classes=10).eval()
    assert ten(x).shape == (3, 10)
    yield "classes", ten.forward_head(ten.forward_features(x), pre_logits=True)
    yield "gray", load(in_chans=1).eval()(x[:, :1])
    yield "map", load(features_only=True).eval()(x)[-1].mean((2, 3))
    larger = size + 32
    yield "larger", load(**({"img_size": larger} if sized else {})).eval()(inputs(larger))


def torch_hub(job: dict[str, Any], load: Callable[..., nn.Module]) -> Iterator[Output]:
    backbone: Any = load()
    yield "x", backbone(inputs(job["size"]))
    yield "jpeg", backbone(backbone.nnclr_info["transform"](job["jpeg"])[None])
    yield from adapted(load, job["size"], job["sized"])


def timm_method(job: dict[str, Any], source: str) -> Iterator[Output]:
    import timm
    from PIL import Image

    def load(**arguments: Any) -> Any:
        return timm.create_model(source, pretrained=True, **arguments)

    backbone = load().eval()
    yield "x", backbone(inputs(job["size"]))
    transform: Any = timm.data.create_transform(**timm.data.resolve_model_data_config(backbone), is_training=False)
    yield "jpeg", backbone(transform(Image.open(job["jpeg"]).convert("RGB"))[None])
    yield from adapted(load, job["size"], job["sized"])


def transformers_method(job: dict[str, Any], source: str, **revision: str) -> Iterator[Output]:
    from PIL import Image
    from transformers import AutoImageProcessor, AutoModel

    model = AutoModel.from_pretrained(source, **revision).eval()
    yield "x", model(inputs(job["size"])).pooler_output.flatten(1)
    processor = AutoImageProcessor.from_pretrained(source, **revision)
    yield "jpeg", model(**processor(Image.open(job["jpeg"]).convert("RGB"))).pooler_output.flatten(1)


def transformers_tasks(job: dict[str, Any], source: str) -> Iterator[Output]:
    from transformers import AutoModelForImageClassification, pipeline

    classifier = AutoModelForImageClassification.from_pretrained(source, num_labels=10).eval()
    x = inputs(job["size"])
    assert classifier(x).logits.shape == (3, 10)
    network = classifier.timm_model
    features = network.forward_features(x.to(classifier.dtype))
    yield "classes", network.forward_head(features, pre_logits=True)
    extractor: Any = pipeline("image-feature-extraction", model=source, device="cpu")
    yield "jpeg", torch.tensor(extractor(job["jpeg"], pool=True)).reshape(1, -1)


def methods(job: dict[str, Any]) -> Iterator[tuple[str, Iterator[Output]]]:
    """Yield the loading methods of a job."""

    def from_checkout(**arguments: Any) -> nn.Module:
        return torch.hub.load(job["root"], job["entry"], source="local", weights=job["folder"], **arguments)  # type: ignore[return-value]

    def from_cache(weights: str, **arguments: Any) -> nn.Module:
        return torch.hub.load(  # type: ignore[return-value]
            job["cached"],
            job["entry"],
            trust_repo=True,
            skip_validation=True,
            verbose=False,
            weights=weights,
            **arguments,
        )

    if "cached" in job:
        yield "torch.hub cache", torch_hub(job, lambda **more: from_cache(job["folder"], **more))
        yield "torch.hub cache, hf-hub:", torch_hub(job, lambda **more: from_cache(f"hf-hub:{job['hub']}", **more))
        return
    repository, _, tag = job["hub"].partition("@")
    yield "torch.hub", torch_hub(job, from_checkout)
    yield "timm local-dir:", timm_method(job, f"local-dir:{job['folder']}")
    yield "timm hf-hub:", timm_method(job, f"hf-hub:{job['hub']}")
    yield "transformers", transformers_method(job, job["folder"])
    yield "transformers from the Hub", transformers_method(job, repository, revision=tag)
    yield "transformers tasks", transformers_tasks(job, job["folder"])


def run(jobs: Path, out: Path) -> None:
    found = {}
    with torch.inference_mode():
        for name, job in json.loads(jobs.read_text()).items():
            for method, outputs in methods(job):
                found |= {f"{name}|{method}|{what}": value.float().numpy() for what, value in outputs}
    np.savez(out, **found)  # type: ignore[arg-type]


if __name__ == "__main__":
    import timm  # noqa: F401 - before the forks, because imports take longest
    import torchvision  # noqa: F401

    for jobs, out in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        if os.fork() == 0:  # two checkouts cannot run in one process
            run(Path(jobs), Path(out))
            sys.exit()
        assert os.wait()[1] == 0
