"""The device to compute on."""

from __future__ import annotations

import torch

from nnclr_hub.errors import InvalidRequest


def find_device(wanted: str | torch.device | None) -> torch.device:
    """Return the device of a name; for None or "", the GPU if there is one, else the CPU.

    Raises:
        InvalidRequest: the device does not exist.
    """
    try:
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if wanted in (None, "") else wanted)
        if device.type != "cuda":
            torch.zeros(1, device=device).cpu()  # fails for kinds that torch knows by name only
    except (RuntimeError, AssertionError, ImportError, TypeError, ValueError) as error:
        # some kinds need another package
        gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
        hint = f"use one of {', '.join(['cpu', *gpus])}" if gpus else "leave it out, or use cpu"
        raise InvalidRequest(f"The device {str(wanted)!r} does not exist; {hint}.") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise InvalidRequest(
            f"The device {device} does not exist, torch sees {count or 'no'} GPUs; leave the device out, or use cpu."
        )
    return device
