"""Lives and fixed-address steps in the engine's exact tensor layouts, layer by layer against the kit's float64 model."""

from __future__ import annotations

import engine_steps
import pytest
import torch
from engine_layouts import FORMATS, EngineLife
from test_trtllm_lives import KINDS, a_whole_life


def an_engine_life(life):
    """A whole life, and decode until every window was written out."""
    a_whole_life(life)
    for step in range(18 if life.drafts is None else 6):
        life.decode(3, 2, 4, padding=step % 2)
    life.check_written()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FORMATS)
def test_a_life_in_the_engines_layouts(monkeypatch, kind, name):
    an_engine_life(EngineLife(monkeypatch, kind, FORMATS[name], "torch"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_stale_read_copy_is_found(monkeypatch, kind):
    """The bounds follow what a copy stores, so they have teeth: a copy left behind by a new prompt breaks them."""
    life = EngineLife(monkeypatch, kind, FORMATS["decode-fp32-nvfp4"], "torch")
    monkeypatch.setattr("replayssm_trtllm.rings.ReplayLayers._refresh", lambda *_: None)
    with pytest.raises(AssertionError, match="request 1, layer 0, step 1"):
        an_engine_life(life)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", engine_steps.CAPTURED)
def test_fixed_addresses_in_the_engines_layouts(kind, name):
    engine_steps.check(kind, FORMATS[name], "torch", torch.device("cpu"))
