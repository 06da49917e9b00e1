"""A plugin of SGLang for processes that make up their weights: ones that decay, tell tokens apart, and are complete.

Its entry point is written to a folder for PYTHONPATH, so that no installed server has it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from replayssm_sglang.calls import Foreign

WEIGHT_SCALE = "REPLAYSSM_DUMMY_WEIGHT_SCALE"
"""Largest dummy weight; SGLang's own are so small that all tokens come out alike."""

_DUMMY_WEIGHTS = "sglang.srt.model_loader.weight_utils.initialize_dummy_weights"
_ENTRY_POINTS = "[sglang.srt.plugins]\nreplayssm_dummy = replayssm_sglang.bench.dummy:register\n"
_METADATA = "Metadata-Version: 2.1\nName: replayssm-dummy\nVersion: 0\n"


def write_entry_point(folder: Path) -> Path:
    """Write an installed distribution's metadata to `folder`, for PYTHONPATH; the folder."""
    info = folder / "replayssm_dummy-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(_METADATA, encoding="utf-8")
    (info / "entry_points.txt").write_text(_ENTRY_POINTS, encoding="utf-8")
    return folder


def register() -> None:
    """Entry point `sglang.srt.plugins`."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(_DUMMY_WEIGHTS, _scale, HookType.BEFORE)
    HookRegistry.register(_DUMMY_WEIGHTS, _decay, HookType.AFTER)
    HookRegistry.register(_DUMMY_WEIGHTS, _tell_shards_apart, HookType.AFTER)
    HookRegistry.register(_DUMMY_WEIGHTS, _derive, HookType.AFTER)


def _scale(model: Foreign, *_args: Foreign, **options: Foreign) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    bound = float(os.environ.get(WEIGHT_SCALE, "0"))
    return ((model,), {**options, "low": -bound, "high": bound}) if bound else None


def _decay(_result: None, model: Foreign, *_args: Foreign, **_options: Foreign) -> None:
    """Mamba-2 has no states that grow; made-up rates are of either sign."""
    for name, weight in model.named_parameters():
        if name.endswith(".A"):
            weight.data.copy_(-weight.data.abs() - 0.01)


def _tell_shards_apart(_result: None, model: Foreign, *_args: Foreign, **_options: Foreign) -> None:
    """Every rank makes up the same numbers: tokens of two shards of a vocabulary would tie, whatever the logits."""
    for module in model.modules():
        if hasattr(module, "shard_indices"):
            rank = module.shard_indices.org_vocab_start_index // len(module.weight)
            module.weight.data.copy_(module.weight.data.roll(rank, dims=-1))


def _derive(_result: None, model: Foreign, *_args: Foreign, **_options: Foreign) -> None:
    """SGLang 0.5.16 computes the absorbed weights of Kimi-Linear's attention only where it loads some: none, here."""
    if type(model).__name__ == "KimiLinearForCausalLM":
        model.load_weights(iter(()))
