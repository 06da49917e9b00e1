"""Finding launch shapes: every candidate is checked against the float64 reference, then timed at every batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from functools import partial
from itertools import product
from typing import Any

from replayssm.bench.gate import check_step, require_served
from replayssm.bench.scenario import Scenario, round_of_launches
from replayssm.bench.timing import Machine
from replayssm.bench.workers import Workers
from replayssm.errors import InputError, ReplaySSMError
from replayssm.kernels.tiles import Gpu, Operation, Table, Tiles, entry_of

LIKELY: dict[str, tuple[int, ...]] = {"value": (16, 32), "count": (0, 1, 2), "registers": (0, 168), "shares": (0, 1)}
"""Values to try for each field of `Tiles`; a field that is not named keeps its default."""
THREAD_NUMBERS = (4, 256)
"""Numbers of the state tile that a thread holds, at least and at most: beyond, registers idle or spill."""
WARP = 32


@dataclass(frozen=True)
class Search:
    """Values to try for each field of `Tiles`."""

    values: Mapping[str, Sequence[int]] = field(default_factory=lambda: LIKELY)

    def candidates(self, value_dim: int, key_dim: int) -> list[Tiles]:
        """Combinations that suit a `[V, K]` state, each launch once: no tile beyond V, a sensible share for each thread."""
        known = {f.name: (f.default,) for f in fields(Tiles) if f.default is not MISSING}
        values = {**known, **self.values}
        different: dict[tuple[object, ...], Tiles] = {}
        for choice in product(*values.values()):
            tiles = Tiles(**dict(zip(values, choice, strict=True)))
            if _suits(tiles, value_dim, key_dim):
                launch = (
                    tiles.value,
                    tiles.warps,
                    tiles.registers,
                    tiles.parts(value_dim),
                    tiles.fold_shares(value_dim),
                )
                different.setdefault(launch, tiles)
        return list(different.values())


def _suits(tiles: Tiles, value_dim: int, key_dim: int) -> bool:
    padded = 1 << (value_dim - 1).bit_length()
    share = tiles.value * key_dim / (WARP * tiles.warps)
    return tiles.value * max(tiles.count, 1) <= padded and THREAD_NUMBERS[0] <= share <= THREAD_NUMBERS[1]


@dataclass(frozen=True)
class Entry:
    """The fastest shape of an operation."""

    operation: Operation
    tiles: Tiles
    us: float

    def facts(self) -> dict[str, Any]:
        """JSON form, as a line of a table."""
        return {**entry_of(self.operation, self.tiles), "us": round(self.us, 2)}


def tune(
    scenarios: Sequence[Scenario], search: Search, machine: Machine, workers: Workers, say: Callable[[str], None]
) -> Iterator[Entry]:
    """The fastest shape of each scenario; those that differ by batch alone share a check, and all checks come first.

    Raises:
        UnsupportedError: a scenario is not served.
        InputError: no candidate suits a geometry.
        ReplaySSMError: at the end, where no candidate ran a scenario.
    """
    for scenario in scenarios:
        require_served(scenario, machine.device)
    groups = [(group, candidates(group[0], search)) for group in _alike(scenarios)]
    checks = [partial(check_step, group[0], tiles, machine.device) for group, shapes in groups for tiles in shapes]
    found = iter(workers.failures(checks))
    failed: list[str] = []
    for group, shapes in groups:
        running = []
        for tiles, failure in zip(shapes, found, strict=False):
            if failure is None:
                running.append(tiles)
            else:
                say(f"{shape(tiles)} is left out: {failure}")
        if not running:
            failed.append(group[0].describe())
        for scenario in group if running else ():
            times = {tiles: machine.clock.measure(round_of_launches(scenario, machine, tiles)) for tiles in running}
            ranked = sorted(times, key=times.__getitem__)
            say(f"{scenario.describe()}: " + ", ".join(f"{shape(tiles)} {times[tiles]:.1f} µs" for tiles in ranked[:4]))
            operation = Operation.of(scenario.layout, scenario.draft, scenario.batch)
            yield Entry(operation, ranked[0], times[ranked[0]])
    if failed:
        raise ReplaySSMError(f"no launch shape runs {'; '.join(failed)}")


def candidates(scenario: Scenario, search: Search) -> list[Tiles]:
    """Shapes to try for a scenario.

    Raises:
        InputError: none suits its geometry, or one is no launch shape.
    """
    recurrence = scenario.geometry.recurrence
    found = search.candidates(recurrence.value_dim, recurrence.key_dim)
    if not found:
        raise InputError(f"no launch shape to try suits {scenario.describe()}; allow other values")
    return found


def shape(tiles: Tiles) -> str:
    """`value=32 warps=1`: fields that are not at their default."""
    defaults = {f.name: f.default for f in fields(Tiles)}
    return " ".join(f"{name}={value}" for name, value in asdict(tiles).items() if value != defaults[name])


def table_facts(
    gpu: Gpu, known: Mapping[str, Any] | None, entries: Iterable[Entry], meta: Mapping[str, Any]
) -> dict[str, Any]:
    """A table with new entries in place of older ones for the same operation.

    Args:
        known: the table so far, None for none.
        meta: circumstances of the new entries; those of older ones are dropped.

    Raises:
        InputError: the table so far is no table, or of another GPU.
    """
    merged: dict[Operation, dict[str, Any]] = {}
    if known is not None:
        table = Table.parse(known, "the table to be extended")
        if table.gpu != gpu:
            raise InputError(
                f"the table to be extended is of {table.gpu.name}; this is {gpu.name}: choose another --out"
            )
        merged = {operation: entry for (operation, _), entry in zip(table.entries, known["entries"], strict=True)}
    for entry in entries:
        merged[entry.operation] = entry.facts()
    ordered = sorted(merged, key=lambda operation: tuple(str(value).zfill(8) for value in asdict(operation).values()))
    return {
        "gpu": gpu.name,
        "capability": gpu.capability,
        "meta": dict(meta),
        "entries": [merged[operation] for operation in ordered],
    }


def _alike(scenarios: Sequence[Scenario]) -> list[list[Scenario]]:
    groups: dict[tuple[object, ...], list[Scenario]] = {}
    for scenario in scenarios:
        key = (scenario.geometry.name, scenario.checkpoint, scenario.read_copy, scenario.draft, scenario.phase)
        groups.setdefault(key, []).append(scenario)
    return list(groups.values())
