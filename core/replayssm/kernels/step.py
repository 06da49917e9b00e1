"""One step of the replay protocol in one launch: read, append, and fold where a row flushes.

A program owns one head of one row, or a part of its V. It reads ring and new tokens once and then walks over tiles of the
state. A row that flushes folds its committed records into each tile of the checkpoint, stores it, with its read copy, and
reads its outputs from it. Other rows read them from history and tile, of the read copy where there is one, each tile on its
way while the one before is finished. A fold takes several times as long as a read, and few rows flush in a step: where rows
are few, the first of them have more programs, which share their folds and leave where none is due (SHARES). Two switches
tell the layers apart (DELTA, CHANNEL); one token and several, chains and trees are one path. docs/mathematics.md has the
formulas, `tile.py` says how state meets tensor cores.
"""

from __future__ import annotations

import triton
import triton.language as tl

from replayssm import inputs
from replayssm.kernels import tiles
from replayssm.kernels.copies import head_pointers, load_factors, load_read, place_x, read_tile
from replayssm.kernels.finish import draft_reach, finish_tile, load_new, store_zeros
from replayssm.kernels.fold import fold_tile, fold_values, load_window
from replayssm.kernels.matrix import load_tile
from replayssm.kernels.primitives import activate_gate, dot_stored, exp, sigmoid, solve_unit_lower
from replayssm.kernels.reach import add_history, load_reach, split_reach
from replayssm.kernels.records import fold_records, read_records, store_records
from replayssm.kernels.ring import history_rows, load_values, wrap
from replayssm.kernels.tile import flat, load_stored, prefetch_rows, store_rows, tile_rows
from replayssm.kernels.tokens import above_mask, load_bias, load_gates, load_numbers, see_tokens, token_pointers

L2_EPS = tl.constexpr(inputs.L2_EPS)
FOLD_ROWS = tl.constexpr(tiles.FOLD_ROWS)


@triton.jit
def place_and_share(i_program, shared_rows, SHARES: tl.constexpr):
    """A row's place in the plan's order and the share of its folds: SHARES programs for each of the first rows, then one."""
    i_place, i_share = i_program - shared_rows * (SHARES - 1), 0
    if i_program < shared_rows * SHARES:
        i_place, i_share = i_program // SHARES, i_program % SHARES
    return i_place, i_share


