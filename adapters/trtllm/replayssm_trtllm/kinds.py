"""Which recurrent layers of TensorRT-LLM are served, and how its names become the core's geometry."""

from __future__ import annotations

from typing import Any

import torch

from replayssm import LayerKind, Recurrence, StateLayout, UnsupportedError
from replayssm_trtllm.config import ReplaySSMConfig

MAMBA2, GDN = LayerKind.MAMBA2, LayerKind.GDN
SERVED = (MAMBA2, GDN)


def recurrence(kind: LayerKind, state_shape: tuple[int, ...], groups: int) -> Recurrence:
    """Geometry of one rank's layer from the manager's `[heads, head_dim, d_state]` (GDN: `[HV, V, K]`) and groups.

    Raises:
        UnsupportedError: a kind that is not served, or no whole group on this rank.
    """
    if kind not in SERVED:
        raise UnsupportedError(f"{kind} layers are not served; expected one of {', '.join(SERVED)}")
    if groups < 1:
        raise UnsupportedError("this rank has no whole group of keys (n_groups is below TP); use a smaller TP")
    heads, value_dim, key_dim = state_shape
    return Recurrence(kind, heads, groups, value_dim, key_dim)


def layer_layout(
    config: ReplaySSMConfig,
    geometry: Recurrence,
    *,
    slots: int,
    tokens: int,
    state_dtype: torch.dtype,
    activation: torch.dtype,
) -> StateLayout:
    """The core's layout of one layer.

    Args:
        tokens: T, new tokens of a step.
        state_dtype: of the engine's state, which is the checkpoint.
        activation: what the model computes in, and the engine's convolution state holds.
    """
    name = str(state_dtype).removeprefix("torch.")
    return StateLayout(geometry, slots, config.resolved_window(tokens), tokens, config.precision(name), activation)


def geometry_of(kind: LayerKind, pretrained: Any, tp: int) -> Recurrence:  # noqa: ANN401  a Hugging Face configuration
    """Geometry of one rank's layer from a model's configuration, for memory estimates before a manager exists.

    Raises:
        UnsupportedError: groups or heads that TP does not divide.
    """
    if kind is MAMBA2:
        heads, groups = pretrained.mamba_num_heads, pretrained.n_groups
        shape = (pretrained.mamba_head_dim, pretrained.ssm_state_size)
    else:
        heads, groups = pretrained.linear_num_value_heads, pretrained.linear_num_key_heads
        shape = (pretrained.linear_value_head_dim, pretrained.linear_key_head_dim)
    check_parallel(heads, groups, tp)
    return recurrence(kind, (heads // tp, *shape), groups // tp)


def check_parallel(heads: int, groups: int, tp: int) -> None:
    """Check that every rank holds whole groups.

    Raises:
        UnsupportedError: it does not.
    """
    for name, count in (("heads", heads), ("n_groups", groups)):
        if count % tp:
            raise UnsupportedError(f"{name}={count} is not divisible by TP={tp}; a rank would hold part of a group")
