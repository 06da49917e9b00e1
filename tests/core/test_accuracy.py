"""Thousands of steps against float64: the errors of folds must not add up.

Each run passes through many windows and draft lengths: every 256 steps the states move, by `state` and `load`, to a new
layout. The truth advances by accepted tokens only.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from replayssm import LayerKind, PrecisionPolicy, Recurrence, ReplayState, StateLayout, TokenInputs
from replayssm.conformance.inputs import Source
from replayssm.reference.recurrence import token_at, write

STEPS, SEGMENT, ROWS = 4096, 256, 3
BOUND = 1e-5


def recurrence_of(kind: LayerKind) -> Recurrence:
    return Recurrence(kind, heads=2, groups=1, value_dim=8, key_dim=16)


class Truth:
    """The ordinary recurrence in float64, row by row as far as tokens were accepted."""

    def __init__(self, recurrence: Recurrence, state: Tensor, A: Tensor | None) -> None:
        self.recurrence, self.state, self.A = recurrence, state.double(), A

    def advance(self, inputs: TokenInputs, accepted: Tensor) -> None:
        tokens = inputs.process(self.recurrence, torch.arange(inputs.batch), torch.float64)
        for t in range(int(accepted.max())):
            after, _ = write(self.recurrence, self.state, token_at(self.recurrence, tokens, t, self.A))
            self.state = torch.where((accepted > t)[:, None, None, None], after, self.state)


def acceptance(source: Source, draft: int) -> Tensor:
    """The first token nearly always, each further one with 0.6 if those before it were accepted."""
    hits = source.uniform(ROWS, draft) < torch.tensor([0.95] + [0.6] * (draft - 1))
    return hits.long().cumprod(-1).sum(-1)


def errors(state: Tensor, truth: Tensor) -> float:
    return float(((state.double() - truth).flatten(1).norm(dim=1) / truth.flatten(1).norm(dim=1)).max())


class Run:
    """The same inputs through one state for each precision policy, and through the truth.

    Every second segment brings raw gate projections: KDA's bounded gate, softplus gates, keys to normalise.
    """

    def __init__(self, kind: LayerKind, activation: torch.dtype, policies: list[PrecisionPolicy], seed: int) -> None:
        self.recurrence, self.activation, self.policies = recurrence_of(kind), activation, policies
        processed = Source(self.recurrence, activation, seed=seed)
        raw = Source(self.recurrence, activation, seed=seed + 1, raw=True)
        raw.A = processed.A
        self.sources = (processed, raw)
        start = processed.states(ROWS)
        self.truth = Truth(self.recurrence, start, processed.A)
        self.states = [start for _ in policies]
        self.worst = [0.0 for _ in policies]

    def segment(self, number: int, window: int, draft: int) -> None:
        source, slots = self.sources[number % 2], torch.tensor([2, 0, 3])
        replays = []
        for policy, state in zip(self.policies, self.states, strict=True):
            layout = StateLayout(self.recurrence, 4, window, draft, policy, self.activation)
            replays.append(ReplayState(layout, A=source.A, backend="torch", check_inputs=False))
            replays[-1].load(slots, state)
        for _ in range(SEGMENT):
            inputs, accepted = source.tokens(ROWS, draft), acceptance(source, draft)
            if inputs.raw is None:
                inputs = source.forgetting(inputs, 1 / 200, -80.0)
            for replay in replays:
                replay.verify(inputs, slots)
                replay.commit(accepted)
            self.truth.advance(inputs, accepted)
        self.states = [replay.state(slots) for replay in replays]
        ends = [errors(state, self.truth.state) for state in self.states]
        self.worst = [max(pair) for pair in zip(self.worst, ends, strict=True)]

    def all_segments(self, longest: int) -> list[float]:
        """Worst state error of each policy at the ends of segments; window and draft: extremes first, then random."""
        count, source = STEPS // SEGMENT, self.sources[0]
        windows = [1, 32, *source.integers(1, 32, (count - 2,)).tolist()]
        # Log-uniform: short drafts are the common ones, and long ones cost the most time here.
        lengths = source.uniform(count - 3, high=math.log(longest + 0.99)).exp().long().tolist()
        drafts = [longest, longest, 1, *lengths]
        for number, (window, draft) in enumerate(zip(windows, drafts, strict=True)):
            self.segment(number, window, draft)
        return self.worst


CASES = [
    # Every pair of layer, longest draft and activation.
    (LayerKind.MAMBA2, 1, torch.bfloat16),
    (LayerKind.MAMBA2, 16, torch.float32),
    (LayerKind.GDN, 1, torch.float32),
    (LayerKind.GDN, 16, torch.bfloat16),
    (LayerKind.KDA, 1, torch.float32),
    (LayerKind.KDA, 16, torch.bfloat16),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "longest", "activation"), CASES)
def test_state_error_over_4096_steps(kind, longest, activation, seed):
    """At most 1e-5; and with the exact fold an NVFP4 read copy adds nothing to it (goal: at most 1.05 times)."""
    dual = kind is not LayerKind.MAMBA2 and longest > 1 and activation is torch.bfloat16
    policies = [PrecisionPolicy(), PrecisionPolicy(read_copy="nvfp4")] if dual else [PrecisionPolicy()]
    worst = Run(kind, activation, policies, seed).all_segments(longest)
    assert worst[0] <= BOUND
    assert worst[-1] <= 1.05 * worst[0]
