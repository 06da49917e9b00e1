"""FlashInfer's `checkpointing_ssu` behind the core: backend "flashinfer", for those who ask for it by name.

It serves the steps of Mamba-2; everything else on slots stays with our kernels, which share its memory layout bit for
bit. Its kernel decides by itself which rows fold, from cursors by slot. Rows that a policy folds earlier are folded by ours
first, and go into its step with an empty history.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from torch import Tensor

from replayssm import StateLayout, UnsupportedError
from replayssm.backends.fused import TritonBackend
from replayssm.cursors import StepPlan
from replayssm.inputs import RawGate, TokenInputs
from replayssm.kernels.launch_slots import launch_fold_into
from replayssm.layer import LayerState
from replayssm_flashinfer.ragged import pack_tokens, unpack_tokens
from replayssm_flashinfer.surface import SYMBOLS, Verdict, find_theirs

MAJORS = (8, 9, 10, 11, 12)
"""Compute capabilities that its kernel is compiled for."""
HEAD_DIMS = (32, 64)
LONGEST = 16


def make_backend() -> FlashInferBackend:
    """See `replayssm.external`."""
    return FlashInferBackend()


def supports(layout: StateLayout, device: torch.device) -> Verdict:
    """Whether FlashInfer can serve a layout here: `(True, "")`, or the first reason against it."""
    dim, dstate = layout.recurrence.value_dim, layout.recurrence.key_dim
    for ok, reason in (
        (dim in HEAD_DIMS, f"head dimension {dim}: its kernel takes {' or '.join(map(str, HEAD_DIMS))}"),
        (layout.window <= LONGEST, f"window {layout.window}: its kernel takes at most {LONGEST} records"),
        (layout.max_draft <= layout.window, f"max_draft {layout.max_draft} is above the window of {layout.window}"),
        (
            layout.precision.checkpoint != "fp8" or (dim, dstate) == (64, 128),
            f"fp8 with (V, K) = {(dim, dstate)}: its 8-bit kernel takes (64, 128)",
        ),
        (layout.precision.dot is None, f"dot={layout.precision.dot!r}: its kernel has products of its own"),
    ):
        if not ok:
            return False, f"backend 'flashinfer' refuses {reason}"
    return machine_supports(device)


def machine_supports(device: torch.device | None = None) -> Verdict:
    """Whether FlashInfer's kernel can be compiled and run on a device, the current one where None."""
    found, reason = find_theirs(SYMBOLS[0])
    if found is None:
        return False, f"backend 'flashinfer' needs FlashInfer: {reason}"
    if not torch.cuda.is_available():
        return False, "backend 'flashinfer' needs a CUDA device"
    major = torch.cuda.get_device_capability(device)[0]
    if major not in MAJORS:
        return False, f"backend 'flashinfer' has no kernel for compute capability {major}.x"
    missing = [tool for tool in ("nvcc", "ninja") if not _has(tool)]
    if missing:
        return False, f"backend 'flashinfer' compiles its kernel at first use and needs {' and '.join(missing)} for it"
    return True, ""


def warm_up(
    layout: StateLayout,
    device: torch.device | str = "cuda",
    *,
    weights: torch.dtype = torch.bfloat16,
    gates: torch.dtype = torch.bfloat16,
) -> None:
    """Compile FlashInfer's kernel for a layout and its longest draft: minutes, so before serving.

    Args:
        weights: of D and of the bias of Δ, the wider one where they differ. Its kernel is another one for each dtype.
        gates: of Δ as steps bring it, likewise.

    Raises:
        UnsupportedError: it is not served.
    """
    from replayssm import ReplayState

    small = StateLayout(layout.recurrence, 1, layout.window, layout.max_draft, layout.precision, layout.activation)
    r = layout.recurrence
    state = ReplayState(small, A=-torch.ones(r.heads), backend="flashinfer", device=device, check_inputs=False)
    value = torch.zeros(1, layout.max_draft, r.heads, r.value_dim, dtype=layout.activation, device=device)
    key = value.new_zeros(1, layout.max_draft, r.groups, r.key_dim)
    weight = torch.zeros(r.heads, dtype=weights, device=device)
    raw = RawGate(dt_bias=weight)
    inputs = TokenInputs(q=key, k=key, v=value, gate=value[..., 0].to(gates), raw=raw, D=weight)
    state.verify(inputs, torch.zeros(1, dtype=torch.int64, device=device))


