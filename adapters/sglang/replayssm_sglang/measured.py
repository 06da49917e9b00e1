"""Where SGLang alone was measured to be faster. A server that never leaves that range starts without us, and says so."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import torch

from replayssm import LayerKind, ReplayConfig

ALWAYS = "REPLAYSSM_ALWAYS"
"""Variable of the environment that has us there, too."""


@dataclass(frozen=True)
class Loss:
    """Standard decode that was slower than SGLang's own, with the default window.

    Attributes:
        device: as torch names it.
        kind: of the layers.
        preset: precision.
        requests: decoded at once: the largest measured number up to which SGLang alone was faster.
        ratio: our lowest speed there, in times that of SGLang alone.
        model: what was measured.
    """

    device: str
    kind: LayerKind
    preset: str
    requests: int
    ratio: float
    model: str


LOSSES = (
    Loss("NVIDIA H200", LayerKind.MAMBA2, "exact", 1, 0.984, "nemotron-3-nano-4b"),
    Loss("NVIDIA H200", LayerKind.MAMBA2, "dual-nvfp4", 8, 0.986, "nemotron-3-nano-4b"),
    Loss("NVIDIA H200", LayerKind.KDA, "exact", 1, 0.943, "kimi-linear-cut"),
    Loss("NVIDIA H200", LayerKind.KDA, "dual-nvfp4", 32, 0.981, "kimi-linear-cut"),
)
"""Of benchmarks/results/sglang-h200.json."""


def reason_to_stay_off(
    config: ReplayConfig, requests: int, draft: int, device: str, kind: Callable[[], LayerKind]
) -> str | None:
    """Why a server that never decodes more than `requests` at once is better off without us; None where it is not.

    Only what was measured counts: standard decode (T = `draft` = 1) of a preset with the default window on this `device`.
    Speculation gains memory at any number of requests.

    Args:
        requests: 0 where SGLang decides.
        kind: tells the model's layers, asked only where it matters.
    """
    known = draft == 1 and config.precision is None and config.window == ReplayConfig.window
    if os.environ.get(ALWAYS) or not known or requests < 1:
        return None
    near = [x for x in LOSSES if (x.device, x.preset) == (device, config.preset) and requests <= x.requests]
    loss = next((x for x in near if x.kind is kind()), None)
    if loss is None:
        return None
    return (
        f"off: with up to {loss.requests} at once, {loss.preset} was measured at {loss.ratio:.3f} times the speed of SGLang "
        f"alone ({loss.model}, {device}), and --max-running-requests {requests} allows no more; "
        f"{ALWAYS}=1 starts it all the same"
    )


def device_name() -> str:
    """Of the device that this process decodes on."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
