"""How SGLang's functions keep a state for each draft, which is one way for all layers."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def snapshot_arguments(state: Tensor, index: Tensor, draft: int) -> tuple[Tensor, dict[str, Any]]:
    """Where the states of a step of `draft` tokens go, and the arguments that say so.

    Args:
        state: `[B, H, V, K]`, or its transposed layout; one token updates it in place.
        index: `[B]` int32, row of the batch.

    Returns:
        `[B, T, H, V, K]`, or `state` itself for one token.
    """
    if draft == 1:
        return state, {}
    buffer = state.new_empty(len(state), draft, *state.shape[1:])
    arguments = {
        "disable_state_update": True,
        "intermediate_states_buffer": buffer,
        "intermediate_state_indices": index,
        "cache_steps": draft,
    }
    return buffer, arguments
