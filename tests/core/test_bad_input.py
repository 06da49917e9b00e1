"""Every bad input is refused with the argument's name, before anything changes; the state works on afterwards."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest
import torch

from replayssm import (
    InputError,
    LayerKind,
    PrecisionPolicy,
    RawGate,
    Recurrence,
    ReplayState,
    StateLayout,
    StepError,
    UnsupportedError,
)
from replayssm.conformance.inputs import Source, select
from replayssm.conformance.memory import bits
from replayssm.cursors import Cursors
from replayssm.schedule import FlushPolicy

NAN, INF = float("nan"), float("inf")


def recurrence_of(kind=LayerKind.GDN):
    return Recurrence(kind, heads=4, groups=2, value_dim=4, key_dim=16)


class Bench:
    """A state in the middle of its window, and the inputs of a good next step."""

    def __init__(self, kind=LayerKind.GDN):
        self.layout = StateLayout(recurrence_of(kind), 5, 6, 4, activation=torch.float32)
        self.source = Source(self.layout.recurrence, torch.float32, seed=11)
        self.state, self.twin = (ReplayState(self.layout, A=self.source.A) for _ in range(2))
        start, tokens = self.source.states(2), [self.source.tokens(2, 1) for _ in range(3)]
        for state in (self.state, self.twin):
            state.load([0, 3], start)
            for token in tokens:
                state.decode(token, [0, 3])
        self.good = self.source.tokens(2, 3)

    def each(self, *values):
        return zip((self.state, self.twin), values, strict=True)

    def everything(self):
        cursors = {name: getattr(self.state.cursors, name) for name in Cursors.NAMES}
        return {name: bits(x) for name, x in {**self.state.layer.buffers, **cursors}.items()}

    def refuses(self, call, match, error=InputError):
        """The call raises, and leaves every bit as it was; a twin that never saw the call continues alike."""
        before = self.everything()
        with pytest.raises(error, match=match):
            call(self.state)
        after = self.everything()
        assert [name for name in before if not torch.equal(before[name], after[name])] == []
        outputs = [state.verify(self.good, [0, 3]) for state in (self.state, self.twin)]
        assert torch.equal(*outputs)
        for state in (self.state, self.twin):
            state.commit([1, 0])
        assert torch.equal(*(state.state([0, 3]) for state in (self.state, self.twin)))


def change(inputs, name, value, where=(1, 2, 0)):
    """The inputs with one number replaced."""
    tensor = getattr(inputs, name).clone()
    tensor[where] = value
    return dataclasses.replace(inputs, **{name: tensor})


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("name", ["q", "k", "v", "gate", "beta"])
@pytest.mark.parametrize("kind", [LayerKind.GDN, LayerKind.KDA])
def test_not_finite(kind, name, value):
    bench = Bench(kind)
    bad = change(bench.good, name, value)
    bench.refuses(lambda s: s.verify(bad, [0, 3]), rf"inputs\.{name} holds NaN or infinity in row 1")


@pytest.mark.parametrize("name", ["q", "k", "v", "gate"])
def test_not_finite_mamba2(name):
    bench = Bench(LayerKind.MAMBA2)
    bad = change(bench.good, name, NAN)
    bench.refuses(lambda s: s.verify(bad, [0, 3]), rf"inputs\.{name} holds NaN")


@pytest.mark.parametrize(
    ("extra", "match"),
    [
        ({"D": torch.tensor([1.0, NAN, 1, 1])}, r"inputs\.D holds NaN"),
        ({"D": torch.ones(3)}, r"inputs\.D has shape \(3,\)"),
        ({"z": torch.ones(2, 3, 4, 5)}, r"inputs\.z has shape"),
        ({"z": torch.full((2, 3, 4, 4), INF)}, r"inputs\.z holds NaN or infinity"),
        ({"beta": torch.ones(2, 3, 4)}, "Mamba-2 has no β"),
        ({"scale": NAN}, r"inputs\.scale=nan must be finite"),
        ({"raw": RawGate(dt_bias=torch.full((4,), NAN))}, r"raw\.dt_bias holds NaN"),
        ({"raw": RawGate(dt_bias=torch.ones(5))}, r"raw\.dt_bias has shape \(5,\)"),
        ({"raw": RawGate(dt_limit=(2.0, 1.0))}, r"dt_limit=\(2\.0, 1\.0\)"),
        ({"raw": RawGate(dt_limit=(NAN, 1.0))}, "dt_limit"),
        ({"raw": RawGate(dt_limit=("a", "b"))}, "dt_limit"),
    ],
)
def test_weights_of_mamba2(extra, match):
    bench = Bench(LayerKind.MAMBA2)
    bench.refuses(lambda s: s.verify(dataclasses.replace(bench.good, **extra), [0, 3]), match)


@pytest.mark.parametrize(
    ("raw", "match"),
    [
        (RawGate(), r"raw\.A_log is missing"),
        (RawGate(A_log=torch.tensor([0.0, INF, 0, 0])), r"raw\.A_log holds NaN or infinity"),
        (RawGate(A_log=torch.zeros(4, 2)), r"raw\.A_log has shape"),
        (RawGate(A_log=torch.zeros(4), lower_bound=0.5), r"lower_bound=0\.5 must be finite and below 0"),
        (RawGate(A_log=torch.zeros(4), lower_bound="a"), r"lower_bound='a' must be finite and below 0"),
        (RawGate(A_log=torch.zeros(4), dt_bias=torch.zeros(4)), r"raw\.dt_bias has shape"),
    ],
)
def test_raw_gate_of_kda(raw, match):
    bench = Bench(LayerKind.KDA)
    bench.refuses(lambda s: s.verify(dataclasses.replace(bench.good, raw=raw), [0, 3]), match)


@pytest.mark.parametrize(
    ("kind", "value", "rule"),
    [("gdn", 0.1, "log decay ≤ 0"), ("kda", 1e-9, "log decay ≤ 0"), ("mamba2", -0.1, "Δ ≥ 0")],
)
def test_gates_that_grow_the_state(kind, value, rule):
    bench = Bench(LayerKind(kind))
    bad = change(bench.good, "gate", value)
    bench.refuses(lambda s: s.verify(bad, [0, 3]), rf"inputs\.gate in row 1 would grow the state; expected {rule}")


@pytest.mark.parametrize(
    ("slots", "match"),
    [
        ([0, 5], "slots=.*from 0 to 4"),
        ([0, -2], "slots=.*from 0 to 4, or -1 for padding"),
        ([3, 3], "slots=.*only once"),
        ([0], "slots has 1 entries for B=2"),
        ([0, 3, 4], "slots has 3 entries for B=2"),
        ([[0, 3]], "slots must be a 1-d integer tensor"),
        ([0.0, 3.0], "slots must be integers, got shape .2,. torch.float32"),
        (torch.tensor([True, False]), "slots must be integers, got .*bool"),
        (True, "slots must be integers"),
        ([0, 2**70], "slots=.*must be integers"),
        ([0, 2**40], "slots=.*from 0 to 4"),
        ("ab", "slots='ab' must be integers"),
        ([None, 1], "slots=.*must be integers"),
    ],
)
def test_slots(slots, match):
    bench = Bench()
    bench.refuses(lambda s: s.verify(bench.good, slots), match)


@pytest.mark.parametrize("call", ["reset", "state", "flush"])
def test_slots_of_other_calls(call):
    bench = Bench()
    bench.refuses(lambda s: getattr(s, call)([0, 5]), "slots=.*from 0 to 4")
    bench.refuses(lambda s: getattr(s, call)([-1]), "slots=.*from 0 to 4$")
    bench.refuses(lambda s: getattr(s, call)([3, 3]), "only once")


@pytest.mark.parametrize("call", ["copy", "materialise"])
def test_source_and_target(call):
    bench = Bench()
    bench.refuses(lambda s: getattr(s, call)([7], [1]), "source=.*from 0 to 4")
    bench.refuses(lambda s: getattr(s, call)([-1], [1]), "source=.*from 0 to 4")
    bench.refuses(lambda s: getattr(s, call)([0], [-1]), "target=.*from 0 to 4")
    bench.refuses(lambda s: getattr(s, call)([0, 3], [1, 1]), "target=.*only once")
    bench.refuses(lambda s: getattr(s, call)([0, 3], [1]), "source has 2 slots and target 1")
    bench.refuses(lambda s: getattr(s, call)([[0, 3]], [1]), "source must be a 1-d")
    bench.refuses(lambda s: getattr(s, call)(0.5, [1]), "source must be integers")


@pytest.mark.parametrize(
    ("count", "match"),
    [
        (4, "count=.*the slot's committed records, which is .3."),
        (-1, "count"),
        ([1, 1], r"count must be one integer or \[1\]"),
        (1.5, "count must be integers"),
        (2**70, "count"),
    ],
)
def test_counts(count, match):
    bench = Bench()
    bench.refuses(lambda s: s.state([0], count), match)
    bench = Bench()
    bench.refuses(lambda s: s.materialise([0], [1], count), match)


@pytest.mark.parametrize(
    ("name", "shape", "match"),
    [
        ("q", (2, 3, 2, 8), r"inputs\.q has shape \(2, 3, 2, 8\); expected \(2, 3, 2, 16\)"),
        ("k", (2, 3, 4, 16), r"inputs\.k has shape"),
        ("k", (2, 2, 2, 16), r"inputs\.k has shape"),
        ("v", (2, 3, 16), r"inputs\.v must be \[B, T, H, V\]"),
        ("v", (3, 3, 4, 4), r"inputs\.q has shape"),
        ("gate", (2, 3, 4, 16), r"inputs\.gate has shape"),
        ("beta", (2, 3), r"inputs\.beta has shape"),
    ],
)
def test_shapes(name, shape, match):
    bench = Bench()
    bad = dataclasses.replace(bench.good, **{name: torch.zeros(shape)})
    bench.refuses(lambda s: s.verify(bad, [0, 3]), match)


@pytest.mark.parametrize(
    ("name", "dtype", "match"),
    [
        ("v", torch.bfloat16, r"inputs\.v is torch\.bfloat16; the rings of this layout hold torch\.float32"),
        ("k", torch.float64, r"inputs\.k is torch\.float64"),
        ("q", torch.int32, r"inputs\.q is torch\.int32; expected a floating-point dtype"),
        ("gate", torch.bool, r"inputs\.gate is torch\.bool"),
        ("beta", torch.complex64, r"inputs\.beta is torch\.complex64"),
    ],
)
def test_dtypes(name, dtype, match):
    bench = Bench()
    bad = dataclasses.replace(bench.good, **{name: getattr(bench.good, name).to(dtype)})
    bench.refuses(lambda s: s.verify(bad, [0, 3]), match)


@pytest.mark.parametrize(
    "out",
    [torch.empty(2, 3, 4, 5), torch.empty(2, 3, 4, 4, dtype=torch.int32), torch.empty(4, 3, 4, 4)[::2], [0.0]],
    ids=["shape", "dtype", "strides", "type"],
)
def test_outputs_where_they_do_not_fit(out):
    bench = Bench()

    def run(state):
        state.run(state.plan(bench.good, [0, 3]), bench.good, out)

    bench.refuses(run, "out must be a contiguous floating-point tensor")


def test_outputs_where_the_engine_wants_them():
    bench = Bench()
    wanted = torch.full((2, 3, 4, 4), NAN)
    made = [state.run(state.plan(bench.good, [0, 3]), bench.good, out) for state, out in bench.each(wanted, None)]
    assert made[0] is wanted
    assert torch.equal(*made)


def test_missing_beta():
    bench = Bench()
    bench.refuses(lambda s: s.verify(dataclasses.replace(bench.good, beta=None), [0, 3]), r"inputs\.beta is missing")


def test_wrong_device():
    bench = Bench()
    bad = dataclasses.replace(bench.good, q=bench.good.q.to("meta"))
    bench.refuses(lambda s: s.verify(bad, [0, 3]), r"inputs\.q is on meta; the state is on cpu")


def test_more_drafts_than_the_layout():
    bench = Bench()
    bad = bench.source.tokens(2, 5)
    bench.refuses(lambda s: s.verify(bad, [0, 3]), "T=5 tokens a row; this layout allows 1 to max_draft=4")
    none = select(bench.good, slice(0, 2), slice(0, 0))
    bench.refuses(lambda s: s.verify(none, [0, 3]), "T=0 tokens a row")
    bench.refuses(lambda s: s.decode(bench.good, [0, 3]), "decode takes T=1 token a row, got T=3")


@pytest.mark.parametrize(
    ("lengths", "match"),
    [
        ([0, 3], "lengths=.*from 1 to T=3"),
        ([-1, 3], "lengths=.*from 1 to T=3"),
        ([4, 3], "lengths=.*from 1 to T=3"),
        ([3], r"lengths must be \[2\] integers"),
        ([1.0, 2.0], "lengths must be integers"),
        (torch.tensor([True, True]), "lengths must be integers"),
        ([2**70, 1], "lengths="),
    ],
)
def test_lengths(lengths, match):
    bench = Bench()
    bench.refuses(lambda s: s.verify(bench.good, [0, 3], lengths), match)


@pytest.mark.parametrize(
    ("parents", "match"),
    [
        ([[0, 0, 1], [-1, 0, 1]], "parents=.*topological order"),
        ([[-1, 1, 1], [-1, 0, 1]], "parents=.*topological order"),
        ([[-2, 0, 1], [-1, 0, 1]], "parents=.*topological order"),
        ([[-1, 0, 1]], r"parents must be \[2, 3\] integers"),
        ([[-1.0, 0, 1], [-1, 0, 1]], "parents must be integers"),
    ],
)
def test_parents(parents, match):
    bench = Bench()
    bench.refuses(lambda s: s.verify(bench.good, [0, 3], parents=parents), match)


@pytest.mark.parametrize("drain", [[True], [0, 1], torch.ones(2, 1, dtype=torch.bool)])
def test_drain(drain):
    bench = Bench()
    bench.refuses(lambda s: s.verify(bench.good, [0, 3], drain=drain), r"drain must be \[2\] booleans")


@pytest.mark.parametrize(
    ("accepted", "match"),
    [
        ([4, 0], "accepted=.*the row's new tokens, which is .3, 3."),
        ([-1, 0], "accepted=.*from 0"),
        (4, "accepted="),
        ([1], r"accepted must be one integer or \[2\]"),
        ([0.5, 1], "accepted must be integers"),
        (torch.tensor([True, True]), "accepted must be integers"),
        ([2**70, 0], "accepted="),
    ],
)
def test_commit(accepted, match):
    bench = Bench()
    bench.state.verify(bench.good, [0, 3])
    before = bench.everything()
    with pytest.raises(InputError, match=match):
        bench.state.commit(accepted)
    assert all(torch.equal(x, y) for x, y in zip(before.values(), bench.everything().values(), strict=True))
    bench.state.commit([2, 3])
    assert bench.state.cursors.committed.tolist() == [5, 0, 0, 6, 0]


def test_commit_before_any_step():
    state = ReplayState(StateLayout(recurrence_of(), 2, 4, 2, activation=torch.float32))
    with pytest.raises(StepError, match="commit before any step; call verify"):
        state.commit(1)
    with pytest.raises(StepError, match="commit_path before any step"):
        state.commit_path([[0]])


def test_commit_path_of_a_chain():
    bench = Bench()
    bench.state.verify(bench.good, [0, 3])
    with pytest.raises(StepError, match="needs a step with parents"):
        bench.state.commit_path([[0], [0]])


@pytest.mark.parametrize(
    ("path", "match"),
    [
        ([[0, 2], [0, 1]], "path row 0 is .0, 2.; token 2 continues .0, 1."),
        ([[3], [0]], "only 3 tokens"),
        ([[-1, 0], [0, 1]], "padding"),
        ([[0, 1]], r"path must be \[2, P\] integers"),
        ([0, 1], r"path must be \[2, P\] integers"),
        ([[0.5], [1.0]], "path must be integers"),
        ([[2**70], [0]], "path="),
    ],
)
def test_commit_path(path, match):
    bench = Bench()
    bench.state.verify(bench.good, [0, 3], parents=[[-1, 0, 1]] * 2)
    before = bench.everything()
    with pytest.raises(InputError, match=match):
        bench.state.commit_path(path)
    assert all(torch.equal(x, y) for x, y in zip(before.values(), bench.everything().values(), strict=True))
    bench.state.commit_path([[0, 1], [-1, -1]])
    assert bench.state.cursors.committed.tolist() == [5, 0, 0, 3, 0]


@pytest.mark.parametrize(
    ("state", "match"),
    [
        (torch.zeros(1, 4, 4, 16), r"state is \(1, 4, 4, 16\).*expected \(2, 4, 4, 16\)"),
        (torch.zeros(2, 4, 16, 4), "state is"),
        (torch.zeros(2, 4, 4, 16, dtype=torch.int32), "of a float dtype"),
        (torch.full((2, 4, 4, 16), NAN), "state holds NaN or infinity"),
        (torch.full((2, 4, 4, 16), -INF), "state holds NaN or infinity"),
    ],
)
def test_load(state, match):
    bench = Bench()
    bench.refuses(lambda s: s.load([1, 2], state), match)


@pytest.mark.parametrize("position", [-1, [0, -1], 2**31, [1], [0.5, 1], True, [2**70, 0]])
def test_position(position):
    bench = Bench()
    bench.refuses(lambda s: s.load([1, 2], bench.source.states(2), position), "position")


def test_decay_rates_of_mamba2():
    layout = StateLayout(recurrence_of(LayerKind.MAMBA2), 2)
    for A, match in (
        (None, "A is missing"),
        (-torch.ones(3), r"A must be a float tensor \[4\]"),
        (torch.tensor([-1.0, -1, 0, -1]), "below 0"),
        (torch.tensor([-1.0, NAN, -1, -1]), "finite"),
        (torch.empty(0), r"A must be .* \[4\]"),
        ([-1.0, -1.0, -1.0, -1.0], "A must be .* got list"),
        (-torch.ones(4, dtype=torch.complex64), "A must be a float tensor"),
    ):
        with pytest.raises(InputError, match=match):
            ReplayState(layout, A=A)
    with pytest.raises(InputError, match="A is given, but gdn"):
        ReplayState(StateLayout(recurrence_of(), 2), A=-torch.ones(4))


def test_backend_that_does_not_exist():
    with pytest.raises(UnsupportedError, match="backend 'cuda-c' is unknown; expected one of naive, torch"):
        ReplayState(StateLayout(recurrence_of(), 2), backend="cuda-c")


def test_foreign_buffers():
    layout = StateLayout(recurrence_of(), 3)
    good = layout.allocate()
    wide = torch.zeros(3, 4, 4, 32)
    for name, value, match in (
        ("checkpoint", None, "buffers lack 'checkpoint'"),
        ("checkpoint", [0.0], "'checkpoint' is a list; expected a tensor"),
        ("checkpoint", good["checkpoint"].double(), r"'checkpoint' is .*float64; expected .*float32"),
        ("checkpoint", good["checkpoint"][:2], r"'checkpoint' is \(2, 4, 4, 16\)"),
        ("checkpoint", wide[..., ::2], "'checkpoint': the dimensions inside a slot must be contiguous"),
        ("checkpoint", torch.zeros(1, 4, 4, 16).expand(3, 4, 4, 16), "slot stride 0 makes slots overlap"),
        ("key_ring", good["key_ring"].to("meta"), "'key_ring' is on meta; the state is on cpu"),
    ):
        buffers = {**good, name: value}
        if value is None:
            del buffers[name]
        with pytest.raises(InputError, match=match):
            ReplayState(layout, buffers=buffers)
    ReplayState(layout, buffers=good)


@pytest.mark.parametrize("read_copy", ["fp8", "nvfp4"])
@pytest.mark.parametrize(("first", "slack"), [(1, 0), (0, 2)])
def test_foreign_slots_of_bytes_start_at_words(read_copy, first, slack):
    layout = StateLayout(replace(recurrence_of(), key_dim=32), 3, precision=PrecisionPolicy(read_copy=read_copy))
    good = layout.allocate()
    shape, size = good["read_copy"].shape[1:], good["read_copy"][0].numel()
    memory = torch.zeros(first + 3 * (size + slack), dtype=torch.uint8)[first:].view(3, size + slack)[:, :size]
    odd = memory.view(good["read_copy"].dtype).unflatten(1, shape)
    with pytest.raises(InputError, match="'read_copy': every slot must start at a multiple of 4 bytes"):
        ReplayState(layout, buffers={**good, "read_copy": odd})


def test_foreign_cursors():
    layout = StateLayout(recurrence_of(), 3, 8, 2)
    for slots, rows, window, draft in ((4, 10, 8, 2), (3, 11, 8, 2), (3, 10, 7, 2), (3, 10, 8, 1)):
        cursors = Cursors(slots, rows, window, draft, FlushPolicy(), "cpu")
        with pytest.raises(InputError, match="cursors are of"):
            ReplayState(layout, cursors=cursors)
    ReplayState(layout, cursors=Cursors(3, 10, 8, 2, FlushPolicy(), "cpu"))


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"window": 0}, "window=0 must be an integer from 1 to 256"),
        ({"window": -4}, "window=-4"),
        ({"window": 257}, "window=257"),
        ({"window": 2.0}, "window=2.0"),
        ({"window": True}, "window=True"),
        ({"max_draft": 0}, "max_draft=0 must be an integer from 1 to 64"),
        ({"slots": 0}, "slots=0"),
        ({"slots": 2**31}, "slots="),
        ({"activation": torch.int8}, "activation=torch.int8 is not served"),
    ],
)
def test_layouts(arguments, match):
    with pytest.raises(InputError, match=match):
        StateLayout(**{"recurrence": recurrence_of(), "slots": 2, **arguments})


def test_key_dimension_of_nvfp4():
    r = Recurrence(LayerKind.GDN, 4, 2, 4, 24)
    with pytest.raises(InputError, match="key_dim=24 must be a multiple of 16 for fp32 checkpoint, nvfp4 read copy"):
        StateLayout(r, 2, precision=PrecisionPolicy.preset("dual-nvfp4"))
    StateLayout(r, 2, precision=PrecisionPolicy.preset("dual-fp8"))


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("rwkv", 4, 2, 4, 16), "kind='rwkv' is not a known layer; expected one of mamba2, gdn, kda"),
        (("gdn", 4, 3, 4, 16), "groups=3 must divide heads=4"),
        (("gdn", 0, 1, 4, 16), "heads=0"),
        (("gdn", 4, 2, 4, -16), "key_dim=-16"),
        (("gdn", 4, 2, 4.0, 16), "value_dim=4.0"),
        (("gdn", 4, True, 4, 16), "groups=True"),
    ],
)
def test_recurrences(arguments, match):
    with pytest.raises(InputError, match=match):
        Recurrence(*arguments)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"checkpoint": "int8"}, "checkpoint='int8' is unknown"),
        ({"read_copy": "fp16"}, "read_copy='fp16' is unknown"),
        ({"dot": "ieee"}, "dot='ieee' is unknown; expected None, 'tf32' or 'tf32x3'"),
        ({"stochastic_rounding": True}, "stochastic_rounding=True needs a checkpoint of fp16 or fp8, got 'fp32'"),
    ],
)
def test_precisions(arguments, match):
    with pytest.raises(InputError, match=match):
        PrecisionPolicy(**arguments)


def test_products_that_would_round_activations():
    with pytest.raises(InputError, match=r"dot='tf32' would round activations of torch.float32"):
        StateLayout(recurrence_of(), 3, precision=PrecisionPolicy(dot="tf32"), activation=torch.float32)


def test_preset():
    with pytest.raises(InputError, match="preset='nvfp5' is unknown; expected one of exact"):
        PrecisionPolicy.preset("nvfp5")


@pytest.mark.parametrize(
    "arguments",
    [
        {"budget": 0},
        {"budget": -1},
        {"budget": 1.5},
        {"budget": True},
        {"boundary": 0},
        {"early": 0.0},
        {"early": 1.1},
        {"early": NAN},
    ],
)
def test_policies(arguments):
    with pytest.raises(InputError, match=next(iter(arguments))):
        FlushPolicy(**arguments)


def test_inputs_that_are_fine():
    """Strided views and tensors with gradients are as good as any; nothing of autograd stays in the state."""
    bench = Bench()
    expected = bench.twin.verify(bench.good, [0, 3])
    wide = bench.good.v.repeat_interleave(2, dim=-1)[..., ::2].requires_grad_()
    inputs = dataclasses.replace(bench.good, v=wide, k=bench.good.k.clone().requires_grad_())
    assert torch.equal(bench.state.verify(inputs, [0, 3]), expected)
    bench.state.commit(2)
    bench.state.load([1], bench.source.states(1).requires_grad_())
    assert not any(buffer.requires_grad for buffer in bench.state.layer.buffers.values())


def test_empty_batch():
    bench = Bench()
    none = select(bench.good, slice(0, 0))
    before = bench.everything()
    assert bench.state.verify(none, []).shape == (0, 3, 4, 4)
    bench.state.commit([])
    assert all(torch.equal(x, y) for x, y in zip(before.values(), bench.everything().values(), strict=True))
    assert bench.state.state([]).shape == (0, 4, 4, 16)


def test_checks_of_values_can_be_left_out():
    """Without them a commit is still cut to what was drafted."""
    layout = StateLayout(recurrence_of(), 2, 6, 2, activation=torch.float32)
    state = ReplayState(layout, check_inputs=False)
    source = Source(layout.recurrence, torch.float32)
    state.reset()
    state.verify(source.tokens(1, 2), [1])
    state.commit(9)
    assert state.cursors.committed.tolist() == [0, 2]


@pytest.mark.parametrize("inputs", [None, {"q": 1}])
def test_decode_of_what_are_no_inputs(inputs):
    Bench().refuses(lambda s: s.decode(inputs, [0, 3]), "expected TokenInputs")


def test_buffers_that_are_no_mapping():
    with pytest.raises(InputError, match="buffers is a list; expected a mapping"):
        ReplayState(StateLayout(recurrence_of(), 2), buffers=[])
