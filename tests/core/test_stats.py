"""`ReplayState.stats`: counted by hand, off unless asked for, and of the slot's own life."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from stats_life import check_life

from interpreting import interpret
from replayssm import InputError, LayerKind, PrecisionPolicy, Recurrence, ReplayState, StateLayout, StepError

INF, NAN = float("inf"), float("nan")
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


@pytest.mark.parametrize("copy", ["fp8", "nvfp4"])
@pytest.mark.parametrize("value", [INF, -INF, NAN, 3e38, 1e-42, 0.0])
@pytest.mark.parametrize("kind", list(LayerKind))
def test_the_read_error_of_any_state_that_is_loaded_is_small(kind, value, copy):
    state = _with_copy(copy, kind)
    state.load([1], torch.full((1, 2, 8, 16), value))
    assert 0.0 <= state.stats(1).read_error <= (1.0 if value == 1e-42 else 0.1)


@pytest.mark.parametrize("part", ["checkpoint", "read_copy_scale"])
@pytest.mark.parametrize("value", [INF, -INF, NAN])
def test_the_read_error_of_what_is_no_number_is_infinite(part, value):
    state = _with_copy("fp8")
    state.layer.buffers["checkpoint"][1] = 1.0
    state.layer.buffers[part][1] = value
    assert state.stats(1).read_error == INF


def test_the_read_error_of_a_zero_checkpoint_is_that_of_its_copy():
    state = _with_copy("fp8")
    assert state.stats(1).read_error == 0.0
    state.load([1], torch.ones(1, 2, 8, 16))
    state.layer.buffers["checkpoint"][1] = 0.0
    assert state.stats(1).read_error == INF


def _with_copy(copy, kind=LayerKind.GDN):
    recurrence = Recurrence(kind, 2, 2, 8, 16)
    layout = StateLayout(recurrence, 3, 4, precision=PrecisionPolicy(read_copy=copy), activation=torch.float32)
    return ReplayState(layout, A=-torch.ones(2) if kind == "mamba2" else None, stats=True, check_inputs=False)


@pytest.mark.parametrize("slot", [-1, 3, 0.5, [0, 1, 1]])
def test_no_such_slot(slot):
    with pytest.raises(InputError, match="slot"):
        ReplayState(LAYOUT, stats=True).stats(slot)
