"""The surface and the doctor: a difference is named, an absent engine is a finding, nothing raises."""

from __future__ import annotations

import sys
import types

import pytest
import torch
from engine_process import installed

from replayssm import LayerKind
from replayssm_sglang import doctor, served, surface
from replayssm_sglang.surface import Symbol


@pytest.fixture
def module(monkeypatch):
    made = types.ModuleType("pretended_engine")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


def test_a_symbol_as_expected_and_one_that_changed(module):
    module.step = lambda state, slots: (state, slots)
    assert surface.probe(Symbol("pretended_engine.step", ("state", "slots"), "steps")) == (True, "")
    ok, reason = surface.probe(Symbol("pretended_engine.step", ("state", "rows"), "steps"))
    assert not ok
    assert reason == "pretended_engine.step (steps) lacks rows; it has state, slots"


def test_an_attribute_that_we_replace_and_that_nobody_sets(module):
    class Dispatcher:
        def __init__(self, backend):
            self.decode_kernel = backend

    module.Dispatcher = Dispatcher
    path = "pretended_engine.Dispatcher.__init__"
    assert surface.probe(Symbol(path, ("backend",), "layers", ("decode_kernel",))) == (True, "")
    ok, reason = surface.probe(Symbol(path, ("backend",), "layers", surface.KERNELS))
    assert not ok
    assert reason == f"{path} (layers) sets no verify_kernel"


@pytest.mark.usefixtures("module")
def test_a_symbol_that_is_gone_and_an_import_that_fails():
    ok, reason = surface.probe(Symbol("pretended_engine.gone", (), "steps"))
    assert not ok
    assert "pretended_engine.gone (steps)" in reason
    ok, reason = surface.probe(Symbol("replayssm_sglang.no_such_module.thing", (), "steps"))
    assert not ok
    assert "No module named" in reason


@pytest.mark.skipif(installed(), reason="an engine is installed")
def test_without_the_engine():
    assert doctor.report()[-1] == ("sglang", False, "is not installed")
    assert not surface.check()[0]


def test_an_engine_that_cannot_be_imported_is_one_finding(monkeypatch):
    monkeypatch.setattr(surface, "version", lambda: "0.5.23")
    monkeypatch.setitem(sys.modules, "sglang.srt.server_args", None)
    name, ok, detail = doctor.report()[-1]
    assert (name, ok) == ("sglang", False)
    assert detail.startswith("0.5.23 cannot be imported: ModuleNotFoundError")
    assert not [line for line in doctor.report() if line[0].startswith("sglang.")]


def test_what_is_on_here_and_why_the_rest_is_off():
    lines = {name: (ok, detail) for name, ok, detail in served.report()}
    where = "cuda" if torch.cuda.is_available() else "cpu"
    for kind in LayerKind:
        assert lines[kind][0]
        assert f"standard decode, chains and trees on {where}" in lines[kind][1]
    on, off = lines["presets"][1].split("; off: ")
    assert on == "on: exact, fp16-sr, dual-nvfp4, dual-nvfp4-fp16, dual-fp8"
    assert "shared-fp8 (a checkpoint of fp8 is not served)" in off


def test_a_layer_that_a_device_has_not_says_why():
    assert "does not serve device meta" in served.refusal(LayerKind.GDN, "exact", torch.device("meta"))


@pytest.mark.skipif(not installed(), reason="needs the engine: ci/engines/sglang.sh")
def test_the_installed_engine_matches():
    assert [reason for _, (ok, reason) in surface.report() if not ok] == []
    assert all(ok for _, ok, _ in doctor.report())
