"""Small device functions that every kernel shares."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def softplus(x):
    """log(1 + e^x), fp32, exact for large x."""
    return tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(tl.minimum(x, 20.0))))


@triton.jit
def sigmoid(x):
    """1 / (1 + e^-x), fp32."""
    return 1.0 / (1.0 + tl.exp(-x))


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
def solve_unit_lower(b_a, o_i, STEPS: tl.constexpr):
    """(I + a)^-1 of a strictly lower triangular `a [N, N]`, by forward substitution over the first STEPS rows."""
    b_inverse = tl.where(o_i[:, None] == o_i[None, :], 1.0, 0.0)
    for i in range(1, STEPS):
        b_row = tl.sum(tl.where(o_i[:, None] == i, b_a, 0.0), axis=0)
        b_new = tl.sum(b_row[:, None] * b_inverse, axis=0)
        b_inverse = tl.where(o_i[:, None] == i, b_inverse - b_new[None, :], b_inverse)
    return b_inverse


@triton.jit
def sum_where(b_mask, b_g, CHANNEL: tl.constexpr):
    """For each row of `b_mask [I, J]` the sum of the log decays `b_g [J, D]` that it picks: `[I, D]`."""
    if CHANNEL:
        b_sum = tl.dot(tl.where(b_mask, 1.0, 0.0), b_g, input_precision="tf32x3")
    else:
        b_sum = tl.sum(tl.where(b_mask, tl.trans(b_g), 0.0), axis=1)[:, None]
    return b_sum
