"""States of a model's recurrent layers in the middle of a text, and the vectors that the tokens after it read them with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from replayssm import PrecisionPolicy
from replayssm.reference.recurrence import log_decay
from replayssm.state import ReplayState
from replayssm_transformers.evaluate import forced_steps, measuring_config
from replayssm_transformers.layer import ReplayLayer
from replayssm_transformers.session import disable, enable
from replayssm_transformers.stepping import Stepper

FOLLOWING = 15
"""Tokens whose reads are measured: those of a window after its first, which flushes."""


@dataclass(frozen=True)
class Reading:
    """One layer at one position.

    Attributes:
        state: `[n, H, V, K]` float64.
        q, k: `[n, H, T, K]` queries and keys of the T tokens that follow, decayed as they meet the state.
    """

    layer: int
    position: int
    state: Tensor
    q: Tensor
    k: Tensor


@torch.no_grad()
def readings(model: nn.Module, tokens: Tensor, positions: Sequence[int]) -> Iterator[Reading]:
    """Read `tokens [n, L]` up to each position in turn, with an exact state; then every layer's state and next reads.

    Args:
        positions: rising, at least PREFILL, at most L − FOLLOWING.
    """
    enable(model, measuring_config(PrecisionPolicy(), FOLLOWING + 1))
    try:
        stepper, done = Stepper(model), 0
        for position in positions:
            for start, stop in _steps(done, position):
                stepper.step(tokens[:, start:stop])
            states = [layer.handle.state() for layer in _layers(stepper) if layer.handle is not None]
            stepper.append(tokens[:, position : position + FOLLOWING])
            for layer, state in zip(_layers(stepper), states, strict=True):
                yield _reading(layer, position, state.double())
            stepper.accept()
            done = position + FOLLOWING
    finally:
        disable(model)


def _steps(done: int, position: int) -> Iterator[tuple[int, int]]:
    """From token `done` to `position`: the prefill where nothing is done, then as many at a time as a step takes."""
    if not done:
        for start, stop in forced_steps(position + 1, FOLLOWING + 1):
            yield start, stop
        return
    for start in range(done, position, FOLLOWING):
        yield start, min(start + FOLLOWING, position)


def _layers(stepper: Stepper) -> list[ReplayLayer]:
    return [layer for layer in stepper.cache.layers if isinstance(layer, ReplayLayer) and layer.handle is not None]


def _reading(layer: ReplayLayer, position: int, state: Tensor) -> Reading:
    handle = layer.handle
    assert handle is not None
    assert handle.pending is not None
    replay = handle.replay
    assert isinstance(replay, ReplayState)
    recurrence = replay.layout.recurrence
    new = handle.pending.process(recurrence, handle.slots, torch.float64)
    repeat = recurrence.heads_per_group
    decay = log_decay(recurrence, new.gate, replay.layer.A).cumsum(dim=1).exp()
    vectors = (x.repeat_interleave(repeat, dim=2) * decay for x in (new.q, new.k * new.k_scale[..., None]))
    q, k = (x.transpose(1, 2) for x in vectors)
    return Reading(layer.index, position, state, q, k)
