"""`torch.library.opcheck` of every custom operator, and the backend "flashinfer" on a stand-in for FlashInfer's kernel.

Usage: TRITON_INTERPRET=1 python interpreted_ops.py CASE,… [SEED]
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from types import ModuleType

import pytest
import torch
from oracle import MambaCall

import replayssm_flashinfer
from replayssm import PrecisionPolicy, Recurrence, ReplayState, StateLayout, TokenInputs, UnsupportedError
from replayssm.inputs import RawGate
from replayssm_flashinfer import allocate_delta_rings, backend, ops
from replayssm_flashinfer.delta_step import RINGS


def opchecks():
    """Schemas, fakes and dispatch: what torch.compile and export rely on."""
    call = MambaCall(torch.float32, 1, 4, [1, 1])
    a = call.arguments(torch.tensor([3, 0]))
    names = (
        "state", "x_cache", "B_cache", "dt_cache", "ring_start", "prev_num_accepted_tokens", "x", "dt", "A", "B", "C", "out",
        "D", "z", "dt_bias", "dt_softplus", "state_batch_indices",
    )  # fmt: skip
    call.x, call.B, call.dt = (torch.rand_like(x) for x in (call.x, call.B, call.dt))
    a |= {"x_cache": call.x, "B_cache": call.B, "dt_cache": call.dt}
    arguments = (*(a[name] for name in names), -1, None, None, None, 1, None, None, None)
    torch.library.opcheck(ops.checkpointing_ssu_op, arguments)
    state = torch.randn(3, 2, 8, 16)
    memory = allocate_delta_rings(state, 1, 5, torch.float32)
    q, v, gate = torch.randn(1, 1, 1, 16), torch.randn(1, 1, 2, 8), torch.rand(1, 1, 2)
    rings = [memory[name] for name in RINGS]
    cursors = (memory["ring_start"], memory["prev_num_accepted_tokens"])
    rest = (None, None, None, True, 1.0, torch.tensor([1]), -1, None, None, None, None, None)
    torch.library.opcheck(
        ops.delta_replay_op, (state, *rings, *cursors, q, q, v, -gate, gate, torch.empty_like(v), *rest)
    )
    pool = (state, torch.rand(3, 1, 32, 16), torch.rand(3, 2, 32, 8), -torch.rand(3, 2, 32))
    row = torch.ones(1, dtype=torch.int32)
    tail = (torch.rand(2), torch.rand(2), 16, 16, True, 1.0, None)
    step = (*pool, torch.empty_like(v), row.long(), row, row, q, q, v, gate, gate, *tail)
    # A read copy has numbers in e4m3, which the schema's test cannot compare; `interpreted_compiled` has one.
    for more in ([None] * 5, (torch.rand(3, 2, 32, 8), torch.rand(3, 2, 32), None, None, None)):
        torch.library.opcheck(ops.ucache_step_op, (*step, *more))
        torch.library.opcheck(ops.ucache_fold_op, (*pool, row, row + 1, row, row, *more))
    tables = [torch.tensor([x.data_ptr()]) for x in (call.state, call.x, call.B, call.dt, call.A)]
    strides = [torch.tensor([x.stride(0)]) for x in (call.state, call.x, call.B, call.dt)]
    pairs = [table for pair in zip(tables[:4], strides, strict=True) for table in pair]
    zero, numbers = torch.zeros(1, dtype=torch.int64), [call.dim, call.dstate, call.heads, 2, 4, call.rows, -1, 0]
    torch.library.opcheck(
        ops.materialize_op,
        ([*pairs, tables[4], zero, zero], row[:, None], row[:, None] + 1, [row * 0, row, row * 0], None, [call.x, call.B],
         [call.state], torch.float32, torch.float32, torch.float32, numbers),
    )  # fmt: skip


def behind_the_core():
    """A state of the backend beside one of ours: random lengths and acceptance, drains, padding, a staggered schedule."""
    stand_in()
    recurrence = Recurrence.mamba2(heads=2, head_dim=32, state_size=64, groups=1)
    layout = StateLayout(recurrence, 5, 6, 3, PrecisionPolicy("fp32"), torch.bfloat16)
    A = -torch.rand(2) - 0.1
    pair = [ReplayState(layout, A=A, backend=name, check_inputs=True) for name in ("flashinfer", "triton")]
    start, slots = torch.randn(5, 2, 32, 64), torch.arange(5)
    for state in pair:
        state.load(slots, start)
    for step in range(7):
        inputs = new_tokens(4)
        rows = torch.tensor([3, -1, 0, 4])
        lengths = torch.randint(1, 4, (4,), dtype=torch.int32)
        lengths[1] = 0
        drain = torch.tensor([step == 4, False, False, step % 3 == 0])
        outs = [state.verify(inputs, rows, lengths=lengths, drain=drain) for state in pair]
        assert torch.equal(*outs), f"step {step}: outputs differ by {(outs[0] - outs[1]).abs().max()}"
        accepted = torch.minimum(torch.randint(0, 4, (4,), dtype=torch.int32), lengths)
        for state in pair:
            state.commit(accepted)
    states = [state.state(slots) for state in pair]
    assert torch.equal(*states), f"states differ by {(states[0] - states[1]).abs().max()}"


def warm():
    """What is compiled before serving is what serving calls: the same dtypes, and every keyword."""
    seen = []

    def theirs(*tensors, **options):
        named = dict(zip(inspect.signature(replayssm_flashinfer.checkpointing_ssu).parameters, tensors, strict=False))
        seen.append({name: getattr(value, "dtype", value) for name, value in (named | options).items()})
        return replayssm_flashinfer.checkpointing_ssu(*tensors, **options)

    stand_in(wraps(replayssm_flashinfer.checkpointing_ssu)(theirs))
    recurrence = Recurrence.mamba2(heads=2, head_dim=32, state_size=64, groups=1)
    layout = StateLayout(recurrence, 5, 6, 3, PrecisionPolicy("fp32"), torch.bfloat16)
    backend.warm_up(layout, "cpu", weights=torch.float32)
    state = ReplayState(layout, A=-torch.rand(2), backend="flashinfer")
    inputs = new_tokens(2)
    state.verify(replace(inputs, D=inputs.D.float()), torch.arange(2))
    assert seen[0] == seen[1], f"compiled {seen[0]}, called {seen[1]}"
    assert seen[0]["dt_bias"] == torch.float32


def bench():
    """Contestants of the benchmark: right ones get errors and a time, wrong ones and broken ones a reason."""
    from small import GEOMETRIES, machine

    from replayssm.bench.scenario import Scenario
    from replayssm_flashinfer.bench.calls import Checked
    from replayssm_flashinfer.bench.contestants import Contestant, theirs
    from replayssm_flashinfer.bench.measure import run

    stand_in()
    for draft, phase in ((1, "staggered"), (2, "steady")):
        scenario = Scenario(GEOMETRIES["mamba2"], "fp32", None, 3, draft, phase, window=4, activation=torch.float32)
        checked = Checked.of(scenario, torch.device("cpu"))
        assert checked.folds.any(), "a checked call without a fold"
        assert not checked.folds.all(), "a checked call of folds alone"
        ours = Contestant("another", replayssm_flashinfer.checkpointing_ssu, {})
        result = run(ours, scenario, checked, machine())
        assert result.us, result.note
        assert result.errors.out < 1e-5, result.errors
        assert result.errors.state < 1e-5, result.errors
        assert result.errors.untouched

        def wrong(**arguments):
            replayssm_flashinfer.checkpointing_ssu(**arguments)
            arguments["out"].mul_(1.1)

        def lazy(**arguments):
            state = arguments["state"].clone()
            replayssm_flashinfer.checkpointing_ssu(**arguments)
            arguments["state"].copy_(state)

        for name, function in (("wrong outputs", wrong), ("no fold", lazy)):
            result = run(Contestant(name, function, {}), scenario, checked, machine())
            assert result.us is None, name
            assert "wrong results" in result.note
        assert run(Contestant("broken", lambda **_: 1 / 0, {}), scenario, checked, machine()).note.startswith(
            "ZeroDivision"
        )
    stand_in(replayssm_flashinfer.checkpointing_ssu)
    with pytest.raises(UnsupportedError, match="is ours in this process"):
        next(theirs(scenario))


def new_tokens(rows):
    """Raw inputs of T = 3 tokens."""

    def normal(*shape):
        return torch.randn(rows, 3, *shape).bfloat16()

    raw = RawGate(dt_bias=torch.randn(2).bfloat16())
    return TokenInputs(
        q=normal(1, 64), k=normal(1, 64), v=normal(2, 32), gate=normal(2), raw=raw, D=torch.randn(2).bfloat16()
    )


def stand_in(theirs=None):
    """A function in FlashInfer's place, one that calls ours where None; the machine's part of the gate left open."""
    theirs = theirs or wraps(replayssm_flashinfer.checkpointing_ssu)(partial(replayssm_flashinfer.checkpointing_ssu))
    module = ModuleType("flashinfer.mamba.checkpointing_ssu")
    module.checkpointing_ssu = theirs
    for name in ("flashinfer", "flashinfer.mamba"):
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__path__ = []
    sys.modules[module.__name__] = module
    backend.machine_supports = lambda device=None: (True, "")
    from replayssm.capability import CAPABILITIES

    CAPABILITIES["flashinfer"] = replace(CAPABILITIES["flashinfer"], devices=("cpu",))


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[1] / "bench"))
    torch.set_num_threads(1)
    torch.manual_seed(int(sys.argv[2]) if len(sys.argv) > 2 else torch.seed() % 2**31)
    cases = {
        "opchecks": opchecks,
        "behind_the_core": behind_the_core,
        "bench": bench,
        "warm": warm,
    }
    for name in sys.argv[1].split(","):
        cases[name]()
