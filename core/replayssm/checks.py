"""Input checks of the step protocol. Each raises before anything is written.

Shapes and dtypes are always checked. Checks of values wait for the device: they are functions of their own, or behind an
argument `values`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from replayssm.capture import capturing
from replayssm.cursors import PAD_SLOT, StepPlan
from replayssm.errors import InputError
from replayssm.inputs import RawGate, TokenInputs
from replayssm.layout import StateLayout

SlotsLike = Tensor | Sequence[int] | int


def integers(name: str, value: object, device: torch.device) -> Tensor:
    """An int64 (or int32) tensor on the device, from a tensor or plain integers of any nesting.

    Raises:
        InputError: not integers (booleans are not), or beyond 64 bits, or on the host while a CUDA graph is captured.
    """
    try:
        if isinstance(value, int) and not isinstance(value, bool):
            return torch.full((), value, dtype=torch.int64, device=device)  # A fill, which a graph can capture.
        _refuse_host_values(name, value, device)
        tensor = torch.as_tensor(value, device=device)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InputError(f"{name}={value!r} must be integers: {error}") from None
    if tensor.numel() == 0:
        return tensor.long()  # An empty list has no dtype to judge.
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype in (torch.bool, torch.uint64):
        raise InputError(f"{name} must be integers, got shape {tuple(tensor.shape)} {tensor.dtype}")
    return tensor if tensor.dtype == torch.int32 else tensor.long()


def _refuse_host_values(name: str, value: object, device: torch.device) -> None:
    """While a CUDA graph is captured, what is not on the device cannot come there."""
    if capturing(device) and not (isinstance(value, Tensor) and value.device.type == device.type):
        raise InputError(f"{name} must be a tensor on {device} while a CUDA graph is captured: a replay reads it there")


def check_slots(
    layout: StateLayout,
    slots: SlotsLike,
    device: torch.device,
    *,
    padding: bool = False,
    name: str = "slots",
    values: bool = True,
) -> Tensor:
    """Slot numbers as an integer tensor `[n]` on the device.

    Raises:
        InputError: not integers in one dimension; with `values`, out of range, or twice (padding may repeat).
    """
    tensor = integers(name, slots, device)
    tensor = tensor[None] if tensor.dim() == 0 else tensor
    if tensor.dim() != 1:
        raise InputError(f"{name} must be a 1-d integer tensor, got shape {tuple(tensor.shape)}")
    if not values:
        return tensor
    real = tensor[tensor != PAD_SLOT] if padding else tensor
    if len(real) and (int(real.min()) < 0 or int(real.max()) >= layout.slots):
        note = f", or {PAD_SLOT} for padding" if padding else ""
        raise InputError(f"{name}={tensor.tolist()}: each must be from 0 to {layout.slots - 1}{note}")
    if len(real.unique()) != len(real):
        raise InputError(f"{name}={tensor.tolist()}: a slot may appear only once")
    return tensor


def check_lengths(
    layout: StateLayout,
    lengths: Tensor | Sequence[int] | None,
    inputs: TokenInputs,
    slots: Tensor,
    values: bool = True,
) -> Tensor | None:
    """New tokens of each row, `[B]` integers from 1 to T, None for T each; rows of padding may hold anything.

    Raises:
        InputError: T above the layout's draft limit, wrong shape; with `values`, a length out of range.
    """
    batch, draft, device = inputs.batch, inputs.draft, inputs.v.device
    if not 1 <= draft <= layout.max_draft:
        raise InputError(f"inputs hold T={draft} tokens a row; this layout allows 1 to max_draft={layout.max_draft}")
    if lengths is None:
        return None
    tensor = integers("lengths", lengths, device)
    if tensor.shape != (batch,):
        raise InputError(f"lengths must be [{batch}] integers, got shape {tuple(tensor.shape)}")
    if values:
        counted = tensor[slots != PAD_SLOT]
        if len(counted) and (int(counted.min()) < 1 or int(counted.max()) > draft):
            raise InputError(f"lengths={tensor.tolist()}: each must be from 1 to T={draft}")
    return tensor


def check_inputs(layout: StateLayout, inputs: TokenInputs, device: torch.device) -> None:
    """Shapes and dtypes of one step against the layout.

    Raises:
        InputError: names the tensor, what it is and what it must be.
    """
    r = layout.recurrence
    if not isinstance(inputs, TokenInputs):
        raise InputError(f"inputs is a {type(inputs).__name__}; expected TokenInputs")
    if not isinstance(inputs.v, Tensor) or inputs.v.dim() != 4:
        raise InputError(f"inputs.v must be [B, T, H, V], got {describe(inputs.v)}")
    batch, draft = inputs.batch, inputs.draft
    expected = {
        "q": (batch, draft, r.groups, r.key_dim),
        "k": (batch, draft, r.groups, r.key_dim),
        "v": (batch, draft, r.heads, r.value_dim),
        "gate": (batch, draft, *r.gate_shape),
    }
    if r.delta_rule:
        expected["beta"] = (batch, draft, r.heads)
    elif inputs.beta is not None:
        raise InputError("inputs.beta is given, but Mamba-2 has no β; leave it out")
    for name, shape in expected.items():
        _check_tensor(name, getattr(inputs, name), shape, device)
    for name in ("k", "v"):
        dtype = getattr(inputs, name).dtype
        if dtype != layout.activation:
            raise InputError(f"inputs.{name} is {dtype}; the rings of this layout hold {layout.activation}")
    if inputs.z is not None:
        _check_tensor("z", inputs.z, expected["v"], device)
    if inputs.D is not None and not (isinstance(inputs.D, Tensor) and inputs.D.is_floating_point()):
        raise InputError(f"inputs.D must be a floating-point tensor, got {describe(inputs.D)}")
    if inputs.D is not None and tuple(inputs.D.shape) not in ((r.heads,), (r.heads, r.value_dim)):
        raise InputError(
            f"inputs.D has shape {tuple(inputs.D.shape)}; expected ({r.heads},) or ({r.heads}, {r.value_dim})"
        )
    if inputs.D is not None and inputs.D.device.type != device.type:
        raise InputError(f"inputs.D is on {inputs.D.device}; the state is on {device}")
    if not isinstance(inputs.scale, (int, float)) or not math.isfinite(inputs.scale):
        raise InputError(f"inputs.scale={inputs.scale!r} must be finite")
    if inputs.raw is not None:
        _check_raw(layout, inputs.raw, device)


def check_output(out: Tensor | None, inputs: TokenInputs, device: torch.device) -> None:
    """Where the engine wants outputs: of the shape of v, contiguous, a float dtype, on the device.

    Raises:
        InputError: it is not.
    """
    if out is None:
        return
    shape = tuple(inputs.v.shape)
    fits = isinstance(out, Tensor) and tuple(out.shape) == shape and out.is_contiguous() and out.is_floating_point()
    if not fits or out.device.type != device.type:
        raise InputError(f"out must be a contiguous floating-point tensor {shape} on {device}, got {describe(out)}")


def _check_raw(layout: StateLayout, raw: RawGate, device: torch.device) -> None:
    r = layout.recurrence
    if not isinstance(raw, RawGate):
        raise InputError(f"inputs.raw is a {type(raw).__name__}; expected RawGate or None")
    if r.delta_rule and raw.A_log is None:
        raise InputError("inputs.raw.A_log is missing: GDN and KDA need it to process raw gates")
    for name, tensor, shape in (("dt_bias", raw.dt_bias, r.gate_shape), ("A_log", raw.A_log, (r.heads,))):
        if tensor is not None:
            _check_tensor(f"raw.{name}", tensor, shape, device)
    pair = isinstance(raw.dt_limit, tuple) and len(raw.dt_limit) == 2 and all(map(_is_number, raw.dt_limit))
    if not pair or not 0 <= raw.dt_limit[0] <= raw.dt_limit[1]:
        raise InputError(f"inputs.raw.dt_limit={raw.dt_limit!r} must be (low, high) with 0 ≤ low ≤ high")
    bound = raw.lower_bound
    if bound is not None and not (_is_number(bound) and math.isfinite(bound) and bound < 0):
        raise InputError(f"inputs.raw.lower_bound={bound!r} must be finite and below 0")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check_tensor(name: str, tensor: Tensor | None, shape: tuple[int, ...], device: torch.device) -> None:
    if tensor is None:
        raise InputError(f"inputs.{name} is missing; expected shape {shape}")
    if not isinstance(tensor, Tensor):
        raise InputError(f"inputs.{name} is a {type(tensor).__name__}; expected a tensor of shape {shape}")
    if tuple(tensor.shape) != shape:
        raise InputError(f"inputs.{name} has shape {tuple(tensor.shape)}; expected {shape}")
    if not tensor.is_floating_point():
        raise InputError(f"inputs.{name} is {tensor.dtype}; expected a floating-point dtype")
    if tensor.device.type != device.type:
        raise InputError(f"inputs.{name} is on {tensor.device}; the state is on {device}")


def describe(value: object) -> str:
    """Shape and dtype of a tensor, the type of anything else."""
    return f"shape {tuple(value.shape)} {value.dtype}" if isinstance(value, Tensor) else type(value).__name__


def check_finite(layout: StateLayout, inputs: TokenInputs, plan: StepPlan) -> None:
    """No NaN or infinity in the tokens that count, nor in the weights.

    Raises:
        InputError: names the tensor and the first row that fails.
    """
    raw = inputs.raw or RawGate()
    for name, weight in (("D", inputs.D), ("raw.dt_bias", raw.dt_bias), ("raw.A_log", raw.A_log)):
        if weight is not None and not bool(torch.isfinite(weight.to(layout.compute_dtype)).all()):
            raise InputError(f"inputs.{name} holds NaN or infinity; expected finite values, nothing was changed")
    for name, tensor in inputs.tensors().items():
        # In the dtype that it is computed in: an fp64 value beyond fp32's range is an infinity there.
        row = _first_row(plan, ~torch.isfinite(tensor[plan.rows].to(layout.compute_dtype)))
        if row is not None:
            raise InputError(
                f"inputs.{name} holds NaN or infinity in row {row}; expected finite values, nothing was changed"
            )


def _first_row(plan: StepPlan, wrong: Tensor) -> int | None:
    """First row of the batch with a live token where `wrong [n, T, …]` holds anywhere, None for none."""
    bad = (wrong.flatten(2).any(-1) & plan.live).any(-1).nonzero()
    return int(plan.rows[bad[0, 0]]) if len(bad) else None


def _check_processed_gate(layout: StateLayout, inputs: TokenInputs, plan: StepPlan) -> None:
    gate = inputs.process(layout.recurrence, plan.rows, layout.compute_dtype).gate
    row = _first_row(plan, ~torch.isfinite(gate))
    if row is not None:
        raise InputError(f"inputs.gate in row {row} is not finite once processed; check raw.A_log and raw.dt_bias")


def check_decay(layout: StateLayout, inputs: TokenInputs, plan: StepPlan) -> None:
    """Gates must be finite once processed and not grow the state: Δ ≥ 0 for Mamba-2, log decay ≤ 0 for GDN and KDA.

    Raises:
        InputError: names the first row that fails.
    """
    if inputs.raw is not None:
        _check_processed_gate(layout, inputs, plan)
        return
    gate = inputs.gate[plan.rows]
    row = _first_row(plan, gate > 0 if layout.recurrence.delta_rule else gate < 0)
    if row is not None:
        rule = "log decay ≤ 0" if layout.recurrence.delta_rule else "Δ ≥ 0"
        raise InputError(f"inputs.gate in row {row} would grow the state; expected {rule}")


def check_state(layout: StateLayout, state: Tensor, count: int, device: torch.device, finite: bool) -> None:
    """A state to load: `[n, H, V, K]`; with `finite`, no NaN or infinity in it.

    Raises:
        InputError: wrong shape or dtype, not finite, or on the host while a CUDA graph is captured.
    """
    _refuse_host_values("state", state, device)
    expected = (count, *layout.recurrence.state_shape)
    if not isinstance(state, Tensor) or state.is_meta:
        raise InputError(f"state is {describe(state)}; expected a tensor with values of shape {expected}")
    if tuple(state.shape) != expected or not state.is_floating_point():
        raise InputError(
            f"state is {tuple(state.shape)} {state.dtype}; expected {expected} of a float dtype ([n, H, V, K])"
        )
    if finite and not bool(torch.isfinite(state).all()):
        raise InputError("state holds NaN or infinity; expected finite values, no slot was changed")


def check_counts(name: str, counts: Tensor | Sequence[int] | int, shape: torch.Size, device: torch.device) -> Tensor:
    """Counts per row: one for all, or `[n]`. Their range is `check_range`'s.

    Raises:
        InputError: wrong shape, or not integers.
    """
    tensor = integers(name, counts, device)
    if tensor.dim() == 0:
        return tensor.expand(shape)
    if tensor.shape != shape:
        raise InputError(f"{name} must be one integer or [{shape[0]}], got shape {tuple(tensor.shape)}")
    return tensor


def check_range(name: str, counts: Tensor, upper: Tensor, what: str) -> None:
    """That counts `[n]` are from 0 to `upper [n]`; `what` says what the upper bound is.

    Raises:
        InputError: a count out of range.
    """
    bad = (counts < 0) | (counts > upper)
    if bool(bad.any()):
        raise InputError(f"{name}={counts.tolist()}: each must be from 0 to {what}, which is {upper.tolist()}")


def check_targets(source: Tensor, target: Tensor) -> None:
    """That no target `[n]` is the source `[n]` of another row: what one row writes, no other may read.

    Raises:
        InputError: one is.
    """
    crossing = (target[:, None] == source) & ~torch.eye(len(source), dtype=torch.bool, device=source.device)
    if bool(crossing.any()):
        raise InputError(f"target={target.tolist()}: no target may be another row's source, {source.tolist()}")


def check_parents(
    parents: Tensor | Sequence[Sequence[int]], inputs: TokenInputs, slots: Tensor, values: bool = True
) -> Tensor:
    """Draft tree `[B, T]`: the parent of each token among the new tokens, −1 for a child of the history.

    Rows of padding may hold anything and come back as children of the history.

    Raises:
        InputError: wrong shape; with `values`, a parent that does not come before its child.
    """
    tensor = integers("parents", parents, inputs.v.device)
    if tensor.shape != (inputs.batch, inputs.draft):
        raise InputError(f"parents must be [{inputs.batch}, {inputs.draft}] integers, got shape {tuple(tensor.shape)}")
    tensor = torch.where((slots != PAD_SLOT)[:, None], tensor, -1)
    order = torch.arange(inputs.draft, device=tensor.device)
    if values and bool(((tensor < -1) | (tensor >= order)).any()):
        raise InputError(f"parents={tensor.tolist()}: each must be −1 or come before its child (topological order)")
    return tensor


def check_drain(drain: Tensor | Sequence[bool] | None, batch: int, device: torch.device) -> Tensor | None:
    """Rows that must fold now: `[B]` bool.

    Raises:
        InputError: wrong shape, or not booleans.
    """
    if drain is None:
        return None
    _refuse_host_values("drain", drain, device)
    try:
        tensor = torch.as_tensor(drain, device=device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"drain={drain!r} must be [{batch}] booleans: {error}") from None
    if tensor.shape != (batch,) or tensor.dtype != torch.bool:
        raise InputError(f"drain must be [{batch}] booleans, got shape {tuple(tensor.shape)} {tensor.dtype}")
    return tensor


def check_position(
    position: Tensor | Sequence[int] | int, count: int, device: torch.device, values: bool = True
) -> Tensor:
    """Tokens that a loaded state has seen: one number or `[n]`, from 0 to 2^30: a decode may double it.

    Raises:
        InputError: wrong shape; with `values`, negative, or too large.
    """
    tensor = integers("position", position, device)
    if tensor.dim() and tensor.shape != (count,):
        raise InputError(f"position must be one integer or [{count}], got shape {tuple(tensor.shape)}")
    if values and tensor.numel() and (int(tensor.min()) < 0 or int(tensor.max()) > 2**30):
        raise InputError(f"position={tensor.tolist()}: each must be from 0 to {2**30}")
    return tensor
