"""Checks in processes: verdicts in order, a crash costs one check alone."""

from __future__ import annotations

import os
import time
from functools import partial

import pytest

from replayssm.bench.workers import Workers


def passes() -> None:
    pass


def fails(message: str) -> None:
    raise AssertionError(message)


def breaks() -> None:
    try:
        raise ValueError("first line\n  error: the reason\nlast line")
    except ValueError as error:
        raise RuntimeError("compilation") from error


@pytest.mark.parametrize("jobs", [1, 2])
def test_verdicts_in_order(jobs):
    with Workers(jobs) as workers:
        found = workers.failures([passes, partial(fails, "off by 1"), breaks, passes])
    assert found == [None, "off by 1", "RuntimeError: error: the reason", None]


def test_a_crash_costs_one_check():
    with Workers(2) as workers:
        found = workers.failures([passes, partial(os._exit, 3), passes])
        assert found[0] is None
        assert found[1].startswith("BrokenProcessPool")
        assert found[2] is None
        assert workers.failures([passes]) == [None]


def test_a_crash_while_checks_are_handed_out_costs_one_check():
    class Slow(list):
        def __iter__(self):
            yield self[0]
            while not workers._running()._broken:
                time.sleep(0.05)
            yield self[1]

    with Workers(2) as workers:
        crashed, passed = workers.failures(Slow([partial(os._exit, 3), passes]))
    assert crashed.startswith("BrokenProcessPool")
    assert passed is None
