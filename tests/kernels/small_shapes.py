"""Every kernel once on a small shape, for a memory checker: compute-sanitizer python small_shapes.py [layer [precision ...]]

Most of its time is compiling; parts of it can run side by side, and once without the checker before. It checks nothing
itself but that outputs are numbers; tests/conformance compares them.
"""

from __future__ import annotations

import sys

import torch

from replayssm import LayerKind, PrecisionPolicy, Recurrence, ReplayState, StateLayout
from replayssm.conformance.inputs import Source
from replayssm.kernels.tiles import Tiles, forced

SLOTS, WINDOW = 5, 6
SHAPES = {1: Tiles(16), 3: Tiles(16, shares=0), 6: Tiles(16, count=1)}
"""Of a step, by its tokens: a program for a whole head, two that share its folds, one for each tile."""
PRECISIONS = {
    "fp32": PrecisionPolicy(),
    "bf16": PrecisionPolicy("bf16"),
    "fp16-sr": PrecisionPolicy("fp16", stochastic_rounding=True),
    "fp8-sr": PrecisionPolicy("fp8", stochastic_rounding=True),
    "nvfp4": PrecisionPolicy("nvfp4"),
    "fp8-copy": PrecisionPolicy(read_copy="fp8"),
    "nvfp4-copy": PrecisionPolicy(read_copy="nvfp4"),
}


def live(kind: LayerKind, precision: PrecisionPolicy, draft: int, device: torch.device, *, run: bool = True) -> None:
    """A state's life: steps with and without flush, padding, a tree, and every call on slots.

    Args:
        run: False where launches do nothing, and outputs are nothing to look at.
    """
    layout = StateLayout(Recurrence(kind, 4, 2, 24, 64), SLOTS, WINDOW, draft, precision, torch.bfloat16)
    source = Source(layout.recurrence, layout.activation, device, seed=0, raw=True)
    state = ReplayState(layout, A=source.A, backend="triton", device=device, check_inputs=run)
    state.load([3, 0, 1], source.states(3))
    for step in range(4):
        with forced(SHAPES[draft]):
            outputs = state.verify(source.tokens(4, draft), [3, -1, 0, 1])
        assert not run or bool(torch.isfinite(outputs).all())
        state.commit([draft, 0, max(draft - step, 1), 1])
    if draft > 1:
        state.verify(source.tokens(1, draft), [1], parents=[[-1] + [0] * (draft - 1)])
        state.commit_path([[0, draft - 1] + [-1] * (draft - 2)])
    state.materialise([0], [2])
    state.copy([3], [4])
    state.flush([3, 1])
    state.reset([4])
    assert not run or bool(torch.isfinite(state.state()).all())


if __name__ == "__main__":
    for chosen in [LayerKind(name) for name in sys.argv[1:2]] or LayerKind:
        for name in sys.argv[2:] or PRECISIONS:
            for tokens in SHAPES:
                live(chosen, PRECISIONS[name], tokens, torch.device("cuda"))
    torch.cuda.synchronize()
