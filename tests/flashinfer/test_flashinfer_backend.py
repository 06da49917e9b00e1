"""The gate of backend "flashinfer": every refusal has its reason, and nothing is chosen unless asked for."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

import small_flashinfer

import replayssm_flashinfer
from replayssm import PrecisionPolicy, RawGate, Recurrence, ReplayConfig, ReplayState, StateLayout, UnsupportedError
from replayssm.backends import load_backend
from replayssm.capability import choose_backend, supports
from replayssm.conformance.inputs import Source
from replayssm_flashinfer import backend

CUDA = torch.device("cuda")


def layout(dim=64, state=128, window=16, draft=4, checkpoint="fp32", dot=None, **options):
    recurrence = Recurrence.mamba2(heads=2, head_dim=dim, state_size=state, groups=1)
    return StateLayout(recurrence, 2, window, draft, PrecisionPolicy(checkpoint, dot=dot), **options)


@pytest.fixture
def machine(monkeypatch):
    """A GPU that can compile, and a FlashInfer of the newest recorded release."""
    small_flashinfer.make(monkeypatch, next(reversed(small_flashinfer.RELEASES)))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(backend, "_has", lambda tool: True)


def test_what_its_kernel_serves(machine):
    assert supports("flashinfer", layout(), CUDA) == (True, "")
    assert supports("flashinfer", layout(32, 64, checkpoint="bf16"), CUDA) == (True, "")
    assert supports("flashinfer", layout(checkpoint="fp8"), CUDA) == (True, "")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"dim": 80}, "head dimension 80"),
        ({"dim": 128}, "head dimension 128"),
        ({"window": 17}, "window 17"),
        ({"window": 4, "draft": 5}, "max_draft 5"),
        ({"dim": 32, "checkpoint": "fp8"}, "8-bit kernel"),
        ({"dot": "tf32"}, "dot='tf32'"),
        ({"state": 256}, "K = 256"),
        ({"activation": torch.float16}, "activation dtype"),
    ],
)
def test_what_its_kernel_does_not_serve(machine, given, reason):
    ok, said = supports("flashinfer", layout(**given), CUDA)
    assert not ok
    assert reason in said
    assert "backend 'triton'" in said or "'triton'" in said


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 5)), "capability 7.x"),
        (lambda m: m.setattr(backend, "_has", lambda tool: tool != "nvcc"), "needs nvcc"),
        (lambda m: m.setattr(torch.cuda, "is_available", lambda: False), "needs a CUDA device"),
        (lambda m: m.setitem(sys.modules, "flashinfer.mamba.checkpointing_ssu", None), "needs FlashInfer"),
    ],
)
def test_what_the_machine_lacks(machine, monkeypatch, change, reason):
    change(monkeypatch)
    ok, said = supports("flashinfer", layout(), CUDA)
    assert not ok
    assert reason in said


def test_an_older_contract_is_refused(machine, monkeypatch):
    older = {"positional": ["state", "old_x", "cache_buf_idx"], "keyword": []}
    small_flashinfer.make(monkeypatch, next(reversed(small_flashinfer.RELEASES)), checkpointing_ssu=older)
    ok, said = supports("flashinfer", layout(), CUDA)
    assert not ok
    assert "no parameter" in said


def test_it_is_off_unless_asked_for(machine):
    assert choose_backend(layout(), CUDA) != "flashinfer"
    assert ReplayConfig(backend="flashinfer").backend == "flashinfer"
    assert load_backend("flashinfer").name == "flashinfer"
    with pytest.raises(UnsupportedError, match="device cpu"):
        ReplayState(layout(), A=-torch.ones(2), backend="flashinfer")


def test_ours_in_its_place_is_not_taken_for_it(machine):
    replayssm_flashinfer.install()
    try:
        ok, said = supports("flashinfer", layout(), CUDA)
        assert not ok
        assert "is ours in this process" in said
    finally:
        replayssm_flashinfer.uninstall()
    assert supports("flashinfer", layout(), CUDA) == (True, "")


def test_folds_have_seeds_of_their_own():
    """Its random bits depend on the seed and the element: with one seed, every fold of a slot would round alike."""
    precision = PrecisionPolicy("fp16", stochastic_rounding=True)
    layer = SimpleNamespace(layout=SimpleNamespace(precision=precision), seed=torch.tensor([2**62]))
    plans = [([3, 0], [0, 0]), ([3, 0], [1, 0]), ([3, 0], [0, 1]), ([3, 0], [1, 1]), ([3, -1], [2, 0])]
    seeds = [
        backend._seed(
            layer, SimpleNamespace(slots=torch.tensor(slots), flushes=torch.tensor(flushes, dtype=torch.int32))
        )
        for slots, flushes in plans
    ]
    assert all(seed.shape == (1,) and seed.dtype == torch.int64 for seed in seeds)
    assert len({int(seed) for seed in seeds}) == len(plans)
    nearest = SimpleNamespace(layout=SimpleNamespace(precision=PrecisionPolicy("fp16")), seed=layer.seed)
    assert backend._seed(nearest, None) is None


def test_no_weight_is_narrowed():
    skip, bias = torch.randn(3), torch.randn(6).bfloat16()[::2]
    for D in (skip, skip[:, None].expand(3, 32)):
        found = backend._weights(SimpleNamespace(D=D, raw=SimpleNamespace(dt_bias=bias)), 32)
        assert all(x.dtype == torch.float32 and x.shape == (3, 32) and x.stride() == (1, 0) for x in found)
        assert torch.equal(found[0][:, 0], skip)
        assert torch.equal(found[1][:, 0], bias.float())
    assert backend._weights(SimpleNamespace(D=None, raw=None), 32) == (None, None)


def test_its_kernel_gets_fp32_rates(monkeypatch):
    """It has no other dtype for A; ours keeps a float64 one as it comes."""
    given = []
    monkeypatch.setattr(backend, "find_theirs", lambda symbol: (lambda *tensors, **named: given.append(tensors[8]), ""))
    monkeypatch.setattr(backend, "launch_fold_into", lambda *arguments: None)
    source = Source(layout().recurrence, torch.bfloat16, torch.device("cpu"), seed=0, raw=True)
    assert source.A.dtype == torch.float64
    state = ReplayState(layout(), A=source.A, backend="torch")
    tokens = source.tokens(2, 1)
    tokens = replace(tokens, raw=RawGate(dt_bias=tokens.raw.dt_bias), z=None)
    load_backend("flashinfer").step(state.layer, state.plan(tokens, [0, 1]), tokens)
    assert given[0].dtype == torch.float32
    assert torch.equal(given[0][:, 0, 0], source.A.float())


@pytest.mark.parametrize("what", ["ancestors", "dt_limit", "scale", "qk_l2norm", "D"])
def test_inputs_that_its_kernel_does_not_have(what):
    plan = SimpleNamespace(ancestors=torch.ones(1) if what == "ancestors" else None)
    raw = SimpleNamespace(dt_limit=(0.0, 1.0) if what == "dt_limit" else (0.0, float("inf")))
    D = torch.ones(2, 32) if what == "D" else None
    inputs = SimpleNamespace(raw=raw, scale=0.5 if what == "scale" else 1.0, qk_l2norm=what == "qk_l2norm", D=D)
    with pytest.raises(UnsupportedError, match="use backend='triton'"):
        backend._check_inputs(plan, inputs)
