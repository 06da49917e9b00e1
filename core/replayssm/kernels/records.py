"""Folding committed records into a state tile one after the other, oldest first: decay per channel.

    S ← S Diag(e^{g_j}),    u_j = β_j (v_j − S k̂_j),    S ← S + u_j k̂_jᵀ

A window at once (`fold`) would take each pair of records through its own decays, K of them. The recurrence itself is no more
work, rounds in fp32 only, and is a loop whose code stays in the instruction cache.

Sixteen threads share a row, four adjacent numbers each: `[2, BV / 2, K / 64, 64]`, two rows at a time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from replayssm.kernels.copies import store_copy
from replayssm.kernels.matrix import LARGEST, load_row_scales, saturate, store_tile
from replayssm.kernels.primitives import exp_decay
from replayssm.kernels.ring import wrap
from replayssm.kernels.tile import flat
from replayssm.kernels.unpack import nvfp4_at


@triton.jit
def row_columns(K: tl.constexpr):
    """Columns of a row, `[K / 64, 64]`."""
    W: tl.constexpr = min(K, 64)
    return tl.arange(0, K // W)[:, None] * W + tl.max_contiguous(tl.arange(0, W), [4])[None, :]


@triton.jit
def pointers(p_rows, K: tl.constexpr, ALIGN: tl.constexpr):
    """K numbers at each pointer of `p_rows [2, N, 1, 1]`: `[2, N, K / 64, 64]`.

    Threads add up a row as they have loaded it: without the hint, bits would depend on what strides are known to divide.
    """
    FOUR: tl.constexpr = p_rows.dtype.element_ty.primitive_bitwidth // 2
    return tl.multiple_of(p_rows + row_columns(K)[None, None, :, :], [1, 1, 1, min(ALIGN, FOUR)])


@triton.jit
def load_record(p_row, K: tl.constexpr, ALIGN: tl.constexpr):
    """K numbers at one pointer → `[2, 1, K / 64, 64]` fp32, for either of the two rows."""
    o_twice = tl.arange(0, 2)[:, None, None, None] * 0
    return tl.load(pointers(p_row + o_twice, K, ALIGN)).to(tl.float32)


@triton.jit
def row_products(b_s, b_key):
    """S k̂ of a tile, `[2, BV / 2, 1, 1]`."""
    W: tl.constexpr = b_s.shape[3] // 2
    b_even, b_odd = tl.split(tl.reshape(b_s, [2, b_s.shape[1], b_s.shape[2], W, 2]))
    b_key_even, b_key_odd = tl.split(tl.reshape(b_key, [2, 1, b_key.shape[2], W, 2]))
    b_read = tl.fma(b_odd, b_key_odd, b_even * b_key_even)
    return tl.sum(tl.sum(b_read, axis=2), axis=2)[:, :, None, None]


@triton.jit
def fold_records(
    p_state, p_block_scale, p_scale, o_v, p_value, p_key, p_unit, p_beta, p_gate, origin, count,
    V: tl.constexpr, K: tl.constexpr, R: tl.constexpr, FORMAT: tl.constexpr, EXACT: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """Rows `o_v` of a stored state after the `count` records from `origin`: `[2, BV / 2, K / 64, 64]`.

    p_value: the ring of raw values for EXACT, else of u. The others are a head's rings.
    """
    BV: tl.constexpr = o_v.shape[0]
    o_row = tl.reshape(o_v, [2, BV // 2, 1, 1])
    b_live = o_row < V
    if FORMAT == "nvfp4":
        b_s = nvfp4_at(p_state, p_block_scale, p_scale, o_row, row_columns(K)[None, None, :, :], b_live, K)
    else:
        b_s = tl.load(pointers(p_state + o_row * K, K, ALIGN), mask=b_live, other=0.0).to(tl.float32)
    if FORMAT == "fp8":
        b_s *= load_row_scales(p_scale, o_row, V, True)
    # The next record is on its way while one is folded; after the last it is whatever the ring holds, and not used.
    row = origin
    b_key, b_gate = load_record(p_key + row * K, K, ALIGN), load_record(p_gate + row * K, K, ALIGN)
    b_value = tl.load(p_value + row * V + o_row, mask=b_live, other=0.0).to(tl.float32)
    unit, beta = tl.load(p_unit + row), tl.load(p_beta + row)
    for _ in range(count):
        row = wrap(row + 1, R)
        b_next_key, b_next_gate = load_record(p_key + row * K, K, ALIGN), load_record(p_gate + row * K, K, ALIGN)
        b_next_value = tl.load(p_value + row * V + o_row, mask=b_live, other=0.0).to(tl.float32)
        next_unit, next_beta = tl.load(p_unit + row), tl.load(p_beta + row)
        b_s *= exp_decay(b_gate)
        b_key *= unit
        if EXACT:
            b_value = (b_value - row_products(b_s, b_key)) * beta
        b_s = tl.fma(b_value, b_key, b_s)
        b_key, b_gate, b_value, unit, beta = b_next_key, b_next_gate, b_next_value, next_unit, next_beta
    return saturate(b_s, LARGEST)


@triton.jit
def record_tile(b_s, E: tl.constexpr):
    """The same as products and other stores take it, `[BV, K]`: it passes through shared memory."""
    BV: tl.constexpr = 2 * b_s.shape[1]
    K: tl.constexpr = b_s.shape[2] * b_s.shape[3]
    return flat(tl.reshape(b_s, [BV, K // (4 * E), 4 * E]))


@triton.jit
def read_records(b_s, b_x, b_read, E: tl.constexpr, DOT: tl.constexpr):
    """`b_read [BV, X]` and what `b_x [X, K]` reads, 64 columns at a time, so that little shared memory is in use.

    Shared memory is taken from the L1 cache, which all loads on their way need.
    """
    M: tl.constexpr = b_s.shape[2]
    if M == 1:
        b_read = tl.dot(record_tile(b_s, E), tl.trans(b_x), b_read, input_precision=DOT)
    else:
        X: tl.constexpr = b_x.shape[0]
        W: tl.constexpr = b_s.shape[3]
        b_half = tl.reshape(b_s, [2, b_s.shape[1], 2, M // 2 * W])
        b_low, b_high = tl.split(tl.permute(b_half, (0, 1, 3, 2)))
        b_x_low, b_x_high = tl.split(tl.permute(tl.reshape(b_x, [X, 2, M // 2 * W]), (0, 2, 1)))
        HALF: tl.constexpr = [2, b_s.shape[1], M // 2, W]
        b_read = read_records(tl.reshape(b_low, HALF), b_x_low, b_read, E, DOT)
        b_read = read_records(tl.reshape(b_high, HALF), b_x_high, b_read, E, DOT)
    return b_read


@triton.jit
def store_records(
    b_s, p_state, p_scale, p_copy, p_block_scale, p_copy_scale, seed, slot, flushes, i_head, o_v,
    V: tl.constexpr, K: tl.constexpr, E: tl.constexpr, FORMAT: tl.constexpr, SR: tl.constexpr, COPY: tl.constexpr,
    ALIGN: tl.constexpr,
):  # fmt: skip
    """What `fold_records` gave → rows `o_v` of one head's stored matrix, and of its read copy.

    Numbers that need no more than a cast are stored from where they are.
    """
    if FORMAT == "fp8" or SR:
        store_tile(record_tile(b_s, E), p_state, p_scale, seed, slot, flushes, i_head, o_v, 0, V, K, E, FORMAT, SR)
    elif FORMAT != "nvfp4":
        b_stored = saturate(b_s, 65504.0) if FORMAT == "fp16" else b_s
        o_row = tl.reshape(o_v, [2, o_v.shape[0] // 2, 1, 1])
        tl.store(pointers(p_state + o_row * K, K, ALIGN), b_stored.to(p_state.dtype.element_ty), mask=o_row < V)
    if COPY != "none":
        store_copy(record_tile(b_s, E), p_copy, p_block_scale, p_copy_scale, o_v, V, K, E, COPY)
