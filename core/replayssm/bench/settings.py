"""What to measure, from lists of names and numbers: every wrong one is refused in a line that says what is allowed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from replayssm.bench.geometry import GEOMETRIES, Geometry
from replayssm.bench.scenario import CHECKPOINTS, PHASES, READ_COPIES, Scenario
from replayssm.errors import InputError
from replayssm.layout import MAX_DRAFT, MAX_WINDOW
from replayssm.recurrence import LayerKind

MAX_BATCH = 4096
QUICK_BATCH = 256


def split(values: Sequence[str]) -> list[str]:
    """Values separated by commas, spaces or both; none twice."""
    return list(dict.fromkeys(part for value in values for part in value.split(",") if part))


def names(flag: str, values: Sequence[str], allowed: Collection[str]) -> list[str]:
    """Names of a list.

    Raises:
        InputError: one is not allowed, or there is none.
    """
    found = split(values)
    for name in found:
        if name not in allowed:
            raise InputError(f"{flag}={name!r} is unknown; expected some of {', '.join(allowed)}")
    if not found:
        raise InputError(f"{flag} is empty; expected some of {', '.join(allowed)}")
    return found


def numbers(flag: str, values: Sequence[str], high: int) -> list[int]:
    """Whole numbers of a list, from 1 to `high`.

    Raises:
        InputError: one is no such number, or there is none.
    """
    found = split(values)
    for text in found:
        if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= high:
            raise InputError(f"{flag}={text!r} must be a whole number from 1 to {high}")
    if not found:
        raise InputError(f"{flag} is empty; expected whole numbers from 1 to {high}")
    return [int(text) for text in found]


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


def selection(
    *,
    layer: Sequence[str] | None = None,
    geometry: Sequence[str] | None = None,
    batch: Sequence[str] | None = None,
    draft: Sequence[str] | None = None,
    checkpoint: Sequence[str] | None = None,
    read_copy: Sequence[str] | None = None,
    phase: Sequence[str] | None = None,
    window: int = 16,
    acceptance: float = 0.8,
    quick: bool = False,
) -> Selection:
    """Lists as typed; None for the default, which with `quick` is one batch and two draft lengths.

    Raises:
        InputError: a value that is not allowed.
    """
    if not 1 <= window <= MAX_WINDOW:
        raise InputError(f"--window={window} must be from 1 to {MAX_WINDOW}")
    if not 0.0 <= acceptance <= 1.0:
        raise InputError(f"--acceptance={acceptance} must be from 0 to 1")
    default = Selection(batch=(QUICK_BATCH,), draft=(1, 4)) if quick else Selection()
    phases = [name for group in PHASES.values() for name in group]
    return Selection(
        layer=default.layer if layer is None else names("--layer", layer, tuple(LayerKind)),
        geometry=default.geometry if geometry is None else names("--geometry", geometry, GEOMETRIES),
        batch=default.batch if batch is None else numbers("--batch", batch, MAX_BATCH),
        draft=default.draft if draft is None else numbers("--draft", draft, MAX_DRAFT),
        checkpoint=default.checkpoint if checkpoint is None else names("--checkpoint", checkpoint, CHECKPOINTS),
        read_copy=default.read_copy if read_copy is None else names("--read-copy", read_copy, READ_COPIES),
        phase=default.phase if phase is None else names("--phase", phase, phases),
        window=window,
        acceptance=acceptance,
    )
