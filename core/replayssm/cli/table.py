"""Plain text: aligned columns, byte sizes. No colour, no dependency."""

from __future__ import annotations

from collections.abc import Sequence

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1, indent: str = "  ") -> list[str]:
    """Lines of a table: a header, then rows; the first `left` columns flush left, the others flush right."""
    widths = [max(len(line[column]) for line in (header, *rows)) for column in range(len(header))]
    return [indent + _line(cells, widths, left) for cells in (header, *rows)]


def pairs(facts: Sequence[tuple[str, str]], indent: str = "  ") -> list[str]:
    """Lines of names and values."""
    width = max(len(name) for name, _ in facts)
    return [f"{indent}{name:<{width}}  {value}".rstrip() for name, value in facts]


def size(count: float) -> str:
    """A number of bytes in three or four digits, binary units: `4.00 MiB`."""
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count, unit = count / 1024, unit + 1
    if unit == 0:
        return f"{count:.0f} B"
    digits = 2 if count < 10 else 1 if count < 100 else 0
    return f"{count:.{digits}f} {_UNITS[unit]}"


def _line(cells: Sequence[str], widths: Sequence[int], left: int) -> str:
    padded = [
        cell.ljust(width) if column < left else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(padded).rstrip()
