"""Between FlashInfer's GDN rings and ours: normalised keys and running sums of decays there, decays of tokens here.

FlashInfer keeps, for each record, the key as it was normalised and rounded, the correction u, and the log decay from the
checkpoint to the record. A step of the core wants the log decay of each record alone. So a step is three launches: keys and
queries normalised and decays taken apart, the step itself, and the new records' decays summed up.
"""

from __future__ import annotations

import triton
import triton.language as tl

from replayssm import inputs
from replayssm.kernels.ring import wrap

L2_EPS = tl.constexpr(inputs.L2_EPS)


@triton.jit
def take_apart(p_sum, p_gate, origin, count, R: tl.constexpr, J: tl.constexpr):
    """Log decays of a head's `count` records from their running sums; J is not below `count`."""
    o_j = tl.arange(0, J)
    b_live = o_j < count
    o_row = wrap(origin + o_j, R)
    b_sum = tl.load(p_sum + o_row, mask=b_live, other=0.0)
    o_before = wrap(origin + tl.maximum(o_j - 1, 0), R)
    b_before = tl.load(p_sum + o_before, mask=b_live & (o_j > 0), other=0.0)
    tl.store(p_gate + o_row, b_sum - b_before, mask=b_live)


@triton.jit
def open_kernel(
    q, k, q_out, k_out, ring_like, sq_b, sq_t, sk_b, sk_t,
    p_slot, p_origin, p_committed, sums, gates, s_sums, s_gates,
    T: tl.constexpr, G: tl.constexpr, H: tl.constexpr, K: tl.constexpr, R: tl.constexpr, J: tl.constexpr,
    L2NORM: tl.constexpr,
):  # fmt: skip
    """Grid: (rows, T · G + H). A program has one key and query of a token, or the records' decays of one head."""
    i_row, i_part = tl.program_id(0), tl.program_id(1)
    slot = tl.load(p_slot + i_row)
    if i_part < T * G:
        i_t, i_g = i_part // G, i_part % G
        o_k = tl.arange(0, K)
        row = i_row.to(tl.int64)
        b_q = tl.load(q + row * sq_b + i_t * sq_t + i_g * K + o_k).to(tl.float32)
        b_k = tl.load(k + row * sk_b + i_t * sk_t + i_g * K + o_k).to(tl.float32)
        if L2NORM:
            b_q = b_q * tl.rsqrt(tl.sum(b_q * b_q, axis=0) + L2_EPS)
            b_k = b_k * tl.rsqrt(tl.sum(b_k * b_k, axis=0) + L2_EPS)
        # What the ring will hold is what this step uses, too: state and records stay of one recurrence.
        b_k = b_k.to(ring_like.dtype.element_ty).to(tl.float32)
        o_out = (row * T + i_t) * G * K + i_g * K + o_k
        tl.store(q_out + o_out, b_q)
        tl.store(k_out + o_out, b_k)
    elif slot >= 0:
        i_h = i_part - T * G
        take_apart(
            sums + slot * s_sums + i_h * R, gates + slot * s_gates + i_h * R, tl.load(p_origin + i_row),
            tl.load(p_committed + i_row), R, J,
        )  # fmt: skip


@triton.jit
def close_kernel(
    p_slot, p_length, p_origin, p_committed, p_flush, sums, gates, s_sums, s_gates,
    H: tl.constexpr, R: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """The new records' sums: on from the last record, or from 0 where a fold began a window. Grid: (rows, H)."""
    i_row, i_h = tl.program_id(0), tl.program_id(1)
    slot = tl.load(p_slot + i_row)
    if slot >= 0:
        o_t = tl.arange(0, BT)
        origin, count = tl.load(p_origin + i_row), tl.load(p_committed + i_row)
        p_sum, p_gate = sums + slot * s_sums + i_h * R, gates + slot * s_gates + i_h * R
        before = 0.0
        if (count > 0) & (tl.load(p_flush + i_row) == 0):
            before = tl.load(p_sum + wrap(origin + count - 1, R))
        b_live = o_t < tl.load(p_length + i_row)
        o_row = wrap(wrap(origin + count, R) + o_t, R)
        b_sum = before + tl.cumsum(tl.load(p_gate + o_row, mask=b_live, other=0.0), axis=0)
        tl.store(p_sum + o_row, b_sum, mask=b_live)


@triton.jit
def part_kernel(p_slot, p_origin, p_count, sums, gates, s_sums, s_gates, R: tl.constexpr, J: tl.constexpr):
    """Decays of records from their sums, for a fold outside a step. Grid: (rows, H)."""
    i_row, i_h = tl.program_id(0), tl.program_id(1)
    slot = tl.load(p_slot + i_row)
    if slot >= 0:
        take_apart(
            sums + slot * s_sums + i_h * R, gates + slot * s_gates + i_h * R, tl.load(p_origin + i_row),
            tl.load(p_count + i_row), R, J,
        )  # fmt: skip
