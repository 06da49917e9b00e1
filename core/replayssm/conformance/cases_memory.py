"""An engine's own memory: slots inside larger pages, strides that are not the slot's size."""

from __future__ import annotations

import torch

from replayssm.conformance.base import Cases
from replayssm.conformance.driver import Driver
from replayssm.conformance.memory import bits, differing, paged, snapshot
from replayssm.conformance.subject import Feature
from replayssm.precision import PrecisionPolicy
from replayssm.recurrence import LayerKind


class MemoryCases(Cases):
    """Buffers handed in by an engine."""

    def test_slots_inside_pages(self, layer: LayerKind, seed: int) -> None:
        """Buffers interleaved in one page a slot: the same bits as in memory of their own, the gaps never written."""
        self.claim(Feature.FOREIGN_MEMORY, Feature.MEMORY)
        self._compare(layer, PrecisionPolicy(), seed)

    def test_quantised_slots_inside_pages(self, layer: LayerKind, seed: int) -> None:
        """The same with a read copy of several parts."""
        self.claim(Feature.FOREIGN_MEMORY, Feature.MEMORY)
        policy = PrecisionPolicy.preset("dual-nvfp4")
        self.claim_precision(policy)
        self._compare(layer, policy, seed)

    def _compare(self, layer: LayerKind, precision: PrecisionPolicy, seed: int) -> None:
        layout = self.layout(layer, precision=precision)
        buffers, pool, gaps = paged(layout, self.subject.device)
        before = pool.clone()
        own, foreign = Driver(self.subject, layout, seed=seed), Driver(self.subject, layout, seed=seed, buffers=buffers)
        for driver in (own, foreign):
            driver.load([4, 1])
        for i in range(10):
            inputs = own.source.tokens(2, layout.max_draft)
            outputs = [driver.step([1, 4], inputs=inputs) for driver in (own, foreign)]
            assert torch.equal(*map(bits, outputs))
            for driver in (own, foreign):
                driver.commit([i % (layout.max_draft + 1), 1])
        live = own.tensor([4, 1])
        assert not differing(snapshot(own.state, live), snapshot(foreign.state, live))
        assert torch.equal(pool[:, gaps], before[:, gaps]), "bytes between the buffers were written"
