"""Ways to scale a state before it is rounded to a read copy, each with what undoes it at the read.

All of them leave S q as it is: a column scale multiplies q, a row scale the output, a rotation along K is applied to q as
well. The checkpoint knows nothing of them, so they are as exact for a decay per channel as for any other: the decay is on q
before the rotation is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from replayssm.formats import BLOCK, E2M1_GRID, E4M3_GRID, MatrixFormat, round_to_grid

Scaling = Callable[[Tensor, MatrixFormat], Tensor]
"""A state `[n, H, V, K]` and a format → the state as read back, `[n, H, V, K]`."""


@dataclass(frozen=True)
class Way:
    """A scaling, and what a slot and head has to store for it beside the format's own parts, in bytes of V and K."""

    read_back: Scaling
    bytes: Callable[[int, int], int]
    formats: tuple[str, ...] = ("nvfp4", "fp8")


def _nothing(_v: int, _k: int) -> int:
    return 0


def plain(state: Tensor, fmt: MatrixFormat) -> Tensor:
    """Nothing but the format's own scales."""
    return fmt.decode(fmt.encode(state), state.dtype)


def by_column(state: Tensor, fmt: MatrixFormat) -> Tensor:
    """A scale for each of the K columns, the column's root mean square, found anew at each write."""
    scale = _nonzero(state.square().mean(dim=-2, keepdim=True).sqrt())
    return plain(state / scale, fmt) * scale


def by_fixed_column(state: Tensor, fmt: MatrixFormat) -> Tensor:
    """The same from the other sequences' states: a constant of the model, as calibration would find it."""
    square = state.square().mean(dim=-2, keepdim=True)
    others = (square.sum(dim=0, keepdim=True) - square) / max(len(state) - 1, 1)
    scale = _nonzero(others.sqrt())
    return plain(state / scale, fmt) * scale


def by_row(state: Tensor, fmt: MatrixFormat) -> Tensor:
    """A scale for each of the V rows, the row's largest magnitude."""
    scale = _nonzero(state.abs().amax(dim=-1, keepdim=True))
    return plain(state / scale, fmt) * scale


def rotated(state: Tensor, fmt: MatrixFormat) -> Tensor:
    """A Hadamard rotation along K."""
    rotation = hadamard(state.shape[-1]).to(state)
    return plain(state @ rotation, fmt) @ rotation


def four_or_six(state: Tensor, _format: MatrixFormat) -> Tensor:
    """NVFP4 whose blocks' largest value becomes 6, as the format says, or 4, whichever is closer to the block.

    Between 4 and 6 e2m1 has no value; a block whose largest becomes 4 uses a denser part of it. Only the write changes.
    """
    blocks = state.unflatten(-1, (-1, BLOCK))
    largest = blocks.abs().amax(dim=-1, keepdim=True)
    tile = largest.amax(dim=(-3, -2), keepdim=True) / (4.0 * E4M3_GRID.max_value)
    six, four = (_rounded(blocks, largest / top, _nonzero(tile)) for top in (6.0, 4.0))
    of_six, of_four = ((x - blocks).square().sum(dim=-1, keepdim=True) for x in (six, four))
    closer: Tensor = torch.where(of_six <= of_four, six, four)
    return closer.flatten(-2)


def _rounded(blocks: Tensor, scale: Tensor, tile: Tensor) -> Tensor:
    unit = _nonzero(round_to_grid(scale / tile, E4M3_GRID) * tile)
    return round_to_grid(blocks / unit, E2M1_GRID) * unit


def hadamard(size: int) -> Tensor:
    """The symmetric orthogonal Hadamard matrix `[size, size]` of a power of two, float64 (Sylvester's)."""
    matrix: Tensor = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    unit: Tensor = matrix / size**0.5
    return unit


SCALINGS: dict[str, Way] = {
    "block": Way(plain, _nothing),
    "column": Way(by_column, lambda _v, k: 4 * k),
    "column, fixed": Way(by_fixed_column, _nothing),
    "row": Way(by_row, lambda v, _k: 4 * v),
    "Hadamard": Way(rotated, _nothing),
    "4 or 6": Way(four_or_six, _nothing, ("nvfp4",)),
}


def _nonzero(scale: Tensor) -> Tensor:
    return torch.where(scale > 0, scale, 1.0)
