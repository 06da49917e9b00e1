"""`checkpointing_ssu` and `replayssm_materialize` beside the float64 recurrence; exit 1 at the first difference.

Usage: TRITON_INTERPRET=1 python interpreted_mamba.py CASE,… [SEED]
"""

from __future__ import annotations

import sys
import warnings

import torch
from oracle import QUANTISED, STORED, MambaCall, bits, decoded, relative

from replayssm.formats import FORMATS
from replayssm.kernels import arguments as kernel_arguments
from replayssm_flashinfer import checkpointing_ssu, replayssm_materialize

EXACT = 2e-6
"""Outputs from fp32 records and a state as it is stored: fp32 sums of at most a few hundred products."""


def check(call, slots, *, packed=False, **options):
    """Run a call and compare everything that it may write, and all that it may not."""
    before = call.snapshot()
    arguments = call.arguments(slots, packed=packed)
    rounded = options.get("rand_seed") is not None
    out = checkpointing_ssu(**arguments, **options)
    assert out is arguments["out"]
    starts, seen = [0], set()
    for length in call.lengths:
        starts.append(starts[-1] + length)
    folded = 0
    for row, slot in enumerate(slots.tolist()):
        found = out[0, starts[row] : starts[row + 1]] if packed else out[row]
        if slot < 0 or slot >= call.slots or slot in seen or not call.lengths[row]:
            assert not found.any(), f"row {row} is padding; its outputs must be zeros"
            continue
        seen.add(slot)
        history = call.replayed(before, slot)
        error = relative(found, call.outputs(history, row))
        assert error < EXACT, f"row {row}: outputs are off by {error:.1e}"
        if call.folds(row, slot):
            folded += 1
            error = relative(decoded(call.state, call.scale)[slot], history)
            limit = STORED[call.state.dtype] * (2 if rounded else 1)
            assert error < limit, f"slot {slot}: the folded state is off by {error:.1e}, expected below {limit}"
        else:
            assert torch.equal(bits(call.state[slot]), bits(before["state"][slot])), f"slot {slot} must not be written"
        fresh = (int(call.start[slot]) + int(call.live[slot]) + torch.arange(call.lengths[row])) % call.rows
        for ring, tokens in (("x", call.tokens["x"]), ("B", call.tokens["B"])):
            found_rows = getattr(call, ring)[slot][:, fresh].transpose(0, 1)
            assert torch.equal(found_rows, tokens[row, : call.lengths[row]]), f"{ring} of slot {slot}: new records"
            before[ring][slot][:, fresh] = getattr(call, ring)[slot][:, fresh]
        before["dt"][slot][:, fresh] = call.dt[slot][:, fresh]
    for ring in ("x", "B", "dt"):
        assert torch.equal(bits(getattr(call, ring)), bits(before[ring])), (
            f"{ring}: rows changed that nobody appended to"
        )
    for slot in set(range(call.slots)) - seen:
        assert torch.equal(bits(call.state[slot]), bits(before["state"][slot])), f"slot {slot} is nobody's"
    return folded


def formats():
    """Every state format, with folds, padding of every kind, and a slot named twice."""
    for dtype in STORED:
        call = MambaCall(dtype, draft=2, window=5, lengths=[2] * 6)
        assert check(call, torch.tensor([3, -1, 0, 3, 99, 6])) >= 1
        seed = torch.tensor([int(torch.randint(2**40, ()))])
        assert check(MambaCall(dtype, 1, 4, [1] * 3), torch.tensor([2, 0, 5], dtype=torch.int32), rand_seed=seed) >= 1


def packed():
    """Rows of different lengths, an empty one among them; activations of 16 bits would round in the interpreter only."""
    for dtype in (torch.float32, torch.int8):
        check(MambaCall(dtype, 3, 6, [3, 0, 1, 2], groups=2), torch.tensor([0, 1, 4, -1]), packed=True)


def launches():
    """More rows than a launch may have, here two, in several: the step, and the fold of an int8 state."""
    usual, kernel_arguments.GRID_ROWS = kernel_arguments.GRID_ROWS, 2
    try:
        for dtype in (torch.float32, torch.int8):
            assert check(MambaCall(dtype, 2, 5, [2] * 5), torch.tensor([3, -1, 0, 5, 6])) >= 1
    finally:
        kernel_arguments.GRID_ROWS = usual


