"""The whole suite in one class; subclass it and set `subject`."""

from __future__ import annotations

import pytest

from replayssm.conformance.base import NOT_CLAIMED
from replayssm.conformance.cases_batches import BatchCases
from replayssm.conformance.cases_graphs import GraphCases
from replayssm.conformance.cases_lifecycle import LifecycleCases
from replayssm.conformance.cases_machine import MachineCases
from replayssm.conformance.cases_memory import MemoryCases
from replayssm.conformance.cases_precision import PrecisionCases
from replayssm.conformance.cases_refusals import RefusalCases
from replayssm.conformance.cases_scheduling import SchedulingCases
from replayssm.conformance.cases_steps import StepCases
from replayssm.conformance.cases_trees import TreeCases

__all__ = ["NOT_CLAIMED", "BackendConformance"]


class BackendConformance(
    StepCases,
    BatchCases,
    LifecycleCases,
    MemoryCases,
    TreeCases,
    PrecisionCases,
    SchedulingCases,
    GraphCases,
    RefusalCases,
    MachineCases,
):
    """Every case. What the subject does not declare is skipped as "not claimed"; nothing else may skip."""

    @pytest.fixture(autouse=True)
    def _needs_plugin(self, pytestconfig: pytest.Config) -> None:
        assert pytestconfig.pluginmanager.has_plugin("replayssm.conformance.plugin"), (
            'add pytest_plugins = ["replayssm.conformance.plugin"] to the top-level conftest.py'
        )
