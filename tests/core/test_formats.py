"""Storage formats against independent casts: ml_dtypes for the small floats, compressed-tensors for NVFP4 blocks."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from replayssm.conformance.tolerances import ROUNDOFF
from replayssm.formats import E2M1_GRID, E4M3_GRID, FORMATS, FP16_GRID, round_to_grid

GRIDS = [
    (E4M3_GRID, ml_dtypes.float8_e4m3fn),
    (E2M1_GRID, ml_dtypes.float4_e2m1fn),
    (FP16_GRID, np.float16),
]
IDS = ["e4m3", "e2m1", "fp16"]


def values_around(grid) -> torch.Tensor:
    """Random magnitudes over the whole range, subnormals included, and every half-way point between neighbours."""
    exponents = torch.empty(4000).uniform_(grid.min_exponent - grid.mantissa - 2, np.log2(grid.max_value))
    random = torch.exp2(exponents) * torch.randn(4000).sign()
    step = 2.0 ** (grid.min_exponent - grid.mantissa - 1)
    ties = torch.arange(-64, 65) * step
    return torch.cat((random, ties, torch.tensor([0.0, -0.0, grid.max_value, -grid.max_value])))


@pytest.mark.parametrize(("grid", "dtype"), GRIDS, ids=IDS)
def test_rounding_to_nearest_is_the_cast(grid, dtype):
    x = values_around(grid)
    x = x[x.abs() <= grid.max_value]
    expected = torch.from_numpy(x.numpy().astype(dtype).astype(np.float32))
    assert torch.equal(round_to_grid(x, grid), expected)


@pytest.mark.parametrize("grid", [grid for grid, _ in GRIDS], ids=IDS)
@pytest.mark.parametrize("noise", [None, 0.0, 0.999999])
def test_values_beyond_the_range_saturate(grid, noise):
    huge = torch.tensor([1e4, -1e4, 1e30, float("inf"), -float("inf")]) * (1.0 if grid.max_value < 1e4 else 10.0)
    rounded = round_to_grid(huge, grid, None if noise is None else torch.full_like(huge, noise))
    assert torch.equal(rounded, huge.sign() * grid.max_value)


def test_e4m3_clamps_where_the_cast_gives_nan():
    assert np.isnan(np.float32(1e4).astype(ml_dtypes.float8_e4m3fn).astype(np.float32))
    assert float(round_to_grid(torch.tensor([1e4]), E4M3_GRID)) == 448.0


@pytest.mark.parametrize("grid", [grid for grid, _ in GRIDS], ids=IDS)
@pytest.mark.parametrize("noise", [None, 0.0, 0.999999])
def test_nan_becomes_zero(grid, noise):
    x = torch.tensor([float("nan"), grid.max_value])
    rounded = round_to_grid(x, grid, None if noise is None else torch.full_like(x, noise))
    assert rounded.tolist() == [0.0, grid.max_value]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nan_is_encoded_as_zero(name, dtype):
    """Its row, block and matrix keep the scales that they have with a 0 in its place."""
    x = torch.randn(3, 18, 32, dtype=dtype)
    x[0, 1, 2], x[1, 3], x[2] = torch.nan, torch.nan, torch.nan
    fmt = FORMATS[name]
    back, expected = (fmt.decode(fmt.encode(y), dtype) for y in (x, x.nan_to_num(nan=0.0)))
    assert torch.equal(back, expected)
    assert not bool(back[x.isnan()].any())


@pytest.mark.parametrize("grid", [grid for grid, _ in GRIDS], ids=IDS)
def test_stochastic_rounding_keeps_what_is_on_the_grid(grid):
    x = round_to_grid(values_around(grid), grid)
    # The largest noise below 1: floor(quotient + noise) would carry it over in fp32.
    noise = torch.full_like(x, 1 - 2.0**-24)
    assert torch.equal(round_to_grid(x, grid, noise), x)


@pytest.mark.parametrize("grid", [grid for grid, _ in GRIDS], ids=IDS)
def test_stochastic_rounding_is_unbiased(grid):
    count = 200_000
    for value in (1.3, -1.7, 2.0**grid.min_exponent * 0.31, grid.max_value * 0.97):
        x = torch.full((count,), value)
        rounded = round_to_grid(x, grid, torch.rand(count)).double()
        neighbours = rounded.unique()
        assert len(neighbours) == 2
        assert float(neighbours[0]) <= value <= float(neighbours[1])
        step = float(neighbours[1] - neighbours[0])
        # A two-point variable of distance s has a deviation of at most s / 2; 6 deviations: one false alarm in 5e8.
        assert abs(float(rounded.mean()) - float(x[0])) < 6 * step / 2 / count**0.5


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_round_trip_within_the_format(name, dtype):
    x = torch.randn(3, 5, 32, dtype=dtype)
    fmt = FORMATS[name]
    back = fmt.decode(fmt.encode(x), dtype)
    # Values below a block's largest lose at most half a step of that largest (subnormals of the grid).
    largest = x.abs().amax(-1, keepdim=True)
    assert bool(((back - x).abs() <= ROUNDOFF[name] * 1.13 * torch.maximum(x.abs(), largest)).all())


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16", "fp8", "nvfp4"])
def test_encoding_what_was_decoded_changes_nothing(name):
    fmt = FORMATS[name]
    once = fmt.decode(fmt.encode(torch.randn(2, 4, 32)), torch.float32)
    twice = fmt.decode(fmt.encode(once), torch.float32)
    # The scale is derived again from the largest value, so it may differ in its last bit.
    torch.testing.assert_close(twice, once, rtol=2.0**-22, atol=0)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("value", [float("inf"), -float("inf"), 3.4e38, 1e4, 1e-42])
def test_one_extreme_value_leaves_all_finite(name, value):
    x = torch.randn(2, 3, 16)
    x[0, 1, 2] = value
    fmt = FORMATS[name]
    parts = fmt.encode(x)
    for dtype in (torch.float32, torch.float64):
        assert bool(torch.isfinite(fmt.decode(parts, dtype)).all())


@pytest.mark.parametrize("name", FORMATS)
def test_zero_matrices_blocks_and_rows(name):
    fmt = FORMATS[name]
    zero = torch.zeros(2, 4, 32)
    assert not bool(fmt.decode(fmt.encode(zero), torch.float32).any())
    partly = torch.randn(2, 4, 32)
    partly[0, :, :16] = 0
    partly[1, 2] = 0
    back = fmt.decode(fmt.encode(partly), torch.float32)
    assert not bool(back[0, :, :16].any())
    assert not bool(back[1, 2].any())
    assert bool(back[0, :, 16:].any())


def test_fp8_rows_use_the_whole_range():
    x = torch.randn(3, 8, 16)
    values, scale = FORMATS["fp8"].encode(x)
    assert values.dtype == torch.float8_e4m3fn
    assert torch.equal(values.float().abs().amax(-1), torch.full((3, 8), 448.0))
    expected = (x / scale[..., None]).clamp(-448, 448).numpy().astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    assert torch.equal(values.float(), torch.from_numpy(expected))


def test_nvfp4_parts_by_hand():
    """One head of one row, two blocks: 0 … 6 on the grid, and the same by 1/8."""
    block = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.5, -1, -1.5, -2, -3, -4, -6, 0])
    x = torch.cat((block * 448, block * 56))[None]
    packed, block_scale, scale = FORMATS["nvfp4"].encode(x)
    assert float(scale) == 1.0
    assert block_scale.float().tolist() == [[448.0, 56.0]]
    codes = [0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 0]
    expected = [low | high << 4 for low, high in zip(codes[::2], codes[1::2], strict=True)]
    assert packed.tolist() == [expected * 2]
    assert torch.equal(FORMATS["nvfp4"].decode((packed, block_scale, scale), torch.float32), x)


def test_nvfp4_scales_of_16_rows():
    """Rows beside larger ones of another tile keep what a scale of the whole head would take from them."""
    x = torch.randn(40, 32)
    x[16:32] *= 2.0**20
    parts = FORMATS["nvfp4"].encode(x)
    assert parts[2].shape == (3,)
    for first in (0, 16, 32):
        rows = slice(first, min(first + 16, 40))
        alone = FORMATS["nvfp4"].decode(FORMATS["nvfp4"].encode(x[rows]), torch.float32)
        assert torch.equal(FORMATS["nvfp4"].decode(parts, torch.float32)[rows], alone)


def test_nvfp4_nibbles_as_compressed_tensors_packs_them():
    helpers = pytest.importorskip("compressed_tensors.compressors.nvfp4.helpers")
    block = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.5, -1, -1.5, -2, -3, -4, -6, 0.0])
    x = block[torch.randint(0, 16, (8, 64))]
    x[:, ::16] = 6.0
    packed, block_scale, scale = FORMATS["nvfp4"].encode(x * 448)
    assert bool((block_scale.float() == 448).all())
    assert float(scale) == 1.0
    theirs = helpers.pack_fp4_to_uint8(x.to(torch.bfloat16))
    assert torch.equal(packed.view(torch.uint8), theirs.view(torch.uint8))
    assert torch.equal(helpers.unpack_fp4_from_uint8(packed, 8, 64, torch.float32), x)
