"""KL over length as a picture."""

from __future__ import annotations

from pathlib import Path

from replayssm_transformers.demo.measure import ModelReport
from replayssm_transformers.demo.report import BINS

FLOOR = 1e-12
"""Smallest KL that is drawn: a logarithmic axis has no 0."""


def plot_quality(reports: list[ModelReport], path: Path) -> None:
    """One panel a model, one line a policy, KL on a logarithmic axis; written to `path` as PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(reports), figsize=(4.6 * len(reports), 3.6), sharey=True, squeeze=False)
    for axis, report in zip(axes[0], reports, strict=True):
        for preset, divergence in report.quality.items():
            position, kl = divergence.by_length(BINS)
            axis.semilogy(position, kl.clamp(min=FLOOR), marker="o", markersize=3, label=preset)
        axis.set_title(report.name)
        axis.set_xlabel("tokens")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("KL to the fp32 recurrence (nats)")
    axes[0][-1].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
