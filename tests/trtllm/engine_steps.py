"""Steps at fixed addresses in the engine's layouts, each judged by the kit's model beside the eager twin."""

from __future__ import annotations

import fixed_step
import torch
from engine_layouts import HEAD_DIM, KEY_DIM, WINDOW, operand_of
from layer_models import LayerModels

CAPTURED = ("speculation-fp16sr-nvfp4", "decode-fp32-nvfp4")


def check(kind, chosen, backend, device):
    """See `fixed_step.check`; padding names live slots, and acceptance is random."""
    setting = fixed_step.Setting(
        value_dim=HEAD_DIM[kind],
        key_dim=KEY_DIM,
        window=WINDOW,
        tokens=1 if chosen.drafts is None else chosen.drafts + 1,
        activation=torch.bfloat16,
        ssm=chosen.ssm,
        fields=chosen.fields,
    )
    fixed_step.check(
        kind,
        setting,
        backend,
        device,
        steps=80,
        models=lambda step: LayerModels(step.state, [step.source.A] * len(fixed_step.LAYERS), operand_of(backend)),
    )
