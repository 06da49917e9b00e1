"""One Mamba-2 step on a caller's memory, through the core's kernels: views only, nothing is copied in the usual case."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from replayssm import PrecisionPolicy, Recurrence, StateLayout
from replayssm.cursors import StepPlan
from replayssm.inputs import RawGate, TokenInputs
from replayssm.kernels.launch import launch_step
from replayssm.layer import LayerState
from replayssm.layout import Buffers
from replayssm_flashinfer.copy_checks import NO_COPY, Copy, absent, check_copy, copy_format, scaled_buffers
from replayssm_flashinfer.mamba_checks import STATES
from replayssm_flashinfer.packed import gather, launch_into, spread
from replayssm_flashinfer.plan import RingCursors, plan_step
from replayssm_flashinfer.quantised import fold_int8
from replayssm_flashinfer.refusals import refuse

STOCHASTIC = (torch.float16, torch.float8_e4m3fn, torch.int8)
"""States that a seed rounds stochastically; others round to nearest, as FlashInfer's do."""


@lru_cache(maxsize=1024)
def mamba_layout(
    state: tuple[int, int, int, int],
    groups: int,
    rows: int,
    draft: int,
    precision: tuple[str, bool, str | None],
    activation: torch.dtype,
) -> StateLayout:
    """The core's layout of memory with state `[slots, H, P, N]` and rings of L = `rows`, W = L − T."""
    slots, heads, dim, dstate = state
    checkpoint, stochastic, read_copy = precision
    return StateLayout(
        Recurrence.mamba2(heads=heads, head_dim=dim, state_size=dstate, groups=groups),
        slots=slots,
        window=rows - draft,
        max_draft=draft,
        # An int8 checkpoint is read as any other with a scale a row; `quantised` writes it.
        precision=PrecisionPolicy("fp8" if checkpoint == "int8" else checkpoint, stochastic, read_copy),
        activation=activation,
    )


def mamba_layer(
    layout: StateLayout,
    state: Tensor,
    state_scale: Tensor | None,
    rings: tuple[Tensor, ...],
    read_copy: Copy,
    A: Tensor,
    seed: Tensor | None,
) -> LayerState:
    """The caller's memory under the core's names."""
    value, key, gate = rings
    buffers: Buffers = {"checkpoint": state, "value_ring": value, "key_ring": key, "gate_ring": gate}
    buffers |= scaled_buffers(state_scale, read_copy)
    # A seed that nobody reads may be any number on the device.
    return LayerState(layout, buffers, A, A if seed is None else seed)


def check_mamba_copy(state: Tensor, x_cache: Tensor, B_cache: Tensor, draft: int, copy: Copy) -> None:
    """Check a read copy beside such memory, if there is one.

    Raises:
        RefusedError: see `check_copy`; or the state is int8.
    """
    if absent(copy):
        return
    if state.dtype == torch.int8:
        refuse("an int8 state has no read copy; fp32, bf16, fp16 and fp8 states do")
    precision = (STATES[state.dtype], False, copy_format(copy))
    layout = mamba_layout(tuple(state.shape), B_cache.shape[1], x_cache.shape[2], draft, precision, x_cache.dtype)
    check_copy(layout, copy, state.device)


def step_mamba(
    state: Tensor,
    x_cache: Tensor,
    B_cache: Tensor,
    dt_cache: Tensor,
    cursors: RingCursors,
    inputs: TokenInputs,
    A: Tensor,
    out: Tensor,
    *,
    draft: int,
    state_scale: Tensor | None = None,
    rand_seed: Tensor | None = None,
    read_copy: Copy = NO_COPY,
) -> None:
    """Append, fold where a row is full, and write outputs; cursors are only read.

    Args:
        inputs: of rows `[B, T, …]`, or of a packed batch `[1, tokens, …]` where the cursors say so.
        A: `[H]`.
        out: as the inputs' values.
        read_copy: the copy, its block scales, its scales; see `replayssm.layout`.
    """
    whole = state.dtype is torch.int8
    stochastic = rand_seed is not None and state.dtype in STOCHASTIC
    precision = (STATES[state.dtype], stochastic, copy_format(read_copy))
    rows = x_cache.shape[2]
    layout = mamba_layout(tuple(state.shape), B_cache.shape[1], rows, draft, precision, x_cache.dtype)
    given = (x_cache, B_cache, dt_cache)
    dense = tuple(ring if _inner_dense(ring) else _copied(ring) for ring in given)
    layer = mamba_layer(layout, state, state_scale, dense, read_copy, A, rand_seed)
    packed = cursors.starts_of_rows
    batch = inputs.batch if packed is None else len(packed) - 1
    window = layout.window
    plan = plan_step(
        cursors, batch=batch, draft=draft, slots=len(state), rows=rows, window=window,
        limit=window,
    )  # fmt: skip
    # int8 rows fold after the step, which would write another format: in it they read and append.
    launched = _without_folds(plan) if whole else plan
    if packed is None:
        launch_into(layer, launched, inputs, out)
    else:
        v, gate, k, q, z = spread(packed, draft, inputs.v, inputs.gate, inputs.k, inputs.q, inputs.z)
        spread_inputs = TokenInputs(q=q, k=k, v=v, gate=gate, z=z, raw=inputs.raw, D=inputs.D)
        gather(packed, launch_step(layer, launched, spread_inputs, out.new_empty(v.shape)), out)
    if whole:
        fold_int8(layer, plan)
    for ring, used in zip(given, dense, strict=True):
        if used is not ring:
            ring.copy_(used)


def gate_inputs(dt: Tensor, dt_bias: Tensor | None, *, softplus: bool) -> tuple[Tensor, RawGate | None]:
    """dt as the core takes it: raw with its bias where a softplus is wanted, else processed.

    Args:
        dt: `[B, T, H, P]`, one number a head. dt_bias: `[H, P]`, likewise.
    """
    gate, bias = dt[..., 0], None if dt_bias is None else dt_bias[:, 0]
    if softplus:
        return gate, RawGate(dt_bias=bias)
    return gate if bias is None else gate.float() + bias.float(), None


def _without_folds(plan: StepPlan) -> StepPlan:
    return replace(plan, flush=torch.zeros_like(plan.flush))


def _inner_dense(ring: Tensor) -> bool:
    return not len(ring) or ring[0].is_contiguous()


def _copied(ring: Tensor) -> Tensor:
    warnings.warn(
        f"a ring with strides {ring.stride()} has gaps inside a slot and is copied in every step; lay rings out as "
        "[slots, heads, L, …] with only the slot stride free",
        stacklevel=5,
    )
    return ring.contiguous()
