"""Real FlashInfer, where its Python can be imported: `ci/engines/flashinfer.sh` brings it."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest

pytest.importorskip("triton")
pytest.importorskip("flashinfer.mamba.checkpointing_ssu", reason="needs FlashInfer")

import replayssm_flashinfer
from replayssm_flashinfer import surface

SSU, MATERIALIZE = (
    import_module(f"flashinfer.mamba.{name}") for name in ("checkpointing_ssu", "replayssm_materialize")
)


def test_its_functions_are_replaced_wherever_they_were_bound(monkeypatch):
    theirs, package = SSU.checkpointing_ssu, sys.modules["flashinfer.mamba"]
    monkeypatch.setattr(sys.modules[__name__], "bound_here", theirs, raising=False)
    report = replayssm_flashinfer.install()
    try:
        assert SSU.checkpointing_ssu is package.checkpointing_ssu is replayssm_flashinfer.checkpointing_ssu
        assert MATERIALIZE.replayssm_materialize is replayssm_flashinfer.replayssm_materialize
        assert sys.modules[__name__].bound_here is replayssm_flashinfer.checkpointing_ssu
        assert surface.SYMBOLS[0].label in report.bound
    finally:
        replayssm_flashinfer.uninstall()
    assert SSU.checkpointing_ssu is package.checkpointing_ssu is sys.modules[__name__].bound_here is theirs


def test_the_backend_says_what_the_machine_lacks():
    from replayssm_flashinfer.backend import machine_supports

    ok, reason = machine_supports()
    assert ok or "CUDA" in reason or "nvcc" in reason or "ninja" in reason
