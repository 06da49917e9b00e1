"""FlashInfer's own kernel behind the core, beside a GPU, nvcc and FlashInfer: random lives against float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")
pytest.importorskip("flashinfer.mamba.checkpointing_ssu", reason="needs FlashInfer")

from replayssm import PrecisionPolicy, RawGate, Recurrence, StateLayout
from replayssm.capability import supports
from replayssm.conformance import CoreSubject
from replayssm.conformance.driver import Driver
from replayssm.conformance.subject import ALL_FEATURES, Feature
from replayssm.conformance.tolerances import ROUNDOFF, Tolerance
from replayssm_flashinfer import backend

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CUDA = torch.device("cuda")
# One variant of its kernel a draft length, minutes of nvcc each: Nemotron-3-Super's geometry, which its benchmark has too.
SUPER = Recurrence.mamba2(heads=128, head_dim=64, state_size=128, groups=8)
# What its kernel does with rings that hold NaN past their records is no promise of its own.
SUBJECT = CoreSubject("flashinfer", device=CUDA, features=ALL_FEATURES - {Feature.MEMORY})


class Life(Driver):
    """Tokens as models bring them; its kernel has no bounds on Δ, and one dtype for D and bias."""

    @property
    def tolerance(self):
        """It rounds the state for outputs, and operands of a fold, to bf16."""
        return Tolerance(output=2 * ROUNDOFF["bf16"], state=ROUNDOFF["bf16"])

    def tokens(self, rows, draft):
        inputs = self.source.tokens(rows, draft)
        raw = RawGate(dt_bias=inputs.raw.dt_bias.to(inputs.v.dtype))
        return replace(inputs, raw=raw, D=inputs.D.to(inputs.v.dtype), z=None)


@pytest.mark.parametrize("draft", [1, 4])
def test_a_life(draft, monkeypatch):
    layout = StateLayout(SUPER, 6, 16, draft, PrecisionPolicy("fp32"), torch.bfloat16)
    ok, reason = supports("flashinfer", layout, CUDA)
    assert ok, reason
    backend.warm_up(layout)
    calls, find = [], backend.find_theirs

    def counted(symbol):
        function, why = find(symbol)
        return function and (lambda *given, **named: (calls.append(symbol), function(*given, **named))[1]), why

    monkeypatch.setattr(backend, "find_theirs", counted)
    life = Life(SUBJECT, layout, seed=draft, raw=True, extras=True, model_device=CUDA)
    life.load([0, 2, 3, 5])
    slots = [3, -1, 0, 5]
    for step in range(28):
        if step == 17:
            # A slot that another request takes over.
            life.load([3])
        lengths = life.source.integers(1, draft, (4,)).tolist()
        drain = [step == 9, False, step % 7 == 6, False]
        life.step(slots, draft, lengths, drain=drain, inputs=life.tokens(4, draft))
        life.commit([int(life.source.integers(min(draft - 1, 1), length, ())) for length in lengths])
    life.check()
    assert len(calls) == 28
