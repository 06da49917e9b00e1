"""Plans: one step as data. A stale plan is refused, and so are inputs that are not the plan's own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from replayssm import FlushPolicy, InputError, LayerKind, Recurrence, ReplayState, StateLayout, StepError, TokenInputs

LAYOUT = StateLayout(Recurrence(LayerKind.GDN, 2, 1, 4, 16), 4, window=4, max_draft=3, activation=torch.float32)


def tokens(rows=2, draft=2):
    return TokenInputs(
        q=torch.randn(rows, draft, 1, 16),
        k=torch.randn(rows, draft, 1, 16),
        v=torch.randn(rows, draft, 2, 4),
        gate=-torch.rand(rows, draft, 2),
        beta=torch.rand(rows, draft, 2),
        qk_l2norm=True,
    )


@pytest.fixture
def state():
    made = ReplayState(LAYOUT)
    made.load([0, 1, 2], torch.randn(3, 2, 4, 16))
    return made


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.load([0], torch.zeros(1, 2, 4, 16)),
        lambda state: state.decode(tokens(1, 1), [2]),
        lambda state: state.copy(2, 3),
        lambda state: state.reset([1]),
    ],
)
def test_plan_from_before_a_change_is_refused(state, change):
    x = tokens()
    plan = state.plan(x, [0, 1])
    change(state)
    before = state.state()
    for call in (lambda: state.run(plan, x), lambda: state.settle(plan)):
        with pytest.raises(StepError, match="stale"):
            call()
    assert torch.equal(before, state.state())


def test_plan_settles_once(state):
    x = tokens()
    plan = state.plan(x, [0, 1])
    state.run(plan, x)
    state.settle(plan)
    with pytest.raises(StepError, match="stale"):
        state.settle(plan)


def test_plan_of_another_state_is_refused(state):
    x = tokens()
    with pytest.raises(StepError, match="another state"):
        ReplayState(LAYOUT).run(state.plan(x, [0, 1]), x)


def test_layers_that_share_cursors_check_their_own_inputs(state):
    second = ReplayState(LAYOUT, cursors=state.cursors)
    second.load([0, 1, 2], torch.randn(3, 2, 4, 16))
    x = tokens()
    plan = state.plan(x, [0, 1])
    wrong = {
        "NaN": replace(x, v=torch.full_like(x.v, torch.nan)),
        "rings of this layout hold": replace(x, k=x.k.bfloat16()),
        "the plan is of": tokens(3, 2),
        r"\(2, 1\); the plan is of \(2, 2\)": tokens(2, 1),
    }
    for message, inputs in wrong.items():
        with pytest.raises(InputError, match=message):
            second.run(plan, inputs)
    assert torch.isfinite(second.run(plan, x)).all()


def test_shared_cursors_keep_their_policy(state):
    with pytest.raises(InputError, match="differs from the shared cursors"):
        ReplayState(LAYOUT, cursors=state.cursors, flush=FlushPolicy.staggered())


def test_copy_leaves_pending_drafts_with_the_source(state):
    state.verify(tokens(1, 3), [2])
    state.verify(tokens(1, 1), [0])
    state.copy([2], [0])
    before = state.state([0])
    state.commit(1)
    assert torch.equal(before, state.state([0]))


def test_padded_rows_may_hold_any_length_and_parents(state):
    x = tokens()
    out = state.verify(x, [0, -1], lengths=[2, 0], parents=[[-1, 0], [9, 9]])
    assert torch.isfinite(out[0]).all()
    assert not out[1].any()


def test_buffers_may_not_share_an_address():
    buffers = LAYOUT.allocate()
    buffers["raw_value_ring"] = buffers["value_ring"]
    with pytest.raises(InputError, match="same address"):
        ReplayState(LAYOUT, buffers=buffers)
