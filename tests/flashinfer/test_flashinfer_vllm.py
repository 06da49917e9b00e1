"""vLLM's own dispatcher between FlashInfer's function and ours: what it binds, and what it calls.

`ci/engines/flashinfer.sh` brings vLLM's Python and FlashInfer's; no GPU, and nothing of either compiled.
"""

from __future__ import annotations

import inspect
import sys
from importlib import import_module

import pytest
import torch
import torch.nn.functional as F
from oracle import MambaCall, relative

pytest.importorskip("triton")
pytest.importorskip("flashinfer.mamba.checkpointing_ssu", reason="needs FlashInfer")
pytest.importorskip("vllm", reason="needs vLLM")

import replayssm_flashinfer
from replayssm.capability import CAPABILITIES

dispatch = import_module("vllm.model_executor.layers.mamba.ops.ssu_dispatch")
SSU = sys.modules["flashinfer.mamba.checkpointing_ssu"]
BOUND = "_flashinfer_replayssm_kernel"


@pytest.fixture(autouse=True)
def given_back(monkeypatch):
    """vLLM's globals and FlashInfer's names are as they were, whatever a test does."""
    for name in (BOUND, "_mamba_ssu_backend"):
        monkeypatch.setattr(dispatch, name, None)
    yield
    replayssm_flashinfer.uninstall()


def initialise():
    """What a worker does for a Mamba-2 model with `--mamba-backend flashinfer --use-replayssm`; the function it bound."""
    from vllm.config.mamba import MambaBackendEnum, MambaConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, MambaSpec

    layers = MambaSpec(block_size=16, shapes=((2, 20, 32),), dtypes=(torch.float32,))
    memory = KVCacheConfig(num_blocks=7, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["mixer"], layers)])
    dispatch.initialize_mamba_ssu_backend(MambaConfig(backend=MambaBackendEnum.FLASHINFER), memory, use_replayssm=True)
    return getattr(dispatch, BOUND)


def test_what_it_bound_before_is_ours_and_comes_back():
    theirs = initialise()
    assert theirs is SSU.checkpointing_ssu is not replayssm_flashinfer.checkpointing_ssu
    report = replayssm_flashinfer.install()
    assert f"{dispatch.__name__}.{BOUND}" in report.bound
    assert getattr(dispatch, BOUND) is replayssm_flashinfer.checkpointing_ssu
    replayssm_flashinfer.uninstall()
    assert getattr(dispatch, BOUND) is theirs


def test_what_it_binds_later_is_ours():
    theirs = SSU.checkpointing_ssu
    replayssm_flashinfer.install()
    assert initialise() is replayssm_flashinfer.checkpointing_ssu
    replayssm_flashinfer.uninstall()
    assert initialise() is theirs


@pytest.mark.skipif("cpu" not in CAPABILITIES["triton"].devices, reason="kernels run on a CPU under TRITON_INTERPRET=1")
@pytest.mark.parametrize("draft", [1, 2])
def test_its_call_is_served(draft):
    """Its arguments as it passes them, tokens without T where there is one, block 0 for padding."""
    replayssm_flashinfer.install()
    initialise()
    call, slots = MambaCall(torch.float32, draft, 4, [draft] * 3), torch.tensor([3, 0, 5], dtype=torch.int32)
    call.x, call.B, call.dt = (torch.rand_like(ring) for ring in (call.x, call.B, call.dt))
    call.live[3], before = 4, call.snapshot()
    given = call.arguments(slots)
    for name in ("z", "state_scale"):
        del given[name]
    if draft == 1:
        given |= {name: given[name][:, 0] for name in ("x", "dt", "B", "C", "out")}
    scratch = replayssm_flashinfer.allocate_checkpointing_ssu_scratch(3, 2, draft, 4, torch.float32, "cpu")
    function = dispatch.selective_state_update_replayssm_flashinfer
    # Its kernels that move cursors need a GPU.
    trackers = {"prev_query_len": torch.zeros_like(given["ring_start"]), "logical_window": 4, "update_trackers": False}
    known = inspect.signature(function).parameters
    function(**given, scratch=scratch, null_block_id=0, **{name: x for name, x in trackers.items() if name in known})
    out = given["out"].view(3, draft, 2, 20)
    assert not out[1].any(), "padding"
    assert call.folds(0, 3)
    for row, slot in ((0, 3), (2, 5)):
        history, call.tokens["z"] = call.replayed(before, slot), torch.ones_like(call.tokens["z"])
        truth = call.outputs(history, row) / F.silu(torch.ones((), dtype=torch.float64))
        assert relative(out[row], truth) < 2e-6
        if call.folds(row, slot):
            assert relative(call.state[slot], history) < 1e-6
