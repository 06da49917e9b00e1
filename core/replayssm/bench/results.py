"""What a run found, as JSON: `meta` says where and how, `rows` are the measurements."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replayssm.errors import InputError
from replayssm.records import write_json

if TYPE_CHECKING:
    from replayssm.bench.ceilings import Ceilings


@dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
        layer, geometry, checkpoint, read_copy, batch, draft, phase: see `Scenario`.
        us: microseconds of a step of one layer.
        ordinary_us: the best conventional kernel of the same run; with T > 1 tokens it writes T state snapshots.
        ratio: ordinary_us / us.
        share_of_ceiling: least time for the bytes that must move, at the measured ceilings, / us.
    """

    layer: str
    geometry: str
    checkpoint: str
    read_copy: str | None
    batch: int
    draft: int
    phase: str
    us: float
    ordinary_us: float
    ratio: float
    share_of_ceiling: float


@dataclass
class Results:
    """Rows with their circumstances.

    Attributes:
        meta: device, versions, git ref, command, ceilings, settings; and for each row the launch shape and how every
            conventional kernel did.
        rows: in the order of measurement.
    """

    meta: dict[str, Any]
    rows: list[Row] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Write the JSON file.

        Raises:
            InputError: it cannot be written.
        """
        facts = {"meta": self.meta, "rows": [asdict(row) for row in self.rows]}
        write_json(path, facts)


def read_rows(path: Path) -> tuple[dict[str, Any], list[Row]]:
    """Meta and rows of a result file.

    Raises:
        InputError: it cannot be read, or is not a result.
    """
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        meta, rows = dict(facts["meta"]), [Row(**row) for row in facts["rows"]]
        _check(meta, rows)
        return meta, rows
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    except (KeyError, TypeError) as error:
        raise InputError(
            f"{path} is not a result of `replayssm bench kernels`: {type(error).__name__}: {error}"
        ) from None


def ceiling_facts(ceilings: Ceilings) -> dict[str, float]:
    """Ceilings in their JSON form, GB/s."""
    return {f"{name}_gbps": round(value, 1) for name, value in asdict(ceilings).items()}


def _check(meta: dict[str, Any], rows: list[Row]) -> None:
    """That a table can be made of them.

    Raises:
        TypeError: something is missing, or of another type.
    """
    if lacking := [name for name in ("device", "git", "command", "versions", "ceilings") if name not in meta]:
        raise TypeError(f"meta lacks {', '.join(lacking)}")
    if not rows:
        raise TypeError("there are no rows")
    for row in rows:
        for name, allowed in _TYPES.items():
            value = getattr(row, name)
            if not isinstance(value, allowed) or isinstance(value, bool):
                raise TypeError(f"{name}={value!r} of a row")


_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("layer", "geometry", "checkpoint", "phase"), (str,)),
    "read_copy": (str, type(None)),
    **dict.fromkeys(("batch", "draft"), (int,)),
    **dict.fromkeys(("us", "ordinary_us", "ratio", "share_of_ceiling"), (int, float)),
}
