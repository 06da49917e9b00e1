"""What is measured: a layer's step at a batch, a draft length and a precision, averaged over what its steps find.

Phases. With T = 1 a window of W tokens is W − 1 steps that do not flush and one that does: "staggered" has every slot at
another phase, in equal parts; "in-phase" has all slots at one phase and averages over the phases,
((W − 1) t_nonflush + t_flush) / W; "nonflush" and "flush" are the two kinds of step alone. With T > 1 "steady" is the
schedule's steady state under random acceptance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from replayssm.bench.ceilings import Ceilings
from replayssm.bench.geometry import Geometry
from replayssm.bench.stepping import filled_layer, make_plan, new_inputs, step_launch
from replayssm.bench.timing import Launch, Machine, round_of
from replayssm.cursors import StepPlan
from replayssm.kernels.tiles import Tiles
from replayssm.layout import StateLayout
from replayssm.precision import PrecisionPolicy
from replayssm.steady import occupancy
from replayssm.traffic import StateBytes

PHASES = {1: ("staggered", "in-phase", "nonflush", "flush"), 2: ("steady",)}
"""Phases of standard decode (1) and of drafts (2 and more); the first is the default."""
CHECKPOINTS = {
    "fp32": PrecisionPolicy("fp32"),
    "bf16": PrecisionPolicy("bf16"),
    "fp16": PrecisionPolicy("fp16"),
    "fp16-sr": PrecisionPolicy("fp16", stochastic_rounding=True),
    "fp8": PrecisionPolicy("fp8"),
    "fp8-sr": PrecisionPolicy("fp8", stochastic_rounding=True),
    "nvfp4": PrecisionPolicy("nvfp4"),
}
READ_COPIES = {"none": None, "fp8": "fp8", "nvfp4": "nvfp4"}
_STEADY_ROWS = 256


@dataclass(frozen=True)
class Scenario:
    """One row of the benchmark.

    Attributes:
        ordinary: state format of the ordinary decode beside it; None for the one that suits its own (`ordinary_state`).
    """

    geometry: Geometry
    checkpoint: str
    read_copy: str | None
    batch: int
    draft: int
    phase: str
    window: int = 16
    acceptance: float = 0.8
    activation: torch.dtype = torch.bfloat16
    ordinary: str | None = None

    @property
    def layout(self) -> StateLayout:
        """Of as many slots as the batch has rows."""
        precision = CHECKPOINTS[self.checkpoint]
        policy = PrecisionPolicy(precision.checkpoint, precision.stochastic_rounding, self.read_copy)
        return StateLayout(self.geometry.recurrence, self.batch, self.window, self.draft, policy, self.activation)

    def describe(self) -> str:
        """One line for messages."""
        copy = f" + {self.read_copy} copy" if self.read_copy else ""
        return (
            f"{self.geometry.layer} {self.geometry.name}, {self.checkpoint}{copy}, "
            f"batch {self.batch}, T={self.draft}, {self.phase}"
        )


@dataclass(frozen=True)
class Bytes:
    """Bytes that one step must move, on average over the steps that are timed."""

    quiet_read: float
    rewritten: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.quiet_read + self.rewritten

    def floor_us(self, ceilings: Ceilings) -> float:
        """The least time that the device's memory needs for them."""
        return ceilings.floor_us(self.quiet_read, self.rewritten)


def step_counts(scenario: Scenario) -> list[tuple[Tensor, Tensor]]:
    """Committed records `[B]` and flush decisions `[B]` of each step of a round."""
    if scenario.draft > 1:
        return _steady_counts(scenario)
    window, rows = scenario.window, torch.arange(scenario.batch)
    committed = {
        # One step holds every phase in equal parts where the batch is a multiple of W; else the rounds make up for it.
        "staggered": [(rows + shift) % window + 1 for shift in range(1 if scenario.batch % window == 0 else window)],
        "in-phase": [torch.full_like(rows, phase) for phase in range(1, window + 1)],
        "nonflush": [torch.full_like(rows, phase) for phase in range(1, window)] or [torch.zeros_like(rows)],
        "flush": [torch.full_like(rows, window)],
    }[scenario.phase]
    return [(count, count >= window) for count in committed]


def _steady_counts(scenario: Scenario) -> list[tuple[Tensor, Tensor]]:
    """Rows drawn from the schedule's stationary distribution: its quantiles in equal parts, so without sampling noise."""
    found = occupancy(scenario.window, scenario.draft, scenario.acceptance)
    steps = 1 << max(2, math.ceil(math.log2(_STEADY_ROWS / scenario.batch)))
    total = steps * scenario.batch
    quantiles = (torch.arange(total, dtype=torch.float64) + 0.5) / total
    # The cumulative sum may end a rounding below 1.
    drawn = torch.searchsorted(found.probability.cumsum(0), quantiles).clamp(max=len(found.committed) - 1)
    drawn = drawn[torch.randperm(total, generator=torch.Generator().manual_seed(0))]
    return [(found.committed[part], found.flush[part]) for part in drawn.split(scenario.batch)]


def step_bytes(scenario: Scenario) -> Bytes:
    """State and ring bytes, counted from the layout."""
    cost, counts = StateBytes.of(scenario.layout), step_counts(scenario)
    quiet = rewritten = 0.0
    for committed, flush in counts:
        read, written = cost.step(committed, torch.full_like(committed, scenario.draft), flush)
        quiet += float(read[~flush].sum())
        rewritten += float(read[flush].sum() + written.sum())
    return Bytes(quiet / len(counts), rewritten / len(counts))


def round_of_launches(scenario: Scenario, machine: Machine, tiles: Tiles) -> list[Launch]:
    """Launches of one round: every plan as often as every other, on states that are not in the L2."""
    layout, device = scenario.layout, machine.device
    plans = [make_plan(layout, *counts, scenario.draft, device) for counts in step_counts(scenario)]
    inputs, A = new_inputs(layout.recurrence, layout.activation, scenario.batch, scenario.draft, device)
    copies = machine.copies(scenario.batch * StateBytes.of(layout).read_state)
    layers = [filled_layer(layout, A, device) for _ in range(copies)]

    def launch(i: int) -> Launch:
        plan: StepPlan = plans[i % len(plans)]
        return step_launch(layers[i % copies], plan, inputs, tiles)

    return [launch(i) for i in range(round_of(len(plans), copies))]
