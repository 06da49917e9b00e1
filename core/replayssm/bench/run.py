"""A whole run: gate everything, then measure ceilings, the ordinary decode and our step, row by row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from replayssm.bench.ceilings import Ceilings
from replayssm.bench.conventional import Kind, Timed, Verified, time_best
from replayssm.bench.gate import check_step, require_served
from replayssm.bench.results import Results, Row
from replayssm.bench.scenario import Scenario, round_of_launches, step_bytes
from replayssm.bench.timing import Machine
from replayssm.bench.workers import Workers
from replayssm.errors import ReplaySSMError
from replayssm.kernels.tiles import Tiles, choose_tiles


class RedGateError(ReplaySSMError):
    """A step is wrong, so nothing about its speed is said."""


@dataclass(frozen=True)
class Measured:
    """A row and what stands beside it in the table."""

    row: Row
    tiles: Tiles
    ordinary: Timed
    gbps: float
    share_read: float
    share_read_write: float


def tiles_of(scenario: Scenario, machine: Machine) -> Tiles:
    """The launch shape that a user would get."""
    return choose_tiles(scenario.layout, scenario.draft, scenario.batch, machine.device)


def gate(scenarios: Sequence[Scenario], machine: Machine, workers: Workers) -> int:
    """Check each different step once; how many there were.

    Raises:
        UnsupportedError: a scenario is not served.
        RedGateError: a step is wrong, or does not run; names each.
    """
    for scenario in scenarios:
        require_served(scenario, machine.device)
    different: dict[tuple[object, ...], tuple[Scenario, Tiles]] = {}
    for scenario in scenarios:
        tiles = tiles_of(scenario, machine)
        operation = (scenario.geometry.name, scenario.checkpoint, scenario.read_copy, scenario.draft, tiles)
        different.setdefault(operation, (scenario, tiles))
    found = workers.failures([partial(check_step, *pair, machine.device) for pair in different.values()])
    red = [
        f"{scenario.describe()}, {tiles}: {failure}"
        for (scenario, tiles), failure in zip(different.values(), found, strict=True)
        if failure is not None
    ]
    if red:
        raise RedGateError("no speed is reported, since a step is wrong: " + "; ".join(red))
    return len(different)


class Run:
    """Measures scenarios on a machine; the ordinary decode of a shape is timed once.

    Args:
        machine: where.
        ceilings: of the machine.
        verified: conventional kernels to compare with, for each kind of ordinary step (see `ordinary_kind`).
    """

    def __init__(self, machine: Machine, ceilings: Ceilings, verified: Mapping[Kind, Verified]) -> None:
        self.machine, self.ceilings, self.verified = machine, ceilings, verified
        self._ordinary: dict[tuple[Kind, int], Timed] = {}

    def measure(self, scenario: Scenario) -> Measured:
        """One scenario, which has passed the gate."""
        ordinary = self.ordinary(scenario)
        tiles = tiles_of(scenario, self.machine)
        us = self.machine.clock.measure(round_of_launches(scenario, self.machine, tiles))
        moved = step_bytes(scenario)
        gbps = moved.total / us / 1e3
        row = Row(
            layer=scenario.geometry.layer,
            geometry=scenario.geometry.name,
            checkpoint=scenario.checkpoint,
            read_copy=scenario.read_copy,
            batch=scenario.batch,
            draft=scenario.draft,
            phase=scenario.phase,
            us=round(us, 2),
            ordinary_us=round(ordinary.us, 2),
            ratio=round(ordinary.us / us, 3),
            share_of_ceiling=round(moved.floor_us(self.ceilings) / us, 3),
        )
        return Measured(row, tiles, ordinary, gbps, gbps / self.ceilings.read, gbps / self.ceilings.read_write)

    def ordinary(self, scenario: Scenario) -> Timed:
        """The best conventional kernel for the same tokens."""
        kind = ordinary_kind(scenario)
        key = (kind, scenario.batch)
        if key not in self._ordinary:
            step = kind.step(scenario.batch, self.machine.device)
            self._ordinary[key] = time_best(self.machine, self.verified[kind], step)
        return self._ordinary[key]


def ordinary_kind(scenario: Scenario) -> Kind:
    """The ordinary step that a scenario is compared with."""
    return Kind(scenario.geometry, ordinary_state(scenario), scenario.draft, scenario.activation)


def ordinary_state(scenario: Scenario) -> str:
    """State format of the ordinary decode that a scenario is compared with.

    The scenario's, if it names one. Else the checkpoint's own where engines have it (fp32, bf16, fp16), fp16 for fp8, and
    fp32 beside 4 bits and read copies, whose gain is meant against the full-precision state.
    """
    if scenario.ordinary is not None:
        return scenario.ordinary
    if scenario.read_copy is not None or scenario.checkpoint == "nvfp4":
        return "fp32"
    return {"fp32": "fp32", "bf16": "bf16"}.get(scenario.checkpoint, "fp16")


def run_all(run: Run, scenarios: Sequence[Scenario], results: Results, report: Callable[[Measured], None]) -> None:
    """Measure every scenario; each is reported, and added to the results, as it comes."""
    details = results.meta.setdefault("details", [])
    for scenario in scenarios:
        measured = run.measure(scenario)
        results.rows.append(measured.row)
        details.append(_details(measured))
        report(measured)


def _details(measured: Measured) -> dict[str, object]:
    times = measured.ordinary.others.items()
    return {
        "tiles": vars(measured.tiles),
        "gbps": round(measured.gbps, 1),
        "ordinary": measured.ordinary.name,
        "conventional": {name: round(value, 2) if isinstance(value, float) else value for name, value in times},
    }
