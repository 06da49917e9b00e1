"""What steps that do not flush read, and what is written for them: the checkpoint itself, or a low-precision read copy.

NVFP4 (`replayssm.formats`): a thread reads whole words of eight nibbles, in the order of K. A nibble's exponent and
mantissa, moved to where fp32 has them, are its value times 2^-126; its block's e4m3 scale, times 2^100, makes that a
normal number that TF32 holds exactly, and the rest of the powers of two goes, with the scale of 16 rows, into what was read.
"""

from __future__ import annotations

import triton
import triton.language as tl

from replayssm.kernels.matrix import load_parts, load_row_scales, round_to_grid, store_tile
from replayssm.kernels.tile import columns, flat_columns, unflat

LIFT = tl.constexpr(2.0**100)
REST = tl.constexpr(2.0**26)


@triton.jit
def head_pointers(
    copy, block_scale, scale, slot, s_copy, s_block_scale, s_scale, i_head,
    V: tl.constexpr, K: tl.constexpr, COPY: tl.constexpr,
):  # fmt: skip
    """Where a head's read copy, its block scales and its scales of rows are."""
    if COPY == "nvfp4":
        p_copy = copy + slot * s_copy + i_head * V * (K // 2)
        p_scale = scale + slot * s_scale + i_head * ((V + 15) // 16)
    else:
        p_copy = copy + slot * s_copy + i_head * V * K
        p_scale = scale + slot * s_scale + i_head * V
    return p_copy, block_scale + slot * s_block_scale + i_head * V * (K // 16), p_scale


@triton.jit
def load_read(p_read, p_block_scale, o_n, end, K: tl.constexpr, E: tl.constexpr, P: tl.constexpr, READ: tl.constexpr):
    """Rows of what is read, as stored: parts of `matrix.load_parts`, or words `[BV, M, E / 2]` of nibbles and scales."""
    b_scale = 0.0
    if READ == "nvfp4":
        b_live = (o_n < end)[:, None, None]
        o_word = columns(K // 8, E // 8)
        p_words = p_read.to(tl.pointer_type(tl.int32)) + (o_n * (K // 8))[:, None, None]
        b_stored = tl.load(p_words + o_word, mask=b_live, other=0)
        b_scale = tl.load(p_block_scale + (o_n * (K // 16))[:, None, None] + o_word // 2, mask=b_live, other=0.0)
    else:
        b_stored = load_parts(p_read, o_n, end, K, E, P)
    return b_stored, b_scale


@triton.jit
def read_values(b_stored, b_scale, READ: tl.constexpr):
    """`load_read` → fp32 as products take it, `[K / P, BV P]`, but for what `load_factors` gives."""
    if READ == "nvfp4":
        N: tl.constexpr = b_stored.shape[0]
        M: tl.constexpr = b_stored.shape[1]
        W: tl.constexpr = b_stored.shape[2]
        o_shift = (tl.arange(0, 8) * 4)[None, None, None, :]
        b_code = b_stored[:, :, :, None] >> o_shift
        b_value = (((b_code & 8) << 28) | ((b_code & 7) << 22)).to(tl.float32, bitcast=True)
        b_value = b_value * (b_scale.to(tl.float32) * LIFT)[:, :, :, None]
        b_out = tl.reshape(b_value, [N, M, W * 8])
    else:
        b_out = b_stored.to(tl.float32)
    return flat_columns(b_out)


@triton.jit
def load_factors(p_scale, o_v, end, READ: tl.constexpr):
    """What was read of each row of V is times this, `[BV]`."""
    if READ == "nvfp4":
        b_factor = tl.load(p_scale + o_v // 16, mask=o_v < end, other=0.0) * REST
    else:
        b_factor = load_row_scales(p_scale, o_v, end, READ == "fp8")
    return b_factor


@triton.jit
def store_copy(
    b_s, p_copy, p_block_scale, p_scale, o_v, V: tl.constexpr, K: tl.constexpr, E: tl.constexpr, COPY: tl.constexpr,
):  # fmt: skip
    """`[BV, K]` fp32 → rows `o_v` of the read copy; none where COPY is "none"."""
    if COPY == "fp8":
        store_tile(b_s, p_copy, p_scale, 0, 0, 0, 0, o_v, 0, V, K, E, "fp8", False)
    elif COPY == "nvfp4":
        store_nibbles(unflat(b_s, E), p_copy, p_block_scale, p_scale, o_v, V, K)


@triton.jit
def store_nibbles(b_s, p_copy, p_block_scale, p_scale, o_v, V: tl.constexpr, K: tl.constexpr):
    """`[BV, M, 4 E]` in the order of K → NVFP4; see `formats.Nvfp4Format.encode`."""
    BV: tl.constexpr = b_s.shape[0]
    b_live = o_v < V
    # As in `formats`: what a scale that rounds up still decodes to is finite.
    b_blocks = tl.reshape(tl.minimum(tl.maximum(b_s, -(2.0**126)), 2.0**126), [BV, K // 16, 16])
    b_max = tl.max(tl.abs(b_blocks), axis=2) / 6.0
    b_tile = tl.max(tl.reshape(tl.max(b_max, axis=1), [BV // 16, 16]), axis=1) / 448.0
    b_row = tl.reshape(tl.broadcast_to(b_tile[:, None], [BV // 16, 16]), [BV])[:, None]
    b_scale = tl.minimum(b_max / tl.where(b_row > 0.0, b_row, 1.0), 448.0)
    b_scale = round_to_grid(b_scale, 0.0, 3, -6, False)
    b_unit = (b_scale * b_row)[:, :, None]
    b_value = tl.where(b_unit > 0.0, b_blocks / tl.where(b_unit > 0.0, b_unit, 1.0), 0.0)
    b_value = round_to_grid(tl.minimum(tl.maximum(b_value, -6.0), 6.0), 0.0, 1, 0, False)
    # 0, ½, 1, 1½, 2, 3, 4, 6 have the codes 0 to 7.
    b_twice = (tl.abs(b_value) * 2.0).to(tl.int32)
    b_code = tl.where(b_twice < 4, b_twice, tl.where(b_twice < 8, b_twice // 2 + 2, b_twice // 4 + 4))
    b_code = b_code | tl.where(b_value < 0.0, 8, 0)
    b_low, b_high = tl.split(tl.reshape(b_code, [BV, K // 2, 2]))
    p_bytes = p_copy + o_v[:, None] * (K // 2) + tl.arange(0, K // 2)[None, :]
    tl.store(p_bytes, (b_low | (b_high << 4)).to(tl.uint8), mask=b_live[:, None])
    p_blocks = p_block_scale + o_v[:, None] * (K // 16) + tl.arange(0, K // 16)[None, :]
    tl.store(p_blocks, b_scale.to(p_block_scale.dtype.element_ty), mask=b_live[:, None])
    o_tile = tl.max(tl.reshape(o_v // 16, [BV // 16, 16]), axis=1)
    tl.store(p_scale + o_tile, b_tile, mask=o_tile * 16 < V)
