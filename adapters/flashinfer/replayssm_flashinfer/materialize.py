"""`replayssm_materialize` with FlashInfer's signature: prefixes of many layers' rings folded into other slots."""

from __future__ import annotations

import torch
from torch import Tensor

from replayssm_flashinfer.mamba_checks import LONGEST, STATES, check_seed, check_state_size
from replayssm_flashinfer.number_checks import check_whole
from replayssm_flashinfer.ops import materialize_op
from replayssm_flashinfer.refusals import refuse
from replayssm_flashinfer.tensor_checks import ACTIVATIONS, check_device, check_tensors


def replayssm_materialize(
    state_ptrs: Tensor,
    state_slot_strides: Tensor,
    x_cache_ptrs: Tensor,
    x_cache_slot_strides: Tensor,
    B_cache_ptrs: Tensor,
    B_cache_slot_strides: Tensor,
    dt_cache_ptrs: Tensor,
    dt_cache_slot_strides: Tensor,
    A_ptrs: Tensor,
    state_scale_ptrs: Tensor,
    state_scale_slot_strides: Tensor,
    src_slots: Tensor,
    dst_slots: Tensor,
    ring_start: Tensor,
    replay_prefix_len: Tensor,
    active_request_indices: Tensor,
    *,
    state_dtype: torch.dtype,
    input_dtype: torch.dtype,
    matrixA_dtype: torch.dtype,
    dim: int,
    dstate: int,
    num_heads: int,
    heads_per_group: int,
    max_window: int,
    ring_buffer_len: int,
    pad_slot_id: int = -1,
    rand_seed: Tensor | None = None,
    philox_rounds: int = 0,
    dependency_inputs: list[Tensor] | None = None,
    dependency_outputs: list[Tensor] | None = None,
) -> None:
    """Write the states after a prefix of the rings' records to other slots, of all layers in one launch.

    Args:
        state_ptrs, x_cache_ptrs, B_cache_ptrs, dt_cache_ptrs, A_ptrs, state_scale_ptrs: `[L]` int64 device addresses, a
            layer each, of the tensors that `checkpointing_ssu` takes (A: `[H]`); scales 0 where the state has none.
        *_slot_strides: `[L]` int64, from one slot to the next, in numbers.
        src_slots, dst_slots: `[L, B]` int32; a pair with `pad_slot_id` or a slot below 0 is left out. In a layer no two
            requests have one target, and no target is another's source: folds run side by side.
        ring_start: `[B]` int32. replay_prefix_len: `[B]` int32, records to fold; 0 copies the state's bits. A request with
            a start outside of the ring, or a length below 0, above `max_window` or above the ring's rows, is left out.
        active_request_indices: `[B]` int32, the requests that are meant, each once, up to the first below 0.
        state_dtype: fp32, bf16, fp16, int8 or fp8 e4m3. input_dtype: of x and B. matrixA_dtype: of A.
        dim, dstate, num_heads, heads_per_group: P, N, H, H / G. max_window: 1 to 16. ring_buffer_len: L of the rings.
        rand_seed, philox_rounds: stochastic rounding of fp16, int8 and fp8 states, where the rounds are above 0.
        dependency_inputs, dependency_outputs: tensors behind the tables, by which `torch.compile` knows what the call does.
            A compiled graph needs the states, and their scales, among the outputs, or it would leave the call out; and a
            backend that mutates in place, as "inductor" does: "aot_eager" gives outputs back as they were.

    Raises:
        RefusedError: an argument out of contract; nothing was written.
    """
    tables = (
        state_ptrs, state_slot_strides, x_cache_ptrs, x_cache_slot_strides, B_cache_ptrs, B_cache_slot_strides,
        dt_cache_ptrs, dt_cache_slot_strides, A_ptrs, state_scale_ptrs, state_scale_slot_strides,
    )  # fmt: skip
    metadata = (ring_start, replay_prefix_len, active_request_indices)
    check_tensors(("a pointer or stride table", table) for table in tables)
    requests = ("src_slots", "dst_slots", "ring_start", "replay_prefix_len", "active_request_indices")
    check_tensors(zip(requests, (src_slots, dst_slots, *metadata), strict=True))
    _check_tables(tables, src_slots, dst_slots, metadata)
    check_whole(pad_slot_id=pad_slot_id, philox_rounds=philox_rounds, dstate=dstate)
    _check_numbers(dim, dstate, num_heads, heads_per_group, max_window, ring_buffer_len)
    for name, dtype, served in (
        ("state_dtype", state_dtype, tuple(STATES)),
        ("input_dtype", input_dtype, ACTIVATIONS),
        ("matrixA_dtype", matrixA_dtype, ACTIVATIONS),
    ):
        if dtype not in served:
            refuse(f"{name}={dtype} is not served; expected one of {', '.join(map(str, served))}")
    if philox_rounds > 0 and rand_seed is None:
        refuse(f"philox_rounds={philox_rounds} needs rand_seed")
    # Without rounds nobody reads a seed.
    seed = rand_seed if philox_rounds > 0 else None
    check_seed(seed, philox_rounds, src_slots.device)
    for name, given in (("dependency_inputs", dependency_inputs), ("dependency_outputs", dependency_outputs)):
        if not (given is None or isinstance(given, (list, tuple))) or not all(
            isinstance(x, Tensor) for x in given or ()
        ):
            refuse(f"{name} must be tensors, in a list")
    if not dependency_outputs and torch.compiler.is_compiling():
        refuse("torch.compile knows nothing of tables: pass the states, and their scales, in dependency_outputs")
    if not src_slots.shape[1]:
        return
    materialize_op(
        list(tables), src_slots, dst_slots, [x.reshape(-1) for x in metadata], seed, list(dependency_inputs or []),
        list(dependency_outputs or []),
        state_dtype, input_dtype, matrixA_dtype,
        [dim, dstate, num_heads, heads_per_group, max_window, ring_buffer_len, pad_slot_id, philox_rounds],
    )  # fmt: skip


