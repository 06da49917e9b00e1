"""Folding records into an int8 checkpoint: one fp32 scale a row of V, 127 steps to either side.

As in `replayssm.kernels.fold`, nothing on its way into the state is rounded below fp32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from replayssm.kernels.matrix import LARGEST, noise_tile, saturate
from replayssm.kernels.primitives import dot_exact, exp, exp_exact
from replayssm.kernels.ring import head_decay, history_rows, load_units, load_values
from replayssm.kernels.tile import tile_rows

STEPS = tl.constexpr(127.0)
# Beside 1.5 · 2^23 only whole numbers are left of an fp32 number: rounds to nearest even.
WHOLE = tl.constexpr(12582912.0)


@triton.jit
def fold_rows(
    p_state, p_scale, p_value, p_key, p_dt, rate, origin, count, first,
    V: tl.constexpr, K: tl.constexpr, R: tl.constexpr, J: tl.constexpr, BV: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Rows from `first` on of one head, int8, after `count` records, in the order of `tile_rows`: `[BV, K]` fp32.

    They saturate as in every other format.
    """
    o_j, o_k, o_v = tl.arange(0, J), tl.arange(0, K), first + tile_rows(BV)
    o_row, b_live = history_rows(origin, count, o_j, R), o_j < count
    b_after, whole = head_decay(p_dt, rate, origin, count, o_j, R)
    b_weight = load_units(p_dt, p_dt, origin, count, o_j, R, False) * exp(b_after)
    b_value = load_values(p_value, origin, count, first, V, V, R, J, BV).to(tl.float32) * b_weight[None, :]
    b_key = tl.load(p_key + o_row[:, None] * K + o_k[None, :], mask=b_live[:, None], other=0.0).to(tl.float32)
    b_scale = tl.load(p_scale + o_v, mask=o_v < V, other=0.0)
    b_state = tl.load(p_state + o_v[:, None] * K + o_k[None, :], mask=(o_v < V)[:, None], other=0).to(tl.float32)
    b_kept = b_state * (b_scale * exp_exact(whole))[:, None]
    return saturate(dot_exact(b_value, b_key, b_kept, DOT), LARGEST)


@triton.jit
def store_rows_int8(
    b_state, p_state, p_scale, seed, slot, count, i_head, o_v, V: tl.constexpr, K: tl.constexpr, SR: tl.constexpr
):
    """`[BV, K]` fp32 → rows `o_v` of one head's int8 checkpoint; a row of zeros has the scale 0."""
    o_k = tl.arange(0, K)
    b_scale = tl.max(tl.abs(b_state), axis=1) / STEPS
    b_units = b_state / tl.where(b_scale > 0.0, b_scale, 1.0)[:, None]
    if SR:
        o_element = (i_head * V + o_v)[:, None] * K + o_k[None, :]
        b_below = tl.floor(b_units)
        b_noise = noise_tile(seed, slot, count, o_element)
        b_units = b_below + tl.where(b_noise < b_units - b_below, 1.0, 0.0)
    else:
        b_units = (b_units + WHOLE) - WHOLE
    b_units = saturate(b_units, STEPS)
    tl.store(p_state + o_v[:, None] * K + o_k[None, :], b_units.to(tl.int8), mask=(o_v < V)[:, None])
    tl.store(p_scale + o_v, b_scale, mask=o_v < V)


@triton.jit
def fold_int8_kernel(
    p_slot, p_length, p_origin, p_committed, p_flush, p_flushes, p_seed, A,
    state, scale, value_ring, key_ring, gate_ring, s_state, s_scale, s_value, s_key, s_gate,
    H: tl.constexpr, G: tl.constexpr, V: tl.constexpr, K: tl.constexpr, R: tl.constexpr, J: tl.constexpr,
    BV: tl.constexpr, SR: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Fold the committed records of rows that flush. Grid: (⌈V / BV⌉, H, rows)."""
    i_head, i_row = tl.program_id(1), tl.program_id(2)
    slot = tl.load(p_slot + i_row)
    if (slot < 0) | (tl.load(p_flush + i_row) == 0):
        return
    first = tl.program_id(0) * BV
    i_group = i_head // (H // G)
    p_state, p_scale = state + slot * s_state + i_head * V * K, scale + slot * s_scale + i_head * V
    b_state = fold_rows(
        p_state, p_scale, value_ring + slot * s_value + i_head * R * V, key_ring + slot * s_key + i_group * R * K,
        gate_ring + slot * s_gate + i_head * R, tl.load(A + i_head).to(tl.float32), tl.load(p_origin + i_row),
        tl.load(p_committed + i_row), first, V, K, R, J, BV, DOT,
    )  # fmt: skip
    count, seed = tl.load(p_flushes + i_row), tl.load(p_seed)
    store_rows_int8(b_state, p_state, p_scale, seed, slot, count, i_head, first + tile_rows(BV), V, K, SR)
