"""Served models' geometry, dtypes and strides: what TensorRT-LLM hands to the operators.

Heads of 64 x 128 (Mamba-2) and 128 x 128 (GDN) in several groups, bf16 activations that are views of the convolution's
packed output, and states in pages that hold a slot's layers side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from layer_models import LayerModels
from lives import Life

HEADS, GROUPS, KEY_DIM, WINDOW, DRAFTS = 4, 2, 128, 16, 3
HEAD_DIM = {"mamba2": 64, "gdn": 128}


@dataclass(frozen=True)
class Format:
    """How a state is stored and stepped."""

    drafts: int | None
    ssm: torch.dtype
    fields: dict = field(default_factory=dict)


ROUNDED = {"checkpoint_dtype": "float16", "stochastic_rounding": True}
COPY = {"read_copy": "nvfp4"}
FORMATS = {
    "speculation-fp16sr-nvfp4": Format(DRAFTS, torch.float16, ROUNDED | COPY),
    "speculation-fp32": Format(DRAFTS, torch.float32),
    "decode-fp32-nvfp4": Format(None, torch.float32, COPY),
    "decode-fp16sr": Format(None, torch.float16, ROUNDED),
}
"""Every pair of way of decoding, checkpoint and read copy, in half of their combinations: each compiles kernels."""


def operand_of(backend):
    """Products of the fused kernels round their operands to TF32, whose mantissa is float16's."""
    return torch.float16 if backend == "triton" else None


class EngineLife(Life):
    """A life in the engine's layouts; every layer is held to the kit's model of it, in place of the model's outputs."""

    def __init__(self, monkeypatch, kind, chosen, backend):
        super().__init__(
            monkeypatch,
            "C",
            kind,
            drafts=chosen.drafts,
            fields={"window": WINDOW, "backend": backend} | chosen.fields,
            dtype=torch.bfloat16,
            ssm=chosen.ssm,
            shape={"heads": HEADS, "groups": GROUPS, "head_dim": HEAD_DIM[kind], "key_dim": KEY_DIM},
        )
        constants = [m.A.detach().float() if kind == "mamba2" else None for m in self.model.mixers.values()]
        self.models = LayerModels(self.state, constants, operand_of(backend), self.manager.slot_of.__getitem__)
        self.taps, self.original = [], self.state.step
        monkeypatch.setattr(self.state, "step", self._tapped)

    def _tapped(self, layer, inputs, slots, *, standard):
        out = self.original(layer, inputs, slots, standard=standard)
        self.taps.append((inputs, out))
        return out

    def _compare(self, rows, lengths, out):
        del lengths
        assert bool(torch.isfinite(out).all())
        contexts = len(rows) - (self.taps[0][0].batch if self.taps else 0)
        for request, _ in rows[:contexts]:
            self.models.load(request)
        if self.taps:
            live = [request for request, _ in rows[contexts:] if request is not None]
            accepted = [1] * len(live) if self.drafts is None else self.accepted[contexts:].tolist()
            self.models.step(self.taps, live, accepted)
            self.taps.clear()

    def check_states(self):
        self.models.check(list(self.tokens))

    def check_written(self):
        """Every window was full once since its prompt, and the states are right."""
        assert all(self.models.written(request) for request in self.tokens)
        self.check_states()
