"""The functions inside `torch.compile`: whole graphs whose results, and memory, have the bits of a plain call.

Usage: TRITON_INTERPRET=1 python interpreted_compiled.py CASE,… [SEED]
"""

from __future__ import annotations

import sys

import pytest
import torch
from interpreted_dual import DRAFT, HV, H, Pool, V
from interpreted_mamba import materialise_arguments
from oracle import MambaCall, bits

import replayssm_flashinfer
from replayssm.formats import FORMATS
from replayssm_flashinfer.gdn import gated_delta_rule_mtp_ucache_flush

BACKENDS = ["eager", "aot_eager"]
"""Of `torch.compile`; a GPU has "inductor" too."""


def same_bits(function, arguments, memory, backend):
    """A whole graph does what the function does: its result, and tensors by name in `memory`, bit for bit."""
    kept = {name: arguments[name].clone() for name in memory}
    expected = function(**arguments)
    after = {name: bits(arguments[name]) for name in memory}
    for name, tensor in kept.items():
        arguments[name].copy_(tensor)
    torch._dynamo.reset()
    found = torch.compile(function, backend=backend, fullgraph=True)(**arguments)
    assert torch.equal(bits(found), bits(expected)), f"{backend}: another result"
    for name, tensor in after.items():
        assert torch.equal(bits(arguments[name]), tensor), f"{backend}: another {name}"


def mamba2():
    """`checkpointing_ssu`, one row of which folds, with a read copy and with an fp8 state, too."""
    for backend in BACKENDS:
        for dtype, copied in ((torch.float32, False), (torch.float32, True), (torch.float8_e4m3fn, False)):
            call = MambaCall(dtype, 2, 4, [2, 2])
            parts = FORMATS["fp8"].encode(call.state) if copied else ()
            copy = dict(zip(("read_copy", "read_copy_scale"), parts, strict=False))
            memory = ("state", "x_cache", "B_cache", "dt_cache", "out", *copy)
            arguments = {**call.arguments(torch.tensor([0, 4])), **copy}
            same_bits(replayssm_flashinfer.checkpointing_ssu, arguments, memory, backend)


def gdn():
    """The GDN ring function with a read copy, and a prefix of what it wrote, as one graph."""
    for backend, copy in zip(BACKENDS, ["fp8", "nvfp4", "fp8"], strict=False):
        pool = Pool(torch.float32, copy, 64)
        for name, ring in pool.rings.items():
            ring.copy_(torch.rand_like(ring) * (-1 if name == "g_cache" else 1))
        q, k = torch.randn(2, 2, DRAFT, H, 64)
        v, a, b = torch.randn(2, DRAFT, HV, V), torch.randn(2, DRAFT, HV), torch.randn(2, DRAFT, HV)
        arguments = {
            "q": q, "k": k, "v": v, "a": a, "b": b, "A_log": torch.rand(HV) - 2, "dt_bias": torch.rand(HV),
            "initial_state_source": pool.state, "initial_state_indices": torch.tensor([1, 3], dtype=torch.int32),
            "hist_len": torch.tensor([13, 5], dtype=torch.int32), "cache_base": torch.tensor([30, 2], dtype=torch.int32),
            **pool.rings, **pool.copy,
        }  # fmt: skip
        same_bits(step_and_prefix, arguments, ("initial_state_source", *pool.rings, *pool.copy), backend)


def step_and_prefix(**arguments):
    """Outputs of a step; the state of slot 3 after four records more goes to slot 0."""
    out = gated_delta_rule_mtp_ucache_flush(**arguments, restart_hist_on_flush=False)
    slots, count = arguments["initial_state_indices"], arguments["hist_len"]
    names = ("k_cache", "u_cache", "g_cache", "v_cache", "beta_cache")
    memory = {name: x for name, x in arguments.items() if name in names or name.startswith("read_copy")}
    replayssm_flashinfer.gdn.gdn_prefix_materialize(
        arguments["initial_state_source"], slots, slots - 3, cache_base=arguments["cache_base"], count=count + 4, **memory
    )  # fmt: skip
    return out


