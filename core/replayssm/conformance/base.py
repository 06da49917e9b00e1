"""Ground of all cases: which of them a subject runs, and layouts for them."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from typing import ClassVar

import pytest
import torch

from replayssm.capability import DRAFT, TREE
from replayssm.conformance.driver import Driver, finest
from replayssm.conformance.subject import Feature, Subject
from replayssm.layout import StateLayout
from replayssm.precision import PRESETS, PrecisionPolicy
from replayssm.recurrence import LayerKind, Recurrence
from replayssm.schedule import FlushPolicy

NOT_CLAIMED = "not claimed:"


class Cases:
    """Base of the case classes. Set `subject` in the subclass that runs them."""

    subject: ClassVar[Subject]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parameters are what the subject declares."""
        capability = self.subject.capability
        choices: dict[str, Sequence[object]] = {
            "layer": list(capability.layers),
            "delta_layer": [kind for kind in capability.layers if kind is not LayerKind.MAMBA2],
            "activation": list(capability.activations),
            "preset": [name for name, policy in PRESETS.items() if self.serves(policy)],
            "stochastic_preset": [
                n for n, policy in PRESETS.items() if policy.stochastic_rounding and self.serves(policy)
            ],
            "dual_preset": [name for name, policy in PRESETS.items() if policy.read_copy and self.serves(policy)],
        }
        for name, values in choices.items():
            if name in metafunc.fixturenames:
                undeclared = pytest.mark.skip(reason=f"{NOT_CLAIMED} any {name}")
                values = values or [pytest.param(None, marks=undeclared)]
                metafunc.parametrize(name, values, ids=lambda value: str(value).removeprefix("torch."))

    @pytest.fixture
    def seed(self, request: pytest.FixtureRequest) -> int:
        """Seed of a case's random inputs, from its name and REPLAYSSM_TEST_SEED (0)."""
        text = f"{os.environ.get('REPLAYSSM_TEST_SEED', '0')} {request.node.name}"
        return zlib.crc32(text.encode())

    def claim(self, *features: Feature) -> None:
        """Skip a case whose features the subject does not declare."""
        missing = [feature for feature in features if feature not in self.subject.features]
        if missing:
            pytest.skip(f"{NOT_CLAIMED} {', '.join(missing)}")

    def claim_mode(self, mode: str) -> None:
        """Skip a case of a decode mode that the subject does not declare."""
        if mode not in self.subject.capability.modes:
            pytest.skip(f"{NOT_CLAIMED} decode mode {mode}")

    def claim_layer(self, layer: LayerKind) -> None:
        """Skip a case of one layer kind that the subject does not declare."""
        if layer not in self.subject.capability.layers:
            pytest.skip(f"{NOT_CLAIMED} layer {layer}")

    def claim_precision(self, policy: PrecisionPolicy) -> None:
        """Skip a case of formats that the subject does not declare."""
        if not self.serves(policy):
            pytest.skip(f"{NOT_CLAIMED} {policy.describe()}")

    @property
    def longest_draft(self) -> int:
        """T of the mixed cases: 4, or 1 for a subject of standard decode only."""
        return 4 if DRAFT in self.subject.capability.modes else 1

    @property
    def serves_trees(self) -> bool:
        """Whether draft trees are declared."""
        return TREE in self.subject.capability.modes

    def recurrence(self, layer: LayerKind, groups: int | None = None) -> Recurrence:
        """The layer in the subject's dimensions."""
        dims = self.subject.dims
        return Recurrence(layer, dims.heads, groups or dims.groups, dims.value_dim, dims.key_dim)

    def layout(
        self,
        layer: LayerKind,
        *,
        slots: int = 6,
        window: int = 5,
        draft: int | None = None,
        groups: int | None = None,
        precision: PrecisionPolicy | None = None,
        activation: torch.dtype | None = None,
    ) -> StateLayout:
        """A layout; activation and checkpoint are the finest that the subject serves when not given."""
        activation = activation or finest(self.subject)
        if precision is None:
            fine = "fp64" if activation == torch.float64 and self.serves(PrecisionPolicy("fp64")) else "fp32"
            precision = PrecisionPolicy(fine)
        draft = self.longest_draft if draft is None else draft
        return StateLayout(self.recurrence(layer, groups), slots, window, draft, precision, activation)

    def drive(self, layout: StateLayout, seed: int, *, policy: FlushPolicy | None = None, raw: bool = False) -> Driver:
        """The subject and the model, for a layout."""
        return Driver(self.subject, layout, policy=policy, seed=seed, raw=raw)

    def serves(self, policy: PrecisionPolicy) -> bool:
        """Whether a precision policy is declared."""
        capability = self.subject.capability
        return policy.checkpoint in capability.checkpoints and policy.read_copy in capability.read_copies