def gaps():
    """Rings with gaps inside a slot are copied, with a warning."""
    call = MambaCall(torch.float32, 2, 4, [2, 2], gaps=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check(call, torch.tensor([0, 5]))
    assert any("gaps inside a slot" in str(warning.message) for warning in caught)


def lives():
    """A caller that commits at random through several windows, rings wrapping around; cursors are the caller's alone."""
    call = MambaCall(torch.float32, 2, 6, [2, 2])
    slots = torch.tensor([4, 0])
    truth = [call.replayed(call.snapshot(), int(slot)) for slot in slots]
    for _ in range(9):
        call.tokens = {name: torch.randn_like(x) for name, x in call.tokens.items()}
        out = checkpointing_ssu(**call.arguments(slots))
        for row, slot in enumerate(slots.tolist()):
            error = relative(out[row], call.outputs(truth[row], row))
            assert error < 1e-5, f"row {row} after several windows: {error:.1e}"
            accepted = int(torch.randint(0, 3, ()))
            for t in range(accepted):
                x, B, dt = (call.tokens[name][row, t] for name in ("x", "B", "dt"))
                truth[row] = call.step(truth[row], x, B, torch.nn.functional.softplus(dt.double() + call.bias.double()))
            if call.folds(row, slot):
                call.start[slot] = (call.start[slot] + call.live[slot]) % call.rows
                call.live[slot] = accepted
            else:
                call.live[slot] += accepted


def copies():
    """A read copy: steps without a fold read it, folds read the checkpoint and rewrite both."""
    for name in ("fp8", "nvfp4"):
        call, slots = MambaCall(torch.float32, 2, 5, [2, 2, 2], dstate=64), torch.tensor([0, 3, 6])
        call.live[3] = call.live[6] = 0
        made = FORMATS[name].encode(call.state)
        copy = dict(
            zip([f"read_copy{part.suffix}" for part in FORMATS[name].parts(call.dim, call.dstate)], made, strict=True)
        )
        before, read = call.snapshot(), FORMATS[name].decode(made, torch.float64)
        out = checkpointing_ssu(**call.arguments(slots), **copy)
        for row, slot in enumerate(slots.tolist()):
            state = call.replayed(before, slot) if call.folds(row, slot) else read[slot]
            error = relative(out[row], call.outputs(state, row))
            assert error < EXACT, f"{name}, row {row}: outputs are off by {error:.1e}"
        again = FORMATS[name].decode([x[:1] for x in copy.values()], torch.float64)
        expected = FORMATS[name].decode(FORMATS[name].encode(call.state[:1]), torch.float64)
        assert relative(again, expected) < 1e-6, f"{name}: the copy of a folded state is not its copy"


def materialise():
    """Prefixes of two layers into other slots; copies; requests that are left out; the bits of a step's own fold."""
    for dtype in (torch.float32, torch.float16, torch.int8, torch.float8_e4m3fn):
        layers = [MambaCall(dtype, 3, 6, [3]) for _ in range(2)]
        for layer in layers:
            layer.start, layer.live = layers[0].start, layers[0].live.clone()
            layer.x, layer.B, layer.dt = (torch.rand_like(ring) for ring in (layer.x, layer.B, layer.dt))
        source = torch.tensor([[0, 1, 2, 3], [0, 2, 1, 3]], dtype=torch.int32)
        target = torch.tensor([[4, 5, 6, 6], [5, 4, 6, 6]], dtype=torch.int32)
        start = torch.stack([layers[0].start[0], *torch.zeros(3, dtype=torch.int32)])
        count = torch.tensor([4, 0, -1, 3], dtype=torch.int32)
        before = [layer.snapshot() for layer in layers]
        numbers = call_materialise(layers, source, target, start, count)
        for i, layer in enumerate(layers):
            state = decoded(before[i]["state"], before[i]["scale"])[0]
            for j in range(4):
                row = (int(start[0]) + j) % layer.rows
                state = layer.step(
                    state, before[i]["x"][0, :, row], before[i]["B"][0, :, row], before[i]["dt"][0, :, row]
                )
            into = int(target[i, 0])
            error = relative(decoded(layer.state, layer.scale)[into], state)
            assert error < STORED[dtype], f"{dtype}, layer {i}: a prefix is off by {error:.1e}"
            copied = layer.state[int(target[i, 1])], before[i]["state"][int(source[i, 1])]
            assert torch.equal(*map(bits, copied)), f"{dtype}, layer {i}: a copy changed bits"
            for slot in (0, 1, 2, 3, 6):
                same = torch.equal(bits(layer.state[slot]), bits(before[i]["state"][slot]))
                assert same, f"{dtype}: slot {slot} must not be written"
        same_bits(layers[0], before[0], numbers)


def many():
    """More requests than a program looks at, in an order of their own, on rings with fewer rows than a window."""
    batch = 300
    layers = [MambaCall(torch.float32, 1, 1, [1], slots=batch + 1, dim=8) for _ in range(2)]
    for layer in layers:
        layer.x, layer.B, layer.dt = (torch.rand_like(ring) for ring in (layer.x, layer.B, layer.dt))
    source, start = torch.zeros(2, batch, dtype=torch.int32), torch.zeros(batch, dtype=torch.int32)
    target = torch.arange(1, batch + 1, dtype=torch.int32).repeat(2, 1)
    for last in (250, 280):  # in the first block of requests, and in the second
        before = [layer.snapshot() for layer in layers]
        count, active = torch.randint(-20, 4, (batch,), dtype=torch.int32), torch.randperm(batch)
        active[last] = -1
        call_materialise(layers, source, target, start, count, active.tolist())
        wanted = {request for request in active[:last].tolist() if 0 <= count[request] <= layers[0].rows}
        for layer, old in zip(layers, before, strict=True):
            truths = [old["state"][0].double()]
            for row in range(layer.rows):
                truths.append(layer.step(truths[-1], old["x"][0, :, row], old["B"][0, :, row], old["dt"][0, :, row]))
            for request in range(batch):
                truth = truths[int(count[request])] if request in wanted else old["state"][request + 1].double()
                error = relative(layer.state[request + 1], truth)
                assert error < EXACT, f"request {request} of {int(count[request])} records is off by {error:.1e}"


def call_materialise(layers, source, target, start, count, active=(0, 1, 2, -1), *, strided=False):
    """The call; request 3 is not among the active ones. Returns whether the states have scales."""
    positional, keyword = materialise_arguments(layers, source, target, start, count, active, strided=strided)
    replayssm_materialize(*positional, **keyword)
    return layers[0].scale is not None


def materialise_arguments(layers, source, target, start, count, active, *, strided=False):
    """Of the call; strided tables are columns of larger ones."""

    def column(numbers):
        return torch.tensor([[number, 0] for number in numbers])[:, 0] if strided else torch.tensor(numbers)

    def table(name):
        return column([getattr(layer, name).data_ptr() for layer in layers])

    def stride(name):
        return column([getattr(layer, name).stride(0) for layer in layers])

    zero, first = torch.zeros(len(layers), dtype=torch.int64), layers[0]
    pairs = [f(name) for name in ("state", "x", "B", "dt") for f in (table, stride)]
    scales = (zero, zero) if first.scale is None else (table("scale"), stride("scale"))
    requests = (source, target, start, count, torch.tensor(active, dtype=torch.int32))
    return (*pairs, table("A"), *scales, *requests), {
        "state_dtype": first.state.dtype, "input_dtype": first.x.dtype, "matrixA_dtype": torch.float32,
        "dim": first.dim, "dstate": first.dstate, "num_heads": first.heads, "heads_per_group": 2, "max_window": 6,
        "ring_buffer_len": first.rows,
    }  # fmt: skip


def same_bits(layer, before, scaled):
    """A step's fold of all records, and a materialised one, are the same bits."""
    for name in ("state", "x", "B", "dt"):
        setattr(layer, name, before[name].clone())
    layer.scale = before["scale"].clone() if scaled else None
    slots = torch.tensor([[0]], dtype=torch.int32)
    call_materialise([layer], slots, slots + 4, layer.start[:1], layer.live[:1], active=(0,))
    checkpointing_ssu(**layer.arguments(torch.tensor([0])))
    assert torch.equal(bits(layer.state[4]), bits(layer.state[0])), f"{layer.state.dtype}: two folds differ"
    assert layer.state.dtype not in QUANTISED or torch.equal(layer.scale[4], layer.scale[0])


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(int(sys.argv[2]) if len(sys.argv) > 2 else torch.seed() % 2**31)
    cases = {
        "formats": formats,
        "packed": packed,
        "launches": launches,
        "gaps": gaps,
        "lives": lives,
        "materialise": materialise,
        "many": many,
        "copies": copies,
    }
    for name in sys.argv[1].split(","):
        cases[name]()
