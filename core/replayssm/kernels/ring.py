"""Device functions on the rings: the committed records of a slot, newest first.

Inner dimensions are contiguous and every slot's base pointer comes in, so a ring needs no strides here. Sums of decays
run from the newest record to the oldest: a strong decay never hides the small ones after it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from replayssm.kernels.tile import flat, load_rows

# e^-100 is 0 in fp32; a bound keeps differences of sums accurate after a decay that is stronger still.
STRONGEST = tl.constexpr(-100.0)


@triton.jit
def wrap(o_row, R: tl.constexpr):
    """Ring row of a position below 2 R."""
    return tl.where(o_row >= R, o_row - R, o_row)


@triton.jit
def history_rows(origin, count, o_j, R: tl.constexpr):
    """Ring rows of the `count` records from `origin`, newest first; any row of the ring where there is none."""
    return wrap(origin + tl.maximum(count - 1 - o_j, 0), R)


@triton.jit
def load_history(
    p_key, p_key_scale, p_gate, rate, origin, count, o_j,
    K: tl.constexpr, R: tl.constexpr, E: tl.constexpr, DELTA: tl.constexpr, CHANNEL: tl.constexpr,
):  # fmt: skip
    """The records but for their values.

    Returns:
        keys `[J, K]`; the unit `[J]` of each, 1/‖k‖ or Δ; `after`, the log decay by the records after each, `[J]`, or
        `[J, K]` by channel; `whole`, that of the state by all records, a number or `[1, K]`.
    """
    b_live = o_j < count
    o_row = history_rows(origin, count, o_j, R)
    b_key = flat(load_rows(p_key + o_row * K, b_live, K, E))
    if CHANNEL:
        b_after, whole = channel_decay(p_gate + o_row * K, b_live, o_j, K, E)
    else:
        b_gate = tl.load(p_gate + o_row, mask=b_live, other=0.0)
        # A record is decayed by the gates after its own: from one row on.
        p_next = p_gate + wrap(o_row + 1, R)
        b_next = tl.maximum(tl.load(p_next, mask=b_live & (o_j > 0), other=0.0) * rate, STRONGEST)
        b_after = tl.cumsum(b_next, axis=0)
        whole = tl.sum(tl.maximum(b_gate * rate, STRONGEST), axis=0)
    b_unit = tl.load(p_key_scale + o_row, mask=b_live, other=0.0) if DELTA else b_gate
    return b_key, b_unit, b_after, whole


@triton.jit
def channel_decay(p_gates, b_live, o_j, C: tl.constexpr, E: tl.constexpr):
    """Log decays after each record `[J, C]` and of the state `[1, C]`, of C channels whose gates are at `p_gates [J]`.

    As a product, which sums in one order; what TF32 drops of a gate cancels wherever two sums are compared.
    """
    b_gate = tl.maximum(flat(load_rows(p_gates, b_live, C, E)), STRONGEST)
    b_newer = tl.where(o_j[:, None] > o_j[None, :], 1.0, 0.0)
    b_after = tl.dot(b_newer, b_gate, input_precision="tf32x3")
    b_last = (o_j == o_j.shape[0] - 1)[:, None]
    return b_after, tl.sum(tl.where(b_last, b_after + b_gate, 0.0), axis=0)[None, :]


@triton.jit
def age(b_key, b_unit, b_after, CHANNEL: tl.constexpr):
    """Keys `[J, K]` and weights `[J]`: value times weight times key is what a record adds to the state at the end."""
    b_weight = b_unit
    if CHANNEL:
        b_key = b_key * tl.exp(b_after)
    else:
        b_weight = b_unit * tl.exp(b_after)
    return b_key, b_weight


@triton.jit
def load_values(p_value, o_row, o_v, b_live, end, V: tl.constexpr):
    """Values `[BV, J]` as stored, of ring rows `o_row`; rows of V below `end`."""
    b_mask = (o_v < end)[:, None] & b_live[None, :]
    return tl.load(p_value + o_row[None, :] * V + o_v[:, None], mask=b_mask, other=0.0)
