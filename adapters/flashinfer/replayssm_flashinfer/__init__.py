"""ReplaySSM's kernels behind FlashInfer's signatures, and FlashInfer's kernels behind ReplaySSM's core."""

from __future__ import annotations

from replayssm_flashinfer.mamba import allocate_checkpointing_ssu_scratch, checkpointing_ssu

__all__ = ["allocate_checkpointing_ssu_scratch", "checkpointing_ssu"]
