"""The GDN and KDA functions beside the float64 recurrence; exit 1 at the first difference.

Usage: TRITON_INTERPRET=1 python interpreted_delta.py CASE,… [SEED]
"""

from __future__ import annotations

import sys

import torch
from oracle import STORED, DeltaRecurrence, bits, decoded, relative, stored

from replayssm.formats import FORMATS
from replayssm_flashinfer import allocate_delta_rings, gated_delta_rule_replay
from replayssm_flashinfer.gdn import (
    gated_delta_rule_mtp_ucache,
    gated_delta_rule_mtp_ucache_flush,
    gdn_prefix_materialize,
)

H, HV, K, V, SLOTS, RING = 1, 2, 16, 20, 6, 32
EXACT = 5e-6
"""Outputs and states in fp32: sums and a solve of at most a few dozen terms."""


def tokens(rows, draft, *, channels=False):
    """Random q, k, v, a, b."""
    gate = (rows, draft, HV, K) if channels else (rows, draft, HV)
    shapes = ((rows, draft, H, K), (rows, draft, H, K), (rows, draft, HV, V), gate, (rows, draft, HV))
    return [torch.randn(shape) for shape in shapes]


def rings(rows=RING):
    """FlashInfer's rings, NaN in every row."""
    return [torch.full(shape, float("nan")) for shape in ((SLOTS, H, rows, K), (SLOTS, HV, rows, V), (SLOTS, HV, rows))]


def step_truth(rule, truth, row, accepted, *step):
    """Outputs of a row's tokens; the row's truth goes on by what is accepted."""
    out, _ = rule(truth[row], *(x[row] for x in step))
    if accepted:
        _, truth[row] = rule(truth[row], *(x[row, :accepted] for x in step))
    return out


