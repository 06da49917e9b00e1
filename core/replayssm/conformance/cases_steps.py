"""The step protocol: lengths, acceptance, commits, wrap-around."""

from __future__ import annotations

import torch

from replayssm.capability import DRAFT
from replayssm.conformance.base import Cases
from replayssm.conformance.driver import Driver
from replayssm.conformance.memory import differing, snapshot
from replayssm.conformance.subject import Feature
from replayssm.recurrence import LayerKind


class StepCases(Cases):
    """Steps and commits of rows that all take part."""

    def test_random_steps(self, layer: LayerKind, activation: torch.dtype, seed: int) -> None:
        """Random lengths and acceptance, another in each row, over several windows."""
        driver = self.drive(self.layout(layer, activation=activation), seed)
        driver.load([4, 1, 3])
        for _ in range(15):
            driver.random_step([4, 1, 3])
        driver.check()

    def test_standard_decode_wraps_around(self, layer: LayerKind, seed: int) -> None:
        """One token a step through three whole rings."""
        layout = self.layout(layer, window=3, draft=1)
        driver = self.drive(layout, seed)
        driver.load([2, 0])
        for _ in range(3 * layout.rows + 1):
            driver.step([2, 0])
            driver.commit(1)
        driver.check()

    def test_every_window(self, layer: LayerKind, seed: int) -> None:
        """W = 1 folds at every step; others are no power of two; one holds the whole run."""
        for window in (1, 2, 7, 40):
            driver = self.drive(self.layout(layer, window=window), seed)
            driver.load([0, 5])
            for _ in range(12):
                driver.random_step([0, 5])
            driver.check()

    def test_strong_decays(self, layer: LayerKind, activation: torch.dtype, seed: int) -> None:
        """Log decays of −2000 among slow ones, several in a window: e^{+2000} must appear nowhere."""
        driver = self.drive(self.layout(layer, window=8, activation=activation), seed)
        driver.decay_sum = 2000.0 * driver.layout.rows
        driver.load([0, 2])
        for _ in range(12):
            inputs = driver.source.tokens(2, driver.layout.max_draft)
            driver.step([0, 2], inputs=driver.source.forgetting(inputs, 0.4, -2000.0))
            driver.commit([1, driver.layout.max_draft])
        driver.check()

    def test_raw_gates(self, layer: LayerKind, seed: int) -> None:
        """Raw projections, gate parameters and keys to normalise."""
        self.claim(Feature.RAW_GATES)
        driver = self.drive(self.layout(layer), seed, raw=True)
        driver.load([0, 2])
        for _ in range(10):
            driver.random_step([0, 2])
        driver.check()

    def test_skip_weight_and_output_gate(self, seed: int) -> None:
        """Mamba-2's D and z are applied to outputs and never reach the state."""
        self.claim(Feature.SKIP_AND_GATE)
        self.claim_layer(LayerKind.MAMBA2)
        driver = Driver(self.subject, self.layout(LayerKind.MAMBA2), seed=seed, extras=True)
        driver.load([0, 2])
        for _ in range(10):
            driver.random_step([0, 2])
        driver.check()

    def test_skip_weight_in_any_memory(self, seed: int) -> None:
        """D expanded over V, and of each row of V in memory that is not contiguous."""
        self.claim(Feature.SKIP_BY_ROW)
        self.claim_layer(LayerKind.MAMBA2)
        layout = self.layout(LayerKind.MAMBA2)
        for expanded in (True, False):
            driver = Driver(self.subject, layout, seed=seed, extras=True)
            rows = driver.source.normal(layout.recurrence.value_dim, layout.recurrence.heads).to(self.subject.device).T
            driver.source.D = rows[:, :1].expand_as(rows) if expanded else rows
            driver.load([0, 2])
            for _ in range(4):
                driver.random_step([0, 2])
            driver.check()

    def test_acceptance_at_both_ends(self, layer: LayerKind, seed: int) -> None:
        """Nothing accepted, only the first (the bonus token), all but one, all: in one batch, and in turn in each row."""
        self.claim_mode(DRAFT)
        driver = self.drive(self.layout(layer, draft=4), seed)
        slots, counts = [5, 0, 3, 2], [0, 1, 3, 4]
        driver.load(slots)
        for _ in range(8):
            driver.step(slots, 4)
            driver.commit(counts)
            driver.check()
            counts = counts[1:] + counts[:1]

    def test_skipped_commit_is_a_rejection(self, layer: LayerKind, seed: int) -> None:
        """A step without commit never happened, whether or not it flushed."""
        driver = self.drive(self.layout(layer), seed)
        driver.load([1, 2])
        for i in range(14):
            driver.step([1, 2], driver.layout.max_draft)
            if i % 2:
                driver.commit(1)
                driver.check()

    def test_repeated_commit_changes_nothing(self, layer: LayerKind, seed: int) -> None:
        """An engine may commit a step twice."""
        driver = self.drive(self.layout(layer), seed)
        driver.load([1, 2])
        for _ in range(9):
            driver.step([1, 2], driver.layout.max_draft)
            driver.commit(1)
            if driver.visible:
                before = snapshot(driver.state)
                driver.state.commit(driver.tensor([1, 1]))
                assert not differing(before, snapshot(driver.state))
            else:
                driver.state.commit(driver.tensor([1, 1]))
        driver.check()

    def test_rows_and_steps_without_drafts(self, layer: LayerKind, seed: int) -> None:
        """In speculative mode, rows without drafts beside rows with drafts, and whole steps without."""
        self.claim_mode(DRAFT)
        self.claim(Feature.LENGTHS)
        driver = self.drive(self.layout(layer, draft=4), seed)
        driver.load([0, 1, 4])
        for lengths in ([4, 1, 2], [1, 1, 1], [1, 4, 1], [3, 1, 1]) * 3:
            driver.step([0, 1, 4], max(lengths), lengths)
            driver.commit([int(driver.source.integers(0, n, ())) for n in lengths])
        driver.check()

    def test_long_drafts_poorly_accepted(self, layer: LayerKind, seed: int) -> None:
        """T = 16 with one token accepted each step: a window as long as the draft, and one that is shorter."""
        self.claim_mode(DRAFT)
        for window in (16, 4):
            driver = self.drive(self.layout(layer, window=window, draft=16), seed)
            driver.load([0, 1])
            for accepted in [1] * 8 + [16, 0, 16, 1]:
                driver.step([0, 1], 16)
                driver.commit(accepted)
            driver.check()

    def test_repeated_launch_is_deterministic(self, layer: LayerKind, seed: int) -> None:
        """The same step from the same bits gives the same bits, on flush and non-flush steps."""
        rows = max(self.subject.batches)
        layout = self.layout(layer, slots=rows + 1)
        slots = list(range(rows))
        first, second = self.drive(layout, seed), self.drive(layout, seed)
        for driver in (first, second):
            driver.load(slots)
        for _ in range(3):
            outputs = []
            for driver in (first, second):
                inputs = driver.source.tokens(rows, layout.max_draft)
                outputs.append(driver.state.verify(inputs, driver.tensor(slots)))
                driver.state.commit(driver.tensor([i % (layout.max_draft + 1) for i in slots]))
            assert torch.equal(*outputs)
            assert not differing(first.evidence(slots), second.evidence(slots))
