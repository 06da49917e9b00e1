"""More rows than a grid's third dimension has, where there is a GPU: the bits of calls with half of them each."""

from __future__ import annotations

import pytest
import torch

from replayssm import LayerKind, Recurrence, ReplayState, StateLayout
from replayssm.conformance.inputs import Source, select

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

ROWS, WINDOW = 70_000, 4


@pytest.mark.parametrize("kind", LayerKind)
def test_more_rows_than_a_grid_has(kind):
    """A step with flushes, a load, a fold and states."""
    device = torch.device("cuda")
    layout = StateLayout(Recurrence(kind, 1, 1, 16, 16), ROWS, WINDOW, 1, activation=torch.bfloat16)
    source = Source(layout.recurrence, layout.activation, device, seed=1)
    whole, halves = (ReplayState(layout, A=source.A, backend="triton", device=device) for _ in range(2))
    slots, start = torch.arange(ROWS, device=device), source.states(ROWS)
    parts = [slice(0, ROWS // 2), slice(ROWS // 2, ROWS)]
    whole.load(slots, start)
    for part in parts:
        halves.load(slots[part], start[part])
    for _ in range(WINDOW + 2):
        inputs = source.tokens(ROWS, 1)
        expected = torch.cat([halves.decode(select(inputs, part), slots[part]) for part in parts])
        assert torch.equal(whole.decode(inputs, slots), expected)
    whole.flush(slots)
    for part in parts:
        halves.flush(slots[part])
    assert torch.equal(whole.state(slots), torch.cat([halves.state(slots[part]) for part in parts]))
    assert whole.state(slots).isfinite().all()