def ucache():
    """Rows through several windows of FlashInfer's rings, with random acceptance; then a prefix into another slot."""
    draft, slots = 4, torch.tensor([4, 0, 2])
    state = torch.randn(SLOTS, HV, V, K)
    kept = state.clone()
    k_cache, u_cache, g_cache = rings()
    base, length = torch.tensor([30, 3, 17], dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    A_log, bias = torch.rand(HV) - 2, torch.rand(HV)
    rule, truth = DeltaRecurrence(A_log, bias, K**-0.5), list(state[slots].double())
    folded = 0
    for _ in range(9):
        step = tokens(3, draft)
        q, k, v, a, b = step
        out = gated_delta_rule_mtp_ucache_flush(
            A_log, a, bias, q=q, k=k, v=v, b=b, initial_state_source=state, initial_state_indices=slots,
            k_cache=k_cache, u_cache=u_cache, g_cache=g_cache, hist_len=length, cache_base=base,
            restart_hist_on_flush=False,
        )  # fmt: skip
        accepted = torch.randint(0, draft + 1, (3,), dtype=torch.int32)
        for row in range(3):
            error = relative(out[row], step_truth(rule, truth, row, int(accepted[row]), *step))
            assert error < EXACT, f"row {row}: outputs are off by {error:.1e}"
        flush = length >= 17 - draft
        folded += int(flush.sum())
        base = torch.where(flush, (base + length) % RING, base)
        length = torch.where(flush, accepted, length + accepted)
    assert folded, "nobody folded"
    assert torch.equal(state[[1, 3, 5]], kept[[1, 3, 5]]), "slots that nobody named were written"
    source, target, nobody = (torch.tensor(x, dtype=torch.int32) for x in ([4, 0, 2], [1, 3, 5], [0, 0, -1]))
    count = torch.stack([length[0], nobody[0], nobody[2]])
    gdn_prefix_materialize(state, source, target, k_cache, u_cache, g_cache, base, count)
    error = relative(state[1], truth[0])
    assert error < EXACT, f"a materialised state is off by {error:.1e}"
    assert torch.equal(state[3], state[0]), "no records are a copy"
    assert torch.equal(state[5], kept[5]), "a count below 0 is left out"


def in_place():
    """Cursors that the function moves itself; the flat ring that never folds; padding."""
    A_log, bias = torch.rand(HV) - 2, torch.rand(HV)
    rule, state = DeltaRecurrence(A_log, bias, K**-0.5), torch.randn(SLOTS, HV, V, K)
    k_cache, u_cache, g_cache = rings()
    base, length = torch.tensor([31, 5], dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    slots, truth = torch.tensor([1, -1], dtype=torch.int32), [state[1].double()]
    for _ in range(5):
        step = tokens(2, 4)
        q, k, v, a, b = step
        before = length.clone()
        out = gated_delta_rule_mtp_ucache_flush(
            A_log, a, bias, q=q, k=k, v=v, b=b, initial_state_source=state, initial_state_indices=slots,
            k_cache=k_cache, u_cache=u_cache, g_cache=g_cache, hist_len=length, cache_base=base,
        )  # fmt: skip
        assert relative(out[0], step_truth(rule, truth, 0, 4, *step)) < EXACT
        assert not out[1].any(), "padding"
        assert torch.equal(length, torch.where(before >= 13, 0, before)), "cursors of rows that fold restart"
        length += 4
    flat = rings(16)
    q, k, v, a, b = (x[:1].bfloat16() for x in tokens(1, 4))
    kept = state.clone()
    out = gated_delta_rule_mtp_ucache(
        A_log, a, bias, q=q, k=k, v=v, b=b, initial_state_source=state, k_cache=flat[0].bfloat16(),
        u_cache=flat[1].bfloat16(), g_cache=flat[2], hist_len=torch.zeros(1, dtype=torch.int32),
    )  # fmt: skip
    assert torch.equal(state, kept), "a verify-only step wrote the state"
    assert relative(out[0], rule(kept[0].double(), q[0], k[0], v[0], a[0], b[0])[0]) < 2e-2, "keys and outputs in bf16"


def replay():
    """Standard decode and drafts of GDN and KDA on rings with the exact fold, in fp32."""
    for channels, draft, bound in ((False, 1, None), (True, 1, -5.0), (False, 2, None), (True, 2, None)):
        state, slots = torch.randn(SLOTS, HV, V, K), torch.tensor([5, -1, 2])
        memory = allocate_delta_rings(state, H, 4 + draft, torch.float32, channel_decay=channels)
        for name in ("k_cache", "u_cache", "v_cache", "g_cache"):
            memory[name].fill_(float("nan"))
        memory["ring_start"].copy_(torch.arange(SLOTS) % (4 + draft))
        A_log, bias = torch.rand(HV) - 2, torch.rand(HV, K) if channels else torch.rand(HV)
        rule, truth = DeltaRecurrence(A_log, bias, K**-0.5, bound), [state[s].double() for s in (5, 5, 2)]
        kept = bits(state[0])
        for _ in range(6):
            q, k, v, a, b = tokens(3, draft, channels=channels)
            out = gated_delta_rule_replay(
                state, **memory, q=q, k=k, v=v, a=a, b=b, out=torch.empty_like(v), A_log=A_log, dt_bias=bias,
                lower_bound=bound, state_batch_indices=slots,
            )  # fmt: skip
            assert not out[1].any(), "padding"
            for row, slot in ((0, 5), (2, 2)):
                accepted = int(torch.randint(1, draft + 1, ()))
                error = relative(out[row], step_truth(rule, truth, row, accepted, q, k, v, a, b))
                assert error < EXACT, f"channels={channels}, T={draft}: outputs are off by {error:.1e}"
                start, live = memory["ring_start"], memory["prev_num_accepted_tokens"]
                flush = int(live[slot]) > 0 and int(live[slot]) + draft > 4
                if flush:
                    start[slot] = (start[slot] + live[slot]) % (4 + draft)
                live[slot] = accepted if flush else live[slot] + accepted
        assert torch.equal(bits(state[0]), kept), "a slot that nobody named was written"


def formats():
    """Stored states of other formats, and read copies, two value heads a key head: what is read, and what a fold writes."""
    by_head = ((torch.bfloat16, None), (torch.float8_e4m3fn, None), (torch.float16, "nvfp4"))
    by_channel = ((torch.float16, None), (torch.float8_e4m3fn, None), (torch.float32, "fp8"))
    for channels, cases in ((False, by_head), (True, by_channel)):
        for dtype, copy in cases:
            size, heads = 64 if copy else K, 2
            state, scale = stored(torch.randn(4, 2 * heads, V, size), dtype)
            memory = allocate_delta_rings(state, heads, 3, torch.float32, channel_decay=channels)
            A_log, bias = torch.rand(2 * heads) - 2, torch.rand(2 * heads, size) if channels else torch.rand(2 * heads)
            rule, slots = DeltaRecurrence(A_log, bias, size**-0.5), torch.tensor([3, 1])
            parts = FORMATS[copy].encode(decoded(state, scale).float()) if copy else []
            names = [f"read_copy{part.suffix}" for part in FORMATS[copy].parts(V, size)] if copy else []
            truth, held = decoded(state, scale)[slots], []
            for step in range(3):
                q, k = torch.randn(2, 2, 1, heads, size)
                gate = (2, 1, 2 * heads, size) if channels else (2, 1, 2 * heads)
                v, a, b = torch.randn(2, 1, 2 * heads, V), torch.randn(gate), torch.randn(2, 1, 2 * heads)
                read = FORMATS[copy].decode(parts, torch.float64)[slots] if copy and step < 2 else truth
                out = gated_delta_rule_replay(
                    state, **memory, q=q, k=k, v=v, a=a, b=b, out=torch.empty_like(v), A_log=A_log, dt_bias=bias,
                    state_batch_indices=slots, state_scale=scale, **dict(zip(names, parts, strict=True)),
                )  # fmt: skip
                held.append((q, k, v, a, b))
                for row in range(2):
                    history = [torch.cat([x[row] for x in tokens]) for tokens in zip(*held, strict=True)]
                    error = relative(out[row], rule(read[row], *history)[0][-1:])
                    assert error < EXACT * 4, f"{dtype}, {copy}, channels={channels}, step {step}: off by {error:.1e}"
                    if step == 2:
                        _, folded = rule(truth[row], *(x[:2] for x in history))
                        error = relative(decoded(state, scale)[slots[row]], folded)
                        assert error < 2 * STORED[dtype], f"{dtype}, {copy}: a fold is off by {error:.1e}"
                memory["prev_num_accepted_tokens"][slots] = step + 1


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(int(sys.argv[2]) if len(sys.argv) > 2 else torch.seed() % 2**31)
    cases = {"ucache": ucache, "in_place": in_place, "replay": replay, "formats": formats}
    for name in sys.argv[1].split(","):
        cases[name]()
