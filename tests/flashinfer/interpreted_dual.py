"""FlashInfer's GDN rings with a read copy of the state, beside the float64 recurrence; exit 1 at the first difference.

Usage: TRITON_INTERPRET=1 python interpreted_dual.py CASE,… [SEED]
"""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from oracle import STORED, DeltaRecurrence, bits, relative, stored

from replayssm.formats import FORMATS
from replayssm_flashinfer.gdn import gated_delta_rule_mtp_ucache_flush, gdn_prefix_materialize

H, HV, V, SLOTS, RING, DRAFT = 1, 2, 20, 5, 32, 4
EXACT = 5e-6
"""Outputs, and states before they are stored: fp32 sums and a solve of at most a few dozen terms."""
COPIED, ALIKE = 1e-6, 1e-2
"""Copies of one state, and of two that differ in their last bits: a number of either on another side of a step."""


class Pool:
    """Every slot's state, rings with NaN in every row, and a read copy that is made of the states by a call."""

    def __init__(self, dtype, copy, key_dim, activation=torch.float32):
        self.format, self.key_dim = FORMATS[copy] if copy else None, key_dim
        self.state, _ = stored(torch.randn(SLOTS, HV, V, key_dim), dtype)
        rings = {
            "k_cache": (H, RING, key_dim), "u_cache": (HV, RING, V), "g_cache": (HV, RING),
            "v_cache": (HV, RING, V), "beta_cache": (HV, RING),
        }  # fmt: skip
        stored_as = {name: activation if name[0] in "kuv" else torch.float32 for name in rings}
        self.rings = {name: torch.full((SLOTS, *rings[name]), float("nan"), dtype=stored_as[name]) for name in rings}
        parts = self.format.parts(V, key_dim) if copy else ()
        self.copy = {f"read_copy{part.suffix}": torch.zeros(SLOTS, HV, *part.shape, dtype=part.dtype) for part in parts}
        every, none = torch.arange(SLOTS, dtype=torch.int32), torch.zeros(SLOTS, dtype=torch.int32)
        kept = self.state.clone()
        self.materialise(every, every, none, none)
        assert torch.equal(self.state, kept), "a copy in place changed a state"
        self.same_copy(list(range(SLOTS)), self.state, COPIED)

    def materialise(self, source, target, base, count):
        gdn_prefix_materialize(
            self.state, source, target, cache_base=base, count=count, **self.rings, **self.copy
        )  # fmt: skip

    def read(self):
        """What steps without a fold read, float64."""
        parts = tuple(self.copy.values())
        return self.format.decode(parts, torch.float64) if parts else self.state.double()

    def same_copy(self, slots, state, limit):
        """The read copy of slots is that of `state`."""
        if self.copy:
            wanted = self.format.decode(self.format.encode(state.float()), torch.float64)
            error = relative(self.read()[slots], wanted)
            assert error < limit, f"the copy of slots {slots} is off by {error:.1e}"


