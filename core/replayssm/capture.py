"""Whether a CUDA graph is being captured: then nothing may wait for the device, checks of values included."""

from __future__ import annotations

import torch


def capturing(device: torch.device) -> bool:
    """Whether the current stream of the device records a CUDA graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
