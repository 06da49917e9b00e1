"""Flush policies change when a state is written, and nothing else."""

from __future__ import annotations

from replayssm.conformance.base import Cases
from replayssm.conformance.driver import Driver, close
from replayssm.conformance.subject import Feature
from replayssm.recurrence import LayerKind
from replayssm.schedule import FlushPolicy

POLICIES = (
    FlushPolicy.staggered(),
    FlushPolicy.budgeted(1),
    FlushPolicy.budgeted(2, early=0.25),
    FlushPolicy.at_boundary(3),
    FlushPolicy(stagger=True, budget=1, boundary=4),
)


class SchedulingCases(Cases):
    """Every policy follows the same recurrence, and does what it is for."""

    def test_policies_change_no_result(self, layer: LayerKind, seed: int) -> None:
        """Outputs and states under each policy, with drafts and acceptance as usual."""
        self.claim(Feature.POLICIES)
        for policy in POLICIES:
            driver = self.drive(self.layout(layer), seed, policy=policy)
            driver.load([0, 1, 2, 4], position=7)
            for _ in range(10):
                driver.random_step([0, 1, 2, 4])
            driver.check()

    def test_stagger_spreads_the_first_flush(self, layer: LayerKind, seed: int) -> None:
        """Requests that start together do not all flush in one step; windows after the first are whole ones."""
        self.claim(Feature.POLICIES, Feature.MEMORY)
        counts = self._flushes(layer, FlushPolicy.staggered(), seed)
        together = self._flushes(layer, FlushPolicy.overflow(), seed)
        assert max(together) == 6
        assert max(counts) < 6

    def test_budget_bounds_early_flushes(self, layer: LayerKind, seed: int) -> None:
        """Fullest rows first, never more than the budget while windows have room."""
        self.claim(Feature.POLICIES, Feature.MEMORY)
        counts = self._flushes(layer, FlushPolicy.budgeted(1), seed)
        assert max(counts[:8]) == 1

    def test_boundary_leaves_the_block_end_in_the_checkpoint(self, layer: LayerKind, seed: int) -> None:
        """After the step that begins a block, the state without records is the state at the block's end."""
        self.claim(Feature.POLICIES, Feature.PREFIX_STATE)
        driver = self.drive(self.layout(layer, window=8), seed, policy=FlushPolicy.at_boundary(4))
        driver.load([1], position=2)
        for position in range(2, 12):
            at_start = driver.model.state(1)
            driver.step([1])
            if position % 4 == 0:
                actual = driver.state.state(driver.tensor([1]), driver.tensor([0]))[0]
                close(actual, at_start, driver.tolerance.state, f"state at token {position}")
            driver.commit(1)
        driver.check()

    def _flushes(self, layer: LayerKind, policy: FlushPolicy, seed: int) -> list[int]:
        """How many of six slots flushed in each step of more than two windows; they start together."""
        driver: Driver = self.drive(self.layout(layer, window=10, draft=1), seed, policy=policy)
        slots = [0, 1, 2, 3, 4, 5]
        driver.load(slots)
        counts = []
        for _ in range(24):
            before = driver.state.cursors.committed.clone()
            driver.step(slots)
            driver.commit(1)
            driver.check()
            counts.append(int((driver.state.cursors.committed <= before).sum()))
        return counts
