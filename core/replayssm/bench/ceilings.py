"""What the memory of this device can do at most: read only, read and write in place, write only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from replayssm.bench.kernels import fill_kernel, read_kernel, rewrite_kernel
from replayssm.bench.timing import FEWEST, Machine

SHAPES = ((2048, 4), (4096, 4), (8192, 8))
"""Numbers a program, and its warps; the fastest counts."""


@dataclass(frozen=True)
class Ceilings:
    """Measured bandwidths in GB/s (10⁹ bytes a second): the bytes moved, read plus written."""

    read: float
    read_write: float
    fill: float

    def floor_us(self, quiet_read: float, rewritten: float) -> float:
        """The least microseconds for bytes that are only read, and for bytes read plus written by steps that write."""
        return (quiet_read / self.read + rewritten / self.read_write) / 1e3


def measure_ceilings(machine: Machine, mebibytes: int = 1024) -> Ceilings:
    """Measure on a buffer that is much larger than the L2 (at least 8 times)."""
    largest = max(width for width, _ in SHAPES)
    count = max(mebibytes << 20, 8 * machine.l2_bytes) // 4
    count += -count % largest
    x = torch.ones(count, dtype=torch.float32, device=machine.device)
    sink = torch.zeros(1, dtype=torch.float32, device=machine.device)

    def best(start: Callable[[Tensor, int, int], None], moved: int) -> float:
        times = [
            machine.clock.measure([lambda width=width, warps=warps: start(x, width, warps)] * FEWEST)  # type: ignore[misc]
            for width, warps in SHAPES
        ]
        return moved * x.numel() * x.element_size() / min(times) / 1e3

    def read(x: Tensor, width: int, warps: int) -> None:
        read_kernel[(x.numel() // width,)](x, sink, width, num_warps=warps)

    def rewrite(x: Tensor, width: int, warps: int) -> None:
        rewrite_kernel[(x.numel() // width,)](x, width, num_warps=warps)

    def fill(x: Tensor, width: int, warps: int) -> None:
        fill_kernel[(x.numel() // width,)](x, width, num_warps=warps)

    return Ceilings(best(read, 1), best(rewrite, 2), best(fill, 1))
