"""More rows than one launch may have: every call on a state in launches of two rows, bit for bit as in one; exit 1 if not.

Usage: TRITON_INTERPRET=1 python interpreted_many.py LAYER
"""

from __future__ import annotations

import sys

import pytest
import torch
from triton.runtime import interpreter

from replayssm import InputError, LayerKind, PrecisionPolicy, Recurrence, ReplayState, StateLayout
from replayssm.conformance.inputs import Source
from replayssm.conformance.memory import bits
from replayssm.kernels import arguments
from replayssm.kernels.tiles import Tiles, forced

SLOTS = [3, -1, 0, 4, 1]
DRAFTS = {1: PrecisionPolicy("fp16", stochastic_rounding=True), 3: PrecisionPolicy(read_copy="fp8")}
# Two programs share the folds of each of the first rows; with as few rows a launch, none do.
SHAPE = Tiles(16, shares=0)


def live(kind: LayerKind, draft: int) -> list[torch.Tensor]:
    """Steps with flushes and padding, a tree, and every call on slots: outputs, then all memory."""
    layout = StateLayout(Recurrence(kind, 2, 1, 24, 32), 6, 4, draft, DRAFTS[draft], torch.float32)
    source = Source(layout.recurrence, layout.activation, seed=5)
    state = ReplayState(layout, A=source.A, backend="triton", check_inputs=False, seed=3)
    state.load([4, 0, 2, 3, 1], source.states(5))
    outputs = []
    for step in range(5):
        parents = [[-1] + [0] * (draft - 1)] * len(SLOTS) if draft > 1 and step == 2 else None
        outputs.append(state.verify(source.tokens(len(SLOTS), draft), SLOTS, parents=parents))
        state.commit_path([[0, draft - 1] + [-1] * (draft - 2)] * len(SLOTS)) if parents else state.commit(draft)
    state.materialise([3, 0, 4], [2, 5, -1])
    state.flush([3, 1, 4])
    return [*outputs, state.state(), *state.layer.buffers.values()]


def refused(kind: LayerKind) -> None:
    """A copy reads all slots before it writes one, so it is one launch: more than that is refused, and nothing changes."""
    layout = StateLayout(Recurrence(kind, 1, 1, 1, 16), 65537)
    source = Source(layout.recurrence, layout.activation)
    state = ReplayState(layout, A=source.A, backend="triton", check_inputs=False)
    slots = torch.arange(layout.slots)
    state.load([0], torch.ones(1, 1, 1, 16))
    with pytest.raises(InputError, match="65537 slots to copy in one call; expected at most 65536"):
        state.copy(slots, slots.flip(0))
    assert bool((state.state([0]) == 1.0).all())
    assert not state.state([layout.slots - 1]).any()


def main(kind: str) -> int:
    """Both ways, with the largest third dimension of a grid of each."""
    largest, start = [0], interpreter.GridExecutor.__call__

    def watch(self: interpreter.GridExecutor, *args: object, **named: object) -> None:
        largest[0] = max(largest[0], *self.grid[2:], 0)
        start(self, *args, **named)

    interpreter.GridExecutor.__call__ = watch
    usual = arguments.GRID_ROWS
    for draft in DRAFTS:
        found = []
        for rows in (usual, 2):
            arguments.GRID_ROWS, largest[0] = rows, 0
            with forced(SHAPE):
                found.append(live(LayerKind(kind), draft))
            assert (largest[0] > len(SLOTS)) == (rows == usual), f"a grid of {largest[0]} with {rows} rows a launch"
            assert largest[0] <= rows
        for mine, whole in zip(*found, strict=True):
            assert torch.equal(bits(mine), bits(whole)), f"T = {draft} differs"
    refused(LayerKind(kind))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