def _check_tables(
    tables: tuple[Tensor, ...], src_slots: Tensor, dst_slots: Tensor, metadata: tuple[Tensor, ...]
) -> None:
    if not (src_slots.dim() == 2 and len(src_slots) > 0):
        refuse(f"src_slots is {tuple(src_slots.shape)}; expected [L, B], L > 0")
    layers, batch = src_slots.shape
    if not all(x.dtype == torch.int64 and tuple(x.shape) == (layers,) and x.device == src_slots.device for x in tables):
        refuse(f"all pointer and stride tables must be 1D int64 tensors of {layers} layers on {src_slots.device}")
    if not (tuple(dst_slots.shape) == (layers, batch) and all(x.numel() == batch for x in metadata)):
        refuse(
            f"dst_slots must be {(layers, batch)}; ring_start, replay_prefix_len and active_request_indices ({batch},)"
        )
    if not all(x.dtype == torch.int32 for x in (src_slots, dst_slots, *metadata)):
        refuse("src_slots, dst_slots, ring_start, replay_prefix_len and active_request_indices must be int32")
    names = ("dst_slots", "ring_start", "replay_prefix_len", "active_request_indices")
    check_device(src_slots.device, zip(names, (dst_slots, *metadata), strict=True))


def _check_numbers(dim: int, dstate: int, heads: int, heads_per_group: int, window: int, rows: int) -> None:
    check_whole(1, dim=dim, num_heads=heads, ring_buffer_len=rows)
    check_whole(heads_per_group=heads_per_group, max_window=window)
    check_state_size("dstate", dstate)
    if not (heads_per_group > 0 and heads % heads_per_group == 0):
        refuse(f"heads_per_group={heads_per_group} must be a positive divisor of num_heads={heads}")
    if not 1 <= window <= LONGEST:
        refuse(f"max_window={window} must be in [1, {LONGEST}]")
