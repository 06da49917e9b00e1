"""Input checks of the step protocol. Each raises before anything is written."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from replayssm.cursors import PAD_SLOT
from replayssm.errors import InputError
from replayssm.inputs import TokenInputs
from replayssm.layout import StateLayout

SlotsLike = Tensor | Sequence[int] | int


def check_slots(
    layout: StateLayout, slots: SlotsLike, device: torch.device, *, padding: bool = False, name: str = "slots"
) -> Tensor:
    """Slot numbers as an int64 tensor on the device.

    Raises:
        InputError: not integers in one dimension, out of range, or twice (padding may repeat).
    """
    tensor = torch.as_tensor([slots] if isinstance(slots, int) else slots, device=device)
    if tensor.dim() != 1 or tensor.is_floating_point() or tensor.dtype == torch.bool:
        raise InputError(f"{name} must be a 1-d integer tensor, got shape {tuple(tensor.shape)} {tensor.dtype}")
    tensor = tensor.long()
    real = tensor[tensor != PAD_SLOT] if padding else tensor
    if len(real) and (int(real.min()) < 0 or int(real.max()) >= layout.slots):
        note = f", or {PAD_SLOT} for padding" if padding else ""
        raise InputError(f"{name}={tensor.tolist()}: each must be from 0 to {layout.slots - 1}{note}")
    if len(real.unique()) != len(real):
        raise InputError(f"{name}={tensor.tolist()}: a slot may appear only once")
    return tensor


def check_lengths(layout: StateLayout, lengths: Tensor | Sequence[int] | None, inputs: TokenInputs) -> Tensor:
    """New tokens of each row, `[B]` int32 from 1 to T.

    Raises:
        InputError: T above the layout's draft limit, or a length out of range.
    """
    batch, draft, device = inputs.batch, inputs.draft, inputs.v.device
    if not 1 <= draft <= layout.max_draft:
        raise InputError(f"inputs hold T={draft} tokens a row; this layout allows 1 to max_draft={layout.max_draft}")
    if lengths is None:
        return torch.full((batch,), draft, dtype=torch.int32, device=device)
    tensor = torch.as_tensor(lengths, device=device)
    if tensor.shape != (batch,) or tensor.is_floating_point():
        raise InputError(f"lengths must be [{batch}] integers, got shape {tuple(tensor.shape)} {tensor.dtype}")
    if batch and (int(tensor.min()) < 1 or int(tensor.max()) > draft):
        raise InputError(f"lengths={tensor.tolist()}: each must be from 1 to T={draft}")
    return tensor.to(torch.int32)


def check_inputs(layout: StateLayout, inputs: TokenInputs, device: torch.device) -> None:
    """Shapes and dtypes of one step against the layout.

    Raises:
        InputError: names the tensor, what it is and what it must be.
    """
    r = layout.recurrence
    if inputs.v.dim() != 4:
        raise InputError(f"inputs.v must be [B, T, H, V], got shape {tuple(inputs.v.shape)}")
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
    if inputs.D is not None and tuple(inputs.D.shape) not in ((r.heads,), (r.heads, r.value_dim)):
        raise InputError(
            f"inputs.D has shape {tuple(inputs.D.shape)}; expected ({r.heads},) or ({r.heads}, {r.value_dim})"
        )
    if r.delta_rule and inputs.raw is not None and inputs.raw.A_log is None:
        raise InputError("inputs.raw.A_log is missing: GDN and KDA need it to process raw gates")


def _check_tensor(name: str, tensor: Tensor | None, shape: tuple[int, ...], device: torch.device) -> None:
    if tensor is None:
        raise InputError(f"inputs.{name} is missing; expected shape {shape}")
    if tuple(tensor.shape) != shape:
        raise InputError(f"inputs.{name} has shape {tuple(tensor.shape)}; expected {shape}")
    if not tensor.is_floating_point():
        raise InputError(f"inputs.{name} is {tensor.dtype}; expected a floating-point dtype")
    if tensor.device.type != device.type:
        raise InputError(f"inputs.{name} is on {tensor.device}; the state is on {device}")


def check_finite(inputs: TokenInputs, rows: Tensor, lengths: Tensor) -> None:
    """No NaN or infinity in the tokens that count, and no log decay above 0.

    Raises:
        InputError: names the tensor and the first row that fails.
    """
    live = torch.arange(inputs.draft, device=lengths.device) < lengths[:, None]
    for name in ("q", "k", "v", "gate", "beta", "z"):
        tensor = getattr(inputs, name)
        if tensor is None:
            continue
        bad = (~torch.isfinite(tensor[rows])).flatten(2).any(-1) & live
        if bool(bad.any()):
            row = int(rows[bad.any(-1).nonzero()[0, 0]])
            raise InputError(
                f"inputs.{name} holds NaN or infinity in row {row}; expected finite values, nothing was changed"
            )


def check_decay(layout: StateLayout, inputs: TokenInputs, rows: Tensor, lengths: Tensor) -> None:
    """Processed gates must not grow the state: Δ ≥ 0 for Mamba-2, log decay ≤ 0 for GDN and KDA.

    Raises:
        InputError: names the first row that fails.
    """
    if inputs.raw is not None:
        return
    gate = inputs.gate[rows]
    wrong = gate > 0 if layout.recurrence.delta_rule else gate < 0
    live = torch.arange(inputs.draft, device=lengths.device) < lengths[:, None]
    bad = wrong.flatten(2).any(-1) & live
    if bool(bad.any()):
        row = int(rows[bad.any(-1).nonzero()[0, 0]])
        rule = "log decay ≤ 0" if layout.recurrence.delta_rule else "Δ ≥ 0"
        raise InputError(f"inputs.gate in row {row} would grow the state; expected {rule}")


def check_state(layout: StateLayout, state: Tensor, count: int, finite: bool) -> None:
    """A state to load: `[n, H, V, K]`, finite.

    Raises:
        InputError: wrong shape or dtype, NaN or infinity.
    """
    expected = (count, *layout.recurrence.state_shape)
    if tuple(state.shape) != expected or not state.is_floating_point():
        raise InputError(
            f"state is {tuple(state.shape)} {state.dtype}; expected {expected} of a float dtype ([n, H, V, K])"
        )
    if finite and not bool(torch.isfinite(state).all()):
        raise InputError("state holds NaN or infinity; expected finite values, no slot was changed")


def check_counts(name: str, counts: Tensor | Sequence[int] | int, upper: Tensor, what: str) -> Tensor:
    """Per-row counts from 0 to `upper [n]`, int32.

    Raises:
        InputError: wrong shape, or a count out of range; `what` says what the upper bound is.
    """
    tensor = torch.as_tensor(counts, device=upper.device)
    if tensor.dim() == 0:
        tensor = tensor.expand(upper.shape)
    if tensor.shape != upper.shape or tensor.is_floating_point() or tensor.dtype == torch.bool:
        raise InputError(f"{name} must be [{len(upper)}] integers, got shape {tuple(tensor.shape)} {tensor.dtype}")
    bad = (tensor < 0) | (tensor > upper)
    if bool(bad.any()):
        raise InputError(f"{name}={tensor.tolist()}: each must be from 0 to {what}, which is {upper.tolist()}")
    return tensor.to(torch.int32)


def check_parents(parents: Tensor | Sequence[Sequence[int]], inputs: TokenInputs) -> Tensor:
    """Draft tree `[B, T]`: the parent of each token among the new tokens, −1 for a child of the history.

    Raises:
        InputError: wrong shape, or a parent that does not come before its child.
    """
    tensor = torch.as_tensor(parents, device=inputs.v.device)
    if tensor.shape != (inputs.batch, inputs.draft) or tensor.is_floating_point():
        raise InputError(
            f"parents must be [{inputs.batch}, {inputs.draft}] integers, got {tuple(tensor.shape)} {tensor.dtype}"
        )
    order = torch.arange(inputs.draft, device=tensor.device)
    if bool(((tensor < -1) | (tensor >= order)).any()):
        raise InputError(f"parents={tensor.tolist()}: each must be −1 or come before its child (topological order)")
    return tensor.long()
