"""Stored words of a read copy → bf16 numbers, in the order in which products take them.

A word goes apart in registers, two numbers an operation: their bits move to where bf16 has sign, exponent and mantissa, and
a product of two pairs sets the exponents right. GPUs from compute capability 10.0 on convert e2m1 themselves. The
interpreter has no machine code and computes the same numbers plainly.

The order of columns is one of those in which a sum over k may run (`tile.py`): `copy_order` puts x into it. Of what comes
from words products take four numbers of a thread at a time, of 16-bit numbers as loaded two.
"""

from __future__ import annotations

import triton
import triton.language as tl

from replayssm.kernels.primitives import INTERPRETED, converts_e2m1
from replayssm.kernels.tile import flat

NVFP4_REST = tl.constexpr(2.0**8)
"""What `nvfp4_values` lack: on the way bf16 would not hold them, and it is what e4m3 among the bits of fp16 lacks."""


def _fp8_assembly() -> str:
    """Byte j of words $4 and $5 → the bf16 pair $j: bytes to the upper halves, their bits to their places, times 2^120."""
    lines = []
    for byte in range(4):
        lines += [
            f"prmt.b32 t, $4, $5, 0x{byte + 4}0{byte}0;",
            "shr.u32 u, t, 4;",
            "and.b32 u, u, 0x07F007F0;",
            "lop3.b32 t, t, 0x80008000, u, 0xEA;",
            f"fma.rn.bf16x2 ${byte}, t, lift, zero;",
        ]
    return "\n".join(["{.reg .b32 t, u, lift, zero; mov.b32 lift, 0x7B807B80; mov.b32 zero, 0x80008000;", *lines, "}"])