def replay():
    """GDN and KDA on rings of our own, as one token and as a draft."""
    for backend in BACKENDS:
        for channels, draft in ((False, 1), (True, 2)):
            state = torch.randn(4, HV, V, 16)
            memory = replayssm_flashinfer.allocate_delta_rings(
                state, H, 4 + draft, torch.float32, channel_decay=channels
            )
            q, k = torch.randn(2, 2, draft, H, 16)
            gate = (HV, 16) if channels else (HV,)
            v, a, b = torch.randn(2, draft, HV, V), torch.randn(2, draft, *gate), torch.randn(2, draft, HV)
            arguments = {
                "state": state, **memory, "q": q, "k": k, "v": v, "a": a, "b": b, "out": torch.empty_like(v),
                "A_log": torch.rand(HV) - 2, "dt_bias": torch.rand(gate), "state_batch_indices": torch.tensor([2, 0]),
            }  # fmt: skip
            for name in ("k_cache", "k_scale_cache", "u_cache", "v_cache", "beta_cache", "g_cache"):
                memory[name].copy_(-torch.rand_like(memory[name]))
            memory["prev_num_accepted_tokens"][2] = 4
            written = [name for name in memory if name.endswith("_cache")]
            same_bits(replayssm_flashinfer.gated_delta_rule_replay, arguments, ("state", "out", *written), backend)
    compiled = torch.compile(replayssm_flashinfer.gated_delta_rule_replay, backend="eager", fullgraph=True)
    for scale in (0.1, 0.2, 0.3):  # a number that changes stays in the graph
        compiled(**arguments, scale=scale)


def many_batches():
    """One graph for batches of any size: checks look at shapes and build no message of them."""
    graphs = []

    def count(graph, _):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    function = torch.compile(replayssm_flashinfer.checkpointing_ssu, backend=count, fullgraph=True, dynamic=True)
    for batch in (5, 3, 4):  # no other size is 5
        call = MambaCall(torch.float32, 2, 4, [2] * batch)
        slots, kept = torch.randperm(7)[:batch], call.snapshot()
        expected = replayssm_flashinfer.checkpointing_ssu(**call.arguments(slots))
        call.state, call.x, call.B, call.dt = kept["state"], kept["x"], kept["B"], kept["dt"]
        assert torch.equal(function(**call.arguments(slots)), expected)
    assert len(graphs) == 1, f"{len(graphs)} graphs for 3 batches"


def tables():
    """A graph of tables alone is no graph: refused where a graph must be whole, run as it is where not."""
    call, positional, keyword = prefix_of_tables()
    kept = call.state[3].clone()
    fold = replayssm_flashinfer.replayssm_materialize
    torch._dynamo.reset()
    with pytest.raises(Exception, match="pass the states, and their scales, in dependency_outputs"):
        torch.compile(fold, backend="aot_eager", fullgraph=True)(*positional, **keyword)
    assert torch.equal(call.state[3], kept)
    torch._dynamo.reset()
    torch.compile(fold, backend="aot_eager")(*positional, **keyword)
    assert not torch.equal(call.state[3], kept), "the call was left out"


def tables_in_place(backend):
    """A whole graph that is told of its states, of a backend that mutates them where they are."""
    call, positional, keyword = prefix_of_tables()
    kept = call.state.clone()
    replayssm_flashinfer.replayssm_materialize(*positional, **keyword)
    expected = call.state.clone()
    call.state.copy_(kept)

    def fold(state, *tables):
        replayssm_flashinfer.replayssm_materialize(*tables, **keyword, dependency_outputs=[state])

    torch._dynamo.reset()
    torch.compile(fold, backend=backend, fullgraph=True)(call.state, *positional)
    assert torch.equal(call.state, expected)
    assert not torch.equal(expected, kept), "nothing was folded"


def prefix_of_tables():
    """A call, and arguments that put two records of its slot 0 into slot 3."""
    call = MambaCall(torch.float32, 1, 4, [1])
    call.x, call.B, call.dt = (torch.rand_like(x) for x in (call.x, call.B, call.dt))
    source, start = torch.zeros(1, 1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    return call, *materialise_arguments([call], source, source + 3, start, start + 2, active=(0,))


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(int(sys.argv[2]) if len(sys.argv) > 2 else torch.seed() % 2**31)
    cases = {"mamba2": mamba2, "gdn": gdn, "replay": replay, "many_batches": many_batches, "tables": tables}
    for name in sys.argv[1].split(","):
        cases[name]()
