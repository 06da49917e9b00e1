"""Small device functions that every kernel shares."""

from __future__ import annotations

import os

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
# Sign, exponent and the ten mantissa bits that TF32 keeps.
TF32_BITS = tl.constexpr(-8192)


@triton.constexpr_function
def converts_e2m1():
    """Whether the GPU that a kernel is compiled for converts between e2m1 and other floats itself."""
    return not INTERPRETED and tl.target_info.cuda_capability_geq(10, 0)


@triton.jit
def exp(x):
    """e^x to 2^-22; below 2^-126 it is 0, which `tl.exp` spends three more instructions on."""
    if INTERPRETED:
        y = tl.exp(x)
    else:
        y = tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x * 1.4426950408889634], tl.float32, is_pure=True, pack=1
        )
    return y


@triton.jit
def softplus(x):
    """log(1 + e^x), fp32, to 2^-22: max(x, 0) + log(1 + y) of y = e^-|x|, a polynomial in y that is good to 2^-23."""
    y = exp(-tl.abs(x))
    p = tl.fma(y, -0.0031760570127516985, 0.019542526453733444)
    p = tl.fma(y, p, -0.056373611092567444)
    p = tl.fma(y, p, 0.10543623566627502)
    p = tl.fma(y, p, -0.1526966691017151)
    p = tl.fma(y, p, 0.1966327428817749)
    p = tl.fma(y, p, -0.24951615929603577)
    p = tl.fma(y, p, 0.33329710364341736)
    p = tl.fma(y, p, -0.49999892711639404)
    return tl.fma(y, tl.fma(y, p, 1.0), tl.maximum(x, 0.0))


@triton.jit
def sigmoid(x):
    """1 / (1 + e^-x), fp32."""
    return 1.0 / (1.0 + exp(-x))


@triton.jit
def activate_gate(b_gate, b_bias, rate, lower_bound, dt_min, dt_max, DELTA: tl.constexpr, BOUNDED: tl.constexpr):
    """Raw projection → Δ (Mamba-2) or log decay (GDN, KDA).

    rate = exp(A_log) of the head; not used by Mamba-2.
    """
    b_x = b_gate + b_bias
    if not DELTA:
        b_out = tl.minimum(tl.maximum(softplus(b_x), dt_min), dt_max)
    elif BOUNDED:
        b_out = lower_bound * sigmoid(rate * b_x)
    else:
        b_out = -rate * softplus(b_x)
    return b_out


@triton.jit
def exp_exact(x):
    """e^x of x ≤ 0 to 1e-7, 0 below 2^-126.

    `exp` may be 2^-22 off, always to one side: a decay near 1 that meets a state once a window would add that up.
    """
    n = tl.maximum(tl.floor(x * 1.4426950408889634 + 0.5), -127.0)
    # ln 2 in two parts, of which the first times n is exact.
    r = tl.fma(n, -1.42860682030941723212e-6, tl.fma(n, -0.693145751953125, x))
    y = tl.fma(r, 1.0 / 5040.0, 1.0 / 720.0)
    y = tl.fma(r, y, 1.0 / 120.0)
    y = tl.fma(r, y, 1.0 / 24.0)
    y = tl.fma(r, y, 1.0 / 6.0)
    y = tl.fma(r, y, 0.5)
    y = tl.fma(r * r, y, r) + 1.0
    return tl.where(n < -126.0, 0.0, y * ((n.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True))


@triton.jit
def exp_decay(x):
    """e^x of x ≤ 0: to 1e-7 above −1/8, so that a slow decay that meets a state every token adds up no error to one side."""
    y = tl.fma(x, 1.0 / 120.0, 1.0 / 24.0)
    y = tl.fma(x, y, 1.0 / 6.0)
    y = tl.fma(x, y, 0.5)
    y = tl.fma(x * x, y, x) + 1.0
    return tl.where(x > -0.125, y, exp(x))


@triton.jit
def dot_stored(b_a, b_b, DOT: tl.constexpr):
    """b_a b_b in fp32 of numbers as they are stored: exact products of 16-bit ones; fp32 ones, or of two types, as DOT says.

    The interpreter would multiply the bits of bf16 numbers.
    """
    if INTERPRETED or b_a.dtype != b_b.dtype:
        b_a, b_b = b_a.to(tl.float32), b_b.to(tl.float32)
    return tl.dot(b_a, b_b, input_precision=DOT)


@triton.jit
def dot_exact(b_a, b_b, b_acc, DOT: tl.constexpr):
    """b_acc + b_a b_b to 2^-22 for fp32 `b_a` and a `b_b` that is exact in TF32, as 16-bit activations are.

    `b_a` goes in as two TF32 numbers. Where activations are fp32 (DOT is not "tf32") `b_b` is split too.
    """
    if DOT == "tf32":
        b_high = (b_a.to(tl.int32, bitcast=True) & TF32_BITS).to(tl.float32, bitcast=True)
        b_acc = tl.dot(b_a - b_high, b_b, b_acc, input_precision="tf32")
        b_acc = tl.dot(b_high, b_b, b_acc, input_precision="tf32")
    else:
        b_acc = tl.dot(b_a, b_b, b_acc, input_precision="tf32x3")
    return b_acc


@triton.jit
def solve_unit_lower(b_a, o_i, STEPS: tl.constexpr):
    """(I + a)^-1 of a strictly lower triangular `a [N, N]`, by forward substitution over the first STEPS rows."""
    b_inverse = tl.where(o_i[:, None] == o_i[None, :], 1.0, 0.0)
    for i in range(1, STEPS):
        b_row = tl.sum(tl.where(o_i[:, None] == i, b_a, 0.0), axis=0)
        b_new = tl.sum(b_row[:, None] * b_inverse, axis=0)
        b_inverse = tl.where(o_i[:, None] == i, b_inverse - b_new[None, :], b_inverse)
    return b_inverse
