"""Number formats: every preset, and that the read copy never enters the recurrence."""

from __future__ import annotations

from dataclasses import replace

import torch

from replayssm.conformance.base import Cases
from replayssm.conformance.driver import Driver, relative_error
from replayssm.conformance.memory import bits, differing, spoil, state_names
from replayssm.conformance.subject import Feature
from replayssm.precision import PrecisionPolicy
from replayssm.recurrence import LayerKind


class PrecisionCases(Cases):
    """What is stored, what is read, what is folded."""

    def test_every_preset_follows_the_model(self, layer: LayerKind, preset: str, seed: int) -> None:
        """Outputs and states step by step, with every rounding where the layout puts it."""
        driver = self.drive(self.layout(layer, precision=PrecisionPolicy.preset(preset)), seed)
        driver.load([2, 0])
        for _ in range(8):
            driver.random_step([2, 0])
            driver.check()

    def test_non_flush_steps_read_the_copy_only(self, layer: LayerKind, dual_preset: str, seed: int) -> None:
        """NaN in the checkpoint changes no output of a non-flush step."""
        self.claim(Feature.MEMORY)
        driver = self._mid_window(layer, dual_preset, seed)
        names = state_names(driver.layout, "checkpoint")
        kept = {name: driver.state.buffers[name].clone() for name in names}
        for name in names:
            spoil(driver.state.buffers[name])
        driver.step([0, 2])
        driver.commit(1)
        for name in names:
            driver.state.buffers[name][:] = kept[name]
        driver.check()

    def test_flush_steps_read_the_checkpoint_only(self, layer: LayerKind, dual_preset: str, seed: int) -> None:
        """NaN in the copy changes neither output nor fold of a flush step, which then writes a copy anew."""
        self.claim(Feature.MEMORY, Feature.DRAIN)
        driver = self._mid_window(layer, dual_preset, seed)
        for name in state_names(driver.layout, "read_copy"):
            spoil(driver.state.buffers[name])
        driver.step([0, 2], drain=[True, True])
        driver.commit(1)
        driver.step([0, 2])
        driver.commit(1)
        driver.check()

    def test_states_are_taken_from_the_checkpoint(self, layer: LayerKind, dual_preset: str, seed: int) -> None:
        """Reading, materialising and flushing between steps never look at the copy."""
        self.claim(Feature.MEMORY, Feature.MATERIALISE, Feature.FLUSH)
        driver = self._mid_window(layer, dual_preset, seed)
        for name in state_names(driver.layout, "read_copy"):
            spoil(driver.state.buffers[name])
        driver.state.materialise(driver.tensor([0]), driver.tensor([4]))
        driver.model.materialise(0, 4, driver.model.slots[0].committed)
        driver.check()
        driver.state.flush(driver.tensor([0, 2]))
        for slot in (0, 2):
            driver.model.flush(slot)
        driver.check()
        driver.random_step([2, 0, 4])

    def test_exact_fold_knows_nothing_of_the_copy(self, delta_layer: LayerKind, seed: int) -> None:
        """The checkpoint has the same bits whatever non-flush steps read."""
        policies = [PrecisionPolicy(read_copy=copy) for copy in self.subject.capability.read_copies]
        finals = [self._checkpoints(delta_layer, policy, seed) for policy in policies]
        for final in finals[1:]:
            assert not differing(finals[0], final)

    def test_without_exact_fold_the_copy_leaks(self, delta_layer: LayerKind, seed: int) -> None:
        """The switch that shows what the exact fold is worth: corrections taken from the copy drift."""
        exact = PrecisionPolicy(read_copy="nvfp4")
        self.claim_precision(exact)
        drivers = [self._after_steps(delta_layer, policy, seed) for policy in (exact, replace(exact, exact_fold=False))]
        with_fold, without = (driver.state.state(driver.tensor([0, 2])) for driver in drivers)
        drivers[1].check()
        assert relative_error(without, with_fold) > 1e-3

    def test_large_states_are_clamped(self, layer: LayerKind, preset: str, seed: int) -> None:
        """A state of 1e4 among small ones (e4m3 overflows to NaN), and one beyond fp16: finite and close to the clamp."""
        policy = PrecisionPolicy.preset(preset)
        driver = self.drive(self.layout(layer, precision=policy), seed)
        state = driver.source.states(2)
        state[0, 0, 0, 0], state[1, 0, 0, 0] = 1e4, -1e6
        driver.load([1, 3], state=state)
        for _ in range(6):
            driver.random_step([1, 3])
        driver.check()

    def test_stochastic_rounding_is_reproducible(self, layer: LayerKind, stochastic_preset: str, seed: int) -> None:
        """The same seed, slot and count of flushes give the same bits; another seed gives others."""
        policy = PrecisionPolicy.preset(stochastic_preset)
        self.claim(Feature.MEMORY)
        first, second = (self._checkpoints(layer, policy, seed) for _ in range(2))
        assert not differing(first, second)
        other = self.drive(self.layout(layer, precision=policy), seed + 1)
        same = self.drive(self.layout(layer, precision=policy), seed)
        state = same.source.states(1)
        for driver in (same, other):
            driver.state.load(driver.tensor([0]), state)
        assert not torch.equal(*(bits(driver.state.buffers["checkpoint"][0]) for driver in (same, other)))

    def _mid_window(self, layer: LayerKind, preset: str, seed: int) -> Driver:
        driver = self.drive(self.layout(layer, window=8, precision=PrecisionPolicy.preset(preset)), seed)
        driver.load([0, 2])
        for _ in range(3):
            driver.step([0, 2])
            driver.commit(1)
        return driver

    def _after_steps(self, layer: LayerKind, policy: PrecisionPolicy, seed: int) -> Driver:
        driver = self.drive(self.layout(layer, precision=policy), seed)
        driver.load([0, 2])
        for _ in range(12):
            driver.random_step([2, 0])
        return driver

    def _checkpoints(self, layer: LayerKind, policy: PrecisionPolicy, seed: int) -> dict[str, torch.Tensor]:
        driver = self._after_steps(layer, policy, seed)
        all_bits = driver.evidence([0, 2])
        if not driver.visible:
            return all_bits
        return {name: all_bits[name] for name in state_names(driver.layout, "checkpoint")}
