"""A read copy among a caller's arguments: its format, its names in the core, and what is refused of it."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from replayssm import StateLayout
from replayssm.capability import supports
from replayssm_flashinfer.refusals import refuse
from replayssm_flashinfer.tensor_checks import check_device, check_inner, check_tensors, check_words

NAMES = ("read_copy", "read_copy_block_scale", "read_copy_scale")
FORMATS = {torch.uint8: "nvfp4", torch.float8_e4m3fn: "fp8"}
Copy = tuple[Tensor | None, Tensor | None, Tensor | None]
NO_COPY: Copy = (None, None, None)


class Copied(Protocol):
    """A layer's memory that may have a read copy."""

    @property
    def state(self) -> Tensor:
        """`[S, HV, V, K]`."""

    @property
    def read_copy(self) -> Copy:
        """The copy, its block scales, its scales."""

    def layout(self, draft: int, *, stochastic: bool) -> StateLayout:
        """The core's layout of it."""


def absent(copy: Copy) -> bool:
    """Whether nothing of a read copy was given."""
    return all(x is None for x in copy)


def check_memory_copy(memory: Copied, draft: int) -> None:
    """Check the read copy of a memory that has one: in an operator, for torch.compile does not follow every layout.

    Raises:
        RefusedError: see `check_copy`.
    """
    if not absent(memory.read_copy):
        check_copy(memory.layout(draft, stochastic=False), memory.read_copy, memory.state.device)


def check_copy_tensors(copy: Copy, device: torch.device) -> None:
    """Tensors beside the state, or nothing; `check_copy` has the rest.

    Raises:
        RefusedError: something else, or somewhere else.
    """
    named = list(zip(NAMES, copy, strict=True))
    check_tensors(named, optional=True)
    check_device(device, named)


def copy_format(copy: Copy) -> str | None:
    """Format of a read copy, None without one.

    Raises:
        RefusedError: scales without a copy, or a dtype that no format has.
    """
    if absent(copy):
        return None
    if copy[0] is None:
        refuse("read_copy_block_scale and read_copy_scale are of a read_copy, which is missing")
    if copy[0].dtype not in FORMATS:
        refuse(f"read_copy is {copy[0].dtype}; expected uint8 (NVFP4) or float8_e4m3fn (FP8)")
    return FORMATS[copy[0].dtype]


def scaled_buffers(state_scale: Tensor | None, copy: Copy) -> dict[str, Tensor]:
    """The checkpoint's scale and a read copy under the core's names, those that there are."""
    named = zip(("checkpoint_scale", *NAMES), (state_scale, *copy), strict=True)
    return {name: tensor for name, tensor in named if tensor is not None}


def check_copy(layout: StateLayout, copy: Copy, device: torch.device) -> None:
    """Check a read copy's buffers.

    Raises:
        RefusedError: one is missing, too many, or of another shape, dtype, stride or device; or kernels have no such copy.
    """
    served, reason = supports("triton", layout, torch.device("cuda"))
    if not served:
        refuse(reason)
    r, stored = layout.recurrence, layout.precision.read_format
    parts = () if stored is None else stored.parts(r.value_dim, r.key_dim)
    named = {f"read_copy{part.suffix}": part for part in parts}
    for name, tensor in zip(NAMES, copy, strict=True):
        part = named.get(name)
        if part is None:
            if tensor is not None:
                refuse(f"{name} is not of a read copy in {layout.precision.read_copy}; leave it out")
            continue
        shape = (layout.slots, r.heads, *part.shape)
        if tensor is None:
            refuse(f"{name} is missing; expected {shape} {part.dtype}")
        if tuple(tensor.shape) != shape or tensor.dtype != part.dtype:
            refuse(f"{name} is {tuple(tensor.shape)} {tensor.dtype}; expected {shape} {part.dtype}")
        check_device(device, [(name, tensor)])
        check_inner([(name, tensor)])
        check_words([(name, tensor)])
