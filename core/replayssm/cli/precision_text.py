"""`replayssm bench precision` as a table: speed and errors of every policy side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from replayssm.bench.precision import policy_name
from replayssm.bench.results import Row
from replayssm.cli.table import aligned


def side_by_side(rows: Sequence[Row], found: Sequence[dict[str, Any]]) -> list[str]:
    """A line for each geometry, draft and policy: µs and gain over ordinary fp32 decode batch by batch, and errors."""
    batches = sorted({row.batch for row in rows})
    errors = {(fact["geometry"], fact["policy"]): fact for fact in found}
    lines: dict[tuple[str, int, str], dict[int, str]] = {}
    for row in sorted(rows, key=lambda row: (row.geometry, row.draft)):
        key = (row.geometry, row.draft, policy_name(row.checkpoint, row.read_copy))
        lines.setdefault(key, {})[row.batch] = f"{row.us:.1f} ({row.ratio:.2f}×)"
    body = []
    for (geometry, draft, policy), cells in lines.items():
        fact = errors[geometry, policy]
        quality = [f"{fact['state_error']:.1e}", f"{fact['output_error']:.1e}"]
        body.append([geometry, str(draft), policy, *(cells.get(batch, "") for batch in batches), *quality])
    header = ["geometry", "T", "policy", *(f"µs at {batch} (×)" for batch in batches), "state error", "output error"]
    return aligned(header, body, left=3)
