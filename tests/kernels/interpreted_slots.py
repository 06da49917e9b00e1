"""Load, copy, compact, flush and materialise through the triton and the torch backend side by side; exit 1 on a difference.

Usage: TRITON_INTERPRET=1 python interpreted_slots.py LAYER
"""

from __future__ import annotations

import sys

import torch
from interpreted_step import BOUND, GEOMETRY, recurrence_for, relative

from replayssm import PrecisionPolicy, Recurrence, ReplayState, StateLayout
from replayssm.conformance.inputs import Source
from replayssm.conformance.memory import bits, paged

SLOTS = 6
# The interpreter truncates where the hardware rounds to nearest, so bf16 only where the cast is exact.
CHECKPOINTS = [
    PrecisionPolicy(),
    PrecisionPolicy(exact_fold=False),
    PrecisionPolicy("fp16"),
    PrecisionPolicy("fp16", stochastic_rounding=True),
    PrecisionPolicy("fp8", stochastic_rounding=True),
    PrecisionPolicy(read_copy="fp8"),
    PrecisionPolicy(read_copy="nvfp4"),
]


class Pair:
    """The same slots in two backends, in an engine's pages; every call goes to both."""

    def __init__(self, recurrence: Recurrence, precision: PrecisionPolicy, activation: torch.dtype) -> None:
        self.layout = StateLayout(recurrence, SLOTS, 5, 4, precision, activation)
        self.source = Source(recurrence, activation, seed=7)
        memory, self.pools, self.gaps = {}, [], None
        for name in ("triton", "torch"):
            memory[name], pool, self.gaps = paged(self.layout, torch.device("cpu"))
            self.pools.append(pool)
        self.fused, self.plain = (
            ReplayState(self.layout, A=self.source.A, backend=name, buffers=buffers, seed=3)
            for name, buffers in memory.items()
        )

    def __call__(self, name: str, *args: object) -> None:
        for state in (self.fused, self.plain):
            getattr(state, name)(*args)

    def same_bits(self, what: str, prefix: str = "") -> None:
        """Buffers whose names begin so, cursors, and what lies between the slots."""
        for name, mine in self.fused.layer.buffers.items():
            if name.startswith(prefix):
                assert torch.equal(bits(mine), bits(self.plain.layer.buffers[name])), f"{name} differs after {what}"
        for name in self.fused.cursors.NAMES:
            mine, theirs = (getattr(state.cursors, name) for state in (self.fused, self.plain))
            assert torch.equal(mine, theirs), f"cursor {name} after {what}: {mine.tolist()}, expected {theirs.tolist()}"
        assert bool((self.pools[0][:, self.gaps] == 0x7F).all()), f"{what} wrote between the buffers of a slot"

    def take_over(self) -> None:
        """The fused state takes all of the plain one's memory, so that differences do not add up."""
        self.pools[0].copy_(self.pools[1])


def run_ahead(pair: Pair, slots: list[int], steps: int) -> None:
    """Steps of the plain backend, whose records both then have."""
    for _ in range(steps):
        inputs = pair.source.tokens(len(slots), 2)
        pair.plain.verify(inputs, slots)
        plan = pair.fused.plan(inputs, slots)
        pair.fused.settle(plan)
        pair("commit", [1 + i % 2 for i in range(len(slots))])
        pair.take_over()


def check_states(pair: Pair, slots: list[int], what: str) -> None:
    """States of both, within rounding of fp32 or, with a coarser checkpoint, one step of its grid here and there."""
    worst = relative(pair.fused.state(slots), pair.plain.state(slots))
    bound = {"fp32": BOUND, "fp16": 2.0**-11, "fp8": 2.0**-4}[pair.layout.precision.checkpoint]
    assert worst <= bound, f"{what} differs by {worst:.1e}, bound {bound:.1e}"


def life(pair: Pair) -> None:
    """Every operation that is not a step, some rows of it padding."""
    pair("load", [4, 0, 2], pair.source.states(3), [3, 9, 0])
    pair.same_bits("load")
    pair("reset", [5, 1])
    pair.same_bits("reset")
    run_ahead(pair, [2, 4, 5], 4)
    pair("copy", [2, 2, 4], [0, 4, 5])
    pair.same_bits("copy that crosses")
    counts = pair.plain.cursors.committed[[4, 2]] - torch.tensor([1, 0])
    check_states(pair, [4, 2], "state")
    assert relative(pair.fused.state([4, 2], counts), pair.plain.state([4, 2], counts)) <= BOUND
    pair("materialise", [4, 2], [1, 3], counts)
    pair.same_bits("materialise", "key")
    check_states(pair, [1, 3], "materialised state")
    pair.take_over()
    pair("materialise", [4, 3], [5, 0], 0)
    pair.same_bits("materialise of no record", "checkpoint" if pair.layout.precision.checkpoint != "fp8" else "key")
    pair.take_over()
    run_ahead(pair, [2, 4], 2)
    pair("flush")
    pair.same_bits("flush", "key")
    check_states(pair, list(range(SLOTS)), "flushed state")
    pair.take_over()
    pair("flush")
    pair.same_bits("flush of empty rings")


def trees(pair: Pair) -> None:
    """Accepted paths move the same rows, wherever the ring begins."""
    parents = [[-1, 0, 0, 2], [-1, -1, 1, 2], [-1, 0, 1, 2]]
    paths = [[0, 2, 3], [1, 2, 3], [0, 1, 2]]
    for slot in range(SLOTS):
        origin = int(torch.randint(pair.layout.rows, ()))
        for state in (pair.fused, pair.plain):
            state.cursors.origin[slot] = origin
    slots = [3, 0, 5]
    pair("load", slots, pair.source.states(3))
    for _ in range(4):
        inputs = pair.source.tokens(4, 4)
        batch = [slots[0], -1, *slots[1:]]
        tree = [parents[0], [0] * 4, *parents[1:]]
        pair.plain.verify(inputs, batch, parents=tree)
        pair.fused.settle(pair.fused.plan(inputs, batch, parents=tree))
        pair.take_over()
        pair("commit_path", [paths[0], [-1] * 3, *paths[1:]])
        pair.same_bits("commit_path")
        pair("commit_path", [paths[0], [-1] * 3, *paths[1:]])
        pair.same_bits("repeated commit_path")


def unchecked(pair: Pair) -> None:
    """Without checks, padded entries and slots out of range write nothing."""
    pair.take_over()
    before = pair.pools[0].clone()
    state = pair.fused
    state.check_inputs = False
    state.load([-1, SLOTS], pair.source.states(2))
    state.copy([0, SLOTS + 3, 1], [-1, 2, SLOTS])
    state.materialise([0, -1], [-1, 3])
    state.flush([-1, SLOTS + 1])
    assert torch.equal(before, pair.pools[0])
    assert not state.state([-1]).any()


def main(kind: str) -> int:
    """Every checkpoint, with the activations that it meets; an assertion is the failure."""
    torch.manual_seed(0)
    for precision in CHECKPOINTS:
        pair = Pair(recurrence_for(kind, precision), precision, torch.float32)
        life(pair)
        trees(pair)
        unchecked(pair)
    trees(Pair(GEOMETRY[kind], PrecisionPolicy("bf16"), torch.bfloat16))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
