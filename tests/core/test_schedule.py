"""The flush decision and its policies as pure functions on integers, against plain Python."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replayssm.cursors import Cursors
from replayssm.schedule import FlushPolicy, first_limits, flush_rows, forced_rows, records_past_boundary


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def test_flush_iff_the_window_would_overflow():
    committed, lengths, limits = ints(0, 12, 13, 16, 0, 1), ints(4, 4, 4, 1, 20, 1), ints(16, 16, 16, 16, 16, 16)
    none = torch.zeros(6, dtype=torch.bool)
    assert flush_rows(committed, lengths, limits, none).tolist() == [False, False, True, True, False, False]


def test_forced_rows_without_records_do_not_flush():
    assert flush_rows(ints(0, 1), ints(1, 1), ints(8, 8), torch.ones(2, dtype=torch.bool)).tolist() == [False, True]


@settings(deadline=None, derandomize=True, max_examples=200, database=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 16), st.integers(1, 8), st.integers(0, 50), st.booleans()), min_size=1, max_size=9
    ),
    budget=st.none() | st.integers(1, 4),
    boundary=st.none() | st.integers(1, 9),
    early=st.sampled_from([0.25, 0.5, 1.0]),
)
def test_forced_rows_against_plain_python(rows, budget, boundary, early):
    window = 16
    policy = FlushPolicy(budget=budget, boundary=boundary, early=early)
    committed, lengths, position, drain = (list(column) for column in zip(*rows, strict=True))
    actual = forced_rows(policy, window, ints(*committed), ints(*lengths), ints(*position), torch.tensor(drain))
    expected = [d or (boundary is not None and p % boundary == 0) for d, p in zip(drain, position, strict=True)]
    candidates = [i for i, (h, n, _, _) in enumerate(rows) if h >= early * window and h + n <= window]
    for i in sorted(candidates, key=lambda i: (-committed[i], i))[: budget or 0]:
        expected[i] = True
    assert actual.tolist() == expected


def test_staggered_limits_spread_over_the_window():
    limits = first_limits(FlushPolicy.staggered(), 16, 4, torch.arange(1300))
    assert (int(limits.min()), int(limits.max())) == (4, 16)
    counts = torch.bincount(limits.long(), minlength=17)[4:]
    # 13 phases over 1,300 slots: even to a few in a hundred.
    assert int(counts.min()) >= 90
    assert int(counts.max()) <= 110


def test_staggered_limits_of_a_window_below_the_draft():
    assert first_limits(FlushPolicy.staggered(), 4, 16, torch.arange(50)).unique().tolist() == [4]


def test_other_policies_keep_the_whole_window():
    assert first_limits(FlushPolicy.budgeted(2), 7, 3, torch.arange(3)).tolist() == [7, 7, 7]


def test_records_past_a_boundary():
    assert records_past_boundary(ints(64, 65, 70, 130), ints(5, 5, 2, 1), 64).tolist() == [0, 1, 2, 1]


def test_cursors_through_a_flush_by_hand():
    """W = 4, T = 2, R = 6: two full steps, a flush that wraps, a rejection."""
    cursors = Cursors(1, 6, 4, 2, FlushPolicy(), "cpu")
    slot, two = torch.tensor([0]), ints(2)
    seen = []
    for accepted in (2, 2, 1, 0, 2, 2):
        plan = cursors.plan(slot, two, 2)
        cursors.settle(plan)
        cursors.commit(slot, ints(accepted))
        seen.append((bool(plan.flush[0]), int(cursors.origin[0]), int(cursors.committed[0]), int(cursors.position[0])))
    assert seen == [
        (False, 0, 2, 2),
        (False, 0, 4, 4),
        (True, 4, 1, 5),
        (False, 4, 1, 5),
        (False, 4, 3, 7),
        (True, 1, 2, 9),
    ]
