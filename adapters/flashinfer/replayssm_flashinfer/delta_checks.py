"""What `gated_delta_rule_replay` refuses: what it would read or write wrongly."""

from __future__ import annotations

import torch
from torch import Tensor

from replayssm_flashinfer.delta_step import RINGS, DeltaMemory
from replayssm_flashinfer.gdn_checks import check_output, check_tokens
from replayssm_flashinfer.mamba_checks import QUANTISED, STATES, check_pool
from replayssm_flashinfer.refusals import refuse
from replayssm_flashinfer.tensor_checks import (
    check_cursors_of_slots,
    check_device,
    check_inner,
    check_slots,
    check_tensors,
)

STORED_ALIKE = ("k_cache", "u_cache", "v_cache")
"""Rings in the dtype of activations; others are fp32."""


def check_state(state: Tensor, state_scale: Tensor | None) -> None:
    """State and its scales.

    Raises:
        RefusedError: another shape, dtype, stride or device.
    """
    check_tensors([("state_scale", state_scale)], optional=True)
    check_pool("state", state, "S, HV, V, K")
    if state.dtype not in STATES or state.dtype == torch.int8:
        refuse(f"state.dtype={state.dtype} is not served; expected float32, bfloat16, float16 or float8_e4m3fn")
    if (state_scale is not None) != (state.dtype in QUANTISED):
        refuse(f"state_scale is for an fp8 state, which requires it; state.dtype={state.dtype}")
    check_inner([("state", state)])
    if state_scale is not None:
        shape = tuple(state.shape[:3])
        if not (tuple(state_scale.shape) == shape and state_scale.dtype == torch.float32):
            refuse(f"state_scale is {tuple(state_scale.shape)} {state_scale.dtype}; expected {shape} torch.float32")
        check_inner([("state_scale", state_scale)])
        check_device(state.device, [("state_scale", state_scale)])


def check_rings(memory: DeltaMemory, cursors: tuple[Tensor, Tensor], activation: torch.dtype) -> None:
    """Rings as `allocate_delta_rings` makes them, and cursors.

    Raises:
        RefusedError: another shape, dtype, stride or device.
    """
    state = memory.state
    rings = (memory.k, memory.k_scale, memory.u, memory.v, memory.beta, memory.g)
    check_tensors(zip(RINGS, rings, strict=True))
    if memory.k.dim() != 4:
        refuse(f"k_cache is {tuple(memory.k.shape)}; expected [S, H, L, K]")
    slots, heads, value_dim, key_dim = state.shape
    groups, rows = memory.k.shape[1:3]
    key, value = (slots, groups, rows), (slots, heads, rows)
    gate = value if memory.g.dim() == 3 else (*value, key_dim)
    shapes = ((*key, key_dim), key, (*value, value_dim), (*value, value_dim), value, gate)
    for name, ring, shape in zip(RINGS, rings, shapes, strict=True):
        wanted = activation if name in STORED_ALIKE else torch.float32
        if not (tuple(ring.shape) == shape and ring.dtype == wanted):
            refuse(f"{name} is {tuple(ring.shape)} {ring.dtype}; expected {shape} {wanted}")
        check_inner([(name, ring)])
        check_device(state.device, [(name, ring)])
    check_cursors_of_slots(*cursors, state)


def check_step(
    memory: DeltaMemory,
    tokens: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    out: Tensor,
    A_log: Tensor | None,
    dt_bias: Tensor | None,
    slots: Tensor | None,
) -> None:
    """What a step brings: q, k, v, a, b, and where its outputs go.

    Raises:
        RefusedError: another shape, dtype or device.
    """
    q, k, v, a, b = tokens
    heads, value_dim, key_dim = memory.state.shape[1:]
    check_tokens(A_log, a, dt_bias, q, k, v, b, () if memory.g.dim() == 3 else (key_dim,))
    if dt_bias is not None and A_log is None:
        refuse("dt_bias belongs to raw gates; pass A_log too, or leave dt_bias out")
    groups, rows = memory.k.shape[1:3]
    ours, theirs = (heads, value_dim, groups, key_dim), (*v.shape[2:], *k.shape[2:])
    if ours != theirs:
        refuse(f"the state and rings are of (HV, V, H, K) = {ours}; the tokens are of {theirs}")
    draft = k.shape[1]
    if 2 * draft > rows:
        refuse(f"rings of {rows} rows; T={draft} new tokens need at least {2 * draft}")
    check_device(memory.state.device, [("v", v)])
    check_output("out", out, v)
    check_slots("state_batch_indices", slots, len(k), memory.state)
