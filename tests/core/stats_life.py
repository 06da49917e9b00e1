"""One life of a slot with every kind of step, and what its statistics must say at each point.

Usage: TRITON_INTERPRET=1 python stats_life.py triton
"""

from __future__ import annotations

import sys

import torch

from replayssm import LayerKind, PrecisionPolicy, Recurrence, ReplayState, StateLayout
from replayssm.conformance.inputs import Source
from replayssm.traffic import StateBytes


def check_life(backend: str, kind: LayerKind = LayerKind.GDN) -> None:
    layout = StateLayout(Recurrence(kind, 2, 1, 16, 64), 4, 3, 2, PrecisionPolicy(read_copy="nvfp4"), torch.float32)
    source, cost = Source(layout.recurrence, torch.float32, seed=3), StateBytes.of(layout)
    state = ReplayState(layout, A=source.A, backend=backend, stats=True)
    state.load([0, 2], source.states(2))
    loaded = state.stats(2)
    assert (loaded.steps, loaded.flushes, loaded.bytes_moved, loaded.bytes_saved) == (0, 0, 0, 0)
    assert 0.03 < loaded.read_error < 0.2, "the rounding of 4 bits to normal numbers"
    # The steps of slot 2 find 0 records, 2 of a window of 3, which two more would overflow, and 1.
    for accepted in (2, 1, 2):
        state.verify(source.tokens(3, 2), [0, -1, 2])
        state.commit([0, 0, accepted])
    stats, record = state.stats(2), cost.new_record
    quiet = 2 * cost.read_state + (0 + 1) * cost.output_record
    fold = cost.checkpoint + cost.written_state + 2 * cost.fold_record
    assert (stats.steps, stats.flushes) == (3, 1)
    assert stats.bytes_moved == quiet + fold + 3 * 2 * record
    whole = 4 * layout.recurrence.heads * layout.recurrence.value_dim * layout.recurrence.key_dim
    assert stats.bytes_saved == (3 + 3 * 2) * whole - stats.bytes_moved
    checkpoint = state.layer.buffers["checkpoint"][2]
    state.flush([2])
    drained = state.stats(2)
    assert (drained.steps, drained.flushes) == (3, 2)
    assert drained.bytes_moved == stats.bytes_moved + cost.checkpoint + cost.written_state + 3 * cost.fold_record
    # The copy is of the checkpoint: damaging one of them is seen.
    before = drained.read_error
    checkpoint *= 2.0
    assert abs(state.stats(2).read_error - 0.5) < before
    state.copy([2], [3])
    state.load([2], torch.zeros(1, 2, 16, 64))
    assert state.stats(3) == state.select([3]).stats(0)
    assert (state.stats(3).flushes, state.stats(2).flushes, state.stats(2).read_error) == (2, 0, 0.0)
    assert state.stats(0).steps == 3


if __name__ == "__main__":
    check_life(sys.argv[1])
