"""Device functions on stored state tiles: checkpoint formats in, checkpoint formats out."""

from __future__ import annotations

import triton
import triton.language as tl

from replayssm import formats
from replayssm.kernels.tile import columns, flat, load_stored, store_rows, unflat
from replayssm.kernels.unpack import nvfp4_at

LARGEST = tl.constexpr(formats.LARGEST)


@triton.jit
def saturate(b_x, limit):
    """Numbers within ± limit."""
    return tl.minimum(tl.maximum(b_x, -limit), limit)


@triton.jit
def bounded(b_x):
    """A state from outside: within ± LARGEST, 0 where it is NaN, which `saturate` alone makes −LARGEST.

    Folds do without: what they read is finite, and a selection for each number made drafts 17 to 26 % slower.
    """
    return tl.where(b_x == b_x, saturate(b_x, LARGEST), 0.0)


@triton.jit
def load_tile(
    p_state, p_block_scale, p_scale, o_v, column, end,
    K: tl.constexpr, C: tl.constexpr, E: tl.constexpr, FORMAT: tl.constexpr,
):  # fmt: skip
    """C columns from `column` on of rows `o_v` of one head's stored matrix, `[BV, M, 4 E]`: as stored, NVFP4 as fp32.

    Rows from `end` on are zeros.
    """
    if FORMAT == "nvfp4":
        o_row, o_k = o_v[:, None, None], column + columns(C, E)
        b_tile = nvfp4_at(p_state, p_block_scale, p_scale, o_row, o_k, o_row < end, K)
    else:
        b_tile = load_stored(p_state + o_v * K + column, o_v < end, C, E)
    return b_tile


@triton.jit
def tile_values(b_stored, p_scale, o_v, V: tl.constexpr, SCALED: tl.constexpr):
    """What `load_tile` gave as fp32 `[BV, C]`, each row times its scale where the format has one."""
    b_s = b_stored.to(tl.float32)
    if SCALED:
        b_s = b_s * load_row_scales(p_scale, o_v, V, SCALED)[:, None, None]
    return flat(b_s)


@triton.jit
def load_parts(p_state, o_n, end, K: tl.constexpr, E: tl.constexpr, P: tl.constexpr):
    """Stored rows as parts, `[BV P, M, 4 E]`, as they are and without scales; rows from `end` on are zeros.

    o_n: row of V times P, plus the part.
    """
    o_v = o_n // P
    p = (p_state + o_v * K + o_n % P * (4 * E))[:, None, None] + columns(K // P, E, P)
    return tl.load(p, mask=(o_v < end)[:, None, None], other=0.0)


@triton.jit
def load_row_scales(p_scale, o_v, end, SCALED: tl.constexpr):
    """Scales `[BV]` of rows of V, 1 where the format has none."""
    b_scale = tl.full(o_v.shape, 1.0, dtype=tl.float32)
    if SCALED:
        b_scale = tl.load(p_scale + o_v, mask=o_v < end, other=0.0)
    return b_scale


@triton.jit
def noise_tile(seed, slot, flushes, o_element):
    """Uniform numbers in [0, 1) for elements `o_element` of a slot's state; the counters of `replayssm.philox`."""
    zero = o_element * 0
    w0, w1, w2, w3 = tl.philox(
        seed,
        (o_element // 4).to(tl.uint32),
        (zero + slot).to(tl.uint32),
        (zero + flushes).to(tl.uint32),
        zero.to(tl.uint32),
    )
    lane = o_element % 4
    b_word = tl.where(lane == 0, w0, tl.where(lane == 1, w1, tl.where(lane == 2, w2, w3)))
    return (b_word >> 8).to(tl.float32) * 5.9604644775390625e-08


@triton.jit
def round_to_grid(b_x, b_noise, MANTISSA: tl.constexpr, MIN_EXPONENT: tl.constexpr, SR: tl.constexpr):
    """Rounding to the values of a float format, stochastic or to nearest even; saturation is the caller's."""
    b_bits = tl.abs(b_x).to(tl.int32, bitcast=True)
    b_exponent = tl.maximum((b_bits >> 23) - 127, MIN_EXPONENT) - MANTISSA
    b_step = ((b_exponent + 127) << 23).to(tl.float32, bitcast=True)
    # A power of two, and so is what divides by it.
    b_quotient = b_x * ((127 - b_exponent) << 23).to(tl.float32, bitcast=True)
    if SR:
        b_below = tl.floor(b_quotient)
        b_whole = b_below + tl.where(b_noise < b_quotient - b_below, 1.0, 0.0)
    else:
        # Beside 1.5 · 2^23 only whole numbers are left of it.
        b_whole = (b_quotient + 12582912.0) - 12582912.0
    return b_whole * b_step


@triton.jit
def store_tile(
    b_s, p_state, p_scale, seed, slot, flushes, i_head, o_v, column,
    V: tl.constexpr, K: tl.constexpr, E: tl.constexpr, FORMAT: tl.constexpr, SR: tl.constexpr,
):  # fmt: skip
    """`[BV, C]` fp32 → C columns from `column` on of rows `o_v` of one head's stored matrix; all K where scaled."""
    C: tl.constexpr = b_s.shape[1]
    b_live = o_v < V
    b_out = unflat(b_s, E)
    if FORMAT == "fp8":
        b_scale = tl.max(tl.max(tl.abs(b_out), axis=2), axis=1) / 448.0
        b_out = b_out / tl.where(b_scale > 0.0, b_scale, 1.0)[:, None, None]
        tl.store(p_scale + o_v, b_scale, mask=b_live)
    # To fp8 by hand in either case: not every cast rounds to nearest.
    if SR or FORMAT == "fp8":
        b_noise = 0.0
        if SR:
            o_element = (i_head * V + o_v)[:, None, None] * K + column + columns(C, E)
            b_noise = noise_tile(seed, slot, flushes, o_element)
        b_out = round_to_grid(b_out, b_noise, 3 if FORMAT == "fp8" else 10, -6 if FORMAT == "fp8" else -14, SR)
    if FORMAT == "fp16":
        b_out = saturate(b_out, 65504.0)
    if FORMAT == "fp8":
        b_out = saturate(b_out, 448.0)
    store_rows(p_state + o_v * K + column, b_out, b_live, C, E)
