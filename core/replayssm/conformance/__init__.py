"""The conformance kit: a suite that any backend or engine adapter runs by subclassing.

    from replayssm.conformance import CoreSubject
    from replayssm.conformance.suite import BackendConformance

    class TestTorch(BackendConformance):
        subject = CoreSubject("torch")

and in the top-level conftest.py: `pytest_plugins = ["replayssm.conformance.plugin"]`. Cases are chosen by what the subject
declares: a claim may not skip, a known gap is a line in a reviewed file and fails when it no longer is one. pytest and
Hypothesis are imported by `suite`, `cases_*`, `machine` and `plugin` only.
"""

from __future__ import annotations

from replayssm.conformance.core_subject import CoreSubject
from replayssm.conformance.subject import ALL_FEATURES, Dims, Feature, Subject, SubjectState
from replayssm.conformance.tolerances import Tolerance, tolerance

__all__ = [
    "ALL_FEATURES",
    "CoreSubject",
    "Dims",
    "Feature",
    "Subject",
    "SubjectState",
    "Tolerance",
    "tolerance",
]