@triton.jit(do_not_specialize=["shared_rows"])
def step_kernel(
    p_order, p_slot, p_length, p_origin, p_committed, p_flush, p_flushes, p_seed, p_ancestors,
    q, k, v, gate, beta, z, skip, A, A_log, dt_bias, out,
    state, state_scale, copy, copy_block_scale, copy_scale,
    key_ring, key_scale_ring, value_ring, raw_value_ring, beta_ring, gate_ring,
    sq_b, sq_t, sk_b, sk_t, sv_b, sv_t, sg_b, sg_t, sb_b, sb_t, sz_b, sz_t,
    s_state, s_state_scale, s_copy, s_copy_block_scale, s_copy_scale, s_key, s_key_scale, s_value, s_raw, s_beta, s_gate,
    s_skip_h, s_skip, scale, lower_bound, dt_min, dt_max, shared_rows,
    H: tl.constexpr, G: tl.constexpr, V: tl.constexpr, K: tl.constexpr, R: tl.constexpr, J: tl.constexpr,
    T: tl.constexpr, BT: tl.constexpr, BV: tl.constexpr, TILES: tl.constexpr,
    SHARES: tl.constexpr, C: tl.constexpr, E: tl.constexpr, EK: tl.constexpr, ER: tl.constexpr, P: tl.constexpr,
    ALIGN: tl.constexpr, DELTA: tl.constexpr, CHANNEL: tl.constexpr, EXACT: tl.constexpr, TREE: tl.constexpr,
    RAW: tl.constexpr, HAS_BIAS: tl.constexpr, BOUNDED: tl.constexpr, L2NORM: tl.constexpr,
    SKIP: tl.constexpr, HAS_Z: tl.constexpr, FORMAT: tl.constexpr, SR: tl.constexpr, COPY: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    """See the module. Grid: (⌈V / (BV · TILES)⌉, H, rows + shared_rows (SHARES - 1))."""
    i_part, i_head = tl.program_id(0), tl.program_id(1)
    i_place, i_share = tl.program_id(2), 0
    if SHARES > 1:
        i_place, i_share = place_and_share(i_place, shared_rows, SHARES)
    i_row = tl.load(p_order + i_place)
    if SHARES > 1 and tl.load(p_flush + i_row, mask=i_share > 0, other=1) == 0:
        return
    i_group = i_head // (H // G)
    row = i_row.to(tl.int64)
    slot = tl.load(p_slot + i_row).to(tl.int64)
    length = tl.load(p_length + i_row)
    origin = tl.load(p_origin + i_row)
    committed = tl.load(p_committed + i_row)
    flush = tl.load(p_flush + i_row) != 0
    flushes = tl.load(p_flushes + i_row)

    # What needs no slot is loaded while the plan is on its way.
    BX: tl.constexpr = 2 * BT
    # Long drafts need so many registers that few programs are in flight: theirs ask for tiles in advance.
    AHEAD: tl.constexpr = BX >= 16
    STATE_WIDTH: tl.constexpr = K // 2 if FORMAT == "nvfp4" else K
    READ_WIDTH: tl.constexpr = K // 2 if COPY == "nvfp4" else K
    ROWS: tl.constexpr = TILES * BV
    first = i_part * ROWS
    o_x = tl.arange(0, BX)
    o_t = o_x % BT
    b_is_q = o_x >= BT
    p_q, p_k = q + row * sq_b + i_group * K, k + row * sk_b + i_group * K
    p_x = token_pointers(p_q, p_k, o_x, sq_t, sk_t, BT)
    b_new_x = load_stored(p_x, o_t < T, K, EK)
    o_gate = i_head * K if CHANNEL else i_head
    o_token = tl.arange(0, BT)
    b_gate = load_gates(gate + row * sg_b + o_gate, sg_t, o_token if CHANNEL else o_t, K, T, CHANNEL)
    bias = load_bias(dt_bias + o_gate, K, CHANNEL, RAW and HAS_BIAS)
    b_step = tl.zeros([BX], dtype=tl.float32)
    if DELTA:
        b_step = load_numbers(beta + row * sb_b + i_head, sb_t, o_t, T)
    rate, speed = 1.0, 1.0
    if not DELTA:
        rate = tl.load(A + i_head).to(tl.float32)
    elif RAW:
        speed = exp(tl.load(A_log + i_head).to(tl.float32))

    p_out = out + row * T * H * V + i_head * V
    if slot < 0:
        store_zeros(p_out + first, tl.minimum(V - first, ROWS), H, V, T, ROWS)
        return

    p_state = state + slot * s_state + i_head * V * K
    p_scale = state_scale + slot * s_state_scale + i_head * V
    p_copy, p_block_scale, p_copy_scale = head_pointers(
        copy, copy_block_scale, copy_scale, slot, s_copy, s_copy_block_scale, s_copy_scale, i_head, V, K, COPY
    )
    # An adapter's int8 checkpoint comes as "fp8", a byte a number and a scale a row.
    READ: tl.constexpr = COPY if COPY != "none" else "int8" if state.dtype.element_ty == tl.int8 else FORMAT
    if FORMAT == "nvfp4":
        p_state, p_scale = p_copy, p_copy_scale
    p_read, p_read_scale = p_state, p_scale
    if COPY != "none":
        p_read, p_read_scale = p_copy, p_copy_scale
    p_key = key_ring + slot * s_key + i_group * R * K
    p_key_scale = key_scale_ring + slot * s_key_scale + i_group * R
    p_value = value_ring + slot * s_value + i_head * R * V
    p_raw = raw_value_ring + slot * s_raw + i_head * R * V
    p_beta = beta_ring + slot * s_beta + i_head * R
    p_gate = gate_ring + slot * s_gate + (i_head * R * K if CHANNEL else i_head * R)
    p_v = v + row * sv_b + i_head * V
    p_z = z + row * sz_b + i_head * V
    p_skip = skip + i_head * s_skip_h

    # Keys and queries.
    b_live = o_t < length
    b_is_k = b_live & (o_x < BT)
    new = wrap(origin + committed, R)
    o_new = wrap(new + o_t, R)
    b_above = above_mask(p_ancestors + row * T * T, o_x, T, BT, TREE)
    b_x = flat(b_new_x)
    if CHANNEL:
        b_x = tl.where(b_live[:, None], b_x.to(tl.float32), 0.0)
    # Whatever is in the place of tokens past a row's length.
    b_dots = tl.where(b_live[:, None] & b_live[None, :], dot_stored(b_x, tl.trans(b_x), DOT), 0.0)
    b_norm = tl.full([BX], 1.0, dtype=tl.float32)
    if L2NORM:
        b_norm = tl.rsqrt(tl.sum(tl.where(o_x[:, None] == o_x[None, :], b_dots, 0.0), axis=1) + L2_EPS)
    b_scale = b_norm * tl.where(b_is_q, scale, 1.0)
    b_dots *= b_scale[:, None] * b_scale[None, :]
    if DELTA:
        if RAW:
            b_step = sigmoid(b_step)
        b_step = tl.where(b_is_k, b_step, 0.0)

    # b_scores[x, s] of unit s reaches row x, each row through its own decay b_column.
    if RAW:
        b_gate = activate_gate(b_gate, bias, speed, lower_bound, dt_min, dt_max, DELTA, BOUNDED)
    if not CHANNEL:
        b_gate = tl.where(b_live, b_gate, 0.0)
    elif T > 1:
        b_gate = tl.where((o_token < length)[:, None], b_gate, 0.0)
    if not DELTA:
        b_step = tl.where(b_is_k, b_gate, 0.0)
    b_scores, b_path, b_x_end, b_decay = see_tokens(
        b_x, b_dots, b_scale, b_gate, b_above, b_is_q, p_q, p_k, sq_t, sk_t, p_ancestors + row * T * T, length, o_x, rate,
        K, T, BX, BT, E, CHANNEL, TREE,
    )  # fmt: skip
    b_column = b_scale * b_decay
    X: tl.constexpr = BX if DELTA or T == 1 else max(BX, 16)
    b_inner = b_scores
    if not DELTA and T > 1:
        b_inner = draft_reach(b_scores, b_step, X)
    elif DELTA and BX >= 16:
        b_inner = solve_unit_lower(b_scores * b_step[:, None], o_x, T)
    o_j = tl.arange(0, J)
    o_hist = history_rows(origin, committed, o_j, R)
    b_committed = o_j < committed

    # Append what does not depend on the state.
    if (i_part == 0) & (i_share == 0):
        if CHANNEL and T == 1:
            o_k = tl.arange(0, K)
            tl.store(p_gate + new * K + o_k, b_gate, mask=o_k < tl.where(length > 0, K, 0))
        elif CHANNEL:
            p_gates = p_gate + wrap(new + o_token, R)[:, None] * K + tl.arange(0, K)[None, :]
            tl.store(p_gates, b_gate, mask=(o_token < length)[:, None])
        else:
            tl.store(p_gate + o_new, b_gate, mask=b_is_k)
        if DELTA:
            tl.store(p_beta + o_new, b_step, mask=b_is_k)
        if i_head % (H // G) == 0:
            store_rows(p_key + o_new * K, b_new_x, b_is_k, K, EK)
            if DELTA:
                tl.store(p_key_scale + o_new, b_norm, mask=b_is_k)

    if flush:
        seed, p_keys, p_records = tl.load(p_seed), p_key + o_hist * K, p_raw if EXACT else p_value
        if not CHANNEL:
            b_weight, decay, b_seen_weight, b_beta, b_inverse = load_window(
                p_key, p_key_scale, p_beta, p_gate, rate, origin, committed, o_j, K, R, EK, DELTA, EXACT, DOT
            )
        last = tl.minimum(first + ROWS, V)
        if SHARES > 1:
            SHARE: tl.constexpr = tl.cdiv(tl.cdiv(ROWS, FOLD_ROWS), SHARES) * FOLD_ROWS
            if i_place < shared_rows:
                first += i_share * SHARE
                last = tl.minimum(first + SHARE, last)
        for i in range(tl.cdiv(last - first, FOLD_ROWS)):
            first_row = first + i * FOLD_ROWS
            o_v = first_row + tile_rows(FOLD_ROWS)
            if AHEAD:
                prefetch_rows(p_state, first_row + FOLD_ROWS, last, STATE_WIDTH, FOLD_ROWS)
            b_new = load_new(p_v, sv_t, first_row, V, length, T, BT, X, FOLD_ROWS)
            b_read = tl.zeros([FOLD_ROWS, BX], dtype=tl.float32)
            if CHANNEL:
                b_s = fold_records(
                    p_state, p_block_scale, p_scale, o_v, p_records, p_key, p_key_scale, p_beta, p_gate, origin, committed,
                    V, K, R, FORMAT, EXACT, ALIGN,
                )  # fmt: skip
                b_read = read_records(b_s, b_x_end, b_read, E, DOT)
                store_records(
                    b_s, p_state, p_scale, p_copy, p_block_scale, p_copy_scale, seed, slot, flushes, i_head, o_v,
                    V, K, E, FORMAT, SR, COPY, ALIGN,
                )  # fmt: skip
            else:
                b_value = load_values(p_records, origin, committed, first_row, V, V, R, J, FOLD_ROWS)
                b_u = fold_values(
                    p_state, p_block_scale, p_scale, o_v, b_value, p_keys, b_committed, b_seen_weight, b_beta, b_inverse,
                    b_weight, V, K, E, FORMAT, EXACT, DOT,
                )  # fmt: skip
                b_tile = load_tile(p_state, p_block_scale, p_scale, o_v, 0, V, K, C, E, FORMAT)
                b_keys, b_queries = load_stored(p_keys, b_committed, C, E), load_stored(p_x, b_live, C, E)
                b_read = fold_tile(
                    b_tile, b_keys, b_queries, b_read, b_u, decay, p_state, p_scale, p_copy, p_block_scale, p_copy_scale,
                    seed, slot, flushes, i_head, o_v, p_keys, b_committed, p_x, b_live,
                    0, V, K, C, E, FORMAT, SR, COPY, DOT,
                )  # fmt: skip
            finish_tile(
                b_read * b_column[None, :], b_new, b_scores, b_inner, b_step, p_z, p_skip, p_out, p_value, p_raw,
                sz_t, s_skip, first_row, new, length, o_x, H, V, R, T, BT, DELTA, SKIP, HAS_Z, DOT,
            )  # fmt: skip
    else:
        # The first tile is on its way while the history is read; histories by channel need the registers themselves.
        o_n = first * P + tile_rows(BV, P)
        if not CHANNEL:
            b_stored, b_block_scale = load_read(p_read, p_block_scale, o_n, V, K, ER, P, READ)
        b_reach, whole = load_reach(
            b_x_end, b_live, b_path, b_gate, p_q, p_k, o_x, p_key, p_key_scale, p_gate, rate, origin, committed, o_j,
            K, R, J, T, BT, E, EK, DELTA, CHANNEL, DOT,
        )  # fmt: skip
        b_read_x, b_unit = place_x(p_x, b_live, whole, K, E, ER, P, READ, CHANNEL, DOT)
        b_high, b_low = split_reach(b_reach, p_value.dtype.element_ty == tl.bfloat16)
        state_decay = 1.0
        if CHANNEL:
            b_stored, b_block_scale = load_read(p_read, p_block_scale, o_n, V, K, ER, P, READ)
        else:
            state_decay = exp(whole)
        b_new = load_new(p_v, sv_t, first, V, length, T, BT, X, BV)
        b_u = load_values(p_value, origin, committed, first, V, V, R, J, BV)
        b_factor = load_factors(p_read_scale, first + tile_rows(BV), V, READ)
        if AHEAD:
            prefetch_rows(p_read, first + BV, V if TILES > 1 else 0, READ_WIDTH, BV)
        for i in range(TILES):
            first_row = first + i * BV
            if AHEAD:
                prefetch_rows(p_read, first_row + 2 * BV, tl.where(i + 2 < TILES, V, 0), READ_WIDTH, BV)
            b_read = read_tile(b_stored, b_block_scale, b_read_x, BX, ER, P, READ, DOT)
            o_n += BV * P
            end = tl.where(i + 1 < TILES, V, 0)
            b_stored, b_block_scale = load_read(p_read, p_block_scale, o_n, end, K, ER, P, READ)
            b_next_new = load_new(p_v, sv_t, first_row + BV, end, length, T, BT, X, BV)
            b_next_u = load_values(p_value, origin, committed, first_row + BV, end, V, R, J, BV)
            b_next_factor = load_factors(p_read_scale, first_row + BV + tile_rows(BV), end, READ)
            b_read *= (b_factor * state_decay)[:, None]
            if READ == "fp16":
                b_read *= b_unit[None, :]
            b_read = add_history(b_u, b_high, b_low, b_read, DOT) * b_column[None, :]
            finish_tile(
                b_read, b_new, b_scores, b_inner, b_step, p_z, p_skip, p_out, p_value, p_raw,
                sz_t, s_skip, first_row, new, length, o_x, H, V, R, T, BT, DELTA, SKIP, HAS_Z, DOT,
            )  # fmt: skip
            b_new, b_u, b_factor = b_next_new, b_next_u, b_next_factor
