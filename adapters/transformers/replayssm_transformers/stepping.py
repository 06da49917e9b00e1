"""Feeding tokens to a model step by step on one cache, the way a decode loop does."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from replayssm_transformers.layer import ReplayLayer
from replayssm_transformers.session import session_of
from replayssm_transformers.surface import MODEL_CACHE_NAMES


class Stepper:
    """One batch of sequences on one cache.

    Args:
        model: a causal language model of transformers, enabled or not.
    """

    def __init__(self, model: Any) -> None:  # noqa: ANN401  transformers is untyped
        self.model = model
        self.cache: Any = DynamicCache(config=self.model.config)
        parameters = inspect.signature(self.model.forward).parameters
        # Given, because Bamba for one counts from 0 in each forward.
        self._positions, self._seen = "position_ids" in parameters, 0
        self._cache_name = next(name for name in MODEL_CACHE_NAMES if name in parameters)
        if session_of(model) is not None:
            # Recording lets several tokens a step count as decode steps, not as a new piece of prompt.
            self.cache.activate_past_recording()

    def step(self, tokens: Tensor) -> Tensor:
        """Append `tokens [B, T]`, all accepted; next-token logits `[B, T, vocabulary]`."""
        logits = self.append(tokens)
        self.accept()
        return logits

    @torch.no_grad()
    def append(self, tokens: Tensor) -> Tensor:
        """Append `tokens [B, T]`, which await `accept`; next-token logits `[B, T, vocabulary]`."""
        options: dict[str, Any] = {self._cache_name: self.cache}
        if self._positions:
            where = torch.arange(self._seen, self._seen + tokens.shape[1], device=tokens.device)
            options["position_ids"] = where.expand(len(tokens), -1)
        output = self.model(input_ids=tokens, use_cache=True, **options)
        self._seen += tokens.shape[1]
        logits: Tensor = output.logits
        return logits

    def accept(self) -> None:
        """Accept all tokens that were appended."""
        for layer in self.cache.layers:
            if isinstance(layer, ReplayLayer):
                layer.crop(0)
