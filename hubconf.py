"""Entry points for torch.hub.

torch.hub.load("ORG/nnclr_hub:TAG", "nnclr_resnet18_small_cpu_starter", trust_repo=True)
"""

import sys as _sys

if _sys.version_info < (3, 11):
    raise RuntimeError("nnclr_hub needs Python 3.11 or later; this is %d.%d." % _sys.version_info[:2])

dependencies = ["torch", "timm", "numpy", "PIL", "safetensors", "huggingface_hub"]

from nnclr_hub import torch_hub as _torch_hub  # noqa: E402

globals().update(_torch_hub.entry_points())
