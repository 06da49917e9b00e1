"""CUDA graphs: what is captured with padding is replayed with real rows."""

from __future__ import annotations

import pytest
import torch

from replayssm.capability import TREE
from replayssm.conformance.base import NOT_CLAIMED, Cases
from replayssm.conformance.cases_trees import step_random_trees
from replayssm.conformance.driver import Driver
from replayssm.conformance.graphs import Fixed, GraphSubject, record
from replayssm.conformance.inputs import Source, concatenate, mapped, overwrite
from replayssm.conformance.memory import bits, differing, snapshot
from replayssm.conformance.subject import Feature, StateOptions, SubjectState
from replayssm.inputs import TokenInputs
from replayssm.layout import StateLayout
from replayssm.precision import PRESETS, PrecisionPolicy
from replayssm.recurrence import LayerKind
from replayssm.schedule import FlushPolicy

POLICY = FlushPolicy(stagger=True, budget=1, boundary=4)


class GraphCases(Cases):
    """Capture and replay of steps, commits and calls on slots."""

    def test_graph_replay(self, layer: LayerKind, seed: int) -> None:
        """A step and its commit as one graph, captured with dummy rows, replayed with rows that flush: eager's bits.

        With stochastic rounding where it is served: the seeds must advance under replay.
        """
        self._claim_graphs()
        policy = PRESETS["fp16-sr"]
        precision = policy if self.serves(policy) else PrecisionPolicy()
        layout = self.layout(layer, precision=precision, activation=self.subject.capability.activations[0])
        for draft in {1, layout.max_draft}:
            source = Source(layout.recurrence, layout.activation, self.subject.device, seed=seed)
            eager, captured = self._make(layout, source, seed), self._make(layout, source, seed)
            step = _WholeStep(captured, source.tokens(3, draft), self.subject.device)
            slots = torch.tensor([4, 0, 2], device=self.subject.device)
            prefill = source.states(3)
            for state in (eager, captured):
                state.load(slots, prefill)
            for i in range(12):
                inputs = source.tokens(3, draft)
                accepted = torch.tensor([1, i % (draft + 1), 0], device=self.subject.device)
                expected = eager.verify(inputs, slots)
                eager.commit(accepted)
                assert torch.equal(bits(step.replay(inputs, slots, accepted)), bits(expected))
            assert not differing(snapshot(eager, slots), snapshot(captured, slots))

    def test_replayed_steps_follow_the_model(self, layer: LayerKind, seed: int) -> None:
        """Ragged, padded, drained, permuted and absent rows under every policy, random acceptance, poisoned rings."""
        driver = self._drive_graphs(self.layout(layer), seed, POLICY)
        driver.load([0, 1, 2, 4])
        for i in range(30):
            self._random_step(driver, 1 if i % 3 == 0 else driver.layout.max_draft)
        driver.check()

    def test_replayed_presets_follow_the_model(self, layer: LayerKind, preset: str, seed: int) -> None:
        """Every format that is served, rounding included."""
        layout = self.layout(layer, precision=PRESETS[preset], activation=self.subject.capability.activations[0])
        driver = self._drive_graphs(layout, seed)
        driver.load([0, 1, 2, 4])
        for _ in range(15):
            self._random_step(driver, layout.max_draft)
        driver.check()

    def test_replayed_trees_follow_the_model(self, layer: LayerKind, seed: int) -> None:
        """Another tree, and an accepted path of another depth, in each replay."""
        self._claim_graphs()
        self.claim_mode(TREE)
        driver = self._drive_graphs(self.layout(layer, draft=6, window=7), seed)
        slots = [3, 0, 2]
        driver.load(slots)
        for _ in range(12):
            step_random_trees(driver, slots)
        driver.check()

    def test_replayed_calls_on_slots(self, layer: LayerKind, seed: int) -> None:
        """Between replayed steps: slots loaded, reset, copied, flushed, prefixes materialised, all by replay."""
        self._claim_graphs()
        self.claim(Feature.COPY, Feature.MATERIALISE, Feature.FLUSH, Feature.RESET)
        driver = self._drive_graphs(self.layout(layer, window=6), seed)
        empty = torch.zeros(driver.layout.recurrence.state_shape)
        driver.load([0, 1, 2, 4])
        for i in range(12):
            self._random_step(driver, driver.layout.max_draft)
            source, target = driver.source.normal(5).argsort().tolist()[:2]
            source = source if source in driver.model.slots else 0
            if i % 4 == 0:
                driver.state.copy(driver.tensor([source]), driver.tensor([target]))
                driver.model.copy(source, target)
            elif i % 4 == 1:
                driver.state.flush(driver.tensor([source, target]))
                for slot in {source, target} & set(driver.model.slots):
                    driver.model.flush(slot)
            elif i % 4 == 2 and source != target:
                count = int(driver.source.integers(0, driver.model.slots[source].committed, ()))
                driver.state.materialise(*(driver.tensor([number]) for number in (source, target, count)))
                driver.model.materialise(source, target, count)
            elif i % 8 == 3:
                driver.state.reset(driver.tensor([target]))
                driver.model.load(target, empty)
            else:
                driver.load([target], position=i)
            driver.check()

    def test_padding_is_ignored_by_replayed_calls(self, layer: LayerKind, seed: int) -> None:
        """A call on slots that is captured for more of them than there are: the rest are −1 and change nothing."""
        self._claim_graphs()
        self.claim(Feature.COPY, Feature.MATERIALISE, Feature.FLUSH, Feature.RESET, Feature.MEMORY)
        driver = self._drive_graphs(self.layout(layer), seed)
        driver.load([0, 1, 2])
        for _ in range(4):
            driver.step([0, 1, 2])
            driver.commit(1)
        before = snapshot(driver.state)
        nothing, some = driver.tensor([-1, -1]), driver.tensor([0, 1])
        driver.state.flush(nothing)
        driver.state.copy(some, nothing)
        driver.state.materialise(some, nothing)
        driver.state.reset(nothing)
        driver.state.load(nothing, driver.source.states(2), 3)
        assert not differing(before, snapshot(driver.state))
        driver.step([-1, 1, -1, 0])
        driver.commit([0, 1, 0, 1])
        driver.check()

    def test_slot_twice_in_a_replay(self, layer: LayerKind, seed: int) -> None:
        """A live slot, due to flush, twice in a batch that no host looked at: folded once, committed once."""
        driver = self._drive_graphs(self.layout(layer, window=1, draft=1), seed)
        driver.load([2])
        driver.step([2])
        driver.commit(1)
        inputs = driver.source.tokens(1, 1)
        driver.state.verify(concatenate(inputs, inputs), driver.tensor([2, 2]))
        driver.state.commit(driver.tensor([1, 1]))
        driver.model.step(inputs, [2], [1], None, [False])
        driver.model.commit(2, [0])
        driver.check()

    def _claim_graphs(self) -> None:
        if not self.subject.capability.graph_capture:
            pytest.skip(f"{NOT_CLAIMED} graph capture")

    def _drive_graphs(self, layout: StateLayout, seed: int, policy: FlushPolicy | None = None) -> Driver:
        self._claim_graphs()
        policy = policy if Feature.POLICIES in self.subject.features else None
        return Driver(GraphSubject(self.subject), layout, policy=policy, seed=seed)

    def _random_step(self, driver: Driver, draft: int) -> None:
        """Some of the loaded slots in any order, in a batch of four that is filled up with padding."""
        source, features = driver.source, self.subject.features
        slots = sorted(driver.model.slots)
        slots = [slots[i] for i in source.normal(len(slots)).argsort().tolist()][:4]
        if Feature.PADDING in features:
            slots = [slot if source.uniform(1) < 0.8 else -1 for slot in slots]
            slots += [-1] * (4 - len(slots))
        ragged, drained = Feature.LENGTHS in features, Feature.DRAIN in features
        lengths = source.integers(1, draft, (len(slots),)).tolist() if ragged else [draft] * len(slots)
        drain = (source.uniform(len(slots)) < 0.2).tolist() if drained else None
        driver.step(slots, draft, lengths if ragged else None, drain=drain)
        driver.commit(
            [0 if slot < 0 else int(source.integers(0, n, ())) for slot, n in zip(slots, lengths, strict=True)]
        )

    def _make(self, layout: StateLayout, source: Source, seed: int) -> SubjectState:
        return self.subject.make(layout, StateOptions(A=source.A, seed=seed, check_inputs=False))


class _WholeStep:
    """One step and commit as a graph over fixed tensors."""

    def __init__(self, state: SubjectState, example: TokenInputs, device: torch.device) -> None:
        self.inputs = mapped(example, torch.Tensor.clone)
        like = torch.empty(example.batch, dtype=torch.int64, device=device)
        self.slots, self.accepted = Fixed(like, -1), Fixed(like, 0)

        def step() -> torch.Tensor:
            out = state.verify(self.inputs, self.slots.tensor)
            state.commit(self.accepted.tensor)
            return out

        self._replay = record(step, device)

    def replay(self, inputs: TokenInputs, slots: torch.Tensor, accepted: torch.Tensor) -> torch.Tensor:
        """Run the graph on new values."""
        overwrite(self.inputs, inputs)
        self.slots.set(slots)
        self.accepted.set(accepted)
        return self._replay()
