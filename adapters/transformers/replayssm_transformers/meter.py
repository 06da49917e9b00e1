"""Counting what the replay states of one model do, over all their layers and caches."""

from __future__ import annotations

import torch

from replayssm.traffic import TrafficMeter


class ModelMeter(TrafficMeter):
    """One meter for all layers; it outlives the caches that it counted."""

    def resubmitted(self, tokens: int) -> None:
        """Tokens that awaited acceptance were presented again; they are drafts only once."""
        self._add("drafted", torch.tensor(-tokens))

    def __deepcopy__(self, memo: dict[int, object]) -> ModelMeter:
        # A copied cache still belongs to the same model.
        return self
