"""Tiles of numbers along K in registers, in the order in which the tensor cores want them.

A sum over k does not care in which order it runs. A warp loads a tile `[N, C]` as `[N, M, 4 E]`: eight rows at a time, four
neighbouring threads on one row, E adjacent numbers a thread (16 bytes of state). A product wants, from the same four
threads, pairs of adjacent columns. `flat` renames the columns so that what a thread has loaded is what it must hold:
column (m, e, t, pair) of the operand is number (m, t, e, pair) of the row. No number changes its thread, so a tile goes
from memory into a product, out of an accumulator and back to memory without shared memory. Everything that meets
in a sum over k is loaded with one E and flattened: state, keys, queries and gates by channel; and keys and queries that
meet each other only, as stored.

Four threads of 16 bytes are half a line of memory. Reading alone can do better (`parts`): the P parts of a line go to
neighbouring rows of the tile, and a product with the parts of x, of which the sums that belong together are kept, reads
the row. That also puts the state where the tensor cores take eight rows from registers as they were loaded.

Rows have their own order (`tile_rows`): row n of a tile of BV is row (BV / 8) (n % 8) + n / 8 of V. A product keeps every
eighth row in one thread, and in memory those rows of a value are neighbours, up to 16 bytes of them (`value_rows`).

It holds for programs of one warp, the shape that all tables choose; with more warps a tile passes through shared memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

from replayssm.kernels.primitives import INTERPRETED

# By one thread, of bytes from a multiple of 16 on.
PREFETCH = tl.constexpr(
    "{ .reg .pred first; .reg .b32 lane; .reg .b64 from; mov.u32 lane, %laneid; setp.eq.u32 first, lane, 0; "
    "and.b64 from, $1, -16; @first cp.async.bulk.prefetch.L2.global [from], $2; mov.b32 $0, 0; }"
)


@triton.jit
def columns(C: tl.constexpr, E: tl.constexpr, P: tl.constexpr = 1):
    """Offsets `[1, M, 4 E]` of C numbers: adjacent ones, or every P-th run of 4 E."""
    o_m = tl.arange(0, C // (4 * E)) * (4 * E * P)
    # Four threads a row: without the hint a tile of 16-bit numbers would go two to a row.
    o_e = tl.max_contiguous(tl.arange(0, 4 * E), [E])
    return (o_m[:, None] + o_e[None, :])[None, :, :]


@triton.jit
def prefetch_rows(p_matrix, first, end, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """Ask for rows `first` to first + ROWS, below `end`, of a matrix of that WIDTH to come into the L2 cache."""
    if not INTERPRETED:
        count = tl.minimum(end - first, ROWS) * (WIDTH * p_matrix.dtype.element_ty.primitive_bitwidth // 8)
        if count > 0:
            address = (p_matrix + first * WIDTH).to(tl.int64)
            tl.inline_asm_elementwise(PREFETCH, "=r,l,r", [address, count], tl.int32, is_pure=False, pack=1)


@triton.jit
def load_stored(p_rows, b_live, C: tl.constexpr, E: tl.constexpr, P: tl.constexpr = 1):
    """C numbers at each pointer of `p_rows [N]` → `[N, M, 4 E]` as stored; rows that are not live are 0."""
    p = p_rows[:, None, None] + columns(C, E, P)
    return tl.load(p, mask=b_live[:, None, None], other=0.0)


@triton.jit
def load_rows(p_rows, b_live, C: tl.constexpr, E: tl.constexpr, P: tl.constexpr = 1):
    """The same in fp32."""
    return load_stored(p_rows, b_live, C, E, P).to(tl.float32)


@triton.jit
def store_rows(p_rows, b_x, b_live, C: tl.constexpr, E: tl.constexpr):
    """`[N, M, 4 E]` → C numbers at each live pointer of `p_rows [N]`."""
    p = p_rows[:, None, None] + columns(C, E)
    tl.store(p, b_x.to(p_rows.dtype.element_ty), mask=b_live[:, None, None])


@triton.jit
def flat(b_x):
    """`[N, M, 4 E]` as loaded → `[N, C]` as products take it."""
    N: tl.constexpr = b_x.shape[0]
    M: tl.constexpr = b_x.shape[1]
    E: tl.constexpr = b_x.shape[2] // 4
    b_split = tl.reshape(b_x, [N, M, 4, E // 2, 2])
    return tl.reshape(tl.permute(b_split, (0, 1, 3, 2, 4)), [N, M * 4 * E])


@triton.jit
def flat_columns(b_x):
    """The transpose of `flat`, `[C, N]`, by its own permutation: `tl.trans` would pass through shared memory."""
    N: tl.constexpr = b_x.shape[0]
    M: tl.constexpr = b_x.shape[1]
    E: tl.constexpr = b_x.shape[2] // 4
    b_split = tl.reshape(b_x, [N, M, 4, E // 2, 2])
    return tl.reshape(tl.permute(b_split, (1, 3, 2, 4, 0)), [M * 4 * E, N])


@triton.jit
def unflat(b_x, E: tl.constexpr):
    """The inverse of `flat`."""
    N: tl.constexpr = b_x.shape[0]
    M: tl.constexpr = b_x.shape[1] // (4 * E)
    b_split = tl.reshape(b_x, [N, M, E // 2, 4, 2])
    return tl.reshape(tl.permute(b_split, (0, 1, 3, 2, 4)), [N, M, 4 * E])


@triton.jit
def reorder(b_x, E: tl.constexpr, TO: tl.constexpr):
    """`[N, C]` in the order of `flat` for E numbers a thread → in the order for TO."""
    if E != TO:
        b_x = flat(tl.reshape(unflat(b_x, E), [b_x.shape[0], b_x.shape[1] // (4 * TO), 4 * TO]))
    return b_x


@triton.jit
def tile_rows(BV: tl.constexpr, P: tl.constexpr = 1):
    """Rows of V in the order of a tile `[BV]`; with P parts each, row times P plus the part, `[BV P]`."""
    o_n = tl.arange(0, BV * P)
    o_row = o_n // P
    return ((BV // 8) * (o_row % 8) + o_row // 8) * P + o_n % P


@triton.jit
def value_rows(BV: tl.constexpr):
    """The same rows as values are loaded and stored: `[1, 1, 8, 1, BV / 8]`."""
    o_row = tl.arange(0, 8)[:, None] * (BV // 8) + tl.arange(0, BV // 8)[None, :]
    return tl.max_contiguous(o_row[None, None, :, None, :], [1, 1, 1, 1, BV // 8])


@triton.jit
def value_columns(X: tl.constexpr):
    """Columns of a tile `[BV, X]` as values are loaded and stored: `[X / 8, 2, 1, 4, 1]`."""
    o_pair = tl.arange(0, 2)[None, :, None] + (tl.arange(0, 4) * 2)[None, None, :]
    return (tl.arange(0, X // 8)[:, None, None] * 8 + o_pair)[:, :, None, :, None]


@triton.jit
def to_tile(b_x):
    """Values as loaded, `[X / 8, 2, 8, 4, BV / 8]` → `[BV, X]`, in the threads that products have them in."""
    X: tl.constexpr = b_x.shape[0] * 8
    BV: tl.constexpr = b_x.shape[4] * 8
    return tl.reshape(tl.permute(b_x, (4, 2, 0, 3, 1)), [BV, X])


@triton.jit
def from_tile(b_x):
    """The inverse of `to_tile`."""
    BV: tl.constexpr = b_x.shape[0]
    X: tl.constexpr = b_x.shape[1]
    return tl.permute(tl.reshape(b_x, [BV // 8, 8, X // 8, 4, 2]), (2, 4, 1, 3, 0))


@triton.jit
def load_value(p_value, first, end, BV: tl.constexpr, X: tl.constexpr):
    """Rows `first` to first + BV, below `end`, of one value → `[BV, X]`, the same in all X columns."""
    o_row = first + value_rows(BV)
    p = tl.broadcast_to(tl.reshape(p_value + o_row, [8, 1, BV // 8]), [8, 4, BV // 8])
    b_one = tl.load(p, mask=tl.reshape(o_row < end, [8, 1, BV // 8]), other=0.0)
    return to_tile(tl.broadcast_to(b_one[None, None, :, :, :], [X // 8, 2, 8, 4, BV // 8]))


@triton.jit
def parts(b_x, P: tl.constexpr, E: tl.constexpr):
    """`[N, C]` from `flat` → `[P N, C / P]`: row i N + n has the i-th of every P runs of 4 E numbers of row n."""
    N: tl.constexpr = b_x.shape[0]
    C: tl.constexpr = b_x.shape[1]
    b_split = tl.reshape(b_x, [N, C // (4 * E * P), P, 4 * E])
    return tl.reshape(tl.permute(b_split, (2, 0, 1, 3)), [P * N, C // P])


@triton.jit
def join_parts(b_x, P: tl.constexpr):
    """`[P X, N P]`, products of all parts → `[N, X]`, sums of those whose parts belong together."""
    X: tl.constexpr = b_x.shape[0] // P
    N: tl.constexpr = b_x.shape[1] // P
    b_split = tl.reshape(b_x, [P, X, N, P])
    b_same = tl.arange(0, P)[:, None, None, None] == tl.arange(0, P)[None, None, None, :]
    return tl.trans(tl.sum(tl.sum(tl.where(b_same, b_split, 0.0), axis=3), axis=0))


@triton.jit
def load_x_parts(p_x, b_live, K: tl.constexpr, E: tl.constexpr, P: tl.constexpr):
    """K numbers at each pointer of `p_x [N]` as `parts`: `[P N, K / P]`."""
    N: tl.constexpr = p_x.shape[0]
    o_part = tl.arange(0, P)[:, None] * (4 * E)
    p_parts = tl.reshape(p_x[None, :] + o_part, [P * N])
    b_all = tl.reshape(tl.broadcast_to(b_live[None, :], [P, N]), [P * N])
    return flat(load_rows(p_parts, b_all, K // P, E, P))
