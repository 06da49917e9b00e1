"""Storage formats of a state matrix: plain floats, FP8 with a scale per row, NVFP4 with a scale per block of 16.

A format turns an fp32 matrix `[..., V, K]` into the tensors that are stored ("parts") and back. Checkpoint and read copy
use the same formats. Rounding is done on the number grid in full precision, so nearest and stochastic rounding share one
piece of code and every cast that follows is exact.

NVFP4: NVIDIA, "Introducing NVFP4 for efficient and accurate low-precision inference" (2025): e2m1 values, an e4m3 scale
per 16, one fp32 scale; here there is an fp32 scale for every 16 rows of V, so that a kernel writes a tile without knowing
the rest of the head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

BLOCK, TILE_ROWS = 16, 16
LARGEST = 2.0**96
"""States saturate here in every format, infinities too, and NaN becomes 0: far from any model's, and far enough below the
largest fp32 number that no sum of an output overflows to infinities, whose differences would be NaN."""


@dataclass(frozen=True)
class FloatGrid:
    """The values of a small float format: `mantissa` stored bits, smallest normal exponent, largest finite value."""

    mantissa: int
    min_exponent: int
    max_value: float


FP16_GRID = FloatGrid(mantissa=10, min_exponent=-14, max_value=65504.0)
E4M3_GRID = FloatGrid(mantissa=3, min_exponent=-6, max_value=448.0)
E2M1_GRID = FloatGrid(mantissa=1, min_exponent=0, max_value=6.0)


def round_to_grid(x: Tensor, grid: FloatGrid, noise: Tensor | None = None) -> Tensor:
    """Round to the values of a grid, saturating at its largest finite value.

    Args:
        x: any shape, fp32 or fp64.
        grid: the target format.
        noise: uniform numbers in [0, 1) of the same shape for stochastic rounding (unbiased within the range);
            None rounds to nearest, ties to even.

    Returns:
        same shape and dtype as `x`, holding values that the format represents exactly; 0 where `x` is NaN.
    """
    x = _bounded(x, grid.max_value)
    exponent = torch.frexp(x).exponent - 1
    step = torch.ldexp(torch.ones_like(x), exponent.clamp(min=grid.min_exponent) - grid.mantissa)
    quotient = x / step
    if noise is None:
        return torch.round(quotient) * step
    below = torch.floor(quotient)
    # A comparison, not floor(quotient + noise): that sum rounds, and would now and then move a value that is on the grid.
    return (below + (noise < quotient - below)) * step


@dataclass(frozen=True)
class Part:
    """One stored tensor of a format: suffix of its buffer name, shape for one head, dtype."""

    suffix: str
    shape: tuple[int, ...]
    dtype: torch.dtype


class MatrixFormat(Protocol):
    """How a state matrix is stored; K must be a multiple of `key_multiple`."""

    @property
    def name(self) -> str:
        """Name in `FORMATS`."""
        ...

    @property
    def key_multiple(self) -> int:
        """What K must be a multiple of."""
        ...

    def parts(self, value_dim: int, key_dim: int) -> tuple[Part, ...]:
        """The stored tensors of one head's `[V, K]` matrix."""
        ...

    def encode(self, x: Tensor, noise: Tensor | None = None) -> tuple[Tensor, ...]:
        """`x [..., V, K]` fp32 (or fp64) → the parts, each `[..., *part.shape]`."""
        ...

    def decode(self, parts: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
        """The parts → `[..., V, K]` in `dtype`."""
        ...


@dataclass(frozen=True)
class PlainFormat:
    """A torch float dtype, no scales. Values beyond the range, or `LARGEST`, saturate; NaN becomes 0."""

    name: str
    dtype: torch.dtype
    grid: FloatGrid | None = None
    key_multiple: int = 1

    def parts(self, value_dim: int, key_dim: int) -> tuple[Part, ...]:
        """See `MatrixFormat.parts`."""
        return (Part("", (value_dim, key_dim), self.dtype),)

    def encode(self, x: Tensor, noise: Tensor | None = None) -> tuple[Tensor, ...]:
        """See `MatrixFormat.encode`."""
        if self.grid is not None:
            return (round_to_grid(x, self.grid, noise).to(self.dtype),)
        limit = min(torch.finfo(self.dtype).max, LARGEST)
        return (_bounded(x, limit).to(self.dtype),)

    def decode(self, parts: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
        """See `MatrixFormat.decode`."""
        return parts[0].to(dtype)


@dataclass(frozen=True)
class Fp8Format:
    """e4m3 with one fp32 scale per row of V; the row's largest magnitude maps to 448."""

    name: str = "fp8"
    key_multiple: int = 1

    def parts(self, value_dim: int, key_dim: int) -> tuple[Part, ...]:
        """See `MatrixFormat.parts`."""
        return (
            Part("", (value_dim, key_dim), torch.float8_e4m3fn),
            Part("_scale", (value_dim,), torch.float32),
        )

    def encode(self, x: Tensor, noise: Tensor | None = None) -> tuple[Tensor, ...]:
        """See `MatrixFormat.encode`."""
        x = _bounded(x)
        scale = (x.abs().amax(dim=-1) / E4M3_GRID.max_value).float()
        values = round_to_grid(_divide(x, scale[..., None]), E4M3_GRID, noise)
        return values.to(torch.float8_e4m3fn), scale

    def decode(self, parts: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
        """See `MatrixFormat.decode`."""
        values, scale = parts
        return values.to(dtype) * scale[..., None].to(dtype)


@dataclass(frozen=True)
class Nvfp4Format:
    """e2m1 nibbles (even K in the low half), an e4m3 scale per 16 along K, an fp32 scale per 16 rows of V.

    The largest block magnitude of 16 rows maps to scale 448, each block's largest value to 6. All-zero blocks and tiles
    have scale 0 and decode to 0.
    """

    name: str = "nvfp4"
    key_multiple: int = BLOCK

    def parts(self, value_dim: int, key_dim: int) -> tuple[Part, ...]:
        """See `MatrixFormat.parts`."""
        return (
            Part("", (value_dim, key_dim // 2), torch.uint8),
            Part("_block_scale", (value_dim, key_dim // BLOCK), torch.float8_e4m3fn),
            Part("_scale", (-(-value_dim // TILE_ROWS),), torch.float32),
        )

    def encode(self, x: Tensor, noise: Tensor | None = None) -> tuple[Tensor, ...]:
        """See `MatrixFormat.encode`."""
        blocks = _bounded(x).unflatten(-1, (-1, BLOCK))
        block_max = blocks.abs().amax(dim=-1) / E2M1_GRID.max_value
        row_max = block_max.amax(dim=-1)
        rows = torch.nn.functional.pad(row_max, (0, -row_max.shape[-1] % TILE_ROWS)).unflatten(-1, (-1, TILE_ROWS))
        scale = (rows.amax(dim=-1) / E4M3_GRID.max_value).float()
        row_scale = _of_rows(scale, row_max.shape[-1])
        block_scale = round_to_grid(_divide(block_max, row_scale), E4M3_GRID)
        unit = block_scale * row_scale
        # A product with the inverse, as kernels do it; a unit too small to have one leaves zeros.
        smallest = torch.finfo(torch.float32).tiny
        inverse = torch.where(unit >= smallest, 1.0 / unit.clamp(min=smallest), torch.zeros_like(unit))[..., None]
        block_noise = None if noise is None else noise.unflatten(-1, (-1, BLOCK))
        values = round_to_grid(blocks * inverse, E2M1_GRID, block_noise).flatten(-2)
        return _pack_e2m1(values), block_scale.to(torch.float8_e4m3fn), scale

    def decode(self, parts: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
        """See `MatrixFormat.decode`."""
        packed, block_scale, scale = parts
        unit = block_scale.to(dtype) * _of_rows(scale, packed.shape[-2]).to(dtype)
        values: Tensor = _unpack_e2m1(packed, dtype).unflatten(-1, (-1, BLOCK)) * unit[..., None]
        return values.flatten(-2)


def _of_rows(scale: Tensor, value_dim: int) -> Tensor:
    # Scales of tiles [..., T] -> [..., V, 1].
    return scale.repeat_interleave(TILE_ROWS, dim=-1)[..., :value_dim, None]


def _bounded(x: Tensor, limit: float = LARGEST) -> Tensor:
    # Beside LARGEST, a scale that rounds up still decodes to a finite product.
    return x.nan_to_num(nan=0.0).clamp(-limit, limit)


def _divide(x: Tensor, scale: Tensor) -> Tensor:
    # A scale of 0 belongs to values that are 0 (or vanish beside the head's largest): they stay 0.
    return torch.where(scale > 0, x / scale, torch.zeros_like(x))


_E2M1_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def _pack_e2m1(values: Tensor) -> Tensor:
    grid = torch.tensor(_E2M1_MAGNITUDES, dtype=values.dtype, device=values.device)
    code = torch.bucketize(values.abs().contiguous(), grid) | torch.signbit(values).to(torch.int64) << 3
    low, high = code.unflatten(-1, (-1, 2)).unbind(-1)
    packed: Tensor = low | high << 4
    return packed.to(torch.uint8)


def _unpack_e2m1(packed: Tensor, dtype: torch.dtype) -> Tensor:
    table = torch.tensor([*_E2M1_MAGNITUDES, *(-m for m in _E2M1_MAGNITUDES)], dtype=dtype, device=packed.device)
    codes = torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2)
    return table[codes.long()]


FORMATS: dict[str, MatrixFormat] = {
    "fp64": PlainFormat("fp64", torch.float64),
    "fp32": PlainFormat("fp32", torch.float32),
    "bf16": PlainFormat("bf16", torch.bfloat16),
    "fp16": PlainFormat("fp16", torch.float16, FP16_GRID),
    "fp8": Fp8Format(),
    "nvfp4": Nvfp4Format(),
}
"""Formats by name. `fp64` is for the reference alone."""
