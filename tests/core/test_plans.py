"""Plans: one step as data. A stale plan is refused, and so are inputs that are not the plan's own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from replayssm import FlushPolicy, InputError, LayerKind, Recurrence, ReplayState, StateLayout, StepError, TokenInputs
from replayssm.conformance.inputs import select

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


def test_accepted_tree_path_in_every_layer(state):
    """Each further layer moves its records, then one commit; as if the path had been a chain in both."""
    layers = [state, ReplayState(LAYOUT, cursors=state.cursors)]
    layers[1].layer.buffers["checkpoint"].copy_(layers[0].layer.buffers["checkpoint"])
    tree, chains = tokens(2, 3), ReplayState(LAYOUT)
    chains.load([0, 1], state.state([0, 1]))
    plan = state.plan(tree, [0, 1], parents=[[-1, 0, 0], [-1, -1, 1]])
    for layer in layers:
        layer.run(plan, tree)
    state.settle(plan)
    layers[1].compact(plan, [[0, 2], [1, 2]])
    state.commit_path([[0, 2], [1, 2]])
    chains.verify(select(tree, torch.tensor([0, 1])), [0, 1])
    chains.commit(0)
    for row, path in ((0, [0, 2]), (1, [1, 2])):
        chains.verify(select(tree, slice(row, row + 1), torch.tensor(path)), [row])
        chains.commit(2)
    for layer in layers:
        torch.testing.assert_close(layer.state([0, 1]), chains.state([0, 1]), rtol=1e-5, atol=1e-5)


def test_commit_of_an_older_plan(state):
    """Two steps on different slots, committed in the other order."""
    first = state.plan(tokens(1, 2), [0])
    state.settle(first)
    second = state.plan(tokens(1, 3), [1])
    state.settle(second)
    state.commit([3], second)
    state.commit([1], first)
    assert state.cursors.committed.tolist() == [1, 3, 0, 0]


def test_commit_refuses_a_plan_of_other_cursors(state):
    other = ReplayState(LAYOUT)
    plan = other.plan(tokens(1, 2), [0])
    other.settle(plan)
    tree = other.plan(tokens(1, 2), [0], parents=[[-1, -1]])
    state.verify(tokens(1, 2), [0])
    for call in (
        lambda: state.commit(2, plan),
        lambda: state.compact(tree, [[1]]),
        lambda: state.commit_path([[1]], tree),
    ):
        with pytest.raises(StepError, match="another state"):
            call()
    assert state.cursors.committed.tolist() == [0, 0, 0, 0]


def test_commit_reads_a_plan_as_it_stands(state):
    """The replay of a graph rewrites the plan that was captured; a commit after it is of the rows of that replay."""
    plan = state.plan(tokens(2, 3), [0, -1], lengths=[1, 1])
    state.settle(plan)
    state.commit(1, plan)
    plan.slots.copy_(torch.tensor([0, 1]))
    plan.lengths.copy_(torch.tensor([2, 3]))
    plan.committed.copy_(torch.tensor([1, 0]))
    state.cursors.settle(plan)
    with pytest.raises(InputError, match=r"accepted=\[2, 4\]"):
        state.commit([2, 4], plan)
    state.commit([2, 3], plan)
    assert state.cursors.committed.tolist() == [3, 3, 0, 0]


def test_the_flush_policy_is_that_of_the_cursors():
    first = ReplayState(LAYOUT, flush=FlushPolicy.staggered())
    assert ReplayState(LAYOUT, cursors=first.cursors).flush_policy == FlushPolicy.staggered()
    assert first.select([1]).flush_policy == FlushPolicy.staggered()


def test_plan_keeps_padding_in_the_batch(state):
    plan = state.plan(tokens(3, 2), [-1, 2, -1], lengths=[9, 1, 0])
    assert (plan.rows.tolist(), plan.slots.tolist(), plan.lengths.tolist()) == ([0, 1, 2], [-1, 2, -1], [0, 1, 0])
    assert (plan.compacted.rows.tolist(), plan.compacted.slots.tolist()) == ([1], [2])
    assert plan.compacted.compacted is plan.compacted


def test_materialise_refuses_targets_that_another_row_reads(state):
    before = state.state()
    with pytest.raises(InputError, match="no target may be another row's source"):
        state.materialise([0, 1], [1, 3])
    assert torch.equal(before, state.state())
    state.materialise([0, 1], [0, 3])


def test_selected_slots_live_on_as_they_were(state):
    """Rows of a beam, some twice, in a state of their own; drafts that await acceptance stay behind."""
    state.verify(tokens(2, 3), [2, 0])
    state.commit([2, 3])
    state.verify(tokens(1, 1), [2])
    chosen = state.select([0, 2, 0])
    state.commit(0)
    assert chosen.cursors.pending.tolist() == [0, 0, 0]
    assert torch.equal(chosen.state(), state.state([0, 2])[[0, 1, 0]])
    x = tokens(2, 1)
    assert torch.equal(chosen.decode(select(x, torch.tensor([0, 1, 0])), [0, 1, 2]), state.decode(x, [0, 2])[[0, 1, 0]])
    shared = state.select([0, 2, 0], cursors=chosen.cursors)
    assert shared.cursors is chosen.cursors
    with pytest.raises(InputError, match="slots="):
        state.select([4])


def test_buffers_may_not_share_an_address():
    buffers = LAYOUT.allocate()
    buffers["raw_value_ring"] = buffers["value_ring"]
    with pytest.raises(InputError, match="same address"):
        ReplayState(LAYOUT, buffers=buffers)
