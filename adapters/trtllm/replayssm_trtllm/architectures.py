"""Which model classes of TensorRT-LLM are extended: one line each."""

from __future__ import annotations

from dataclasses import dataclass

from replayssm import LayerKind
from replayssm_trtllm.kinds import GDN, MAMBA2
from replayssm_trtllm.surface import TORCH


@dataclass(frozen=True)
class Architecture:
    """A model class and the architecture name that checkpoints carry."""

    name: str
    module: str
    cls: str
    kind: LayerKind


def _architecture(name: str, file: str, cls: str, kind: LayerKind) -> Architecture:
    return Architecture(name, f"{TORCH}.models.{file}", cls, kind)


ARCHITECTURES = (
    _architecture("NemotronHForCausalLM", "modeling_nemotron_h", "NemotronHForCausalLM", MAMBA2),
    _architecture("Qwen3NextForCausalLM", "modeling_qwen3_next", "Qwen3NextForCausalLM", GDN),
    _architecture("Qwen3_5ForCausalLM", "modeling_qwen3_5", "Qwen3_5ForCausalLM", GDN),
    _architecture("Qwen3_5MoeForCausalLM", "modeling_qwen3_5", "Qwen3_5MoeForCausalLM", GDN),
)
"""Nemotron-H (Nemotron-3), Qwen3-Next, Qwen3.5 dense and mixture of experts."""


def kind_of(architecture: str | None) -> LayerKind | None:
    """Kind of an architecture's recurrent layers, None for one that is not extended."""
    return next((entry.kind for entry in ARCHITECTURES if entry.name == architecture), None)
