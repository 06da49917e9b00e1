"""Device functions on the rings: loading committed records in order of age, appending new ones.

Inner dimensions are contiguous and every slot's base pointer comes in, so a ring needs no strides here.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def wrap(o_row, R: tl.constexpr):
    """Ring row of a position below 2 R."""
    return tl.where(o_row >= R, o_row - R, o_row)


@triton.jit
def load_keys(p_key, p_key_scale, o_row, o_k, b_live, K: tl.constexpr, DELTA: tl.constexpr):
    """Keys `[J, K]` fp32 of ring rows `o_row`, norm applied; dead rows are 0 whatever they hold."""
    b_key = tl.load(p_key + o_row[:, None] * K + o_k[None, :], mask=b_live[:, None], other=0.0).to(tl.float32)
    if DELTA:
        b_key = b_key * tl.load(p_key_scale + o_row, mask=b_live, other=0.0)[:, None]
    return b_key


@triton.jit
def load_values(p_value, o_row, o_v, b_live, V: tl.constexpr):
    """Values `[BV, J]` fp32 of ring rows `o_row`."""
    b_mask = (o_v < V)[:, None] & b_live[None, :]
    return tl.load(p_value + o_row[None, :] * V + o_v[:, None], mask=b_mask, other=0.0).to(tl.float32)


@triton.jit
def load_gates(p_gate, o_row, o_k, b_live, K: tl.constexpr, CHANNEL: tl.constexpr):
    """Gates `[J, 1]` or `[J, K]` fp32: Δ or log decay."""
    if CHANNEL:
        b_gate = tl.load(p_gate + o_row[:, None] * K + o_k[None, :], mask=b_live[:, None], other=0.0)
    else:
        b_gate = tl.load(p_gate + o_row, mask=b_live, other=0.0)[:, None]
    return b_gate
