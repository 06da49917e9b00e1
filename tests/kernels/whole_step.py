"""A model's step in one CUDA graph: two layers that share cursors, plan, run, settle and commit; against the same eagerly.

On a device without graphs (Triton's interpreter) a replay is the call itself: python whole_step.py LAYER
"""

from __future__ import annotations

import sys

import torch

from replayssm import FlushPolicy, LayerKind, PrecisionPolicy, Recurrence, ReplayState, StateLayout
from replayssm.conformance.graphs import record
from replayssm.conformance.inputs import Source, mapped, overwrite
from replayssm.conformance.memory import bits

SLOTS, DRAFT = 6, 3
POLICY = FlushPolicy(stagger=True, budget=1)


class Model:
    """Two layers, without anything between them."""

    def __init__(self, kind: LayerKind, device: torch.device) -> None:
        activation = torch.bfloat16 if device.type == "cuda" else torch.float32
        precision = PrecisionPolicy("fp16", stochastic_rounding=True)
        layout = StateLayout(Recurrence(kind, 4, 2, 16, 16), SLOTS, 6, DRAFT, precision, activation)
        self.sources = [Source(layout.recurrence, activation, device, seed=i) for i in range(2)]
        options = {"backend": "triton", "device": device, "check_inputs": False}
        first = ReplayState(layout, A=self.sources[0].A, flush=POLICY, **options)
        self.layers = [first, ReplayState(layout, A=self.sources[1].A, cursors=first.cursors, **options)]
        slots = torch.arange(SLOTS, device=device)
        for layer, source in zip(self.layers, self.sources, strict=True):
            layer.load(slots, source.states(SLOTS))

    def verify(self, inputs, slots, lengths, outs=(None, None)):
        plan = self.layers[0].plan(inputs[0], slots, lengths=lengths)
        outs = [layer.run(plan, x, out) for layer, x, out in zip(self.layers, inputs, outs, strict=True)]
        self.layers[0].settle(plan)
        return plan, outs

    def same_as(self, other: Model) -> None:
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            assert torch.equal(bits(mine.state()), bits(theirs.state()))
            for name in mine.cursors.NAMES:
                assert torch.equal(getattr(mine.cursors, name), getattr(theirs.cursors, name)), name


class Captured:
    """The step of a batch size as a graph, with or without its commit."""

    def __init__(self, model: Model, batch: int, commits: bool) -> None:
        self.model = model
        device = model.layers[0].device
        self.inputs = [mapped(source.tokens(batch, DRAFT), torch.Tensor.clone) for source in model.sources]
        self.slots = torch.full((batch,), -1, dtype=torch.int32, device=device)
        self.lengths, self.accepted = torch.ones_like(self.slots), torch.zeros_like(self.slots)
        wanted = [torch.empty_like(x.v, memory_format=torch.contiguous_format) for x in self.inputs]

        def step():
            plan, outs = model.verify(self.inputs, self.slots, self.lengths, wanted)
            if commits:
                model.layers[0].commit(self.accepted, plan)
            return plan, outs

        self._replay = record(step, device)

    def replay(self, inputs, slots, lengths, accepted):
        for fixed, given in zip(self.inputs, inputs, strict=True):
            overwrite(fixed, given)
        for fixed, given in ((self.slots, slots), (self.lengths, lengths), (self.accepted, accepted)):
            fixed.copy_(given)
        return self._replay()


def random_rows(model: Model, batch: int) -> tuple:
    """Inputs, permuted slots with padding, lengths and acceptance."""
    device, source = model.layers[0].device, model.sources[0]
    slots = source.normal(SLOTS).argsort()[:batch]
    slots = torch.where(source.uniform(batch) < 0.2, -1, slots)
    lengths = source.integers(1, DRAFT, (batch,))
    accepted = (source.uniform(batch) * (lengths + 1)).long()
    inputs = [source.tokens(batch, DRAFT) for source in model.sources]
    return inputs, *(x.to(device) for x in (slots, lengths, accepted))


def commit_inside(kind: LayerKind, device: torch.device, steps: int) -> None:
    """One graph for all of a step."""
    captured, eager = Model(kind, device), Model(kind, device)
    graph = Captured(captured, 4, commits=True)
    for _ in range(steps):
        inputs, slots, lengths, accepted = random_rows(captured, 4)
        _, outs = graph.replay(inputs, slots, lengths, accepted)
        plan, expected = eager.verify(inputs, slots, lengths)
        eager.layers[0].commit(accepted, plan)
        assert all(torch.equal(bits(x), bits(y)) for x, y in zip(outs, expected, strict=True))
    captured.same_as(eager)


def commit_outside(kind: LayerKind, device: torch.device, steps: int) -> None:
    """Graphs of two batch sizes in turn; acceptance comes later, eagerly, with the plan of the graph that ran."""
    captured, eager = Model(kind, device), Model(kind, device)
    graphs = {batch: Captured(captured, batch, commits=False) for batch in (2, 4)}
    for i in range(steps):
        batch = 4 if i % 3 else 2
        inputs, slots, lengths, accepted = random_rows(captured, batch)
        replayed, _ = graphs[batch].replay(inputs, slots, lengths, accepted)
        captured.layers[0].commit(accepted, replayed)
        plan, _ = eager.verify(inputs, slots, lengths)
        eager.layers[0].commit(accepted, plan)
    captured.same_as(eager)


if __name__ == "__main__":
    for check in (commit_inside, commit_outside):
        check(LayerKind(sys.argv[1]), torch.device("cpu"), steps=4)
