"""Step a small state through the triton and the torch backend side by side; exit 1 where they disagree.

Usage: TRITON_INTERPRET=1 python interpreted_step.py LAYER MODE
"""

from __future__ import annotations

import sys
from dataclasses import replace

import torch

from replayssm import PrecisionPolicy, RawGate, Recurrence, ReplayState, StateLayout, TokenInputs
from replayssm.kernels.tiles import Tiles, forced

ROWS, STEPS = 2, 7
SLOTS = [3, 0]
# Both backends compute in fp32, in another order: a few hundred roundings of 2^-24.
BOUND = 256 * 2.0**-24
GEOMETRY = {
    "mamba2": Recurrence.mamba2(heads=2, head_dim=24, state_size=16, groups=1),
    "gdn": Recurrence.gdn(value_heads=2, key_heads=1, value_dim=24, key_dim=32),
    "kda": Recurrence.kda(heads=2, value_dim=24, key_dim=16),
}
# A program for each fold of rows that flush, of which one is shared where both do; a program for all; one for each tile.
SHAPES = (Tiles(16, shares=0), Tiles(16), Tiles(16, count=1))
# Four tokens and fewer are too few rows for tensor cores, and solved one by one.
DRAFT = {"standard": 1, "draft": 3, "tree": 6}
# Not bf16: the interpreter truncates where the hardware rounds.
CHECKPOINTS = {
    "standard": [
        PrecisionPolicy("fp16"),
        PrecisionPolicy("fp8"),
        PrecisionPolicy(),
        PrecisionPolicy(exact_fold=False),
        PrecisionPolicy(read_copy="fp8"),
        PrecisionPolicy(read_copy="nvfp4"),
        PrecisionPolicy("nvfp4"),
    ],
    "draft": [PrecisionPolicy(), PrecisionPolicy("fp16"), PrecisionPolicy(read_copy="nvfp4"), PrecisionPolicy("nvfp4")],
    "tree": [PrecisionPolicy()],
}


def recurrence_for(kind: str, precision: PrecisionPolicy) -> Recurrence:
    """The layer, with the 64 numbers a key that NVFP4 needs, and with more of one byte than four threads load at a time."""
    key_dims = {"nvfp4": 64, "fp8": 128}
    r = GEOMETRY[kind]
    return replace(r, key_dim=key_dims.get(precision.read_copy or precision.checkpoint, r.key_dim))


def new_tokens(r: Recurrence, draft: int, raw: bool) -> TokenInputs:
    """Random inputs; raw projections with gate parameters, or processed gates."""
    delta = r.delta_rule
    gate = torch.randn(ROWS, draft, *r.gate_shape)
    parameters = None
    skip = None if delta else torch.randn(r.heads)
    if raw:
        skip = None if skip is None else skip[:, None].expand(-1, r.value_dim)
        parameters = RawGate(
            dt_bias=torch.randn(r.gate_shape) - 2,
            A_log=torch.randn(r.heads) * 0.5 if delta else None,
            lower_bound=-5.0 if r.channel_decay else None,
        )
    else:
        gate = -gate.abs() if delta else gate.abs()
    return TokenInputs(
        q=torch.randn(ROWS, draft, r.groups, r.key_dim),
        k=torch.randn(ROWS, draft, r.groups, r.key_dim),
        v=torch.randn(ROWS, draft, r.heads, r.value_dim),
        gate=gate,
        beta=(torch.randn if raw else torch.rand)(ROWS, draft, r.heads) if delta else None,
        raw=parameters,
        qk_l2norm=delta,
        scale=r.key_dim**-0.5,
        D=skip,
        z=None if delta or raw else torch.randn(ROWS, draft, r.heads, r.value_dim),
    )


def relative(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    """‖mine − theirs‖ / ‖theirs‖."""
    return float((mine - theirs).norm() / theirs.norm())


def random_tree(draft: int) -> tuple[list[list[int]], list[list[int]]]:
    """Parents of each row, and the path to its last token."""
    parents = [[int(torch.randint(-1, t, (1,))) if t else -1 for t in range(draft)] for _ in range(ROWS)]
    paths = []
    for row in parents:
        walk, token = [], draft - 1
        while token >= 0:
            walk.append(token)
            token = row[token]
        paths.append(walk[::-1] + [-1] * (draft - len(walk)))
    return parents, paths


def compare(kind: str, mode: str, precision: PrecisionPolicy) -> float:
    """Largest relative difference of outputs and states over a run."""
    r, draft = recurrence_for(kind, precision), DRAFT[mode]
    window = 3 if draft == 1 else 7
    layout = StateLayout(r, 4, window, max_draft=draft, precision=precision, activation=torch.float32)
    A = -torch.rand(r.heads, dtype=torch.float64) - 0.1 if kind == "mamba2" else None
    fused, plain = (ReplayState(layout, A=A, backend=name) for name in ("triton", "torch"))
    start = torch.randn(ROWS, *r.state_shape)
    worst = 0.0
    for state in (fused, plain):
        for name, buffer in state.layer.buffers.items():
            buffer.fill_(torch.nan if name.endswith("_ring") else 0)
        state.load(SLOTS, start)
    for step in range(STEPS):
        inputs = new_tokens(r, draft, raw=step % 2 == 1)
        parents, paths = random_tree(draft) if mode == "tree" else (None, None)
        with forced(SHAPES[step % len(SHAPES)]):
            mine, theirs = (state.verify(inputs, SLOTS, parents=parents) for state in (fused, plain))
        for state in (fused, plain):
            if paths is None:
                state.commit([draft, max(draft - 1, 1)])
            else:
                state.commit_path(paths)
        worst = max(worst, relative(mine, theirs), relative(fused.state(SLOTS), plain.state(SLOTS)))
    return worst


def main(kind: str, mode: str) -> int:
    """Compare every checkpoint; 1 if any is out of bounds."""
    torch.manual_seed(0)
    failed = 0
    for precision in CHECKPOINTS[mode]:
        difference = compare(kind, mode, precision)
        # An fp16 checkpoint may round the last bit of a value the other way.
        bound = BOUND if precision.checkpoint == "fp32" else 2.0**-11
        print(f"{kind} {mode} {precision.describe()}: {difference:.1e}, bound {bound:.1e}")
        failed |= not difference <= bound
    return failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
