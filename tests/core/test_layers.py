"""The layers of a model as one object: what it does to slots is what each layer alone would do."""

from __future__ import annotations

import pytest
import torch

from replayssm import InputError, LayerKind, PrecisionPolicy, Recurrence, ReplayState, StateLayout, TokenInputs
from replayssm.layers import ReplayLayers

LAYERS = 3


def layout(preset="exact", draft=3):
    recurrence = Recurrence(LayerKind.GDN, 2, 1, 4, 16)
    return StateLayout(
        recurrence, 5, window=4, max_draft=draft, precision=PrecisionPolicy.preset(preset), activation=torch.float32
    )


def tokens(rows, draft):
    return TokenInputs(
        q=torch.randn(rows, draft, 1, 16),
        k=torch.randn(rows, draft, 1, 16),
        v=torch.randn(rows, draft, 2, 4),
        gate=-torch.rand(rows, draft, 2),
        beta=torch.rand(rows, draft, 2),
        qk_l2norm=True,
    )


def model(preset="exact"):
    """A model whose layers share cursors, and the same layers each with its own."""
    shape = layout(preset)
    first = ReplayState(shape)
    shared = ReplayLayers([first, *(ReplayState(shape, cursors=first.cursors) for _ in range(LAYERS - 1))])
    alone = [ReplayState(shape) for _ in range(LAYERS)]
    states = torch.randn(LAYERS, 5, 2, 4, 16)
    for one, other, state in zip(shared, alone, states, strict=True):
        one.load(torch.arange(5), state)
        other.load(torch.arange(5), state)
    return shared, alone


def step(shared, alone, slots, draft=2, parents=None):
    inputs = [tokens(len(slots), draft) for _ in alone]
    plan = shared.first.plan(inputs[0], slots, parents=parents)
    for layer, x in zip(shared, inputs, strict=True):
        layer.run(plan, x)
    shared.first.settle(plan)
    for layer, x in zip(alone, inputs, strict=True):
        layer.verify(x, slots, parents=parents)


def same(shared, alone):
    for one, other in zip(shared, alone, strict=True):
        torch.testing.assert_close(one.state(), other.state(), rtol=0, atol=0)


def test_commit_is_of_the_slots_last_step_and_ignores_padding():
    shared, alone = model()
    step(shared, alone, torch.tensor([1, 3]))
    accepted = torch.tensor([2, 1])
    for layer in alone:
        layer.commit(accepted)
    shared.commit(torch.tensor([1, -1, 3]), torch.tensor([2, 2, 1]))
    same(shared, alone)
    shared.commit(torch.tensor([1, 3]), torch.tensor([2, 2]))
    same(shared, alone)


def test_commit_path_needs_no_plan():
    shared, alone = model()
    for _ in range(3):
        step(shared, alone, torch.tensor([0, 2]), draft=3, parents=torch.tensor([[-1, 0, 0], [-1, 0, 1]]))
        path = torch.tensor([[0, 2, -1], [0, 1, 2]])
        for layer in alone:
            layer.commit_path(path)
        shared.commit_path(torch.tensor([0, 2]), path)
        same(shared, alone)


def test_flush_folds_every_layer_and_moves_the_cursors_once():
    shared, alone = model()
    step(shared, alone, torch.tensor([0, 1]))
    shared.commit(torch.tensor([0, 1]), torch.tensor([2, 2]))
    for layer in alone:
        layer.commit(2)
        layer.flush([0])
    shared.flush(torch.tensor([0, -1]))
    assert shared.cursors.committed.tolist() == alone[0].cursors.committed.tolist() == [0, 2, 0, 0, 0]
    same(shared, alone)
    for one, other in zip(shared, alone, strict=True):
        assert torch.equal(one.layer.buffers["checkpoint"], other.layer.buffers["checkpoint"])


def test_materialise_leaves_padding_out():
    shared, alone = model()
    step(shared, alone, torch.tensor([0, 1]))
    shared.commit(torch.tensor([0, 1]), torch.tensor([2, 1]))
    for layer in alone:
        layer.commit([2, 1])
        layer.materialise([0], [4], 1)
    shared.materialise(torch.tensor([0, 1]), torch.tensor([4, -1]), torch.tensor([1, 0]))
    same(shared, alone)


@pytest.mark.parametrize("preset", ["exact", "dual-nvfp4"])
def test_adopt_takes_over_what_the_engine_wrote(preset):
    shared, alone = model(preset)
    step(shared, alone, torch.tensor([0, 1]))
    shared.commit(torch.tensor([0, 1]), torch.tensor([2, 2]))
    written = torch.randn(2, 4, 16)
    for one, other in zip(shared, alone, strict=True):
        one.layer.buffers["checkpoint"][1] = written
        other.load([1], written[None], 7)
    shared.adopt(torch.tensor([1, -1]), torch.tensor([7, 0]))
    assert shared.cursors.position[1] == 7
    for one, other in zip(shared, alone, strict=True):
        for name in (spec.name for spec in one.layout.buffers if not spec.name.endswith("_ring")):
            assert torch.equal(one.layer.buffers[name][1], other.layer.buffers[name][1]), name
        torch.testing.assert_close(one.state([1]), other.state([1]), rtol=0, atol=0)


def test_layers_that_do_not_share_cursors_are_refused():
    with pytest.raises(InputError, match="share cursors"):
        ReplayLayers([ReplayState(layout()), ReplayState(layout())])
    with pytest.raises(InputError, match="no recurrent layer"):
        ReplayLayers([])
