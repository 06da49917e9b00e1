"""Batches: sizes, groups, permutation, padding, mixed phases."""

from __future__ import annotations

from replayssm.conformance.base import Cases
from replayssm.conformance.inputs import concatenate, poison, select
from replayssm.conformance.memory import differing, snapshot, spoil_slots
from replayssm.conformance.subject import Feature
from replayssm.errors import ReplaySSMError
from replayssm.recurrence import LayerKind


class BatchCases(Cases):
    """Many rows in one step, each on its own."""

    def test_batch_sweep(self, layer: LayerKind, seed: int) -> None:
        """Every row its own values at any batch size, with the most groups (scratch of one row must not reach the next)."""
        for batch in self.subject.batches:
            layout = self.layout(layer, slots=batch + 1, window=2, draft=2 if self.longest_draft > 1 else 1, groups=4)
            driver = self.drive(layout, seed + batch)
            slots = list(range(batch, 0, -1))
            driver.load(slots)
            for _ in range(2):
                driver.random_step(slots, layout.max_draft)
            driver.check()

    def test_groups_from_one_to_all_heads(self, layer: LayerKind, seed: int) -> None:
        """G = 1 … H, wherever G divides H."""
        heads = self.subject.dims.heads
        for groups in (g for g in range(1, heads + 1) if heads % g == 0):
            driver = self.drive(self.layout(layer, groups=groups), seed)
            driver.load([0, 1, 2])
            for _ in range(6):
                driver.random_step([0, 1, 2])
            driver.check()

    def test_slots_in_any_order(self, layer: LayerKind, seed: int) -> None:
        """Slots permuted anew for every step."""
        driver = self.drive(self.layout(layer), seed)
        slots = [0, 1, 2, 3, 4, 5]
        driver.load(slots)
        for _ in range(10):
            order = driver.source.normal(len(slots)).argsort().tolist()
            driver.random_step(order)
        driver.check()

    def test_rows_in_different_phases(self, layer: LayerKind, seed: int) -> None:
        """Rows that flush beside rows that do not, and slots that sit a step out."""
        driver = self.drive(self.layout(layer, window=6), seed)
        for slot in range(6):
            driver.load([slot])
            driver.step(list(range(slot + 1)))
            driver.commit(1)
        for _ in range(10):
            present = [slot for slot in range(6) if driver.source.uniform(1) < 0.7] or [0]
            driver.random_step(present)
        driver.check()

    def test_prefill_beside_decoding_rows(self, layer: LayerKind, seed: int) -> None:
        """A state loaded into one slot leaves slots in the middle of their window bit for bit as they are."""
        self.claim(Feature.MEMORY)
        driver = self.drive(self.layout(layer), seed)
        driver.load([0, 1, 2])
        for _ in range(3):
            driver.random_step([0, 1, 2])
        before = snapshot(driver.state, driver.tensor([0, 1, 2]))
        driver.load([4], position=17)
        assert not differing(before, snapshot(driver.state, driver.tensor([0, 1, 2])))
        for _ in range(6):
            driver.random_step([0, 4, 1, 2])
        driver.check()

    def test_absent_slots_are_untouched(self, layer: LayerKind, seed: int) -> None:
        """A step changes its own slots only."""
        self.claim(Feature.MEMORY)
        driver = self.drive(self.layout(layer), seed)
        driver.load([0, 1, 2])
        before = snapshot(driver.state, driver.tensor([1, 3, 4, 5]))
        for _ in range(8):
            driver.random_step([2, 0])
        assert not differing(before, snapshot(driver.state, driver.tensor([1, 3, 4, 5])))

    def test_padded_rows_are_ignored_bit_for_bit(self, layer: LayerKind, seed: int) -> None:
        """Padded rows full of NaN between live rows, some of which flush: the same bits as without them."""
        self.claim(Feature.PADDING, Feature.MEMORY)
        plain, padded = (self.drive(self.layout(layer), seed) for _ in range(2))
        for driver in (plain, padded):
            driver.load([3, 0])
            for slots, counts in (([3], 1), ([3, 0], 1)):
                driver.step(slots)
                driver.commit(counts)
        for _ in range(8):
            inputs = plain.source.tokens(2, plain.layout.max_draft)
            hole = poison(select(inputs, slice(0, 2)), plain.tensor([0]).bool().expand(2, inputs.draft))
            wide = select(concatenate(inputs, hole), padded.tensor([2, 0, 3, 1]))
            expected = plain.step([3, 0], inputs=inputs)
            actual = padded.step([-1, 3, -1, 0], inputs=wide)
            assert actual[[1, 3]].equal(expected)
            plain.commit([1, 0])
            padded.commit([0, 1, 0, 0])
            assert not differing(snapshot(plain.state), snapshot(padded.state))

    def test_batch_of_padding_only(self, layer: LayerKind, seed: int) -> None:
        """A warm-up of padded rows changes nothing."""
        self.claim(Feature.PADDING)
        driver = self.drive(self.layout(layer), seed)
        driver.load([1])
        driver.step([-1, -1, -1])
        driver.commit(0)
        driver.random_step([1])
        driver.check()

    def test_slot_twice_in_a_batch(self, layer: LayerKind, seed: int) -> None:
        """A live slot, due to flush, given twice: refused with nothing changed, or (unchecked) folded once."""
        self.claim(Feature.MEMORY)
        driver = self.drive(self.layout(layer, window=1, draft=1), seed)
        driver.load([2])
        driver.step([2])
        driver.commit(1)
        before = snapshot(driver.state)
        inputs = driver.source.tokens(1, 1)
        try:
            driver.state.verify(concatenate(inputs, inputs), driver.tensor([2, 2]))
        except ReplaySSMError:
            assert not differing(before, snapshot(driver.state))
            driver.step([2], inputs=inputs)
            driver.commit(1)
        else:
            assert Feature.CHECKS not in self.subject.features, "a slot was given twice, and not refused"
            driver.state.commit(driver.tensor([1, 1]))
            driver.model.step(inputs, [2], [1], None, [False])
            driver.model.commit(2, [0])
        driver.check()

    def test_slots_never_used_may_hold_anything(self, layer: LayerKind, seed: int) -> None:
        """NaN in every slot that was never loaded stays where it is."""
        self.claim(Feature.MEMORY)
        driver = self.drive(self.layout(layer), seed)
        driver.load([0, 4])
        spoil_slots(driver.state.buffers, driver.tensor([1, 2, 3, 5]))
        for _ in range(8):
            driver.random_step([4, 0])
        driver.check()
