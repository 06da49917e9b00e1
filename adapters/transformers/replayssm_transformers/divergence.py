"""KL over length, measured: its mean, its drift and how sure both are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

BINS = 16
"""Parts of the length that curves, slopes and standard errors are made of."""


@dataclass(frozen=True)
class Divergence:
    """KL(fp32 recurrence ‖ policy) of the next token, in nats.

    Attributes:
        position: `[P]` tokens seen before the prediction.
        rows: `[R, P]` KL of each sequence.
        same_top: share of predictions in which both prefer the same token.
        cross_entropy: mean −log probability of the text's own tokens under the policy.
    """

    position: Tensor
    rows: Tensor
    same_top: float
    cross_entropy: float

    @property
    def kl(self) -> Tensor:
        """`[P]` mean over the sequences."""
        return self.rows.mean(0)

    @property
    def mean(self) -> float:
        """Mean over all predictions."""
        return float(self.rows.mean())

    def standard_error(self) -> float:
        """Of the mean, from the scatter of blocks: neighbours in a text are not independent, blocks nearly are."""
        return _standard_error(self._blocks())

    def ratio_to(self, baseline: Divergence) -> tuple[float, float]:
        """This mean KL / the baseline's on the same tokens, and its standard error (blocks paired).

        Both are NaN where the baseline has no KL.
        """
        if baseline.mean <= 0.0:
            return math.nan, math.nan
        ratio = self.mean / baseline.mean
        residual = self._blocks() - ratio * baseline._blocks()
        return ratio, _standard_error(residual) / baseline.mean

    def by_length(self, bins: int) -> tuple[Tensor, Tensor]:
        """Mean KL in equal bins: `[bins]` middle positions and `[bins]` values."""
        parts = torch.chunk(torch.arange(len(self.position)), bins)
        middle = torch.stack([self.position[part].double().mean() for part in parts])
        return middle, torch.stack([self.kl[part].mean() for part in parts])

    def slope(self, bins: int = BINS) -> tuple[float, float]:
        """Least-squares slope of the binned KL per 1,000 tokens, and its standard error."""
        x, y = self.by_length(bins)
        x = x / 1000.0
        centred = x - x.mean()
        if not bool(centred.any()):
            return math.nan, math.nan
        slope = float((centred * y).sum() / (centred * centred).sum())
        residual = y - y.mean() - slope * centred
        variance = float((residual * residual).sum()) / max(len(x) - 2, 1)
        return slope, (variance / float((centred * centred).sum())) ** 0.5

    def as_data(self) -> dict[str, Any]:
        """Plain JSON data; the curve in bins over length; None for what is not finite."""
        position, kl = self.by_length(BINS)
        slope, error = self.slope()
        facts = {
            "predictions": self.rows.numel(),
            "mean_kl": self.mean,
            "standard_error": self.standard_error(),
            "same_top_token": self.same_top,
            "cross_entropy": self.cross_entropy,
            "slope_per_1k_tokens": slope,
            "slope_standard_error": error,
        }
        numbers = {name: finite(value) for name, value in facts.items()}
        return {**numbers, "position": position.tolist(), "kl": [finite(value) for value in kl.tolist()]}

    def _blocks(self) -> Tensor:
        """Mean KL of each sequence's bins, `[R * bins]`."""
        return torch.stack([part.mean(1) for part in torch.chunk(self.rows, BINS, dim=1)], dim=1).flatten()


def finite(value: float) -> float | None:
    """A number that JSON knows, or None."""
    return value if math.isfinite(value) else None


def _standard_error(values: Tensor) -> float:
    return float(values.std() / len(values) ** 0.5) if len(values) > 1 else math.nan
