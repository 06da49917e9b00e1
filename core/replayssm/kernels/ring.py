"""Device functions on the rings: the committed records of a slot, newest first.

Inner dimensions are contiguous and every slot's base pointer comes in, so a ring needs no strides here. Sums of decays
run from the newest record to the oldest: a strong decay never hides the small ones after it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from replayssm.kernels.tile import flat, load_rows, load_stored, to_tile, value_columns, value_rows

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
def load_keys(p_key, origin, count, o_j, K: tl.constexpr, R: tl.constexpr, E: tl.constexpr):
    """The records' keys `[J, K]` as stored."""
    return flat(load_stored(p_key + history_rows(origin, count, o_j, R) * K, o_j < count, K, E))


@triton.jit
def load_units(p_key_scale, p_gate, origin, count, o_j, R: tl.constexpr, DELTA: tl.constexpr):
    """The unit `[J]` of each record: 1/‖k‖, or Δ."""
    return tl.load(
        (p_key_scale if DELTA else p_gate) + history_rows(origin, count, o_j, R), mask=o_j < count, other=0.0
    )


@triton.jit
def head_decay(p_gate, rate, origin, count, o_j, R: tl.constexpr):
    """Log decays by the records after each, `[J]`, and of the state by all records, a number."""
    b_live = o_j < count
    o_row = history_rows(origin, count, o_j, R)
    b_gate = tl.load(p_gate + o_row, mask=b_live, other=0.0)
    # A record is decayed by the gates after its own: from one row on.
    b_next = tl.load(p_gate + wrap(o_row + 1, R), mask=b_live & (o_j > 0), other=0.0)
    b_after = tl.cumsum(tl.maximum(b_next * rate, STRONGEST), axis=0)
    return b_after, tl.sum(tl.maximum(b_gate * rate, STRONGEST), axis=0)


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
def load_values(
    p_value, origin, count, first, end, V: tl.constexpr, R: tl.constexpr, J: tl.constexpr, BV: tl.constexpr
):  # fmt: skip
    """Values `[BV, J]` as stored, of the `count` records from `origin`, newest first; rows of V from `first` to `end`."""
    o_j, o_v = value_columns(J), first + value_rows(BV)
    p = p_value + history_rows(origin, count, o_j, R) * V + o_v
    return to_tile(tl.load(p, mask=(o_j < count) & (o_v < end), other=0.0))
