"""Folding committed records into a state tile, one record after another, in fp32.

    S ← S a_j;   u_j = β_j (v_j − S k_j)  (delta rule), or Δ_j x_j;   S ← S + u_j k_jᵀ

For the delta rule this is the exact fold: u is computed from the checkpoint, not taken from the ring. The tile never
leaves its registers, no pair of records is ever compared, and decays are applied one by one, so there is no running sum
to lose precision in. A window has few records and a row flushes once a window: simple wins over a triangular solve.
"""

from __future__ import annotations

import triton
import triton.language as tl

from replayssm.kernels.ring import wrap


@triton.jit
def fold_tile(
    b_s, p_key, p_key_scale, p_value, p_beta, p_gate, rate, origin, count, o_v, o_k,
    V: tl.constexpr, K: tl.constexpr, R: tl.constexpr, DELTA: tl.constexpr, CHANNEL: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """State tile `[BV, K]` fp32 → the tile with the first `count` records folded.

    `p_value` is the ring of raw values where EXACT solves for u, else of u (delta rule) or x (Mamba-2).
    """
    for j in range(count):
        row = wrap(origin + j, R)
        b_k = tl.load(p_key + row * K + o_k).to(tl.float32)
        b_u = tl.load(p_value + row * V + o_v, mask=o_v < V, other=0.0).to(tl.float32)
        if CHANNEL:
            b_s = b_s * tl.exp(tl.load(p_gate + row * K + o_k))[None, :]
        else:
            gate = tl.load(p_gate + row)
            b_s = b_s * tl.exp(gate * rate)
        if DELTA:
            b_k = b_k * tl.load(p_key_scale + row)
        else:
            b_u = b_u * gate
        if EXACT:
            b_u = tl.load(p_beta + row) * (b_u - tl.sum(b_s * b_k[None, :], axis=1))
        b_s = b_s + b_u[:, None] * b_k[None, :]
    return b_s
