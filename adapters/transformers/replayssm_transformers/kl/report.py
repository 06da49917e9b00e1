"""What was measured as a table, as a line on the way, and as data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from replayssm.cli.table import aligned
from replayssm.records import circumstances, installed, write_json
from replayssm_transformers.divergence import Divergence, finite
from replayssm_transformers.evaluate import PREFILL, Comparison
from replayssm_transformers.kl.settings import Settings
from replayssm_transformers.kl.subject import Subject

HEADER = (
    "preset", "KL mean", "first quarter", "last quarter", "slope / 1,000 tokens", "ratio", "same top", "cross-entropy",
)  # fmt: skip


@dataclass(frozen=True)
class Facts:
    """The JSON file of a run: `meta` is made once, the rest is as far as the measurement is."""

    settings: Settings
    meta: dict[str, Any]

    def save(self, comparison: Comparison, seconds: float, *, complete: bool) -> None:
        """Write what is measured so far, where a file is wanted."""
        quality = comparison.results()
        if self.settings.json is None:
            return
        done = len(next(iter(quality.values())).position) if quality else 0
        meta = {**self.meta, "seconds": round(seconds, 1), "predictions_of_a_row": done, "complete": complete}
        facts: dict[str, Any] = {"meta": meta, "presets": {}}
        if quality:
            facts["reference"] = {"cross_entropy": finite(comparison.reference_cross_entropy())}
            baseline = quality[self.settings.baseline]
            for name, divergence in quality.items():
                ratio, error = divergence.ratio_to(baseline)
                extra = {"ratio_to_baseline": finite(ratio), "ratio_standard_error": finite(error)}
                facts["presets"][name] = {**divergence.as_data(), **extra}
        write_json(self.settings.json, facts)


def facts_of(settings: Settings, subject: Subject, layers: dict[str, list[str]]) -> Facts:
    """The circumstances of a run."""
    rows, length = subject.tokens.shape
    meta = circumstances(torch.device(settings.device), settings.ref)
    meta["versions"]["transformers"] = installed("transformers")
    meta |= {
        "model": str(settings.path),
        "model_class": type(subject.model).__name__,
        "torch_device": settings.device,
        "dtype": settings.dtype,
        "backend": settings.backend,
        "threads": torch.get_num_threads(),
        "window": settings.window,
        "text": settings.source,
        "rows": rows,
        "length": length,
        "prefill": PREFILL,
        "baseline": settings.baseline,
        "layers": layers,
    }
    return Facts(settings, meta)


def status(subject: Subject, comparison: Comparison, done: int, seconds: float) -> str:
    """One line on the way."""
    means = ", ".join(f"{name} {divergence.mean:.2e}" for name, divergence in comparison.results().items())
    left = seconds / done * (subject.predictions - done)
    return f"{done:,} of {subject.predictions:,} predictions a row, {seconds:.0f} s, {left:.0f} s left: {means}"


def describe(settings: Settings, subject: Subject, comparison: Comparison) -> list[str]:
    """The table, with what it is of above."""
    quality = comparison.results()
    rows, _ = subject.tokens.shape
    done = len(quality[settings.baseline].position)
    reference = comparison.reference_cross_entropy()
    title = (
        f"{subject.name}: KL to the fp32 recurrence, nats per token, teacher forced; {rows} row{'s' * (rows > 1)} of "
        f"{done:,} predictions of {settings.source}, W = {settings.window}, {settings.dtype}, {settings.device}"
    )
    body = [_cells(name, divergence, quality[settings.baseline]) for name, divergence in quality.items()]
    body.append(["fp32 recurrence", *[""] * (len(HEADER) - 2), f"{reference:.4f}"])
    return [title, *aligned(HEADER, body), f"  ratio: to {settings.baseline}; ± is a standard error"]


def _cells(name: str, divergence: Divergence, baseline: Divergence) -> list[str]:
    _, quarters = divergence.by_length(4)
    ratio, error = divergence.ratio_to(baseline)
    slope, slope_error = divergence.slope()
    return [
        name,
        f"{divergence.mean:.2e} ± {divergence.standard_error():.0e}",
        f"{float(quarters[0]):.2e}",
        f"{float(quarters[-1]):.2e}",
        f"{slope:+.1e} ± {slope_error:.0e}",
        f"{ratio:.3g} ± {error:.1g}" if math.isfinite(ratio) else "",
        f"{divergence.same_top:.1%}",
        f"{divergence.cross_entropy:.4f}",
    ]
