"""Entry points for torch.hub.

torch.hub.load("ORG/nnclr_hub:TAG", "nnclr_resnet18_starter", trust_repo=True)
"""

import os as _os
import sys as _sys

if _sys.version_info < (3, 11):
    raise RuntimeError("nnclr_hub needs Python 3.11 or later; this is %d.%d." % _sys.version_info[:2])

dependencies = ["torch", "timm", "numpy", "PIL", "safetensors", "huggingface_hub"]

# Python keeps the first nnclr_hub that a process imports: a second checkout would silently run the first one's code
_here = _os.path.dirname(_os.path.realpath(__file__))
if "nnclr_hub" in _sys.modules:
    _loaded = _os.path.dirname(_os.path.realpath(next(iter(_sys.modules["nnclr_hub"].__path__))))
    if _loaded != _here:
        raise RuntimeError(
            "This process already runs the nnclr_hub of %s, and cannot run that of %s as well; load one of them, or "
            "start another process." % (_loaded, _here)
        )

from nnclr_hub import torch_hub as _torch_hub  # noqa: E402

globals().update(_torch_hub.entry_points())
