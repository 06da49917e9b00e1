"""`ReplayState.stats`: counted by hand, off unless asked for, and of the slot's own life."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from stats_life import check_life

from interpreting import interpret
from replayssm import InputError, LayerKind, Recurrence, ReplayState, StateLayout, StepError

LAYOUT = StateLayout(Recurrence(LayerKind.GDN, 2, 1, 8, 16), 3, 4, activation=torch.float32)


@pytest.mark.parametrize("kind", list(LayerKind))
@pytest.mark.parametrize("backend", ["naive", "torch"])
def test_a_slot_life(backend, kind):
    check_life(backend, kind)


def test_a_slot_life_under_the_interpreter():
    pytest.importorskip("triton")
    interpret(Path(__file__).with_name("stats_life.py"), "triton")


def test_off_unless_asked_for():
    state = ReplayState(LAYOUT)
    assert state.cursors.counts is None
    with pytest.raises(StepError, match="stats=True"):
        state.stats(0)


def test_without_a_copy_there_is_no_read_error():
    assert ReplayState(LAYOUT, stats=True).stats(1).read_error is None


@pytest.mark.parametrize("slot", [-1, 3, 0.5, [0, 1, 1]])
def test_no_such_slot(slot):
    with pytest.raises(InputError, match="slot"):
        ReplayState(LAYOUT, stats=True).stats(slot)
