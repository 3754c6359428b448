"""Which device to compute on."""

from __future__ import annotations

import torch

from rl_training.core.errors import ConfigError


def choose_device(name: str) -> torch.device:
    """`auto` is CUDA where there is any."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device must be one that this machine has, got {name!r}: {reason}") from None
    return device
