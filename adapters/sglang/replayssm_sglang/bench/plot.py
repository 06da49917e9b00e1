"""The rows of a measurement as a picture: a panel a model, how many times faster than SGLang alone over batches.

Usage: python -m replayssm_sglang.bench.plot RESULTS.json PICTURE.png
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from replayssm_sglang.bench.engines import PLAIN

Row = Mapping[str, Any]
Curves = dict[str, list[tuple[int, float]]]


def panels(rows: Iterable[Row]) -> dict[tuple[str, int], Curves]:
    """(model, draft) → mode → (batch, ratio), batches in order; compared with SGLang alone at several batches."""
    found: dict[tuple[str, int], Curves] = {}
    for row in sorted(rows, key=lambda row: (row["draft"], row.get("batch", 0))):
        if "us" in row and row["ratio"] is not None and row["mode"] != PLAIN:
            curves = found.setdefault((row["model"], row["draft"]), {})
            curves.setdefault(row["mode"], []).append((row["batch"], row["ratio"]))
    return {place: curves for place, curves in found.items() if max(map(len, curves.values())) > 1}


def plot(rows: Iterable[Row], path: Path) -> None:
    """Draw the rows of `replayssm bench sglang` to `path` as PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    drawn = panels(rows)
    figure, axes = pyplot.subplots(1, len(drawn), figsize=(4.2 * len(drawn), 3.6), squeeze=False)
    for axis, ((model, draft), curves) in zip(axes[0], drawn.items(), strict=True):
        for mode, points in curves.items():
            axis.plot(*zip(*points, strict=True), marker="o", markersize=3, label=mode)
        axis.set_xscale("log", base=2)
        axis.axhline(1.0, color="gray", linewidth=0.8)
        axis.set_title(model if draft == 1 else f"{model}, T = {draft}")
        axis.set_xlabel("requests")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("times SGLang alone")
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


if __name__ == "__main__":
    plot(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["rows"], Path(sys.argv[2]))
