"""Batches at the edges of the contract: empty ones, packed rows, tables with gaps; exit 1 at a difference.

Usage: TRITON_INTERPRET=1 python interpreted_edges.py CASE,… [SEED]
"""

from __future__ import annotations

import sys
from unittest.mock import patch

import torch
from interpreted_mamba import EXACT, call_materialise
from oracle import MambaCall, bits, decoded, relative

from replayssm.formats import LARGEST
from replayssm.kernels import arguments as kernel_arguments
from replayssm_flashinfer import allocate_delta_rings, checkpointing_ssu, gated_delta_rule_replay
from replayssm_flashinfer.gdn import gated_delta_rule_mtp_ucache_flush, gdn_prefix_materialize


def empty():
    """No rows: nothing is launched, and outputs are empty."""
    call = MambaCall(torch.float32, 2, 4, [])
    assert checkpointing_ssu(**call.arguments(torch.zeros(0, dtype=torch.int64))).shape == (0, 2, 2, 20)
    packed = MambaCall(torch.int8, 2, 4, [0, 0])
    out = checkpointing_ssu(**packed.arguments(torch.tensor([0, 3]), packed=True))
    assert out.shape == (1, 0, 2, 20)
    none = torch.zeros(0, dtype=torch.int32)
    call_materialise([call], none[None], none[None], none, none, active=())
    state, q, v, gate = (
        torch.randn(3, 2, 8, 16),
        torch.zeros(0, 1, 1, 16),
        torch.zeros(0, 1, 2, 8),
        torch.zeros(0, 1, 2),
    )
    kept, weights = state.clone(), {"A_log": torch.rand(2), "dt_bias": torch.rand(2)}
    rings = allocate_delta_rings(state, 1, 5, torch.float32)
    for given in (weights, {}):
        gated_delta_rule_replay(state, **rings, q=q, k=q, v=v, a=gate, b=gate, out=v.clone(), **given)
    pools = {
        "k_cache": torch.zeros(3, 1, 32, 16), "u_cache": torch.zeros(3, 2, 32, 8), "g_cache": torch.zeros(3, 2, 32),
    }  # fmt: skip
    out = gated_delta_rule_mtp_ucache_flush(
        **weights, a=gate, q=q, k=q, v=v, b=gate, initial_state_source=state, **pools, hist_len=none, cache_base=none
    )
    assert out.shape == v.shape
    gdn_prefix_materialize(state, none, none, *pools.values(), none, none)
    assert torch.equal(state, kept)


def packed():
    """Rows without tokens take no slot, longer rows are cut to T, and places outside of the batch are no tokens."""
    call, slots = MambaCall(torch.float32, 3, 6, [0, 3, 2]), torch.tensor([2, 2, 5])
    before = call.snapshot()
    out = checkpointing_ssu(**call.arguments(slots, packed=True))[0]
    for row, first in ((1, 0), (2, 3)):
        truth = call.outputs(call.replayed(before, int(slots[row])), row)
        error = relative(out[first : first + call.lengths[row]], truth)
        assert error < EXACT, f"row {row} is off by {error:.1e}"
    call, slots = MambaCall(torch.float32, 2, 4, [2, 2]), torch.tensor([1, 4])
    call.live[1] = call.live[4] = 1
    call.x, call.B, call.dt = (torch.rand_like(ring) for ring in (call.x, call.B, call.dt))
    before, arguments = call.snapshot(), call.arguments(slots, packed=True)
    arguments["cu_seqlens"] = torch.tensor([0, 3, 6], dtype=torch.int32)
    tokens = {name: x[:1] for name, x in call.tokens.items()}
    out = checkpointing_ssu(**arguments)[0]
    assert relative(out[:2], call.outputs(call.replayed(before, 1), 0)) < EXACT
    assert (out[2] == 7.0).all(), "the output of a token that no row has was written"
    call.tokens = {
        name: torch.cat([x, call.tokens[name][1:, 1:].expand(1, 2, *x.shape[2:])]) for name, x in tokens.items()
    }
    call.lengths = [2, 1]
    assert relative(out[3:], call.outputs(call.replayed(before, 4), 1)) < EXACT
    row = (int(call.start[4]) + 2) % call.rows
    assert torch.equal(bits(call.x[4, :, row]), bits(before["x"][4, :, row])), "a token that is not there was appended"


def tables():
    """Columns of a larger table, and more folds than one launch may have."""
    layers = [MambaCall(torch.float32, 3, 6, [3]) for _ in range(3)]
    for layer in layers:
        layer.start, layer.live = layers[0].start, layers[0].live
        layer.x, layer.B, layer.dt = (torch.rand_like(ring) for ring in (layer.x, layer.B, layer.dt))
    source = torch.zeros(3, 2, dtype=torch.int32)
    target, start = torch.tensor([[4, 5], [5, 4], [3, 6]], dtype=torch.int32), torch.tensor([7, 2], dtype=torch.int32)
    count = torch.tensor([5, 2], dtype=torch.int32)
    before = [layer.snapshot() for layer in layers]
    usual = kernel_arguments.GRID_ROWS
    try:
        # Two layers a launch, then one request.
        for kernel_arguments.GRID_ROWS in (5, 1):
            for layer in layers:
                layer.state[3:] = 7.0
            call_materialise(layers, source, target, start, count, active=(1, 0), strided=True)
            _check_tables(layers, before, target, start, count)
    finally:
        kernel_arguments.GRID_ROWS = usual


