"""Results as text: the lines of a terminal, and the Markdown table of the README."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replayssm.bench.results import Row
    from replayssm.bench.run import Measured

_COLUMNS = (
    ("layer", "<6"), ("geometry", "<9"), ("state", "<12"), ("batch", ">5"), ("T", ">2"), ("phase", "<9"), ("µs", ">8"),
    ("GB/s", ">6"), ("of read", ">7"), ("of r+w", ">6"), ("of floor", ">8"), ("ordinary µs", ">11"), ("ratio", ">6"),
    ("ordinary kernel", "<15"),
)  # fmt: skip


def header() -> str:
    """The first line."""
    return _line([name for name, _ in _COLUMNS])


def line(measured: Measured) -> str:
    """A measurement's line."""
    row = measured.row
    return _line(
        [
            row.layer,
            row.geometry,
            state_name(row),
            str(row.batch),
            str(row.draft),
            row.phase,
            f"{row.us:.1f}",
            f"{measured.gbps:.0f}",
            f"{measured.share_read:.0%}",
            f"{measured.share_read_write:.0%}",
            f"{row.share_of_ceiling:.0%}",
            f"{row.ordinary_us:.1f}",
            f"{row.ratio:.2f}×",
            measured.ordinary.name,
        ]
    )


def state_name(row: Row) -> str:
    """Checkpoint and read copy."""
    return f"{row.checkpoint} + {row.read_copy}" if row.read_copy else row.checkpoint


def markdown(results: Sequence[tuple[dict[str, Any], Sequence[Row]]]) -> str:
    """A table of one or several runs with their circumstances below: a line for each layer, state and draft, a column
    for each batch.

    A cell is "µs (ratio×)": microseconds of a layer's step, and how many times faster it is than the best ordinary
    decode of the same run. Phases other than the averages over a window are left out.
    """
    shown = [row for _, rows in results for row in rows if row.phase in ("staggered", "steady")]
    batches = sorted({row.batch for row in shown})
    lines: dict[tuple[str, str, str, int], dict[int, str]] = {}
    for row in shown:
        key = (row.layer, row.geometry, state_name(row), row.draft)
        lines.setdefault(key, {})[row.batch] = f"{row.us:.0f} µs ({row.ratio:.2f}×)"
    head = "| layer | geometry | state | T | " + " | ".join(f"batch {batch}" for batch in batches) + " |"
    table = [head, "|" + " --- |" * (4 + len(batches))]
    order = list(dict.fromkeys(key[:3] for key in lines))
    for (layer, geometry, state, draft), cells in sorted(lines.items(), key=lambda p: (order.index(p[0][:3]), p[0][3])):
        values = " | ".join(cells.get(batch, "–") for batch in batches)
        table.append(f"| {layer} | {geometry} | {state} | {draft} | {values} |")
    return "\n".join([*table, "", *dict.fromkeys(_circumstances(meta) for meta, _ in results)]) + "\n"


def _circumstances(meta: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {value}" for name, value in meta["versions"].items() if value)
    ceilings = meta["ceilings"]
    return (
        f"{meta['device']}; {versions}; git {meta['git']}; `{meta['command']}`. Ceilings of the same run: "
        f"read {ceilings['read_gbps']:,.0f} GB/s, read+write in place {ceilings['read_write_gbps']:,.0f} GB/s."
    )


def _line(cells: Sequence[str]) -> str:
    return "  ".join(f"{cell:{form}}" for cell, (_, form) in zip(cells, _COLUMNS, strict=True)).rstrip()
