"""The snippets of a card that load its model, one per loading method; the tests run them."""

from __future__ import annotations

import textwrap

from nnclr_hub.encoder.backbones import timm_name
from nnclr_hub.hub.layout import ModelConfig
from nnclr_hub.hub.registry import ARCHITECTURES, MODELS

_OURS = """```python
from nnclr_hub import load_encoder

encoder = load_encoder("{source}")
vectors = encoder.embed(["a.jpg", "b.jpg"])  # (2, {dim}) float32, unit rows
```"""
_TIMM = """```python
import timm{registered}

# without pretrained=True the weights are random
backbone = timm.create_model("{source}", pretrained=True)
```"""
_TRANSFORMERS = """```python
from transformers import AutoImageProcessor, AutoModel

processor = AutoImageProcessor.from_pretrained({arguments})
model = AutoModel.from_pretrained({arguments})  # model(...).pooler_output
```"""
_TORCH_HUB = """```python
import torch  # with a checkout of nnclr_hub in ./nnclr_hub

backbone = torch.hub.load("nnclr_hub", "{entry}", source="local"{weights})
```"""
_REGISTERED = "\n\nimport nnclr_hub.encoder.cifar_resnet  # registers this architecture in timm"


def loading(name: str, config: ModelConfig, repository: str | None, revision: str | None) -> str:
    """Return the snippets of a card.

    Args:
        repository: ORGANIZATION/NAME, or None to load ./name.
        revision: tag or commit of the repository; without one, the text recommends a commit.
    """
    at = f"@{revision}" if revision else ""
    ours, timms, arguments = f"./{name}", f"local-dir:./{name}", f'"./{name}"'
    if repository:
        ours = timms = f"hf-hub:{repository}{at}"
        arguments = f'"{repository}", revision="{revision}"' if revision else f'"{repository}"'
    needs_import = config.architecture.startswith("nnclr_")
    blocks = [_OURS.format(source=ours, dim=config.num_features)]
    blocks.append(_TIMM.format(source=timms, registered=_REGISTERED if needs_import else ""))
    if not needs_import:
        blocks.append(_TRANSFORMERS.format(arguments=arguments))
    if name in MODELS:
        blocks.append(_TORCH_HUB.format(entry=name, weights=""))
    else:
        entries = [entry for entry, made in ARCHITECTURES.items() if timm_name(made) == config.architecture]
        blocks += [_TORCH_HUB.format(entry=entry, weights=f', weights="{ours}"') for entry in entries]
    if repository and not revision:
        blocks.append(f"Load a fixed commit, such as `hf-hub:{repository}@COMMIT`, to always get the same weights.")
    elif not repository:
        text = (
            f"`./{name}` is a copy of this folder. From the Hugging Face Hub, load `hf-hub:ORGANIZATION/{name}@COMMIT`."
        )
        blocks.append(paragraph(text))
    return "\n\n".join(blocks)


def paragraph(text: str) -> str:
    """Return the text as one Markdown paragraph, wrapped at 100 characters."""
    return textwrap.fill(" ".join(text.split()), 100, break_long_words=False, break_on_hyphens=False)
