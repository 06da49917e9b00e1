"""What `checkpointing_ssu` refuses: FlashInfer's own limits, and what it would read or write wrongly."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from replayssm_flashinfer.number_checks import check_whole
from replayssm_flashinfer.refusals import refuse
from replayssm_flashinfer.tensor_checks import (
    ACTIVATIONS,
    check_apart,
    check_cursors_of_slots,
    check_device,
    check_floating,
    check_inner,
    check_slots,
    check_tensors,
    required,
)

LONGEST = 16
STATES = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float8_e4m3fn: "fp8",
    torch.int8: "int8",
}
QUANTISED = (torch.int8, torch.float8_e4m3fn)
STATE_SIZES = (16, 32, 64, 128, 256)


def check_window(rows: int, draft: int, *, long_window: bool) -> int:
    """W of a ring of L rows for steps of T tokens: L − T.

    Raises:
        RefusedError: T below 1, W below T, or W above 16 unless `long_window`.
    """
    window = rows - draft
    if draft < 1:
        refuse(f"T={draft} new tokens; a step needs at least 1")
    if window > LONGEST and not long_window:
        refuse(
            f"checkpointing_ssu supports at most {LONGEST} cache tokens (max_window = L - T = {rows} - {draft} = {window}); "
            "make x_cache, B_cache and dt_cache shorter, or pass long_window=True, which FlashInfer's own kernel has not"
        )
    if draft > window:
        refuse(
            f"T={draft} new tokens must be <= max_window = L - T = {window}; give the rings at least {2 * draft} rows"
        )
    return window


def check_pool(name: str, state: Tensor, axes: str) -> None:
    """A pool of states.

    Args:
        axes: names of its four dimensions, for the message.

    Raises:
        RefusedError: no tensor, another number of dimensions, an empty one, or a state size that kernels have not.
    """
    required(name, state)
    if state.dim() != 4:
        refuse(f"{name} is {tuple(state.shape)}; expected [{axes}]")
    if min(state.shape) < 1:
        refuse(f"{name} is {tuple(state.shape)}; expected at least one of each of [{axes}]")
    check_state_size(axes.rpartition(" ")[2], state.shape[3])


def check_state_size(name: str, size: int) -> None:
    """Columns of a state.

    Raises:
        RefusedError: kernels have no such size.
    """
    if size not in STATE_SIZES:
        refuse(f"{name}={size} is not served; expected one of {', '.join(map(str, STATE_SIZES))}")


def check_memory(
    state: Tensor,
    x_cache: Tensor,
    B_cache: Tensor,
    dt_cache: Tensor,
    ring_start: Tensor,
    prev_num_accepted_tokens: Tensor,
    state_scale: Tensor | None,
) -> None:
    """State, rings and cursors: shapes, dtypes, strides.

    Raises:
        RefusedError: one of them is not as FlashInfer's contract says.
    """
    rings = (("x_cache", x_cache), ("B_cache", B_cache), ("dt_cache", dt_cache))
    check_tensors((("state", state), *rings))
    check_tensors([("state_scale", state_scale)], optional=True)
    check_pool("state", state, "slots, nheads, dim, dstate")
    if state.dtype not in STATES:
        refuse(f"state.dtype={state.dtype} is not served; expected one of {_names(STATES)}")
    slots, heads, dim, dstate = state.shape
    if x_cache.dim() != 4:
        refuse(f"x_cache is {tuple(x_cache.shape)}; expected [slots, nheads, L, dim]")
    if B_cache.dim() != 4:
        refuse(f"B_cache is {tuple(B_cache.shape)}; expected [slots, ngroups, L, dstate]")
    rows, groups = x_cache.shape[2], B_cache.shape[1]
    if not (groups > 0 and heads % groups == 0):
        refuse(f"nheads={heads} must be divisible by ngroups={groups}")
    activation = x_cache.dtype
    if activation not in ACTIVATIONS:
        refuse(f"x_cache.dtype={activation} is not served; expected {_names(ACTIVATIONS)}")
    for name, tensor, shape, dtype in (
        ("x_cache", x_cache, (slots, heads, rows, dim), activation),
        ("B_cache", B_cache, (slots, groups, rows, dstate), activation),
        ("dt_cache", dt_cache, (slots, heads, rows), torch.float32),
    ):
        _check_tensor(name, tensor, shape, dtype, state.device)
    check_cursors_of_slots(ring_start, prev_num_accepted_tokens, state)
    check_inner([("state", state)])
    check_apart(rings)
    if state.dtype in QUANTISED:
        if state_scale is None:
            refuse(
                f"state.dtype={state.dtype} requires a state_scale tensor of shape (cache, nheads, dim) = "
                f"{(slots, heads, dim)} and dtype float32"
            )
        _check_tensor("state_scale", state_scale, (slots, heads, dim), torch.float32, state.device)
        check_inner([("state_scale", state_scale)])
    elif state_scale is not None:
        refuse(f"state_scale must be None for state.dtype={state.dtype}, which needs no scales")


def check_tokens(
    state: Tensor, x_cache: Tensor, groups: int, tensors: Mapping[str, Tensor | None], batch: int, draft: int
) -> None:
    """What a step brings: x, out, z, dt, B, C, A, D and dt_bias.

    Args:
        batch, draft: B and T as the tensors have them, 1 and all tokens in a packed batch.

    Raises:
        RefusedError: one of them is not as FlashInfer's contract says.
    """
    optional = ("z", "D", "dt_bias")
    check_tensors((pair for pair in tensors.items() if pair[0] in optional), optional=True)
    check_tensors(pair for pair in tensors.items() if pair[0] not in optional)
    _, heads, dim, dstate = state.shape
    head, group = (batch, draft, heads, dim), (batch, draft, groups, dstate)
    shapes: dict[str, tuple[int, ...]] = {"x": head, "out": head, "z": head, "dt": head, "B": group, "C": group}
    shapes |= {"A": (heads, dim, dstate), "D": (heads, dim), "dt_bias": (heads, dim)}
    for name, tensor in tensors.items():
        if tensor is not None:
            dtype = x_cache.dtype if name in ("x", "out", "z", "B", "C") else None
            _check_tensor(name, tensor, shapes[name], dtype, state.device)
    check_floating((name, tensors[name]) for name in ("dt", "A", "D", "dt_bias"))
    check_apart([("out", tensors["out"])])
    for name, axes in (("dt", (3,)), ("A", (1, 2)), ("dt_bias", (1,))):
        tensor = tensors[name]
        tied = tensor is None or all(tensor.stride(axis) == 0 or tensor.shape[axis] == 1 for axis in axes)
        if not tied:
            refuse(
                f"{name} must be one number a head, expanded (stride 0 in its last {len(axes)} dimensions); got strides "
                f"{() if tensor is None else tensor.stride()}"
            )
    D, bias = tensors["D"], tensors["dt_bias"]
    if D is not None and bias is not None and D.dtype != bias.dtype:
        refuse(f"D.dtype ({D.dtype}) and dt_bias.dtype ({bias.dtype}) must match")


def check_rows(
    state: Tensor, state_batch_indices: Tensor | None, cu_seqlens: Tensor | None, x: Tensor, max_seqlen: int | None
) -> tuple[int, int]:
    """Rows and new tokens of a step: (B, T).

    Raises:
        RefusedError: a packed batch that is not described, or an index tensor of another shape or dtype.
    """
    check_tensors([("x", x)])
    check_tensors([("cu_seqlens", cu_seqlens)], optional=True)
    if x.dim() != 4:
        refuse(f"x is {tuple(x.shape)}; expected [batch, T, nheads, dim], or [1, tokens, …] with cu_seqlens")
    if cu_seqlens is None:
        if max_seqlen is not None:
            refuse("max_seqlen is only valid with cu_seqlens; T is x.shape[1] without")
        batch, draft = x.shape[:2]
    else:
        if x.shape[0] != 1:
            refuse(f"with cu_seqlens x must be (1, total_tokens, nheads, dim), got {tuple(x.shape)}")
        if not (cu_seqlens.dim() == 1 and cu_seqlens.dtype == torch.int32 and len(cu_seqlens) > 0):
            refuse(
                f"cu_seqlens must be a 1D int32 tensor of batch + 1 numbers, got {tuple(cu_seqlens.shape)} "
                f"{cu_seqlens.dtype}"
            )
        if max_seqlen is None:
            refuse("cu_seqlens requires max_seqlen: L = max_window + max_seqlen is ambiguous without")
        check_whole(1, max_seqlen=max_seqlen)
        check_device(state.device, [("cu_seqlens", cu_seqlens)])
        batch, draft = len(cu_seqlens) - 1, max_seqlen
    check_slots("state_batch_indices", state_batch_indices, batch, state)
    return batch, draft


def check_seed(rand_seed: Tensor | None, philox_rounds: int, device: torch.device) -> None:
    """The seed of stochastic rounding.

    Raises:
        RefusedError: not one int64 number on the device, or no rounds.
    """
    check_tensors([("rand_seed", rand_seed)], optional=True)
    if rand_seed is not None:
        check_device(device, [("rand_seed", rand_seed)])
        if rand_seed.numel() != 1:
            refuse(f"rand_seed must be single-element, got {rand_seed.numel()}")
        if rand_seed.dtype != torch.int64:
            refuse(f"rand_seed must be int64, got {rand_seed.dtype}")
        check_whole(philox_rounds=philox_rounds)
        if philox_rounds <= 0:
            refuse(f"philox_rounds must be > 0 with rand_seed, got {philox_rounds}")


def check_split(state_dtype: torch.dtype, d_split: int | None) -> None:
    """FlashInfer's split of a head, which its 8-bit kernels do not have.

    Raises:
        RefusedError: no number of parts, or a split of an 8-bit state.
    """
    if d_split is not None:
        check_whole(1, d_split=d_split)
    if d_split not in (None, 1) and state_dtype in QUANTISED:
        refuse(f"d_split={d_split} with state.dtype={state_dtype}: an 8-bit state requires d_split=1, or None")


def check_scratch(
    scratch: Mapping[str, Tensor | None],
    algorithm: str,
    shapes: Mapping[str, tuple[int, ...]],
    device: torch.device,
) -> None:
    """Scratch that our kernels do not need: all of it or none, and as FlashInfer's would need it.

    Raises:
        RefusedError: some of it is missing, too small, of whole numbers or elsewhere, or an algorithm is unknown.
    """
    check_tensors(scratch.items(), optional=True)
    names = ("auto", "monolith", "two-kernel")
    if algorithm not in names:
        refuse(f"algorithm={algorithm!r} must be one of {', '.join(names)}")
    given = [name for name, tensor in scratch.items() if tensor is not None]
    if len(given) not in (0, len(scratch)):
        refuse(f"{', '.join(scratch)} must be provided together; got {', '.join(given)} alone")
    if algorithm == "two-kernel" and not given:
        refuse("algorithm='two-kernel' requires cb_scaled, cumAdt_vec and cb_old")
    for name in given:
        tensor, shape = scratch[name], shapes[name]
        fits = (
            tensor is not None
            and tensor.dim() == len(shape)
            and all(have >= need for have, need in zip(tensor.shape, shape, strict=True))
        )
        if not fits:
            refuse(f"{name} is {None if tensor is None else tuple(tensor.shape)}; expected at least {shape}")
    check_floating(scratch.items())
    check_device(device, scratch.items())


def _check_tensor(
    name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype | None, device: torch.device
) -> None:
    wrong = tuple(tensor.shape) != shape or (dtype is not None and tensor.dtype != dtype)
    if wrong:
        refuse(f"{name} is {tuple(tensor.shape)} {tensor.dtype}; expected {shape} {dtype or ''}".rstrip())
    check_device(device, [(name, tensor)])


def _names(dtypes: object) -> str:
    return ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)  # type: ignore[attr-defined]
