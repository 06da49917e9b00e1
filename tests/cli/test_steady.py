"""Exact averages against the schedule as it runs, and against cadences that can be worked out by hand."""

from __future__ import annotations

import pytest
import torch

from replayssm import FlushPolicy, InputError, PrecisionPolicy, Recurrence, StateLayout
from replayssm.steady import acceptance_law, occupancy, steady_state
from replayssm.traffic import simulate

GDN = Recurrence.gdn(value_heads=4, key_heads=2, value_dim=16, key_dim=16)


def _layout(window, draft, preset="dual-nvfp4"):
    return StateLayout(GDN, 1, window, draft, PrecisionPolicy.preset(preset))


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.8, 1.0])
@pytest.mark.parametrize(("window", "draft"), [(16, 1), (16, 4), (5, 3), (16, 16), (3, 7), (1, 1), (2, 5)])
def test_agrees_with_the_running_schedule(window, draft, acceptance):
    layout = _layout(window, draft)
    exact = steady_state(layout, draft, acceptance)
    # Staggered rows stand at all phases of the window, so that few steps show the average.
    sampled = simulate(layout, draft, acceptance, FlushPolicy.staggered(), rows=512, steps=960)
    for name in ("tokens", "flush_rate", "bytes_read", "bytes_written"):
        assert getattr(exact, name) == pytest.approx(getattr(sampled, name), rel=0.01), name


@pytest.mark.parametrize("window", [1, 2, 16, 64])
def test_ordinary_decode_flushes_once_a_window(window):
    found = occupancy(window, 1, 0.5)
    assert found.tokens == 1
    assert found.flush_rate == pytest.approx(1 / window)


def test_all_accepted_flushes_once_a_window():
    assert occupancy(16, 4, 1.0).flush_rate == pytest.approx(1 / 4)


def test_nothing_accepted_still_needs_room_for_the_drafts():
    # Records 1 … 13 leave no room for 4 more beyond 12: a flush every 13 steps.
    assert occupancy(16, 4, 0.0).flush_rate == pytest.approx(1 / 13)


@pytest.mark.parametrize(("window", "draft"), [(16, 16), (8, 12), (1, 2)])
def test_long_drafts_flush_on_every_step(window, draft):
    assert occupancy(window, draft, 0.0).flush_rate == pytest.approx(1.0)


def test_bytes_by_hand():
    # W = 2, T = 1: a step with one record reads state and record, a step with two folds them.
    layout = _layout(2, 1, "exact")
    state = 4 * 4 * 16 * 16
    values, betas = 4 * 16 * 2, 4 * 4
    output = values + 2 * 16 * 2 + 2 * 4 + 4 * 4
    fold, new = output + betas, output + betas + values
    found = steady_state(layout, 1)
    assert found.bytes_read == pytest.approx(state + (output + 2 * fold) / 2)
    assert found.bytes_written == pytest.approx(new + state / 2)


def test_law_sums_to_one():
    law = acceptance_law(4, 0.8)
    assert torch.allclose(law, torch.tensor([0.2, 0.16, 0.128, 0.512], dtype=torch.float64))


@pytest.mark.parametrize(("draft", "acceptance"), [(0, 0.5), (1, -0.1), (1, 1.1), (1, float("nan"))])
def test_law_refuses(draft, acceptance):
    with pytest.raises(InputError, match="must be"):
        acceptance_law(draft, acceptance)
