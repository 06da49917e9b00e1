"""What all functions refuse of a tensor: where it is, how it lies in memory, what it is an index of."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from replayssm.capability import CAPABILITIES
from replayssm.layout import WORD
from replayssm_flashinfer.refusals import refuse

ACTIVATIONS = (torch.bfloat16, torch.float16, torch.float32)
BY_WORDS = (torch.float8_e4m3fn, torch.uint8)
"""What kernels read four bytes at a time."""
Named = Iterable[tuple[str, Tensor | None]]
"""Arguments by name; those that are None are left out."""


def required(name: str, tensor: object) -> Tensor:
    """What may not be left out.

    Raises:
        RefusedError: no tensor.
    """
    if not isinstance(tensor, Tensor):
        refuse(f"{name} is {'missing' if tensor is None else type(tensor).__name__}; expected a tensor")
    return tensor


def check_tensors(given: Iterable[tuple[str, object]], *, optional: bool = False) -> None:
    """Tensors; with `optional` they may be left out, as None.

    Raises:
        RefusedError: something is no tensor.
    """
    for name, tensor in given:
        if not (optional and tensor is None):
            required(name, tensor)


def check_slots(name: str, indices: Tensor | None, batch: int, state: Tensor) -> None:
    """Slots of the rows of a batch, row b's own where None.

    Raises:
        RefusedError: another shape, dtype or device than `[B]` whole numbers beside the state, or more rows than slots.
    """
    check_tensors([(name, indices)], optional=True)
    if indices is None:
        if batch > state.shape[0]:
            refuse(f"{batch} rows without {name}, and the state has {state.shape[0]} slots")
        return
    if not (indices.shape == (batch,) and indices.dtype in (torch.int32, torch.int64)):
        refuse(f"{name} must be ({batch},) int32 or int64, got {tuple(indices.shape)} {indices.dtype}")
    check_device(state.device, [(name, indices)])


def check_cursors_of_slots(ring_start: Tensor, prev_num_accepted_tokens: Tensor, state: Tensor) -> None:
    """`[S]` int32 each, at any stride that gives a slot a number of its own.

    Raises:
        RefusedError: another shape, dtype or device, or one number expanded to all slots.
    """
    slots = state.shape[0]
    cursors = (("ring_start", ring_start), ("prev_num_accepted_tokens", prev_num_accepted_tokens))
    check_tensors(cursors)
    for name, cursor in cursors:
        if not (tuple(cursor.shape) == (slots,) and cursor.dtype == torch.int32):
            refuse(f"{name} is {tuple(cursor.shape)} {cursor.dtype}; expected {(slots,)} torch.int32")
        check_device(state.device, [(name, cursor)])
        if slots > 1 and cursor.stride(0) < 1:
            refuse(
                f"{name} has stride {cursor.stride(0)}: each slot needs a number of its own, at a stride of 1 or more"
            )


def check_apart(tensors: Named) -> None:
    """What is written: each number has a place of its own.

    Raises:
        RefusedError: a dimension is expanded, or its steps are shorter than what they step over.
    """
    for name, tensor in tensors:
        if tensor is None or not tensor.numel():
            continue
        steps = [(stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]
        for i, (stride, _) in enumerate(steps):
            # How far the finer dimensions reach; torch.compile cannot sort them.
            reach = sum((n - 1) * other for j, (other, n) in enumerate(steps) if j != i and other <= stride)
            if stride <= reach:
                refuse(
                    f"{name} is written, and its numbers overlap in memory: shape {tuple(tensor.shape)}, strides "
                    f"{tensor.stride()}; pass memory of its own for every number"
                )


def check_inner(tensors: Named) -> None:
    """Memory of slots: only the slot stride is free.

    Raises:
        RefusedError: gaps inside a slot, or another order; slots that overlap.
    """
    for name, tensor in tensors:
        if tensor is None or not tensor.numel():
            continue
        if not tensor[0].is_contiguous():
            refuse(f"{name}: the dimensions inside a slot must be contiguous, got strides {tensor.stride()}")
        check_apart([(name, tensor)])


def check_words(tensors: Named) -> None:
    """Slots of numbers of a byte and less, read by words: in an operator, for torch.compile does not follow offsets.

    Raises:
        RefusedError: slots that start between words.
    """
    for name, tensor in tensors:
        if tensor is not None and tensor.dtype in BY_WORDS and tensor.numel() and tensor[0].numel() % WORD == 0:
            first, stride = tensor.storage_offset(), tensor.stride(0) if tensor.shape[0] > 1 else 0
            if first % WORD or stride % WORD:
                refuse(f"{name}: slots must start at multiples of {WORD} bytes, got offset {first}, stride {stride}")


def check_floating(tensors: Named) -> None:
    """Numbers whose dtype is free.

    Raises:
        RefusedError: numbers that kernels would not read as such, or with less than they hold.
    """
    for name, tensor in tensors:
        if tensor is not None and tensor.dtype not in ACTIVATIONS:
            refuse(f"{name} is {tensor.dtype}; expected float32, bfloat16 or float16")


def check_device(device: torch.device, tensors: Named) -> None:
    """Everything is where the state is.

    Raises:
        RefusedError: a tensor is somewhere else.
    """
    for name, tensor in tensors:
        if tensor is not None and tensor.device != device:
            refuse(f"{name} is on {tensor.device}; the state is on {device}: move it there")


def running_on(device: torch.device) -> AbstractContextManager[object]:
    """A context for launches, which go to the current device: the tensors' own becomes it.

    Raises:
        RefusedError: kernels do not run there.
    """
    if device.type not in CAPABILITIES["triton"].devices:
        refuse(
            f"tensors are on {device}; expected a CUDA device (on a CPU, kernels run under TRITON_INTERPRET=1 alone)"
        )
    elsewhere = device.type == "cuda" and device.index != torch.cuda.current_device()
    return torch.cuda.device(device) if elsewhere else nullcontext()
