"""ReplaySSM's kernels behind FlashInfer's signatures, and FlashInfer's kernels behind ReplaySSM's core.

Names are loaded when they are used: commands that list this package must run without Triton.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replayssm_flashinfer.delta import allocate_delta_rings, gated_delta_rule_replay, kda_replay
    from replayssm_flashinfer.installing import install, installed, uninstall
    from replayssm_flashinfer.mamba import allocate_checkpointing_ssu_scratch, checkpointing_ssu
    from replayssm_flashinfer.materialize import replayssm_materialize

__all__ = [
    "allocate_checkpointing_ssu_scratch",
    "allocate_delta_rings",
    "checkpointing_ssu",
    "gated_delta_rule_replay",
    "install",
    "installed",
    "kda_replay",
    "replayssm_materialize",
    "uninstall",
]

_HOME = {
    "allocate_checkpointing_ssu_scratch": "mamba",
    "allocate_delta_rings": "delta",
    "checkpointing_ssu": "mamba",
    "gated_delta_rule_replay": "delta",
    "install": "installing",
    "installed": "installing",
    "kda_replay": "delta",
    "replayssm_materialize": "materialize",
    "uninstall": "installing",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
