"""From what rows of a step read of state and history to outputs and new records."""

from __future__ import annotations

import triton
import triton.language as tl

from replayssm.kernels.primitives import sigmoid
from replayssm.kernels.ring import wrap
from replayssm.kernels.tile import from_tile, load_value, tile_rows, to_tile, value_columns, value_rows


@triton.jit
def finish_tile(
    b_read, b_scores, b_solve, b_step, p_v, p_z, p_skip, p_out, p_value, p_raw, sv_t, sz_t, s_skip, first, new, length, o_x,
    H: tl.constexpr, V: tl.constexpr, R: tl.constexpr, T: tl.constexpr, BT: tl.constexpr,
    DELTA: tl.constexpr, SKIP: tl.constexpr, HAS_Z: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Rows `first` on of V: outputs from what was read, `[BV, BX]`; appends values from ring row `new` on.

    U = β (V − R) (I + A)^-T for keys, O = R + U Wᵀ for queries; b_solve is the inverse, b_scores is W.
    """
    BV: tl.constexpr = b_read.shape[0]
    BX: tl.constexpr = b_read.shape[1]
    o_v, o_vx, o_column = first + value_rows(BV), first + tile_rows(BV), value_columns(BX)
    o_t = o_column % BT
    b_skip = 0.0
    if SKIP:
        b_skip = tl.load(p_skip + o_vx * s_skip, mask=o_vx < V, other=0.0).to(tl.float32)[:, None]
    if BX >= 16:
        # Whatever is in the place of tokens past a row's length.
        b_stored = to_tile(tl.load(p_v + o_t * sv_t + o_v, mask=(o_v < V) & (o_t < length), other=0.0))
        b_v = b_stored.to(tl.float32)
        b_u = b_v * b_step[None, :]
        if DELTA:
            b_u = tl.dot((b_v - b_read) * b_step[None, :], tl.trans(b_solve), input_precision=DOT)
        b_read = tl.dot(b_u, tl.trans(b_scores), b_read, input_precision=DOT)
        if SKIP:
            b_read += b_skip * b_v
        m_new = (o_column < BT) & (o_t < length) & (o_v < V)
        p_new = wrap(new + o_t, R) * V + o_v
        tl.store(p_value + p_new, from_tile((b_u if DELTA else b_stored).to(p_value.dtype.element_ty)), mask=m_new)
        if DELTA:
            tl.store(p_raw + p_new, from_tile(b_stored), mask=m_new)
    else:
        # Too few rows for tensor cores: a token's u needs what its key reads, and adds to what later rows read.
        for t in tl.static_range(T):
            end = tl.where(t < length, V, 0)
            b_stored = load_value(p_v + t * sv_t, first, end, BV, BX)
            b_v, b_is = b_stored.to(tl.float32), (o_x == t)[None, :]
            b_u = b_v
            if DELTA:
                b_u = b_v - tl.sum(tl.where(b_is, b_read, 0.0), axis=1)[:, None]
            b_u *= tl.sum(tl.where(o_x == t, b_step, 0.0), axis=0)
            b_read += b_u * tl.sum(tl.where(b_is, b_scores, 0.0), axis=1)[None, :]
            if SKIP:
                b_read += tl.where((o_x == BT + t)[None, :], b_skip * b_v, 0.0)
            m_new = (o_column == t) & (o_v < end)
            p_new = tl.broadcast_to(wrap(new + t, R) * V + o_v, m_new.shape)
            tl.store(p_value + p_new, from_tile((b_u if DELTA else b_stored).to(p_value.dtype.element_ty)), mask=m_new)
            if DELTA:
                tl.store(p_raw + p_new, from_tile(b_stored), mask=m_new)
    m_out = (o_column >= BT) & (o_t < T) & (o_v < V)
    if HAS_Z:
        b_z = to_tile(tl.load(p_z + o_t * sz_t + o_v, mask=m_out, other=0.0)).to(tl.float32)
        b_read = b_read * b_z * sigmoid(b_z)
    # Tokens past a row's length come out as zeros.
    b_out = tl.where(o_t < length, from_tile(b_read), 0.0)
    tl.store(p_out + o_t * H * V + o_v, b_out.to(p_out.dtype.element_ty), mask=m_out)


@triton.jit
def store_zeros(p_out, count, H: tl.constexpr, V: tl.constexpr, T: tl.constexpr, ROWS: tl.constexpr):
    """Outputs of a row of padding: `count` numbers of each token from `p_out` on, at most ROWS."""
    o_v = tl.arange(0, triton.next_power_of_2(ROWS))
    for t in tl.static_range(T):
        tl.store(p_out + t * H * V + o_v, tl.zeros(o_v.shape, dtype=p_out.dtype.element_ty), mask=o_v < count)