class FlashInferBackend(TritonBackend):
    """Steps by FlashInfer, the rest by our kernels."""

    name = "flashinfer"

    def step(self, layer: LayerState, plan: StepPlan, inputs: TokenInputs) -> Tensor:
        """See `Backend.step`.

        Raises:
            UnsupportedError: a tree, bounds on Δ, a factor on C or D by channel, which its kernel does not have; or
                FlashInfer's function is not there any more.
        """
        function, reason = find_theirs(SYMBOLS[0])
        if function is None:
            raise UnsupportedError(reason)
        _check_inputs(plan, inputs)
        start, live = _cursors(layer, plan)
        tokens = pack_tokens(plan, inputs)
        heads, dim, dstate = layer.layout.recurrence.state_shape
        buffers = layer.buffers
        assert layer.A is not None
        skip, bias = _weights(inputs, dim)
        out = torch.zeros_like(tokens.v)
        function(
            buffers["checkpoint"],
            buffers["value_ring"],
            buffers["key_ring"],
            buffers["gate_ring"],
            start,
            live,
            tokens.v,
            tokens.gate[..., None].expand(*tokens.gate.shape, dim),
            # Its kernel has fp32 alone for A.
            layer.A.float()[:, None, None].expand(heads, dim, dstate),
            tokens.k,
            tokens.q,
            out,
            D=skip,
            z=tokens.z,
            dt_bias=bias,
            dt_softplus=inputs.raw is not None,
            state_batch_indices=plan.slots.to(torch.int32),
            pad_slot_id=-1,
            state_scale=buffers.get("checkpoint_scale"),
            rand_seed=_seed(layer, plan),
            cu_seqlens=tokens.starts,
            max_seqlen=layer.layout.max_draft,
        )
        return unpack_tokens(plan, tokens, out)

    def step_into(self, layer: LayerState, plan: StepPlan, inputs: TokenInputs, out: Tensor) -> None:
        """See `WritesOutputs.step_into`: a copy, since FlashInfer's batch is packed."""
        out.copy_(self.step(layer, plan, inputs))


def _has(tool: str) -> bool:
    from torch.utils.cpp_extension import CUDA_HOME

    return shutil.which(tool) is not None or bool(CUDA_HOME and Path(CUDA_HOME, "bin", tool).exists())


def _check_inputs(plan: StepPlan, inputs: TokenInputs) -> None:
    bounded = inputs.raw is not None and inputs.raw.dt_limit != RawGate().dt_limit
    by_channel = inputs.D is not None and inputs.D.dim() == 2 and inputs.D.stride(1) != 0
    for refused, what in (
        (plan.ancestors is not None, "draft trees"),
        (bounded, "bounds on Δ (dt_limit)"),
        (inputs.scale != 1.0, "a factor on C (scale)"),
        (inputs.qk_l2norm, "normalised B and C"),
        (by_channel, "D by channel"),
    ):
        if refused:
            raise UnsupportedError(f"backend 'flashinfer' has no {what}; use backend='triton'")


def _cursors(layer: LayerState, plan: StepPlan) -> tuple[Tensor, Tensor]:
    """`ring_start` and `prev_num_accepted_tokens` by slot, after folds that its kernel would not make."""
    layout = layer.layout
    early = plan.flush & (plan.committed + plan.lengths <= layout.window)
    slots = torch.where(early, plan.slots, -1)
    launch_fold_into(layer, slots, slots, plan.origin, torch.where(early, plan.committed, 0), plan.flushes)
    # The last entry is that of padding.
    start, live = torch.zeros(2, layout.slots + 1, dtype=torch.int32, device=plan.origin.device)
    start[plan.slots] = torch.where(early, (plan.origin + plan.committed) % layout.rows, plan.origin).to(torch.int32)
    live[plan.slots] = torch.where(early, 0, plan.committed).to(torch.int32)
    return start[:-1], live[:-1]


def _weights(inputs: TokenInputs, dim: int) -> tuple[Tensor | None, Tensor | None]:
    """D and the bias of Δ as `[H, P]`, one number a head, both in the wider of their dtypes: its kernel has one for both."""
    skip, bias = inputs.D, None if inputs.raw is None else inputs.raw.dt_bias
    if skip is not None and skip.dim() == 2:
        skip = skip[:, 0]
    if skip is not None and bias is not None:
        wider = torch.promote_types(skip.dtype, bias.dtype)
        skip, bias = skip.to(wider), bias.to(wider)
    found = [None if x is None else x.contiguous()[:, None].expand(-1, dim) for x in (skip, bias)]
    return found[0], found[1]


def _seed(layer: LayerState, plan: StepPlan) -> Tensor | None:
    """A seed of this step's folds: its counters know the element alone, so with one seed all folds would round alike."""
    if not layer.layout.precision.stochastic_rounding:
        return None
    # Odd numbers by slot, so that a fold of any row changes the sum.
    return layer.seed + (plan.flushes.long() * (2 * plan.slots + 1)).sum() * 0x9E3779B97F4A7C1
