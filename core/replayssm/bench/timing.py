"""Time of a launch: CUDA-graph replays, more than one launch a graph, the median of several replays.

A graph leaves out the host's part, as an engine's decode does. Where a state is small enough to stay in the L2 the caller
rotates over several, so that each launch finds its state in memory, as it would after the other layers of a model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

import torch

from replayssm.errors import UnsupportedError

Launch = Callable[[], object]

COLD = 4
"""States of one rotation together are this many times the L2."""
FEWEST = 8
"""Launches of a graph at least: what a graph costs by itself is shared by them."""


class Clock(Protocol):
    """How long a launch takes."""

    def measure(self, launches: Sequence[Launch]) -> float:
        """Microseconds of a launch, averaged over a round of them."""
        ...


@dataclass(frozen=True)
class Machine:
    """Where kernels are measured.

    Attributes:
        device: the torch device.
        l2_bytes: size of its L2.
        clock: measures launches on it.
    """

    device: torch.device
    l2_bytes: int
    clock: Clock

    def copies(self, state_bytes: int) -> int:
        """How many states a rotation needs, as a power of two."""
        return 1 << max(0, math.ceil(math.log2(COLD * self.l2_bytes / state_bytes)))


def cuda_machine() -> Machine:
    """The current CUDA device.

    Raises:
        UnsupportedError: there is none.
    """
    if not torch.cuda.is_available():
        built = torch.version.cuda or "none"
        raise UnsupportedError(
            f"measuring needs a CUDA device, and torch {torch.__version__} (CUDA build: {built}) sees none here"
        )
    device = torch.device("cuda", torch.cuda.current_device())
    return Machine(device, torch.cuda.get_device_properties(device).L2_cache_size, GraphClock())


@dataclass(frozen=True)
class GraphClock:
    """Captures the launches in one CUDA graph and replays it.

    Attributes:
        warmup_ms: time for replays that do not count.
        budget_ms: time for those that do.
        replays: at least and at most so many.
    """

    warmup_ms: float = 20.0
    budget_ms: float = 40.0
    replays: tuple[int, int] = (7, 60)

    def measure(self, launches: Sequence[Launch]) -> float:
        """See `Clock.measure`."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            # Compiled and loaded before the capture, which allows neither.
            for launch in launches:
                launch()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for launch in launches:
                launch()
        first = self._replay(graph)
        # A device that was idle raises its clocks in the meantime.
        for _ in range(math.ceil(self.warmup_ms / first)):
            first = min(first, self._replay(graph))
        low, high = self.replays
        count = min(max(low, round(self.budget_ms / first)), high)
        return median(self._replay(graph) for _ in range(count)) * 1e3 / len(launches)

    def _replay(self, graph: torch.cuda.CUDAGraph) -> float:
        """Milliseconds of one replay."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end))


def round_of(*periods: int) -> int:
    """Launches of a graph in which each of the given rotations comes around a whole number of times."""
    whole = math.lcm(*periods)
    return whole * math.ceil(FEWEST / whole)
