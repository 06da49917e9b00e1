"""CUDA graphs: what is captured with padding is replayed with real rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from replayssm.conformance.base import NOT_CLAIMED, Cases
from replayssm.conformance.inputs import FIELDS, Source
from replayssm.conformance.memory import bits, differing, snapshot
from replayssm.conformance.subject import StateOptions, SubjectState
from replayssm.inputs import TokenInputs
from replayssm.layout import StateLayout
from replayssm.precision import PRESETS, PrecisionPolicy
from replayssm.recurrence import LayerKind


class GraphCases(Cases):
    """Capture and replay of a step and its commit."""

    def test_graph_replay(self, layer: LayerKind, seed: int) -> None:
        """Captured with dummy rows, replayed with real rows that flush on their own device-side decision: eager's bits.

        With stochastic rounding where it is served: the seeds must advance under replay.
        """
        if not self.subject.capability.graph_capture:
            pytest.skip(f"{NOT_CLAIMED} graph capture")
        policy = PRESETS["fp16-sr"]
        precision = policy if self.serves(policy) else PrecisionPolicy()
        layout = self.layout(layer, precision=precision, activation=self.subject.capability.activations[0])
        source = Source(layout.recurrence, layout.activation, self.subject.device, seed=seed)
        eager, captured = self._make(layout, source, seed), self._make(layout, source, seed)
        step = _Captured(captured, source.tokens(3, layout.max_draft), self.subject.device)
        slots = torch.tensor([4, 0, 2], device=self.subject.device)
        prefill = source.states(3)
        for state in (eager, captured):
            state.load(slots, prefill)
        for i in range(12):
            inputs = source.tokens(3, layout.max_draft)
            accepted = torch.tensor([1, i % (layout.max_draft + 1), 0], device=self.subject.device)
            expected = eager.verify(inputs, slots)
            eager.commit(accepted)
            assert torch.equal(bits(step.replay(inputs, slots, accepted)), bits(expected))
        assert not differing(snapshot(eager, slots), snapshot(captured, slots))

    def _make(self, layout: StateLayout, source: Source, seed: int) -> SubjectState:
        return self.subject.make(layout, StateOptions(A=source.A, seed=seed, check_inputs=False))


class _Captured:
    """One step and commit as a graph over static tensors."""

    def __init__(self, state: SubjectState, example: TokenInputs, device: torch.device) -> None:
        self.inputs = replace(
            example, **{n: getattr(example, n).clone() for n in FIELDS if getattr(example, n) is not None}
        )
        self.slots = torch.full((example.batch,), -1, device=device)
        self.accepted = torch.zeros(example.batch, dtype=torch.int64, device=device)
        self.graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(2):
                state.verify(self.inputs, self.slots)
                state.commit(self.accepted)
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph):
            self.out = state.verify(self.inputs, self.slots)
            state.commit(self.accepted)

    def replay(self, inputs: TokenInputs, slots: torch.Tensor, accepted: torch.Tensor) -> torch.Tensor:
        """Run the graph on new values."""
        for name in FIELDS:
            if getattr(inputs, name) is not None:
                getattr(self.inputs, name).copy_(getattr(inputs, name))
        self.slots.copy_(slots)
        self.accepted.copy_(accepted)
        self.graph.replay()
        return self.out
