"""`ReplayState.stats`: counted by hand, off unless asked for, and of the slot's own life."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from stats_life import check_life

from replayssm import InputError, LayerKind, Recurrence, ReplayState, StateLayout, StepError

LAYOUT = StateLayout(Recurrence(LayerKind.GDN, 2, 1, 8, 16), 3, 4, activation=torch.float32)


@pytest.mark.parametrize("kind", list(LayerKind))
@pytest.mark.parametrize("backend", ["naive", "torch"])
def test_a_slot_life(backend, kind):
    check_life(backend, kind)


def test_a_slot_life_under_the_interpreter():
    pytest.importorskip("triton")
    script = os.path.join(os.path.dirname(__file__), "stats_life.py")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, script, "triton"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


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