def lives(dtype, copy, key_dim, *, activation=torch.float32, steps=8, **rounding):
    """Random acceptance through several windows; returns the pool, true states after all records, and cursors.

    Two float64 states a row: what a fold makes, from the stored state alone, and what steps between folds read, from its
    copy. Corrections of a step that folds are solved from the state itself, so there the two differ by the decayed
    difference of state and copy.
    """
    pool, slots = Pool(dtype, copy, key_dim, activation), torch.tensor([3, -1, 0], dtype=torch.int32)
    A_log, bias = torch.rand(HV) - 2, torch.rand(HV)
    rule = DeltaRecurrence(A_log, bias, key_dim**-0.5)
    base, length = torch.tensor([30, 0, 7], dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    truth, seen = {0: pool.state[3].double(), 2: pool.state[0].double()}, {0: pool.read()[3], 2: pool.read()[0]}
    folded, kept = 0, bits(pool.state[[1, 2, 4]])
    for step in range(steps):
        shapes = ((H, key_dim), (H, key_dim), (HV, V), (HV,), (HV,))
        q, k, v, a, b = (torch.randn(3, DRAFT, *shape).to(activation) for shape in shapes)
        stored_before = bits(pool.state), [bits(part) for part in pool.copy.values()]
        out = gated_delta_rule_mtp_ucache_flush(
            A_log, a, bias, q=q, k=k, v=v, b=b, initial_state_source=pool.state, initial_state_indices=slots,
            hist_len=length, cache_base=base, restart_hist_on_flush=False, **pool.rings, **pool.copy, **rounding,
        )  # fmt: skip
        assert not out[1].any(), "padding"
        flush, accepted = length >= 17 - DRAFT, torch.randint(1, DRAFT + 1, (3,), dtype=torch.int32)
        accepted[2] = torch.randint(3, DRAFT + 1, ())  # enough for a fold, and for steps after it
        for row in (0, 2):
            slot, new = int(slots[row]), [x[row] for x in (q, k, v, a, b)]
            taken = [x[: int(accepted[row])] for x in new]
            error = relative(out[row], rule(truth[row] if flush[row] else seen[row], *new)[0])
            assert error < EXACT, f"{copy}, step {step}, row {row}: outputs are off by {error:.1e}"
            if flush[row]:
                folded += 1
                error, limit = relative(pool.state[slot], truth[row]), STORED[dtype] * (2 if rounding else 1)
                assert error < max(limit, EXACT), f"{copy}: a folded state is off by {error:.1e}"
                exact = dtype is torch.float32
                pool.same_copy(slot, pool.state[slot] if exact else truth[row], COPIED if exact else ALIKE)
                gates = -A_log.double().exp() * F.softplus(taken[3].double() + bias.double())
                decay = gates.sum(0).exp()[:, None, None]
                seen[row] = rule(truth[row], *taken)[1] + decay * (pool.read()[slot] - truth[row])
                truth[row] = rule(pool.state[slot].double(), *taken)[1]
            else:
                now = pool.state, *pool.copy.values()
                before = stored_before[0], *stored_before[1]
                same = all(torch.equal(bits(x[slot]), y[slot]) for x, y in zip(now, before, strict=True))
                assert same, "a state, or a copy, that does not fold"
                truth[row], seen[row] = rule(truth[row], *taken)[1], rule(seen[row], *taken)[1]
        base = torch.where(flush, (base + length) % RING, base)
        length = torch.where(flush, accepted, length + accepted)
    assert folded
    assert torch.equal(bits(pool.state[[1, 2, 4]]), kept), "slots that nobody named were written"
    return pool, truth, base, length


def copies():
    """Both formats of a copy; what a prefix leaves in another slot; and rings of raw values without a copy."""
    for dtype, copy, key_dim in ((torch.float32, "fp8", 16), (torch.float32, "nvfp4", 64)):
        pool, truth, base, length = lives(dtype, copy, key_dim)
        source, target = torch.tensor([3, 0], dtype=torch.int32), torch.tensor([1, 4], dtype=torch.int32)
        count = torch.stack([length[0], torch.zeros_like(length[2])])
        pool.materialise(source, target, base[[0, 2]], count)
        error = relative(pool.state[1], truth[0])
        assert error < EXACT, f"{copy}: a prefix is off by {error:.1e}"
        assert torch.equal(pool.state[4], pool.state[0]), "no records are a copy"
        pool.same_copy([1, 4], pool.state[[1, 4]], COPIED)


def states():
    """States of 16 bits, one rounded stochastically, with a copy; an exact fold without one."""
    seed = torch.tensor([int(torch.randint(2**40, ()))])
    lives(torch.float16, "nvfp4", 64, stochastic_rounding="philox", rand_seed=seed)
    lives(torch.bfloat16, None, 16)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(int(sys.argv[2]) if len(sys.argv) > 2 else torch.seed() % 2**31)
    cases = {"copies": copies, "states": states}
    for name in sys.argv[1].split(","):
        cases[name]()
