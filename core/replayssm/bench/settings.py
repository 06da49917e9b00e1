"""What to measure, from lists of names and numbers: every wrong one is refused in a line that says what is allowed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from replayssm.bench.geometry import GEOMETRIES, Geometry
from replayssm.bench.scenario import CHECKPOINTS, PHASES, READ_COPIES, Scenario
from replayssm.errors import InputError
from replayssm.layout import MAX_DRAFT, MAX_WINDOW
from replayssm.lists import names, numbers
from replayssm.recurrence import LayerKind

MAX_BATCH = 4096
QUICK_BATCH = 256


@dataclass(frozen=True)
class Selection:
    """Lists whose combinations are measured. `phase` holds phases of either kind; each draft length takes its own."""

    layer: Sequence[str] = tuple(LayerKind)
    geometry: Sequence[str] = tuple(GEOMETRIES)
    batch: Sequence[int] = (1, 8, 32, 256, 512)
    draft: Sequence[int] = (1, 2, 4, 8)
    checkpoint: Sequence[str] = ("fp32",)
    read_copy: Sequence[str] = ("none",)
    phase: Sequence[str] = ("staggered", "steady")
    window: int = 16
    acceptance: float = 0.8
    geometries: dict[str, Geometry] = field(default_factory=lambda: GEOMETRIES)

    def scenarios(self) -> list[Scenario]:
        """Every combination, geometry by geometry.

        Raises:
            InputError: there is none.
        """
        found = [
            Scenario(geometry, checkpoint, READ_COPIES[copy], batch, draft, phase, self.window, self.acceptance)
            for geometry in (self.geometries[name] for name in self.geometry)
            if geometry.layer in self.layer
            for checkpoint in self.checkpoint
            for copy in self.read_copy
            for draft in self.draft
            for batch in self.batch
            for phase in PHASES[min(draft, 2)]
            if phase in self.phase
        ]
        if not found:
            raise InputError(
                f"nothing to measure: of --geometry={','.join(self.geometry)} none is of --layer={','.join(self.layer)}, "
                f"or none of --phase={','.join(self.phase)} suits --draft={','.join(map(str, self.draft))}"
            )
        return found


ALLOWED: dict[str, Collection[str] | int] = {
    "layer": tuple(LayerKind),
    "geometry": tuple(GEOMETRIES),
    "batch": MAX_BATCH,
    "draft": MAX_DRAFT,
    "checkpoint": tuple(CHECKPOINTS),
    "read_copy": tuple(READ_COPIES),
    "phase": tuple(name for group in PHASES.values() for name in group),
}
"""What each list may hold: some of these names, or whole numbers up to this one."""


def selection(
    lists: Mapping[str, Sequence[str] | None] | None = None,
    *,
    window: int = 16,
    acceptance: float = 0.8,
    quick: bool = False,
) -> Selection:
    """Lists as typed; one that is None is the default, which with `quick` is one batch and two draft lengths.

    Raises:
        InputError: a value that is not allowed.
    """
    if not 1 <= window <= MAX_WINDOW:
        raise InputError(f"--window={window} must be from 1 to {MAX_WINDOW}")
    if not 0.0 <= acceptance <= 1.0:
        raise InputError(f"--acceptance={acceptance} must be from 0 to 1")
    default = Selection(window=window, acceptance=acceptance)
    if quick:
        default = replace(default, batch=(QUICK_BATCH,), draft=(1, 4))
    chosen: dict[str, Any] = {}
    for name, values in (lists or {}).items():
        if values is not None:
            flag, allowed = "--" + name.replace("_", "-"), ALLOWED[name]
            chosen[name] = numbers(flag, values, allowed) if isinstance(allowed, int) else names(flag, values, allowed)
    return replace(default, **chosen)
