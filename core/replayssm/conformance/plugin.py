"""pytest plugin of the kit: known gaps become strict xfails, and a claimed capability may not skip."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from replayssm.conformance.gaps import read_gaps
from replayssm.conformance.suite import NOT_CLAIMED, BackendConformance


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that a subject's gap file lists."""
    for item in items:
        cls = _suite(item)
        if cls is None:
            continue
        for gap in read_gaps(cls.subject.gaps):
            if not any(gap.matches(name) or name == gap.test for name in dir(cls)):
                raise pytest.UsageError(f"{cls.subject.gaps}: no test is called {gap.test!r}")
            if gap.matches(item.name):
                item.add_marker(pytest.mark.xfail(reason=gap.reason, strict=True))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A skip of a kit's test is a failure unless the subject does not claim what is tested."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and _suite(item) is not None:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if NOT_CLAIMED not in reason:
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid} skipped what its subject claims: {reason}"
    return report


def _suite(item: pytest.Item) -> type[BackendConformance] | None:
    cls = getattr(item, "cls", None)
    return cls if isinstance(cls, type) and issubclass(cls, BackendConformance) else None
