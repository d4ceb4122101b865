"""Opens model folders by every door, in a process that knows the stand-in as its Hub; run by test_doors.py.

    python doors.py JOB.json OUT.npz

Writes MODEL|DOOR|WHAT -> (N, D) arrays, as the door's own network gives them, not normalized. WHAT: "x" of one random
tensor, "jpeg" of one image through the door's own preprocessing, "classes", "gray", "map", "larger" of what
people then do with it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Output = tuple[str, Tensor]


def inputs(size: int) -> Tensor:
    """(3, 3, S, S), the same in every process."""
    return torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(1))


def adapted(load: Callable[..., Any], size: int, sized: bool) -> Iterator[Output]:
    """A classifier of ten, gray images, feature maps, another input size, by a timm-like loader."""
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


def timm_door(job: dict[str, Any], source: str) -> Iterator[Output]:
    import timm
    from PIL import Image

    def load(**arguments: Any) -> Any:
        return timm.create_model(source, pretrained=True, **arguments)

    backbone = load().eval()
    yield "x", backbone(inputs(job["size"]))
    transform: Any = timm.data.create_transform(**timm.data.resolve_model_data_config(backbone), is_training=False)
    yield "jpeg", backbone(transform(Image.open(job["jpeg"]).convert("RGB"))[None])
    yield from adapted(load, job["size"], job["sized"])


def transformers_door(job: dict[str, Any], source: str, **revision: str) -> Iterator[Output]:
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


def doors(job: dict[str, Any]) -> Iterator[tuple[str, Iterator[Output]]]:
    """The doors that the job asks for."""

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

    if "cached" in job:  # in a process of its own: two checkouts cannot run in one
        yield "torch.hub cache", torch_hub(job, lambda **more: from_cache(job["folder"], **more))
        yield "torch.hub cache, hf-hub:", torch_hub(job, lambda **more: from_cache(f"hf-hub:{job['hub']}", **more))
        return
    repository, _, tag = job["hub"].partition("@")
    yield "torch.hub", torch_hub(job, from_checkout)
    yield "timm local-dir:", timm_door(job, f"local-dir:{job['folder']}")
    yield "timm hf-hub:", timm_door(job, f"hf-hub:{job['hub']}")
    yield "transformers", transformers_door(job, job["folder"])
    yield "transformers from the Hub", transformers_door(job, repository, revision=tag)
    yield "transformers tasks", transformers_tasks(job, job["folder"])


def main(jobs: Path, out: Path) -> None:
    found = {}
    with torch.inference_mode():
        for name, job in json.loads(jobs.read_text()).items():
            for door, outputs in doors(job):
                found |= {f"{name}|{door}|{what}": value.float().numpy() for what, value in outputs}
    np.savez(out, **found)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
