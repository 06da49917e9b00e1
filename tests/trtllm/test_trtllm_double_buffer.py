"""TensorRT-LLM's published double-buffer rules as a model of their own, step for step against the core."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from replayssm import Recurrence, ReplayState, StateLayout, TokenInputs
from replayssm.conformance.driver import close
from replayssm.conformance.inputs import Source
from replayssm.conformance.tolerances import tolerance
from replayssm.precision import PrecisionPolicy
from replayssm.recurrence import LayerKind
from replayssm.reference.recurrence import run_recurrence

HEADS, GROUPS, V, K, SLOTS = 4, 2, 8, 16, 6


@dataclass
class Slot:
    """One slot: a state, two buffers of tokens, which of them is active, and how many records it holds."""

    state: torch.Tensor
    buffers: tuple
    active: int = 0
    records: int = 0


class DoubleBufferModel:
    """The rules, with Python lists for buffers and the ordinary recurrence in float64 for everything else."""

    def __init__(self, recurrence, width, A):
        self.recurrence, self.width, self.A = recurrence, width, A
        self.history = max(16, width)
        self.slots = {}

    def reset(self, slot, state):
        self.slots[slot] = Slot(state.double(), ([None] * self.history, [None] * self.history))

    def verify(self, slot, tokens):
        """Outputs `[T, H, V]` of T tokens; whether the state was written."""
        s = self.slots[slot]
        write = s.records + self.width > self.history
        past = s.buffers[s.active][: s.records]
        outs, _ = self._run(s.state, [*past, *tokens])
        if write:
            _, s.state = self._run(s.state, past)
            s.buffers[1 - s.active][: self.width] = tokens
        else:
            s.buffers[s.active][s.records : s.records + self.width] = tokens
        return outs[len(past) :], write

    def advance(self, slot, accepted):
        s = self.slots[slot]
        if s.records + self.width > self.history:
            s.records, s.active = accepted, 1 - s.active
        else:
            s.records += accepted

    def current(self, slot):
        s = self.slots[slot]
        return self._run(s.state, s.buffers[s.active][: s.records])[1]

    def _run(self, state, tokens):
        if not tokens:
            return torch.zeros(0, HEADS, V), state
        joined = {name: torch.cat([t.tensors()[name] for t in tokens], 1) for name in tokens[0].tensors()}
        inputs = TokenInputs(**joined, raw=tokens[0].raw, qk_l2norm=tokens[0].qk_l2norm, scale=tokens[0].scale)
        out, state = run_recurrence(self.recurrence, state[None], inputs, self.A)
        return out[0], state[0]


def one(inputs, row, token):
    parts = {name: x[row : row + 1, token : token + 1] for name, x in inputs.tensors().items()}
    return TokenInputs(**parts, raw=inputs.raw, qk_l2norm=inputs.qk_l2norm, scale=inputs.scale)


@pytest.mark.parametrize("kind", [LayerKind.MAMBA2, LayerKind.GDN])
@pytest.mark.parametrize("width", [1, 3, 4, 8, 20])
def test_the_published_rules_agree_with_the_core_step_for_step(kind, width, seed):
    recurrence = Recurrence(kind, HEADS, GROUPS, V, K)
    model = DoubleBufferModel(recurrence, width, None)
    layout = StateLayout(recurrence, SLOTS, model.history, width, PrecisionPolicy("fp64"), torch.float64)
    source = Source(recurrence, torch.float64, seed=seed)
    core = ReplayState(layout, A=source.A)
    model.A = source.A
    order = torch.randperm(SLOTS, generator=source.generator)
    live = order[:4]
    states = source.states(4)
    core.load(live, states)
    for slot, state in zip(live.tolist(), states, strict=True):
        model.reset(slot, state)
    writes = 0
    for step in range(50):
        rows = live[torch.randperm(4, generator=source.generator)[: 1 + step % 4]]
        inputs = source.tokens(len(rows), width)
        padded = torch.where(torch.rand(len(rows), generator=source.generator) < 0.15, -1, rows)
        plan = core.plan(inputs, padded)
        out = core.run(plan, inputs)
        core.settle(plan)
        accepted = torch.randint(1, width + 1, (len(rows),), generator=source.generator)
        core.commit(accepted)
        bound = tolerance(layout, torch.float64, step, 200.0)
        for row, slot in enumerate(padded.tolist()):
            if slot < 0:  # rows of padding keep records and buffer
                continue
            expected, wrote = model.verify(slot, [one(inputs, row, token) for token in range(width)])
            writes += wrote
            assert bool(plan.flush[row]) == wrote, f"step {step}, slot {slot}"
            close(out[row], expected, bound.output, f"outputs at step {step}", floor=1e-3)
            model.advance(slot, int(accepted[row]))
            assert int(core.cursors.committed[slot]) == model.slots[slot].records
        if step == 25:  # a slot is used anew
            slot = int(live[0])
            fresh = source.states(1)
            core.load([slot], fresh)
            model.reset(slot, fresh[0])
        for slot in live.tolist():
            close(core.state([slot])[0], model.current(slot), bound.state, f"state of slot {slot} at step {step}")
    assert writes


def test_padding_on_a_live_slot_is_the_hazard_that_the_rules_allow():
    """A row of padding that names a slot at the end of its history folds records that stay records: they count twice.

    The rules rely on reserved slots for padding. The core takes no such row at all.
    """
    recurrence = Recurrence.mamba2(heads=HEADS, head_dim=V, state_size=K, groups=GROUPS)
    source = Source(recurrence, torch.float64, seed=3)
    model = DoubleBufferModel(recurrence, 4, source.A)
    model.reset(0, source.states(1)[0])
    for _ in range(4):
        inputs = source.tokens(1, 4)
        model.verify(0, [one(inputs, 0, token) for token in range(4)])
        model.advance(0, 4)
    before = model.current(0).clone()
    inputs = source.tokens(1, 4)
    _, wrote = model.verify(0, [one(inputs, 0, token) for token in range(4)])
    assert wrote
    with pytest.raises(AssertionError, match="twice"):
        close(model.current(0), before, 1e-6, "records twice")
