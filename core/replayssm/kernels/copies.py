"""What steps that do not flush read, and what is written for them: the checkpoint itself, or a low-precision read copy.

Numbers of a copy are exact in bf16, but for powers of two, and so are products of e2m1 numbers with their e4m3 scales. Rows
of V, those of a 16-bit state as they are, meet the tensor cores as the left side of a product of 16-bit numbers; x, in as
many parts as it needs, is its right side. `unpack.py` takes the words of a copy apart.
"""

from __future__ import annotations

import triton
import triton.language as tl

from replayssm.kernels.matrix import load_parts, load_row_scales, round_to_grid, store_tile
from replayssm.kernels.primitives import converts_e2m1, dot_stored, exp
from replayssm.kernels.tile import columns, flat, flat_columns, join_parts, load_x_parts, parts, reorder, unflat
from replayssm.kernels.unpack import NVFP4_REST, copy_order, fp8_values, nvfp4_values

# Bits of the exponent of fp32; less a power of two's they are those of its inverse.
POWER_BITS = tl.constexpr(0x7F800000)
ONES_BITS = tl.constexpr(254 << 23)
# The codes of $1 and, above it, of $2 in a byte.
E2M1_CONVERSION = tl.constexpr("{.reg .b8 pair; cvt.rn.satfinite.e2m1x2.f32 pair, $2, $1; cvt.u32.u8 $0, pair;}")


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
    """Rows of what is read, as stored, and scales of blocks, those of a thread in one number.

    o_n: rows of V, of a state times P, plus the part.
    """
    b_scale = 0
    if READ == "nvfp4":
        b_live = o_n < end
        p_words = p_read.to(tl.pointer_type(tl.int32)) + (o_n * (K // 8))[:, None, None]
        b_stored = tl.load(p_words + columns(K // 8, E // 8), mask=b_live[:, None, None], other=0)
        p_scale = p_block_scale.to(tl.pointer_type(tl.int16 if E == 32 else tl.int8))
        o_scale = (o_n * (K // E))[:, None] + tl.arange(0, K // E)[None, :]
        b_scale = tl.load(p_scale + o_scale, mask=b_live[:, None], other=0)
    elif READ == "fp8":
        p_words = p_read.to(tl.pointer_type(tl.int32)) + (o_n * (K // 4))[:, None, None]
        b_stored = tl.load(p_words + columns(K // 4, E // 4), mask=(o_n < end)[:, None, None], other=0)
    else:
        b_stored = load_parts(p_read, o_n, end, K, E, P)
    return b_stored, b_scale


@triton.jit
def load_factors(p_scale, o_v, end, READ: tl.constexpr):
    """What `read_tile` gives for each row of V is times this, `[BV]`."""
    if READ == "nvfp4":
        b_factor = tl.load(p_scale + o_v // 16, mask=o_v < end, other=0.0) * NVFP4_REST
    else:
        b_factor = load_row_scales(p_scale, o_v, end, READ == "fp8" or READ == "int8")
    return b_factor


@triton.jit
def place_x(
    p_x, b_live, b_decay, K: tl.constexpr, E: tl.constexpr, ER: tl.constexpr, P: tl.constexpr,
    READ: tl.constexpr, CHANNEL: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Rows of a step at pointers `p_x [X]`, by channel times e^b_decay, as `read_tile` takes them, and its unit `[X]`.

    For a state of fp32 `[P X, K / P]`. For numbers of 16 bits and fewer `[K, n X]`, in n bf16 numbers each: one where that
    is exact, two for what decays by channel and for fp16, four for fp32; for a state of fp16 in one or two fp16 numbers,
    of each row over a power of two, its unit.
    """
    X: tl.constexpr = p_x.shape[0]
    b_unit = tl.full([X], 1.0, dtype=tl.float32)
    if READ == "fp8" or READ == "nvfp4" or READ == "bf16" or READ == "fp16":
        b_x = tl.load(p_x[:, None] + tl.arange(0, K)[None, :], mask=b_live[:, None], other=0.0)
        ONE: tl.constexpr = b_x.dtype.primitive_bitwidth == 16 and not CHANNEL
        if CHANNEL:
            M: tl.constexpr = K // (4 * E)
            b_x = b_x.to(tl.float32) * exp(tl.reshape(unflat(b_decay, E), [b_decay.shape[0], M * 4 * E]))
        if READ == "fp16":
            b_x = b_x.to(tl.float32)
            b_power = tl.max(tl.abs(b_x), axis=1).to(tl.int32, bitcast=True) & POWER_BITS
            b_unit = b_power.to(tl.float32, bitcast=True)
            # Up to 2, so that what fp16 loses is 2^-25 of the largest number.
            b_x *= (-b_power + ONES_BITS).to(tl.float32, bitcast=True)[:, None]
            b_parts = b_x.to(tl.float16) if ONE else pair(b_x, tl.float16)
        elif b_x.dtype == tl.bfloat16:
            b_parts = b_x
        elif DOT == "tf32":
            b_parts = pair(b_x.to(tl.float32), tl.bfloat16)
        else:
            b_pair = pair(b_x, tl.bfloat16)
            b_rest = b_x - tl.sum(tl.reshape(b_pair.to(tl.float32), [2, X, K]), axis=0)
            b_all = tl.permute(tl.join(b_pair, pair(b_rest, tl.bfloat16)), (2, 0, 1))
            b_parts = tl.reshape(b_all, [4 * X, K])
        b_out = tl.trans(copy_order(b_parts, ER, READ))
    else:
        b_out = load_x_parts(p_x, b_live, K, ER, P)
        if CHANNEL:
            b_out *= exp(parts(tl.broadcast_to(reorder(b_decay, E, ER), [X, K]), P, ER))
    return b_out, b_unit


@triton.jit
def pair(b_x, DTYPE: tl.constexpr):
    """fp32 `[X, K]` → two numbers of 16 bits each, whose sum is within 2^-17 (bf16) or 2^-22 (fp16): `[2 X, K]`."""
    b_high = b_x.to(DTYPE)
    b_low = (b_x - b_high.to(tl.float32)).to(DTYPE)
    return tl.reshape(tl.permute(tl.join(b_high, b_low), (2, 0, 1)), [2 * b_x.shape[0], b_x.shape[1]])


@triton.jit
def read_tile(
    b_stored, b_scale, b_x, X: tl.constexpr, E: tl.constexpr, P: tl.constexpr, READ: tl.constexpr, DOT: tl.constexpr
):  # fmt: skip
    """What X rows of a step read of rows of V, but for `load_factors`: `[BV, X]`. b_stored, b_scale: of `load_read`."""
    if READ == "fp8" or READ == "nvfp4" or READ == "bf16" or READ == "fp16":
        if READ == "fp8":
            b_value = fp8_values(b_stored, E)
        elif READ == "nvfp4":
            b_value = nvfp4_values(b_stored, b_scale, E)
        else:
            b_value = flat(b_stored)
        b_all = dot_stored(b_value, b_x, DOT)
        b_read = tl.sum(tl.reshape(b_all, [b_all.shape[0], b_all.shape[1] // X, X]), axis=1)
    else:
        b_read = join_parts(tl.dot(b_x, flat_columns(b_stored.to(tl.float32)), input_precision=DOT), P)
    return b_read


@triton.jit
def store_state(
    b_s, p_state, p_scale, p_copy, p_block_scale, p_copy_scale, seed, slot, flushes, i_head, o_v, column,
    V: tl.constexpr, K: tl.constexpr, E: tl.constexpr, FORMAT: tl.constexpr, SR: tl.constexpr, COPY: tl.constexpr,
):  # fmt: skip
    """`[BV, C]` fp32 → a checkpoint (`store_tile`) and its read copy; a checkpoint of NVFP4 is its own."""
    if FORMAT != "nvfp4":
        store_tile(b_s, p_state, p_scale, seed, slot, flushes, i_head, o_v, column, V, K, E, FORMAT, SR)
    store_copy(b_s, p_copy, p_block_scale, p_copy_scale, o_v, V, K, E, COPY)


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
    """`[16, M, 4 E]` in the order of K → NVFP4; see `formats.Nvfp4Format.encode`."""
    N: tl.constexpr = b_s.shape[0]
    b_live = o_v < V
    b_blocks = tl.reshape(b_s, [N, K // 16, 16])
    b_max = tl.max(tl.abs(b_blocks), axis=2) / 6.0
    scale = tl.max(tl.max(b_max, axis=1), axis=0) / 448.0
    b_scale = tl.minimum(b_max / tl.where(scale > 0.0, scale, 1.0), 448.0)
    b_scale = round_to_grid(b_scale, 0.0, 3, -6, False)
    b_unit = b_scale * scale
    # The inverse of a unit, unless it is too small to have one.
    b_inverse = tl.where(b_unit >= 2.0**-126, tl.div_rn(1.0, tl.maximum(b_unit, 2.0**-126)), 0.0)
    b_blocks *= b_inverse[:, :, None]
    # As many nibbles as a thread has next to each other.
    Q: tl.constexpr = min(b_s.shape[2] // 4, 8)
    if converts_e2m1():
        b_pairs = e2m1_pairs(tl.reshape(b_blocks, [N, K // Q, Q // 2, 2]))
        b_words = tl.sum(b_pairs << (tl.arange(0, Q // 2) * 8)[None, None, :], axis=2)
    else:
        b_code = e2m1_code(b_blocks)
        b_words = tl.sum(tl.reshape(b_code, [N, K // Q, Q]) << (tl.arange(0, Q) * 4)[None, None, :], axis=2)
    p_words = p_copy.to(tl.pointer_type(tl.int32 if Q == 8 else tl.int16))
    o_word = (o_v * (K // Q))[:, None] + tl.arange(0, K // Q)[None, :]
    tl.store(p_words + o_word, b_words.to(p_words.dtype.element_ty), mask=b_live[:, None])
    p_blocks = p_block_scale + (o_v * (K // 16))[:, None] + tl.arange(0, K // 16)[None, :]
    tl.store(p_blocks, b_scale.to(p_block_scale.dtype.element_ty), mask=b_live[:, None])
    tl.store(p_scale + tl.min(o_v, axis=0) // 16, scale)


@triton.jit
def e2m1_pairs(b_x):
    """Pairs `[..., 2]` → both codes of each, the first in the low nibble, by the conversion of the GPU.

    They are those of `e2m1_code` for all numbers but NaN, which saturated states do not hold.
    """
    b_low, b_high = tl.split(b_x)
    return tl.inline_asm_elementwise(E2M1_CONVERSION, "=r,f,f", [b_low, b_high], tl.int32, is_pure=True, pack=1)


@triton.jit
def e2m1_code(b_x):
    """The nearest of 0, ½, 1, 1½, 2, 3, 4, 6 as 0 to 7, ties to even codes, and 8 for a sign; beyond 6 is 6.

    Each step of ½, 1 or 2 has its sum in which fp32 keeps whole steps only; the coarsest that is fine enough counts least.
    """
    b_abs = tl.minimum(tl.abs(b_x), 6.0)
    b_half, b_one, b_two = tl.fma(b_abs, 2.0, 12582912.0), b_abs + 12582914.0, tl.fma(b_abs, 0.5, 12582916.0)
    b_sum = tl.minimum(tl.minimum(b_half, b_one), b_two)
    return (b_sum.to(tl.int32, bitcast=True) & 7) | ((b_x.to(tl.int32, bitcast=True) >> 28) & 8)
