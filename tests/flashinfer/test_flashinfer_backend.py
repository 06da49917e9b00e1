"""The gate of backend "flashinfer": every refusal has its reason, and nothing is chosen unless asked for."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

import small_flashinfer

from replayssm import PrecisionPolicy, Recurrence, ReplayConfig, ReplayState, StateLayout, UnsupportedError
from replayssm.backends import load_backend
from replayssm.capability import choose_backend, supports
from replayssm_flashinfer import backend

CUDA = torch.device("cuda")


def layout(dim=64, state=128, window=16, draft=4, checkpoint="fp32", **options):
    recurrence = Recurrence.mamba2(heads=2, head_dim=dim, state_size=state, groups=1)
    return StateLayout(recurrence, 2, window, draft, PrecisionPolicy(checkpoint), **options)


@pytest.fixture
def machine(monkeypatch):
    """A GPU that can compile, and a FlashInfer of the newest recorded release."""
    small_flashinfer.make(monkeypatch, next(reversed(small_flashinfer.RELEASES)))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(backend, "_has", lambda tool: True)
    backend.machine_supports.cache_clear()
    yield
    backend.machine_supports.cache_clear()


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
    backend.machine_supports.cache_clear()
    ok, said = supports("flashinfer", layout(), CUDA)
    assert not ok
    assert reason in said


def test_an_older_contract_is_refused(machine, monkeypatch):
    older = {"positional": ["state", "old_x", "cache_buf_idx"], "keyword": []}
    small_flashinfer.make(monkeypatch, next(reversed(small_flashinfer.RELEASES)), checkpointing_ssu=older)
    backend.machine_supports.cache_clear()
    ok, said = supports("flashinfer", layout(), CUDA)
    assert not ok
    assert "no parameter" in said


def test_it_is_off_unless_asked_for(machine):
    assert choose_backend(layout(), CUDA) != "flashinfer"
    assert ReplayConfig(backend="flashinfer").backend == "flashinfer"
    assert load_backend("flashinfer").name == "flashinfer"
    with pytest.raises(UnsupportedError, match="device cpu"):
        ReplayState(layout(), A=-torch.ones(2), backend="flashinfer")


@pytest.mark.parametrize("what", ["ancestors", "dt_limit", "scale", "qk_l2norm"])
def test_inputs_that_its_kernel_does_not_have(what):
    plan = SimpleNamespace(ancestors=torch.ones(1) if what == "ancestors" else None)
    raw = SimpleNamespace(dt_limit=(0.0, 1.0) if what == "dt_limit" else (0.0, float("inf")))
    inputs = SimpleNamespace(raw=raw, scale=0.5 if what == "scale" else 1.0, qk_l2norm=what == "qk_l2norm")
    with pytest.raises(UnsupportedError, match="use backend='triton'"):
        backend._check_inputs(plan, inputs)
