"""KL over length as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from replayssm_transformers.divergence import BINS, Divergence

FLOOR = 1e-12
"""Smallest KL that is drawn: a logarithmic axis has no 0."""


def plot_kl(panels: Mapping[str, Mapping[str, Divergence]], path: Path) -> None:
    """One panel a model, one line a policy, KL on a logarithmic axis; written to `path` as PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(panels), figsize=(4.6 * len(panels), 3.6), sharey=True, squeeze=False)
    for axis, (title, curves) in zip(axes[0], panels.items(), strict=True):
        for name, divergence in curves.items():
            position, kl = divergence.by_length(BINS)
            axis.semilogy(position, kl.clamp(min=FLOOR), marker="o", markersize=3, label=name)
        axis.set_title(title)
        axis.set_xlabel("tokens")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("KL to the fp32 recurrence (nats)")
    axes[0][-1].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
