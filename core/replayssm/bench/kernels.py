"""Device functions of the benchmark: the ceilings of memory, and the ordinary read-update-write decode."""

from __future__ import annotations

import triton
import triton.language as tl

from replayssm import inputs

L2_EPS = tl.constexpr(inputs.L2_EPS)


@triton.jit
def read_kernel(x, sink, N: tl.constexpr):
    """Reads N numbers a program. The store never happens; it keeps the loads."""
    o = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    total = tl.sum(tl.load(x + o), axis=0)
    if total == 1.2345e30:
        tl.store(sink, total)


@triton.jit
def rewrite_kernel(x, N: tl.constexpr):
    """Reads and writes N numbers a program, in place."""
    o = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    tl.store(x + o, tl.load(x + o) * 0.999)


@triton.jit
def fill_kernel(x, N: tl.constexpr):
    """Writes N numbers a program."""
    o = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    tl.store(x + o, tl.full([N], 0.5, dtype=tl.float32))


@triton.jit
def softplus(x):
    """log(1 + eˣ)."""
    return tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(tl.minimum(x, 20.0))))


@triton.jit(do_not_specialize=["T"])
def ordinary_kernel(
    state, snapshots, slots, q, k, v, gate, beta, skip, A, A_log, dt_bias, out,
    T, s_state, scale, lower_bound, dt_min, dt_max,
    H: tl.constexpr, G: tl.constexpr, V: tl.constexpr, K: tl.constexpr, BV: tl.constexpr,
    DELTA: tl.constexpr, CHANNEL: tl.constexpr, BOUNDED: tl.constexpr, SKIP: tl.constexpr, SNAPSHOT: tl.constexpr,
):  # fmt: skip
    """A tile `[BV, K]` of one head of one row through T tokens: S ← S a + u kᵀ, o = S q. Grid: (⌈V / BV⌉, H, rows).

    With SNAPSHOT the state after each token goes to `snapshots [rows, T, H, V, K]` and the state itself stays, so that
    any number of the tokens can be accepted afterwards; else T is 1 and it is updated in place.
    """
    i_tile, i_head, i_row = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    i_group = i_head // (H // G)
    o_v = i_tile * BV + tl.arange(0, BV)
    o_k = tl.arange(0, K)
    m_v = o_v < V
    o_s = o_v[:, None] * K + o_k[None, :]
    m_s = m_v[:, None]
    slot = tl.load(slots + i_row).to(tl.int64)
    p_s = state + slot * s_state + i_head * V * K + o_s
    b_s = tl.load(p_s, mask=m_s, other=0.0).to(tl.float32)
    count = 1
    if SNAPSHOT:
        count = T
    for t in range(count):
        i_token = i_row * T + t
        p_head = i_token * H + i_head
        b_q = tl.load(q + (i_token * G + i_group) * K + o_k).to(tl.float32)
        b_k = tl.load(k + (i_token * G + i_group) * K + o_k).to(tl.float32)
        b_v = tl.load(v + p_head * V + o_v, mask=m_v, other=0.0).to(tl.float32)
        if CHANNEL:
            b_raw = tl.load(gate + p_head * K + o_k).to(tl.float32) + tl.load(dt_bias + i_head * K + o_k)
        else:
            b_raw = tl.load(gate + p_head).to(tl.float32) + tl.load(dt_bias + i_head)
        if DELTA:
            b_q = b_q * tl.rsqrt(tl.sum(b_q * b_q, axis=0) + L2_EPS)
            b_k = b_k * tl.rsqrt(tl.sum(b_k * b_k, axis=0) + L2_EPS)
            rate = tl.exp(tl.load(A_log + i_head))
            if BOUNDED:
                b_decay = tl.exp(lower_bound / (1.0 + tl.exp(-rate * b_raw)))
            else:
                b_decay = tl.exp(-rate * softplus(b_raw))
            weight = 1.0 / (1.0 + tl.exp(-tl.load(beta + p_head).to(tl.float32)))
        else:
            weight = tl.minimum(tl.maximum(softplus(b_raw), dt_min), dt_max)
            b_decay = tl.exp(tl.load(A + i_head) * weight)
        if CHANNEL:
            b_s = b_s * b_decay[None, :]
        else:
            b_s = b_s * b_decay
        b_u = b_v
        if DELTA:
            b_u = b_u - tl.sum(b_s * b_k[None, :], axis=1)
        b_s = b_s + (b_u * weight)[:, None] * b_k[None, :]
        b_o = tl.sum(b_s * (b_q * scale)[None, :], axis=1)
        if SKIP:
            b_o += tl.load(skip + i_head) * b_v
        tl.store(out + p_head * V + o_v, b_o.to(out.dtype.element_ty), mask=m_v)
        if SNAPSHOT:
            tl.store(snapshots + p_head * V * K + o_s, b_s.to(snapshots.dtype.element_ty), mask=m_s)
    if not SNAPSHOT:
        tl.store(p_s, b_s.to(state.dtype.element_ty), mask=m_s)
