"""More rows than a grid's third dimension has, where there is a GPU: a step with flushes, a load, a fold and states."""

from __future__ import annotations

import pytest
import torch

from replayssm import LayerKind, Recurrence, ReplayState, StateLayout
from replayssm.conformance.inputs import Source

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

ROWS, WINDOW = 70_000, 4
# Of the worst of many rows: bf16 outputs and TF32 products are below it, a row that no launch reached is not.
BOUND = 2.0**-5


@pytest.mark.parametrize("kind", LayerKind)
def test_more_rows_than_a_grid_has(kind):
    device = torch.device("cuda")
    layout = StateLayout(Recurrence(kind, 1, 1, 16, 16), ROWS, WINDOW, 1, activation=torch.bfloat16)
    source = Source(layout.recurrence, layout.activation, device, seed=1)
    states = {name: ReplayState(layout, A=source.A, backend=name, device=device) for name in ("triton", "torch")}
    slots, start = torch.arange(ROWS, device=device), source.states(ROWS)
    for state in states.values():
        state.load(slots, start)
    for _ in range(WINDOW + 2):
        inputs = source.tokens(ROWS, 1)
        mine, theirs = (state.decode(inputs, slots) for state in states.values())
        assert _error(mine, theirs) < BOUND
    for state in states.values():
        state.flush()
    mine, theirs = (state.state() for state in states.values())
    assert _error(mine, theirs) < BOUND


def _error(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    """Relative L2 error of the worst row."""
    difference = (mine.float() - theirs.float()).flatten(1).norm(dim=1)
    return float((difference / theirs.float().flatten(1).norm(dim=1).clamp(min=1e-3)).max())