def _check_tables(layers, before, target, start, count):
    for layer, old, into in zip(layers, before, target.tolist(), strict=True):
        for request in range(2):
            state = decoded(old["state"], None)[0]
            for j in range(int(count[request])):
                row = (int(start[request]) + j) % layer.rows
                state = layer.step(state, old["x"][0, :, row], old["B"][0, :, row], old["dt"][0, :, row])
            error = relative(layer.state[into[request]], state)
            assert error < EXACT, f"request {request} is off by {error:.1e}"


def large():
    """A window above 16, and the largest state size."""
    for window, dstate in ((40, 16), (3, 256)):
        call, slots = MambaCall(torch.float32, 3, window, [3, 3], dim=8, dstate=dstate), torch.tensor([0, 4])
        before = call.snapshot()
        out = checkpointing_ssu(**call.arguments(slots), long_window=window > 16)
        for row, slot in enumerate(slots.tolist()):
            truth = call.replayed(before, slot)
            error = relative(out[row], call.outputs(truth, row))
            assert error < EXACT, f"W={window}, N={dstate}, row {row} is off by {error:.1e}"
            if call.folds(row, slot):
                assert relative(call.state[slot], truth) < EXACT


def strong():
    """Records whose products are beyond fp32: a state saturates as in every other format, and outputs are numbers."""
    for dtype in (torch.int8, torch.float8_e4m3fn):
        call, slot = MambaCall(dtype, 2, 4, [2]), torch.tensor([0])
        call.x[0, 0], call.B[0], call.dt[0] = 1e22, 1e22, 0.5
        checkpointing_ssu(**call.arguments(slot))
        state = decoded(call.state[0, 0], call.scale[0, 0])
        assert relative(state, torch.full_like(state, LARGEST)) < 1e-6, f"{dtype}: {state.abs().max():.1e}"
        call.live[0] = 0
        assert checkpointing_ssu(**call.arguments(slot)).isfinite().all()


def beyond():
    """A history longer than a GDN window is a full one: 16 records, whatever the ring holds."""
    q, v, gate = torch.randn(1, 2, 1, 16), torch.randn(1, 2, 2, 8), torch.randn(1, 2, 2)
    rings = {"k_cache": torch.randn(1, 1, 32, 16), "u_cache": torch.randn(1, 2, 32, 8)}
    rings["g_cache"] = -torch.rand(1, 2, 32).cumsum(-1)
    weights, state = {"A_log": torch.rand(2), "dt_bias": torch.rand(2)}, torch.randn(1, 2, 8, 16)
    folded = []
    for length in (16, 20):
        memory = {name: x.clone() for name, x in {**rings, "initial_state_source": state}.items()}
        cursors = {"hist_len": torch.tensor([length], dtype=torch.int32), "restart_hist_on_flush": False}
        gated_delta_rule_mtp_ucache_flush(**weights, a=gate, q=q, k=q, v=v, b=gate, **memory, **cursors)
        folded.append(memory["initial_state_source"])
    assert not torch.equal(folded[0], state)
    assert torch.equal(*folded)
    # Nobody looks at cursors while a graph is captured; they move past what was folded.
    cursors = {name: torch.tensor([n], dtype=torch.int32) for name, n in (("hist_len", 20), ("cache_base", 5))}
    with patch("replayssm_flashinfer.gdn_checks.capturing", return_value=True):
        gated_delta_rule_mtp_ucache_flush(**weights, a=gate, q=q, k=q, v=v, b=gate, **memory, **cursors)
    assert (int(cursors["hist_len"]), int(cursors["cache_base"])) == (0, 21)


def counted():
    """`num_active` without a list counts requests with a count of 0 and more, as they stand."""
    state, none = torch.randn(5, 2, 8, 16), torch.zeros(3, dtype=torch.int32)
    pools = (torch.rand(5, 1, 32, 16), torch.rand(5, 2, 32, 8), -torch.rand(5, 2, 32))
    source, target = torch.tensor([0, 0, 1], dtype=torch.int32), torch.tensor([2, 3, 4], dtype=torch.int32)
    for number, written in ((0, []), (1, [3]), (2, [3, 4])):
        pool = state.clone()
        count = torch.tensor([-1, 2, 1], dtype=torch.int32)
        active = torch.tensor([number], dtype=torch.int32)
        gdn_prefix_materialize(pool, source, target, *pools, none, count, num_active=active)
        assert [slot for slot in range(5) if not torch.equal(pool[slot], state[slot])] == written


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(int(sys.argv[2]) if len(sys.argv) > 2 else torch.seed() % 2**31)
    cases = {
        "empty": empty,
        "packed": packed,
        "tables": tables,
        "large": large,
        "strong": strong,
        "beyond": beyond,
        "counted": counted,
    }
    for name in sys.argv[1].split(","):
        cases[name]()
