"""Exact averages of the step protocol in steady state, for flushes on overflow: no sampling, no state computed.

The committed records of a row are a Markov chain: the flush decision depends on them alone, and acceptance moves them.
Its stationary distribution, together with the bytes that a step of each kind moves, gives every average that one can ask
for. A staggered schedule shortens first windows only and has the same steady state; for others see `traffic.simulate`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from replayssm.errors import InputError
from replayssm.layout import StateLayout
from replayssm.schedule import flush_rows
from replayssm.traffic import Cadence, StateBytes


@dataclass(frozen=True)
class Occupancy:
    """What a row finds at the start of a step, in the long run.

    Attributes:
        committed: `[n]` int64, 0 … n − 1 records since the checkpoint.
        flush: `[n]` bool, whether a step that finds them folds them.
        probability: `[n]` fp64, share of the steps that find them.
        tokens: tokens accepted in a step, on average.
    """

    committed: Tensor
    flush: Tensor
    probability: Tensor
    tokens: float

    @property
    def flush_rate(self) -> float:
        """Share of the steps that flush."""
        return min(1.0, float(self.probability[self.flush].sum()))


def acceptance_law(draft: int, acceptance: float) -> Tensor:
    """Probability of 1 … T accepted tokens: `[T]` fp64.

    Args:
        draft: T, new tokens of a step; the first is always accepted.
        acceptance: probability that a draft is accepted when those before it were.

    Raises:
        InputError: a draft below 1 or an acceptance outside [0, 1].
    """
    if draft < 1:
        raise InputError(f"draft={draft} must be an integer of at least 1")
    if not 0.0 <= acceptance <= 1.0:
        raise InputError(f"acceptance={acceptance} must be from 0 to 1")
    reached = torch.tensor(acceptance, dtype=torch.float64) ** torch.arange(draft, dtype=torch.float64)
    rejected_next = torch.full((draft,), 1.0 - acceptance, dtype=torch.float64)
    rejected_next[-1] = 1.0
    return reached * rejected_next


@lru_cache(maxsize=1024)
def occupancy(window: int, draft: int, acceptance: float) -> Occupancy:
    """Stationary distribution of a row's committed records under flushes on overflow."""
    law = acceptance_law(draft, acceptance)
    states = max(window, draft) + 1
    committed = torch.arange(states)
    never = torch.zeros(states, dtype=torch.bool)
    flush = flush_rows(committed, torch.full_like(committed, draft), torch.full_like(committed, window), never)
    kept = torch.where(flush, 0, committed)
    moves = torch.zeros(states, states, dtype=torch.float64)
    for accepted, probability in enumerate(law.tolist(), start=1):
        # A step that does not flush ends at W at most, one that does at T: no row leaves the states.
        moves[committed, kept + accepted] += probability
    return Occupancy(
        committed, flush, _stationary(moves), float(law @ torch.arange(1.0, draft + 1, dtype=torch.float64))
    )


def steady_state(layout: StateLayout, draft: int = 1, acceptance: float = 0.8) -> Cadence:
    """Averages per row and step of a layout's steady state.

    Args:
        draft: T, new tokens of a step.
        acceptance: probability that a draft is accepted when those before it were.
    """
    found = occupancy(layout.window, draft, acceptance)
    lengths = torch.full_like(found.committed, draft)
    read, written = StateBytes.of(layout).step(found.committed, lengths, found.flush)
    mean = torch.stack((read, written)).double() @ found.probability
    return Cadence(found.tokens, found.flush_rate, *mean.tolist())


def _stationary(moves: Tensor) -> Tensor:
    # All flushes continue alike, so one class of states recurs and any one of the balance equations is redundant:
    # the last makes room for "the probabilities sum to 1".
    size = len(moves)
    equations = moves.T - torch.eye(size, dtype=torch.float64)
    equations[-1] = 1.0
    right = torch.zeros(size, dtype=torch.float64)
    right[-1] = 1.0
    probability: Tensor = torch.linalg.solve(equations, right).clamp(min=0.0)
    return probability / probability.sum()
