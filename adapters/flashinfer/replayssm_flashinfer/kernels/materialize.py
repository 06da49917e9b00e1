"""The kernel of `replayssm_materialize`: pointer tables in, and one fold a (layer, request, head), all in one launch."""

from __future__ import annotations

import triton
import triton.language as tl

from replayssm.kernels.flush import fold_kernel
from replayssm.kernels.tile import tile_rows
from replayssm_flashinfer.kernels.int8 import fold_rows, store_rows_int8


@triton.jit(do_not_specialize=["batch", "pad"])
def choose_kernel(
    p_source, p_target, p_start, p_count, p_active,
    p_row_source, p_row_target, p_row_start, p_row_count,
    batch, pad, R: tl.constexpr, WINDOW: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """Which folds are wanted, by (layer, entry of `p_active`); others get the slot −1. Grid: (layers, ⌈batch / BR⌉)."""
    i_block, o_block = tl.program_id(1), tl.arange(0, BR)
    o_i = i_block * BR + o_block
    m_i, o_row = o_i < batch, tl.program_id(0) * batch + o_i
    b_request = tl.load(p_active + o_i, mask=m_i, other=-1)
    # Up to the first −1, which may be in a block before.
    b_ended = tl.cumsum((b_request < 0).to(tl.int32), axis=0)
    for i in range(i_block):
        b_ended += tl.sum((tl.load(p_active + i * BR + o_block) < 0).to(tl.int32), axis=0)
    b_wanted = (b_ended == 0) & (b_request < batch)
    b_request = tl.where(b_wanted, b_request, 0)
    o_pair = tl.program_id(0) * batch + b_request
    b_source = tl.load(p_source + o_pair, mask=b_wanted, other=-1)
    b_target = tl.load(p_target + o_pair, mask=b_wanted, other=-1)
    b_start = tl.load(p_start + b_request, mask=b_wanted, other=-1)
    b_count = tl.load(p_count + b_request, mask=b_wanted, other=-1)
    b_wanted = b_wanted & (b_source != pad) & (b_target != pad) & (b_source >= 0) & (b_target >= 0)
    b_wanted = b_wanted & (b_count >= 0) & (b_count <= WINDOW) & (b_start >= 0) & (b_start < R)
    tl.store(p_row_source + o_row, tl.where(b_wanted, b_source, -1), mask=m_i)
    tl.store(p_row_target + o_row, tl.where(b_wanted, b_target, -1), mask=m_i)
    tl.store(p_row_start + o_row, tl.where(b_wanted, b_start, 0), mask=m_i)
    tl.store(p_row_count + o_row, tl.where(b_wanted, b_count, 0), mask=m_i)


@triton.jit
def table(p_table, i_layer, like):
    """A layer's memory, as a pointer to what `like` points to."""
    return tl.load(p_table + i_layer).to(like.dtype)


@triton.jit(do_not_specialize=["batch"])
def materialize_kernel(
    p_source, p_target, p_start, p_count, p_counter, p_seed,
    states, s_states, values, s_values, keys, s_keys, gates, s_gates, rates, scales, s_scales,
    like_state, like_value, like_gate, like_rate, batch,
    H: tl.constexpr, G: tl.constexpr, V: tl.constexpr, K: tl.constexpr, R: tl.constexpr, J: tl.constexpr,
    BV: tl.constexpr, E: tl.constexpr, FORMAT: tl.constexpr, SR: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Fold prefixes of many layers' rings into other slots. Grid: (⌈V / BV⌉, H, layers · batch).

    A count of 0 copies bits. `like_…` are tensors of the dtypes that the tables point to.
    """
    i_head, i_row = tl.program_id(1), tl.program_id(2)
    i_layer = i_row // batch
    source, target = tl.load(p_source + i_row).to(tl.int64), tl.load(p_target + i_row).to(tl.int64)
    if source < 0:
        return
    state, s_state = table(states, i_layer, like_state), tl.load(s_states + i_layer)
    SCALED: tl.constexpr = FORMAT == "fp8" or FORMAT == "int8"
    scale, s_scale = table(scales, i_layer, like_gate), tl.load(s_scales + i_layer)
    count, origin = tl.load(p_count + i_row), tl.load(p_start + i_row)
    o_v, o_k = tl.program_id(0) * BV + tile_rows(BV), tl.arange(0, K)
    if count == 0:
        m_v = o_v < V
        o_tile = i_head * V * K + o_v[:, None] * K + o_k[None, :]
        tl.store(
            state + target * s_state + o_tile,
            tl.load(state + source * s_state + o_tile, mask=m_v[:, None]),
            mask=m_v[:, None],
        )
        if SCALED:
            o_row = i_head * V + o_v
            tl.store(scale + target * s_scale + o_row, tl.load(scale + source * s_scale + o_row, mask=m_v), mask=m_v)
        return
    value, s_value = table(values, i_layer, like_value), tl.load(s_values + i_layer)
    key, s_key = table(keys, i_layer, like_value), tl.load(s_keys + i_layer)
    gate, s_gate = table(gates, i_layer, like_gate), tl.load(s_gates + i_layer)
    rate = table(rates, i_layer, like_rate)
    if FORMAT == "int8":
        i_group = i_head // (H // G)
        b_state = fold_rows(
            state + source * s_state + i_head * V * K, scale + source * s_scale + i_head * V,
            value + source * s_value + i_head * R * V, key + source * s_key + i_group * R * K,
            gate + source * s_gate + i_head * R, tl.load(rate + i_head).to(tl.float32), origin, count,
            tl.program_id(0) * BV, V, K, R, J, BV, DOT,
        )  # fmt: skip
        p_to, p_to_scale = state + target * s_state + i_head * V * K, scale + target * s_scale + i_head * V
        counter, seed = tl.load(p_counter + i_row), tl.load(p_seed)
        store_rows_int8(b_state, p_to, p_to_scale, seed, source, counter, i_head, o_v, V, K, SR)
    else:
        if not SCALED:
            scale, s_scale = gate, s_gate
        fold_kernel(
            p_source, p_target, p_start, p_count, p_counter, p_seed, rate,
            state, scale, state, scale, state, state, state,
            key, key, value, value, gate, gate,
            s_state, s_scale, s_state, s_scale, s_state, s_state, s_state,
            s_key, s_key, s_value, s_value, s_gate, s_gate,
            2147483647,
            H, G, V, K, R, J, BV, K, E, E, False, False, FORMAT, FORMAT, SR, "none", False, False, False, 1, DOT,
        )  # fmt: skip
