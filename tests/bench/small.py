"""Small layers and a clock that only runs launches, for tests on the CPU under Triton's interpreter."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from replayssm import Recurrence
from replayssm.bench.geometry import Geometry
from replayssm.bench.timing import Launch, Machine

GEOMETRIES = {
    "mamba2": Geometry("mamba2", "test", Recurrence.mamba2(heads=2, head_dim=24, state_size=16, groups=1)),
    "gdn": Geometry("gdn", "test", Recurrence.gdn(value_heads=2, key_heads=1, value_dim=24, key_dim=16)),
    "kda": Geometry("kda", "test", Recurrence.kda(heads=2, value_dim=24, key_dim=16)),
}


class CountingClock:
    """Runs two launches of a round (the interpreter is slow); its n-th round takes n microseconds a launch."""

    def __init__(self) -> None:
        self.count = 0

    def measure(self, launches: Sequence[Launch]) -> float:
        for launch in launches[:2]:
            launch()
        self.count += 1
        return float(self.count)


def machine() -> Machine:
    return Machine(torch.device("cpu"), 1024, CountingClock())
