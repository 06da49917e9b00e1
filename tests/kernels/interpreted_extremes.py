"""The fused step where numbers or shapes are unusual, beside float64: python interpreted_extremes.py LAYER WHAT

lengths: rows of a batch with any number of new tokens, padding among them, a stochastically rounded state. strong: decays
in a draft that leave nothing, and small ones after them. overflow: corrections beyond fp16. queries: of another dtype than
keys.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import torch

from replayssm import LayerKind, PrecisionPolicy, Recurrence, ReplayState, StateLayout
from replayssm.conformance.core_subject import CoreSubject
from replayssm.conformance.driver import Driver
from replayssm.conformance.inputs import Source
from replayssm.kernels.tiles import Tiles, forced

CPU = torch.device("cpu")
# Products round to TF32 and back; sums of a few hundred terms.
BOUND = 2e-5


def geometry(kind: str) -> Recurrence:
    return Recurrence(LayerKind(kind), 2, 1 if kind == "gdn" else 2, 24, 32)


def pair(kind: str, activation: torch.dtype, draft: int) -> tuple[Source, list[ReplayState]]:
    """Inputs, and the same state in the triton and the naive backend."""
    layout = StateLayout(geometry(kind), 3, 6, draft, PrecisionPolicy(), activation)
    source = Source(layout.recurrence, activation, CPU, seed=0)
    states = [ReplayState(layout, A=source.A, backend=name) for name in ("triton", "naive")]
    start = source.states(2)
    for state in states:
        state.load([2, 0], start)
    return source, states


def apart(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((mine.double() - theirs.double()).norm() / theirs.double().norm())


def lengths(kind: str) -> None:
    precision = PrecisionPolicy("fp16", stochastic_rounding=True)
    layout = StateLayout(geometry(kind), 5, 6, 5, precision, torch.float32)
    driver = Driver(CoreSubject("triton", device=CPU), layout, seed=1, raw=True, model_device=CPU)
    driver.load([3, 0, 4])
    slots = [3, -1, 0, 4]
    for step in range(5):
        new = driver.source.integers(1, 5, (4,)).tolist()
        with forced(Tiles(16, shares=step % 2)):
            driver.step(slots, 5, new)
        driver.commit([int(driver.source.integers(1, count, ())) for count in new])
    driver.check()


def strong(kind: str) -> None:
    source, states = pair(kind, torch.float32, 4)
    for _ in range(3):
        tokens = source.tokens(2, 4)
        gate = torch.full_like(tokens.gate, 0.05 if kind == "mamba2" else -0.1)
        gate[:, :2] = 1e6 if kind == "mamba2" else -1e6
        tokens = replace(tokens, gate=gate)
        found = [state.verify(tokens, [2, 0]) for state in states]
        # Where Δ is so large, the first two outputs are nothing but it.
        assert apart(*(x[:, 2:] for x in found)) < BOUND
        tree = [state.verify(tokens, [2, 0], parents=[[-1, 0, 1, 1]] * 2) for state in states]
        assert apart(*(x[:, 2:] for x in tree)) < BOUND
        for state in states:
            state.commit_path([[0, 1, 3, -1], [0, 1, 2, -1]])


def overflow(kind: str) -> None:
    """Mamba-2's values are stored as they come; those of the delta rule are corrections, which grow with the state."""
    source, states = pair(kind, torch.float16, 3)
    start = source.states(2) * 6e4
    for state in states:
        state.load([2, 0], start)
    for _ in range(4):
        tokens = replace(source.tokens(2, 3), scale=1e-3)
        found = [state.verify(tokens, [2, 0]) for state in states]
        assert all(bool(torch.isfinite(x).all()) for x in found)
        for state in states:
            state.commit(3)
            assert bool(torch.isfinite(state.layer.buffers["value_ring"][[2, 0]]).all())


def queries(kind: str) -> None:
    source, states = pair(kind, torch.float16, 2)
    for _ in range(4):
        tokens = source.tokens(2, 2)
        found = [state.verify(replace(tokens, q=tokens.q.float() * 1.0001), [2, 0]) for state in states]
        # Outputs are fp16.
        assert apart(*found) < 2.0**-10
        for state in states:
            state.commit(2)


if __name__ == "__main__":
    torch.manual_seed(0)
    globals()[sys.argv[2]](sys.argv[1])
