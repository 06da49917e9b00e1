"""What a rank of the small engine is given: a model that carries a configuration, and the selector of its manager."""

from __future__ import annotations

import importlib

import torch
from small_engine import models

from replayssm_trtllm import ReplaySSMConfig
from replayssm_trtllm.surface import SELECTOR, SELECTOR_MODULE

CARRIED = ReplaySSMConfig(decode=True, window=6, backend="torch").model_dump()


def config(kind="mamba2", *, carried=CARRIED, **extra):
    made = models.pretrained(kind, dtype=torch.float32, **extra)
    if carried is not None:
        made.replay_ssm = carried
    return made


def select(model_config, *arguments, **keywords):
    return getattr(importlib.import_module(SELECTOR_MODULE), SELECTOR)(model_config, *arguments, **keywords)