def _nvfp4_assembly() -> str:
    """Nibble j of words $8 and $9 → the bf16 pair $j, times the pair $10 of their block's scale."""
    lines = ["prmt.b32 a, $8, $9, 0x5410;", "prmt.b32 b, $8, $9, 0x7632;"]
    for nibble in range(8):
        word, place = "ab"[nibble // 4], 4 * (nibble % 4)
        # Magnitudes to bits 8 to 6 of a half, signs to 15.
        magnitude, sign = 6 - place, 12 - place
        lines += [
            f"shl.b32 t, {word}, {magnitude};" if magnitude > 0 else f"shr.u32 t, {word}, {-magnitude};",
            f"shl.b32 u, {word}, {sign};",
            "and.b32 t, t, 0x01C001C0;",
            "lop3.b32 t, u, 0x80008000, t, 0xEA;",
            f"fma.rn.bf16x2 ${nibble}, t, $10, zero;",
        ]
    return "\n".join(["{.reg .b32 a, b, t, u, zero; mov.b32 zero, 0x80008000;", *lines, "}"])


def _nvfp4_conversions() -> str:
    """The same by the conversions of compute capability 10.0, from the byte $10 of their block's scale."""
    lines = [
        "{.reg .b8 a<4>, b<4>; .reg .b16 a_low, a_high, b_low, b_high, scale, unused; .reg .b32 t; .reg .f32 a, b, zero;",
        "mov.f32 zero, 0f80000000;",
        "mov.b32 {a0, a1, a2, a3}, $8;",
        "mov.b32 {b0, b1, b2, b3}, $9;",
        # Among the bits of fp16 an e4m3 byte is 2^-8 of it; products are exact in fp32, and in bf16.
        "shl.b32 t, $10, 7;",
        "mov.b32 {scale, unused}, t;",
    ]
    for byte in range(4):
        for word in "ab":
            lines += [f"cvt.rn.f16x2.e2m1x2 t, {word}{byte};", f"mov.b32 {{{word}_low, {word}_high}}, t;"]
        for half, nibble in (("low", 2 * byte), ("high", 2 * byte + 1)):
            lines += [f"fma.rn.f32.f16 {word}, {word}_{half}, scale, zero;" for word in "ab"]
            lines.append(f"cvt.rn.bf16x2.f32 ${nibble}, b, a;")
    return "\n".join([*lines, "}"])


# An e4m3 byte as bf16 bits in both halves is 2^-120 of it, nibbles are 2^-126 of theirs; with 2^238 that leaves 2^-8.
_SCALE_ASSEMBLY = """{.reg .b32 low, high, zero;
mov.b32 low, 0x7F007F00; mov.b32 high, 0x77007700; mov.b32 zero, 0x80008000;
fma.rn.bf16x2 $0, $1, low, zero; fma.rn.bf16x2 $0, $0, high, zero;}"""
FP8_ASSEMBLY = tl.constexpr(_fp8_assembly())
NVFP4_ASSEMBLY = tl.constexpr(_nvfp4_assembly())
NVFP4_CONVERSIONS = tl.constexpr(_nvfp4_conversions())
SCALE_ASSEMBLY = tl.constexpr(_SCALE_ASSEMBLY)
NVFP4_OPERANDS = tl.constexpr(",".join(["=r"] * 8 + ["r"] * 4))


@triton.jit
def copy_order(b_x, E: tl.constexpr, READ: tl.constexpr):
    """`[N, K]` in the order of K → in that of `fp8_values` or `nvfp4_values`, or of a 16-bit state as loaded."""
    N: tl.constexpr = b_x.shape[0]
    K: tl.constexpr = b_x.shape[1]
    if READ == "nvfp4":
        b_split = tl.permute(tl.reshape(b_x, [N, K // (4 * E), 4, E // 16, 2, 8]), (0, 1, 5, 2, 3, 4))
    elif READ == "fp8":
        b_split = tl.permute(tl.reshape(b_x, [N, K // (4 * E), 4, E // 4, 4]), (0, 1, 3, 2, 4))
    else:
        b_split = flat(tl.reshape(b_x, [N, K // (4 * E), 4 * E]))
    return tl.reshape(b_split, [N, K])


@triton.jit
def fp8_values(b_words, E: tl.constexpr):
    """Words `[N, K / 4 E, E]` of four e4m3 numbers → bf16 `[N, K]`."""
    N: tl.constexpr = b_words.shape[0]
    K: tl.constexpr = b_words.shape[1] * 4 * E
    if INTERPRETED:
        n0, n1, n2, n3 = plain_byte(b_words, 0), plain_byte(b_words, 1), plain_byte(b_words, 2), plain_byte(b_words, 3)
    else:
        n0, n1, n2, n3 = tl.inline_asm_elementwise(
            FP8_ASSEMBLY, "=r,=r,=r,=r,r,r", [b_words], dtype=(tl.bfloat16,) * 4, is_pure=True, pack=2
        )
    b_value = tl.join(tl.join(n0, n2), tl.join(n1, n3))
    return copy_order(tl.reshape(b_value, [N, K]), E, "fp8")


@triton.jit
def plain_byte(b_words, J: tl.constexpr):
    """Byte J of each word, an e4m3 number, in bf16."""
    return ((b_words >> (8 * J)) & 255).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float32).to(tl.bfloat16)


@triton.jit
def nvfp4_values(b_words, b_scale, E: tl.constexpr):
    """Words `[N, K / 4 E, E / 2]` and their scales, a thread's in one number `[N, K / E]`, → bf16 `[N, K]`."""
    N: tl.constexpr = b_words.shape[0]
    M: tl.constexpr = b_words.shape[1]
    B: tl.constexpr = E // 16
    b_byte = (b_scale.to(tl.int32)[:, :, None] >> (tl.arange(0, B) * 8)[None, None, :]) & 255
    b_byte = tl.reshape(tl.broadcast_to(b_byte[:, :, :, None], [N, 4 * M, B, 2]), [N, M, 8 * B])
    if INTERPRETED:
        n0, n1, n2, n3, n4, n5, n6, n7 = plain_nibbles(b_words, b_byte)
    elif converts_e2m1():
        n0, n1, n2, n3, n4, n5, n6, n7 = tl.inline_asm_elementwise(
            NVFP4_CONVERSIONS, NVFP4_OPERANDS, [b_words, b_byte],
            dtype=(tl.bfloat16,) * 8, is_pure=True, pack=2,
        )  # fmt: skip
    else:
        b_lifted = tl.inline_asm_elementwise(
            SCALE_ASSEMBLY, "=r,r", [b_byte * 0x00100010], dtype=tl.int32, is_pure=True, pack=1
        )
        n0, n1, n2, n3, n4, n5, n6, n7 = tl.inline_asm_elementwise(
            NVFP4_ASSEMBLY, NVFP4_OPERANDS, [b_words, b_lifted],
            dtype=(tl.bfloat16,) * 8, is_pure=True, pack=2,
        )  # fmt: skip
    b_even = tl.join(tl.join(n0, n4), tl.join(n2, n6))
    b_odd = tl.join(tl.join(n1, n5), tl.join(n3, n7))
    return copy_order(tl.reshape(tl.join(b_even, b_odd), [N, 32 * B * M * 2]), E, "nvfp4")


@triton.jit
def nvfp4_at(p_nibbles, p_block_scale, p_scale, o_v, o_k, b_live, K: tl.constexpr):
    """Numbers `o_k` of rows `o_v` of a head's NVFP4 matrix, one by one, in fp32: for folds."""
    b_byte = tl.load(p_nibbles + o_v * (K // 2) + o_k // 2, mask=b_live, other=0).to(tl.int32)
    b_code = b_byte >> o_k % 2 * 4
    b_magnitude = b_code & 7
    b_normal = ((((b_magnitude >> 1) + 126) << 23) | ((b_magnitude & 1) << 22)).to(tl.float32, bitcast=True)
    b_value = tl.where(b_magnitude < 2, b_magnitude * 0.5, b_normal)
    b_unit = tl.load(p_block_scale + o_v * (K // 16) + o_k // 16, mask=b_live, other=0.0).to(tl.float32)
    b_unit *= tl.load(p_scale + o_v // 16, mask=b_live, other=0.0)
    return tl.where((b_code & 8) != 0, -b_value, b_value) * b_unit


@triton.jit
def plain_nibbles(b_words, b_byte):
    """What the machine code of nibbles gives, eight times `[N, M, W]`."""
    b_scale = b_byte.to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float32) * (1.0 / NVFP4_REST)
    return (
        nibble(b_words, b_scale, 0), nibble(b_words, b_scale, 1), nibble(b_words, b_scale, 2), nibble(b_words, b_scale, 3),
        nibble(b_words, b_scale, 4), nibble(b_words, b_scale, 5), nibble(b_words, b_scale, 6), nibble(b_words, b_scale, 7),
    )  # fmt: skip


@triton.jit
def nibble(b_words, b_scale, J: tl.constexpr):
    """Number J of each word times its scale, bf16."""
    b_code = b_words >> (4 * J)
    b_magnitude = ((b_code & 7) << 22).to(tl.float32, bitcast=True) * (2.0**126)
    return (tl.where((b_code & 8) != 0, -b_magnitude, b_magnitude) * b_scale).to(tl.bfloat16)
