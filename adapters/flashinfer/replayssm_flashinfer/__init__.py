"""ReplaySSM's kernels behind FlashInfer's signatures, and FlashInfer's kernels behind ReplaySSM's core."""

from __future__ import annotations

from replayssm_flashinfer.delta import allocate_delta_rings, gated_delta_rule_replay, kda_replay
from replayssm_flashinfer.install import install, installed, uninstall
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
