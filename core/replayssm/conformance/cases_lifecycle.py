"""The life of a slot: reuse, preemption, short prompts, copies, materialised prefixes, forced flushes."""

from __future__ import annotations

import torch

from replayssm.conformance.base import Cases
from replayssm.conformance.driver import Driver, close
from replayssm.conformance.memory import CURSORS, bits, differing, snapshot, spoil_slots, state_names
from replayssm.conformance.subject import Feature
from replayssm.recurrence import LayerKind
from replayssm.schedule import records_past_boundary


class LifecycleCases(Cases):
    """What happens to a slot between and around its steps."""

    def test_reuse_after_nan_is_a_fresh_slot(self, layer: LayerKind, seed: int) -> None:
        """A slot whose last user left NaN everywhere (where memory is visible): bit for bit as a slot of a new state."""
        self.claim(Feature.RESET)
        used, fresh = (self.drive(self.layout(layer), seed) for _ in range(2))
        used.load([3])
        for _ in range(7):
            used.random_step([3])
        if used.visible:
            spoil_slots(used.state.buffers, used.tensor([3]))
        used.source, fresh.source = (self.drive(self.layout(layer), seed + 1).source for _ in range(2))
        for driver in (used, fresh):
            driver.state.reset(driver.tensor([3]))
        self._same_from_here(used, fresh, 3)

    def test_preemption_and_resume(self, layer: LayerKind, seed: int) -> None:
        """Preempted mid-window, recomputed at another length, and once more: bit for bit as a fresh slot."""
        used = self.drive(self.layout(layer), seed)
        for steps, position in ((4, 10), (2, 23), (7, 5)):
            used.load([3])
            for _ in range(steps):
                used.random_step([3])
            fresh = self.drive(self.layout(layer), seed)
            prefill = used.source.states(1)
            for driver in (used, fresh):
                driver.state.load(driver.tensor([3]), prefill, position)
            self._same_from_here(used, fresh, 3)

    def test_prompt_of_one_token(self, layer: LayerKind, seed: int) -> None:
        """A prompt of one token, run as the first step of an empty slot, then decode."""
        self.claim(Feature.RESET)
        driver = self.drive(self.layout(layer), seed)
        driver.state.reset(driver.tensor([2]))
        driver.model.load(2, torch.zeros(driver.layout.recurrence.state_shape))
        for _ in range(9):
            driver.step([2])
            driver.commit(1)
            driver.check()

    def test_last_chunk_of_one_token(self, layer: LayerKind, seed: int) -> None:
        """Chunked prefill that ends in a chunk of one token: the state of the first chunk, then one step."""
        driver = self.drive(self.layout(layer), seed)
        driver.load([2], position=1)
        driver.load([2, 4], position=64)
        driver.step([2, 4])
        driver.commit(1)
        driver.check()
        for _ in range(6):
            driver.random_step([4, 2])
        driver.check()

    def test_forced_flush_keeps_the_state(self, layer: LayerKind, seed: int) -> None:
        """Drained before a transfer or a backup: ring empty, same state, same outputs after."""
        self.claim(Feature.FLUSH)
        driver = self.drive(self.layout(layer), seed)
        driver.load([0, 1, 5])
        for _ in range(5):
            driver.random_step([0, 1, 5])
            driver.state.flush(driver.tensor([0, 5]))
            for slot in (0, 5):
                driver.model.flush(slot)
            driver.check()

    def test_forced_flush_drops_pending_drafts(self, layer: LayerKind, seed: int) -> None:
        """A flush between step and commit: the drafts are gone, with records in the ring and without."""
        self.claim(Feature.FLUSH)
        driver = self.drive(self.layout(layer), seed)
        driver.load([0, 1])
        driver.step([1])
        driver.commit(1)
        driver.step([0, 1])
        driver.state.flush(driver.tensor([0, 1]))
        for slot in (0, 1):
            driver.model.flush(slot)
        driver.state.commit(driver.tensor([1, 1]))
        driver.check()

    def test_drained_rows(self, layer: LayerKind, seed: int) -> None:
        """Some rows of a step are told to fold."""
        self.claim(Feature.DRAIN)
        driver = self.drive(self.layout(layer, window=12), seed)
        driver.load([0, 1, 5])
        for i in range(8):
            driver.step([0, 1, 5], drain=[i % 2 == 0, False, i % 3 == 0])
            driver.commit(1)
        driver.check()

    def test_copy_is_a_clone(self, layer: LayerKind, seed: int) -> None:
        """A copied slot has the source's bits, and then a life of its own."""
        self.claim(Feature.COPY)
        driver = self.drive(self.layout(layer), seed)
        driver.load([0])
        for _ in range(4):
            driver.random_step([0])
        driver.state.copy(driver.tensor([0, 0]), driver.tensor([2, 4]))
        for target in (2, 4):
            driver.model.copy(0, target)
            originals, copies = (driver.evidence([slot]) for slot in (0, target))
            assert not differing(originals, copies)
        for _ in range(8):
            driver.random_step([0, 2])
        driver.check()

    def test_materialise_every_prefix(self, layer: LayerKind, seed: int) -> None:
        """The state after each count of committed records, in another slot; the source keeps its bits."""
        self.claim(Feature.MATERIALISE, Feature.MEMORY)
        driver = self.drive(self.layout(layer, window=6), seed)
        driver.load([0], position=3)
        for _ in range(5):
            driver.step([0])
            driver.commit(1)
        before = snapshot(driver.state, driver.tensor([0]))
        for count in range(driver.model.slots[0].committed + 1):
            spoil_slots(driver.state.buffers, driver.tensor([3]))
            driver.state.materialise(driver.tensor([0]), driver.tensor([3]), driver.tensor([count]))
            driver.model.materialise(0, 3, count)
            assert not differing(before, snapshot(driver.state, driver.tensor([0])))
            driver.check()
            for _ in range(3):
                driver.random_step([3])
            driver.check()

    def test_materialise_all_with_drafts_pending(self, layer: LayerKind, seed: int) -> None:
        """A prefix published while drafts await acceptance holds committed tokens only."""
        self.claim(Feature.MATERIALISE)
        driver = self.drive(self.layout(layer), seed)
        driver.load([0, 1])
        driver.step([0, 1])
        driver.commit(1)
        driver.step([0, 1], driver.layout.max_draft)
        driver.state.materialise(driver.tensor([0, 1]), driver.tensor([4, 5]))
        for source, target in ((0, 4), (1, 5)):
            driver.model.materialise(source, target, 1)
        driver.check()
        driver.commit([0, 1])
        driver.check()

    def test_block_end_behind_accepted_tokens(self, layer: LayerKind, seed: int) -> None:
        """Tokens were accepted past the end of a prefix-cache block: the block's state is published, and reused."""
        self.claim(Feature.MATERIALISE)
        block, driver = 4, self.drive(self.layout(layer, window=9), seed)
        driver.load([0], position=1)
        draft = driver.layout.max_draft
        for _ in range(9):
            driver.step([0], draft)
            driver.commit(draft)
            slot = driver.model.slots[0]
            past = int(records_past_boundary(torch.tensor([slot.position]), torch.tensor([slot.committed]), block)[0])
            count = slot.committed - past
            driver.state.materialise(driver.tensor([0]), driver.tensor([3]), driver.tensor([count]))
            driver.model.materialise(0, 3, count)
            reached = driver.model.slots[3].position
            assert reached % block == 0 or count == 0
            driver.check()
            driver.random_step([3])
        driver.check()

    def test_state_of_every_prefix(self, layer: LayerKind, seed: int) -> None:
        """Reading a state after a count of records changes nothing."""
        self.claim(Feature.PREFIX_STATE, Feature.MEMORY)
        driver = self.drive(self.layout(layer, window=6), seed)
        driver.load([1])
        for _ in range(5):
            driver.step([1])
            driver.commit(1)
        before = snapshot(driver.state)
        for count in range(6):
            actual = driver.state.state(driver.tensor([1]), driver.tensor([count]))[0]
            close(actual, driver.model.state(1, count), driver.tolerance.state, f"state after {count} records")
        assert not differing(before, snapshot(driver.state))

    @staticmethod
    def _same_from_here(used: Driver, fresh: Driver, slot: int) -> None:
        """Both slots get the same steps and must give the same bits."""
        for i in range(9):
            draft = 1 + i % used.layout.max_draft
            inputs = used.source.tokens(1, draft)
            outputs = []
            for driver in (used, fresh):
                outputs.append(driver.state.verify(inputs, driver.tensor([slot])))
                driver.state.commit(driver.tensor([i % (draft + 1)]))
            assert torch.equal(*map(bits, outputs))
        index = used.tensor([slot])
        states = [bits(driver.state.state(index)) for driver in (used, fresh)]
        assert torch.equal(*states)
        if not used.visible:
            return
        # Ring rows without a committed record may differ: nobody may read them.
        names = [*state_names(used.layout, "checkpoint"), *state_names(used.layout, "read_copy"), *CURSORS]
        pair = [snapshot(driver.state, index) for driver in (used, fresh)]
        assert not differing({name: pair[0][name] for name in names}, pair[1])
