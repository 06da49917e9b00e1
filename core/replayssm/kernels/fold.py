"""Folding committed records into a state tile, as one window: decay per head.

    S_h = S_0 e^{G_h} + Σ_j w_j u_j k_jᵀ,    U = β (V − S_0 K̂) (I + A)^-1    (delta rule),    u_j = x_j    (Mamba-2)

A tile goes through twice, C columns at a time, so that little of it is in registers at once: for what its records read
(EXACT), and for the sum, when caches have it. Records come newest first, so the delta rule's system, in which a record sees
the older ones, is upper triangular; its transpose is solved. For the delta rule this is the exact fold: u is computed from
the checkpoint, not taken from the ring. No operand is rounded below fp32 on its way into the state (split TF32).
"""

from __future__ import annotations

import triton
import triton.language as tl

from replayssm.kernels.copies import store_state
from replayssm.kernels.matrix import LARGEST, load_tile, saturate, tile_values
from replayssm.kernels.primitives import dot_exact, dot_stored, exp, exp_exact, solve_unit_lower
from replayssm.kernels.ring import head_decay, history_rows, load_keys, load_units
from replayssm.kernels.tile import flat, load_rows, load_stored


@triton.jit
def load_window(
    p_key, p_key_scale, p_beta, p_gate, rate, origin, count, o_j,
    K: tl.constexpr, R: tl.constexpr, EK: tl.constexpr, DELTA: tl.constexpr, EXACT: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """What a head's tiles share in a fold.

    Returns:
        the records' weights `[J]` at the end of the history and the state's log decay; for EXACT their weights `[J]` as the
        checkpoint sees them, β `[J]` and the inverse `[J, J]` of the transposed system.
    """
    b_unit = load_units(p_key_scale, p_gate, origin, count, o_j, R, DELTA)
    b_after, whole = head_decay(p_gate, rate, origin, count, o_j, R)
    b_weight = b_unit * exp(b_after)
    b_seen_weight, b_beta, b_inverse = b_unit, b_unit, b_unit
    if EXACT:
        b_key = load_keys(p_key, origin, count, o_j, K, R, EK)
        b_older = o_j[:, None] > o_j[None, :]
        b_decay = exp(tl.where(b_older, b_after[:, None] - b_after[None, :], float("-inf")))
        b_scores = dot_stored(b_key, tl.trans(b_key), DOT) * b_decay
        b_seen_weight = b_unit * exp(whole - b_after)
        b_beta = tl.load(p_beta + history_rows(origin, count, o_j, R), mask=o_j < count, other=0.0)
        b_a = b_scores * b_unit[:, None] * (b_unit * b_beta)[None, :]
        b_inverse = solve_unit_lower(b_a, o_j, o_j.shape[0])
    return b_weight, whole, b_seen_weight, b_beta, b_inverse


@triton.jit
def fold_values(
    p_state, p_block_scale, p_scale, o_v, b_value, p_keys, b_live, b_seen_weight, b_beta, b_inverse, b_weight,
    V: tl.constexpr, K: tl.constexpr, E: tl.constexpr, FORMAT: tl.constexpr, EXACT: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """w_j u_j `[BV, J]` of rows `o_v` of a stored state, from values `[BV, J]`.

    Values are those of the ring of raw values for EXACT, else of u (delta rule) or x (Mamba-2). p_keys: where the
    records' keys are, `[J]`. Its sums over k go by the same columns whatever else is stored, so that bits are the same.
    """
    C: tl.constexpr = min(K, max(32, 4 * E))
    b_u = b_value.to(tl.float32)
    if EXACT:
        b_read = tl.zeros_like(b_u)
        for i in tl.static_range(K // C):
            b_stored = load_tile(p_state, p_block_scale, p_scale, o_v, i * C, V, K, C, E, FORMAT)
            b_s = tile_values(b_stored, p_scale, o_v, V, FORMAT == "fp8")
            b_keys = flat(load_rows(p_keys + i * C, b_live, C, E))
            b_read = dot_exact(b_s, tl.trans(b_keys), b_read, DOT)
        b_right = b_beta[None, :] * (b_u - b_read * b_seen_weight[None, :])
        b_u = tl.dot(b_right, b_inverse, input_precision="tf32x3")
    return b_u * b_weight[None, :]


@triton.jit
def fold_columns(b_s, b_values, b_keys, whole, DOT: tl.constexpr):
    """Columns `[BV, C]` of a state at the end of the history. b_values: of `fold_values`; b_keys: as stored."""
    return saturate(dot_exact(b_values, flat(b_keys.to(tl.float32)), b_s * exp_exact(whole), DOT), LARGEST)


@triton.jit
def fold_tile(
    b_stored, b_keys, b_x, b_read, b_u, decay, p_state, p_scale, p_copy, p_block_scale, p_copy_scale,
    seed, slot, flushes, i_head, o_v, p_keys, b_committed, p_x, b_live,
    COLUMN: tl.constexpr, V: tl.constexpr, K: tl.constexpr, C: tl.constexpr, E: tl.constexpr,
    FORMAT: tl.constexpr, SR: tl.constexpr, COPY: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Fold rows `o_v` of a state from COLUMN on, C columns at a time, and store them, with their read copy.

    b_stored, b_keys, b_x: the first C of these columns of state, records and the rows of the step, as loaded; b_u: of
    `fold_values`. The next ones are on their way before these are stored: no load overtakes a store.

    Returns:
        b_read `[BV, X]` and what the rows of the step at `p_x [X]` read of the new state.
    """
    b_s = fold_columns(tile_values(b_stored, p_scale, o_v, V, FORMAT == "fp8"), b_u, b_keys, decay, DOT)
    b_read = tl.dot(b_s, tl.trans(flat(b_x.to(tl.float32))), b_read, input_precision=DOT)
    NEXT: tl.constexpr = COLUMN + C
    if NEXT < K:
        b_stored = load_tile(p_state, p_block_scale, p_scale, o_v, NEXT, V, K, C, E, FORMAT)
        b_keys, b_x = load_stored(p_keys + NEXT, b_committed, C, E), load_stored(p_x + NEXT, b_live, C, E)
    store_state(
        b_s, p_state, p_scale, p_copy, p_block_scale, p_copy_scale, seed, slot, flushes, i_head, o_v, COLUMN,
        V, K, E, FORMAT, SR, COPY,
    )  # fmt: skip
    if NEXT < K:
        b_read = fold_tile(
            b_stored, b_keys, b_x, b_read, b_u, decay, p_state, p_scale, p_copy, p_block_scale, p_copy_scale,
            seed, slot, flushes, i_head, o_v, p_keys, b_committed, p_x, b_live,
            NEXT, V, K, C, E, FORMAT, SR, COPY, DOT,
        )  # fmt: skip
    return b_read
