"""SGLang's own code that looks for a GPU: sent to its Triton forms, or to plain torch."""

import importlib
import os
from unittest import mock

import torch
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from replayssm_sglang.bench import dummy

_SCATTER = "sglang.kernels.ops.mamba.mamba_state_scatter_triton."


def redirect() -> None:
    """Bind them, and register the hooks that do the rest."""
    _bind_convolutions()
    _build_trees_in_triton()
    for name in ("fused_conv_window_scatter_with_mask", "fused_mamba_state_scatter_with_mask"):
        HookRegistry.register(_SCATTER + name, scatter, HookType.REPLACE)
    if dummy.WEIGHT_SCALE in os.environ:
        dummy.register()


def scatter(dst, src, dst_indices_raw, step_indices_raw, src_indices_raw=None) -> None:
    """dst[:, dst_indices[i]] = src[:, src_indices[i], steps[i]] wherever slot and step are not negative."""
    steps, slots = step_indices_raw.long(), dst_indices_raw.long()
    rows = torch.arange(len(steps)) if src_indices_raw is None else src_indices_raw.long()
    real = (steps >= 0) & (slots >= 0)
    if dst.numel() and bool(real.any()):
        dst[:, slots[real]] = src[:, rows[real], steps[real]].to(dst.dtype)


def _bind_convolutions() -> None:
    from sglang.kernels.ops.mamba import causal_conv1d_triton as triton_forms
    from sglang.srt.layers.attention.mamba import mamba

    mamba.causal_conv1d_fn = mamba.causal_conv1d_fn_triton = triton_forms.causal_conv1d_fn
    mamba.causal_conv1d_update = mamba.causal_conv1d_update_triton = triton_forms.causal_conv1d_update


def _build_trees_in_triton() -> None:
    """Elsewhere a compiled operator builds and verifies draft trees; on Intel's XPU it is Triton."""
    from sglang.kernels.ops.speculative import cache_locs, spec_tree
    from sglang.srt import utils

    cache_locs._is_xpu = spec_tree._is_xpu = True
    with mock.patch.object(utils, "is_xpu", return_value=True):
        importlib.import_module("sglang.kernels.ops.speculative.reconstruct_tree")
