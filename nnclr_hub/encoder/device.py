"""Which device to compute on."""

from __future__ import annotations

import torch

from nnclr_hub.errors import InvalidRequest


def find_device(wanted: str | torch.device | None) -> torch.device:
    """The device of that name; None: the GPU if there is one.

    Raises:
        InvalidRequest: there is no such device.
    """
    try:
        device = torch.device(wanted or ("cuda" if torch.cuda.is_available() else "cpu"))
        if device.type != "cuda":
            torch.zeros(1, device=device).cpu()  # kinds that this torch is not built for have names all the same
    except (RuntimeError, AssertionError, ImportError) as error:  # some kinds are packages of their own
        gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
        there = f"name one of {', '.join(['cpu', *gpus])}" if gpus else "leave it out, or name cpu"
        raise InvalidRequest(f"There is no device {str(wanted)!r} here: {there}.") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        seen = torch.cuda.device_count()
        raise InvalidRequest(
            f"{device} is not there, torch sees {seen or 'no'} GPUs: leave the device out, or name cpu."
        )
    return device
