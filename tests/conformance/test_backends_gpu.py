"""The torch and triton backends pass the same kit on a GPU, where there is one."""

from __future__ import annotations

import pytest
import torch

from replayssm.conformance import CoreSubject, Dims
from replayssm.conformance.suite import BackendConformance

# Not a skip: the kit lets no claimed capability skip, so a machine without a GPU has no such class.
if torch.cuda.is_available():

    @pytest.mark.gpu
    class TestTorchOnCuda(BackendConformance):
        subject = CoreSubject("torch", device=torch.device("cuda"))

    @pytest.mark.gpu
    class TestTriton(BackendConformance):
        # Products round their operands to TF32, whose mantissa is float16's. NVFP4 needs 64 numbers a key.
        subject = CoreSubject(
            "triton",
            device=torch.device("cuda"),
            rounds_to=torch.float16,
            dims=Dims(key_dim=64),
            batches=(1, 2, 7, 33, 99),
        )
