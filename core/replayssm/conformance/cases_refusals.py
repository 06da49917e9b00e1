"""What is not declared is refused, with a reason, before anything runs."""

from __future__ import annotations

import pytest

from replayssm.capability import DRAFT, TREE
from replayssm.conformance.base import Cases
from replayssm.conformance.memory import differing, snapshot
from replayssm.conformance.subject import Feature, StateOptions
from replayssm.errors import InputError, StepError, UnsupportedError
from replayssm.precision import PRESETS
from replayssm.recurrence import LayerKind


class RefusalCases(Cases):
    """A refusal names what it refuses and changes nothing."""

    def test_layers_outside_the_capability(self, seed: int) -> None:
        """A layer kind that is not served is refused when the state is made, never half-run."""
        for layer in set(LayerKind) - set(self.subject.capability.layers):
            layout = self.layout(layer)
            with pytest.raises(UnsupportedError, match=layer):
                self.subject.make(layout, StateOptions(A=None, seed=seed))

    def test_formats_outside_the_capability(self, layer: LayerKind, seed: int) -> None:
        """So is a precision policy."""
        for policy in (policy for policy in PRESETS.values() if not self.serves(policy)):
            driver = self.drive(self.layout(layer), seed)
            with pytest.raises(UnsupportedError):
                self.subject.make(self.layout(layer, precision=policy), StateOptions(A=driver.source.A, seed=seed))

    def test_modes_outside_the_capability(self, layer: LayerKind, seed: int) -> None:
        """Drafts or trees that are not served are refused at the step."""
        for mode in {DRAFT, TREE} - set(self.subject.capability.modes):
            driver = self.drive(self.layout(layer, draft=2), seed)
            driver.load([0])
            with pytest.raises(UnsupportedError, match=mode):
                driver.step([0], 2, parents=[[-1, -1]] if mode == TREE else None)

    def test_commit_of_more_than_was_drafted(self, layer: LayerKind, seed: int) -> None:
        """Refused with nothing changed where values are checked, else cut to what was drafted."""
        self.claim(Feature.MEMORY)
        driver = self.drive(self.layout(layer), seed)
        drafted = driver.layout.max_draft
        driver.load([0, 1])
        driver.step([0, 1], drafted)
        too_many = driver.tensor([0, drafted + 1])
        if Feature.CHECKS in self.subject.features:
            before = snapshot(driver.state)
            with pytest.raises((InputError, StepError), match="accepted"):
                driver.state.commit(too_many)
            assert not differing(before, snapshot(driver.state))
            driver.commit([0, drafted])
        else:
            driver.state.commit(too_many)
            driver.settle([[], list(range(drafted))])
        driver.check()
        driver.random_step([0, 1])
        driver.check()
