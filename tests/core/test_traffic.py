"""State bytes by hand, and the simulated cadence against arithmetic."""

from __future__ import annotations

import pytest
import torch

from replayssm import PrecisionPolicy, Recurrence, ReplayState, StateLayout
from replayssm.conformance.inputs import Source
from replayssm.traffic import StateBytes, TrafficMeter, ordinary_bytes, simulate

MAMBA2 = Recurrence.mamba2(heads=4, head_dim=8, state_size=16, groups=2)
GDN = Recurrence.gdn(value_heads=4, key_heads=2, value_dim=8, key_dim=16)
STATE = 4 * 8 * 16 * 4
NVFP4 = 4 * 8 * 8 + 4 * 8 * 1 + 4 * 4


def test_bytes_of_mamba2():
    cost = StateBytes.of(StateLayout(MAMBA2, 1))
    record = 4 * 8 * 2 + 2 * 16 * 2 + 4 * 4
    assert (cost.read_state, cost.checkpoint, cost.written_state) == (STATE, STATE, STATE)
    assert (cost.output_record, cost.fold_record, cost.new_record) == (record, record, record)


def test_bytes_of_gdn_with_a_read_copy():
    cost = StateBytes.of(StateLayout(GDN, 1, precision=PrecisionPolicy.preset("dual-nvfp4")))
    values, keys, scalars, scales = 4 * 8 * 2, 2 * 16 * 2, 4 * 4, 2 * 4
    assert (cost.read_state, cost.checkpoint, cost.written_state) == (NVFP4, STATE, STATE + NVFP4)
    assert cost.output_record == values + keys + scales + scalars
    assert cost.fold_record == values + keys + scales + 2 * scalars
    assert cost.new_record == 2 * values + keys + scales + 2 * scalars


def test_bytes_of_steps():
    cost = StateBytes(10, 100, 110, 3, 5, 7)
    read, written = cost.step(torch.tensor([4, 4]), torch.tensor([1, 2]), torch.tensor([False, True]))
    assert read.tolist() == [10 + 4 * 3, 100 + 4 * 5]
    assert written.tolist() == [7, 14 + 110]


def test_ordinary_decode_reads_once_and_keeps_a_snapshot_a_token():
    assert ordinary_bytes(StateLayout(GDN, 1), 4) == (STATE, 4 * STATE)


@pytest.mark.parametrize("window", [1, 2, 5, 16, 32])
def test_standard_decode_flushes_once_a_window(window):
    layout = StateLayout(MAMBA2, 1, window)
    # Whole windows are averaged, so the figures are exact up to the sums' own rounding.
    cadence = simulate(layout, rows=3, steps=4 * 40 * window)
    cost = StateBytes.of(layout)
    mean_history = (window + 1) / 2
    assert cadence.tokens == 1
    assert cadence.flush_rate == pytest.approx(1 / window, rel=1e-9)
    quiet = (window - 1) / window
    expected = quiet * cost.read_state + cost.checkpoint / window + mean_history * cost.output_record
    assert cadence.bytes_read == pytest.approx(expected, rel=1e-9)
    assert cadence.bytes_written == pytest.approx(cost.new_record + cost.written_state / window, rel=1e-9)


def test_drafts_all_accepted_or_none():
    layout = StateLayout(MAMBA2, 1, 16, 4)
    assert simulate(layout, 4, 1.0, rows=2).tokens == 4
    assert simulate(layout, 4, 0.0, rows=2).tokens == 1
    # 4 tokens a step: 4, 8, 12, 16, flush at the fifth step, then again every fourth.
    assert simulate(layout, 4, 1.0, rows=2, steps=1600).flush_rate == pytest.approx(1 / 4)


def test_meter_counts_a_run_by_hand():
    layout = StateLayout(MAMBA2, 2, 2, 2, activation=torch.float32)
    source, meter = Source(MAMBA2, torch.float32), TrafficMeter()
    state = ReplayState(layout, A=source.A, meter=meter)
    for accepted in ([2, 1], [0, 1], [1, 2]):
        state.verify(source.tokens(2, 2), [0, 1])
        state.commit(accepted)
        state.commit(accepted)
    totals = meter.totals()
    assert (totals["steps"], totals["drafted"], totals["accepted"], totals["rolled_back"]) == (6, 12, 7, 5)
    # Row 0 flushes at step 2 (2 + 2 > 2), row 1 at steps 2 and 3 (1 + 2 > 2).
    assert totals["flushes"] == 3
    record = 4 * 8 * 4 + 2 * 16 * 4 + 4 * 4
    assert totals["bytes_written"] == 12 * record + 3 * STATE
    assert totals["bytes_read"] == 6 * STATE + (2 + 1 + 0 + 1) * record
    assert totals["ordinary_bytes"] == (6 + 12) * STATE
