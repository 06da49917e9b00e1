"""A Hypothesis state machine over schedule and protocol: any order of calls, judged by the simple model."""

from __future__ import annotations

from typing import ClassVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from replayssm.capability import DRAFT
from replayssm.conformance.base import Cases
from replayssm.conformance.cases_trees import path_to
from replayssm.conformance.driver import Driver
from replayssm.conformance.subject import Feature
from replayssm.precision import PRESETS
from replayssm.schedule import FlushPolicy

SLOTS = 4
EXAMPLES, STEPS = 60, 30
SETTINGS = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    # A failing run is a list of calls on seeded tensors already; explaining it takes longer than reading it.
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
)


class MachineCases(Cases):
    """Sequences of calls that nobody thought of."""

    def test_any_sequence_of_calls(self) -> None:
        """Load, step, commit once, twice or never, flush, copy and materialise, under random policies and windows."""
        self.claim(*FEATURES)

        class Machine(ProtocolMachine):
            cases = self

        run_state_machine_as_test(Machine, settings=SETTINGS)


FEATURES = (Feature.LENGTHS, Feature.COPY, Feature.MATERIALISE, Feature.FLUSH, Feature.DRAIN, Feature.POLICIES)
POLICY = st.builds(
    FlushPolicy,
    stagger=st.booleans(),
    budget=st.none() | st.integers(1, 3),
    early=st.sampled_from([0.25, 0.5, 1.0]),
    boundary=st.none() | st.integers(1, 6),
)


class ProtocolMachine(RuleBasedStateMachine):
    """Rules are the calls of the protocol; a step stays open until it is committed, or is left without commit."""

    cases: ClassVar[Cases]
    driver: Driver

    def __init__(self) -> None:
        super().__init__()
        self.open: list[list[int]] | None = None
        self.is_tree = False

    @initialize(data=st.data(), policy=POLICY, window=st.integers(1, 9), seed=st.integers(0, 2**31 - 1))
    def begin(self, data: st.DataObject, policy: FlushPolicy, window: int, seed: int) -> None:
        """Choose a layer, a preset, W and T."""
        cases = self.cases
        layer = data.draw(st.sampled_from(cases.subject.capability.layers))
        names = [name for name, preset in PRESETS.items() if cases.serves(preset)]
        preset = data.draw(st.sampled_from(["finest", *names]))
        draft = data.draw(st.integers(1, 6)) if DRAFT in cases.subject.capability.modes else 1
        precision = None if preset == "finest" else PRESETS[preset]
        layout = cases.layout(layer, slots=SLOTS, window=window, draft=draft, precision=precision)
        self.driver = cases.drive(layout, seed, policy=policy)
        self.driver.load([0, 1, 2], position=seed % 5)

    @rule(slot=st.integers(0, SLOTS - 1), position=st.integers(0, 20))
    def load(self, slot: int, position: int) -> None:
        """A prefill ends, perhaps in a slot whose step is still open."""
        self.driver.load([slot], position)

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """New tokens for some of the loaded slots, in any order, padded anywhere; an open step is thereby rejected."""
        loaded = sorted(self.driver.model.slots)
        slots = data.draw(st.lists(st.sampled_from(loaded), min_size=1, unique=True))
        if Feature.PADDING in self.cases.subject.features:
            slots.insert(data.draw(st.integers(0, len(slots))), -1)
        draft = data.draw(st.integers(1, self.driver.layout.max_draft))
        lengths = data.draw(st.lists(st.integers(1, draft), min_size=len(slots), max_size=len(slots)))
        drain = data.draw(st.lists(st.sampled_from([False, False, True]), min_size=len(slots), max_size=len(slots)))
        trees = None
        if self.cases.serves_trees and data.draw(st.booleans()):
            trees = [[data.draw(st.integers(-1, t - 1)) for t in range(draft)] for _ in slots]
        self.driver.step(slots, draft, lengths, trees, drain)
        chain = list(range(-1, draft - 1))
        ends = [data.draw(st.integers(-1, n - 1)) for n in lengths]
        parents = trees or [chain] * len(slots)
        self.is_tree = trees is not None
        self.open = [
            [] if slot < 0 else path_to(tree, end) for slot, tree, end in zip(slots, parents, ends, strict=True)
        ]

    @precondition(lambda self: self.open is not None)
    @rule(twice=st.booleans())
    def commit(self, twice: bool) -> None:
        """Accept a path of each row; slots that were written meanwhile have nothing to accept."""
        assert self.open is not None
        slots = self.driver.slots
        paths = [
            path if slot >= 0 and self.driver.model.slots[slot].pending else []
            for slot, path in zip(slots, self.open, strict=True)
        ]
        for _ in range(2 if twice else 1):
            self._commit_subject()
        self.driver.settle(paths)
        self.open = None

    @rule(slot=st.integers(0, SLOTS - 1))
    def flush(self, slot: int) -> None:
        """Drain a slot between steps."""
        if slot in self.driver.model.slots:
            self.driver.state.flush(self.driver.tensor([slot]))
            self.driver.model.flush(slot)

    @rule(source=st.integers(0, SLOTS - 1), destination=st.integers(0, SLOTS - 1))
    def copy(self, source: int, destination: int) -> None:
        """Clone a slot that no step has open."""
        if source in self.driver.model.slots and not self._is_open(source, destination):
            self.driver.state.copy(self.driver.tensor([source]), self.driver.tensor([destination]))
            self.driver.model.copy(source, destination)

    @rule(data=st.data(), source=st.integers(0, SLOTS - 1), destination=st.integers(0, SLOTS - 1))
    def materialise(self, data: st.DataObject, source: int, destination: int) -> None:
        """Publish a prefix of the committed records."""
        if source in self.driver.model.slots:
            count = data.draw(st.integers(0, self.driver.model.slots[source].committed))
            numbers = (self.driver.tensor([number]) for number in (source, destination, count))
            self.driver.state.materialise(*numbers)
            self.driver.model.materialise(source, destination, count)

    @invariant()
    def states_agree(self) -> None:
        """After every call."""
        self.driver.check()

    def _commit_subject(self) -> None:
        assert self.open is not None
        if self.is_tree:
            depth = max(1, *map(len, self.open))
            padded = [path + [-1] * (depth - len(path)) for path in self.open]
            self.driver.state.commit_path(self.driver.tensor(padded))
        else:
            self.driver.state.commit(self.driver.tensor([len(path) for path in self.open]))

    def _is_open(self, *slots: int) -> bool:
        return self.open is not None and any(slot in self.driver.slots for slot in slots)
