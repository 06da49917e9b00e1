"""A read copy among a caller's arguments: its format, its names in the core, and what is refused of it."""

from __future__ import annotations

import torch
from torch import Tensor

from replayssm import StateLayout
from replayssm.capability import supports
from replayssm_flashinfer.refusals import check

NAMES = ("read_copy", "read_copy_block_scale", "read_copy_scale")
FORMATS = {torch.uint8: "nvfp4", torch.float8_e4m3fn: "fp8"}
Copy = tuple[Tensor | None, Tensor | None, Tensor | None]


def copy_format(copy: Copy) -> str | None:
    """Format of a read copy, None without one.

    Raises:
        RefusedError: scales without a copy, or a dtype that no format has.
    """
    if copy[0] is None:
        check(
            all(x is None for x in copy),
            "read_copy_block_scale and read_copy_scale are of a read_copy, which is missing",
        )
        return None
    check(copy[0].dtype in FORMATS, f"read_copy is {copy[0].dtype}; expected uint8 (NVFP4) or float8_e4m3fn (FP8)")
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
    check(*supports("triton", layout, torch.device("cuda")))
    specs = {spec.name: spec for spec in layout.buffers if spec.name in NAMES}
    for name, tensor in zip(NAMES, copy, strict=True):
        spec = specs.get(name)
        if spec is None:
            check(tensor is None, f"{name} is not of a read copy in {layout.precision.read_copy}; leave it out")
            continue
        shape = (layout.slots, *spec.shape)
        given = "missing" if tensor is None else f"{tuple(tensor.shape)} {tensor.dtype} on {tensor.device}"
        fits = tensor is not None and tuple(tensor.shape) == shape and tensor.dtype == spec.dtype
        check(
            fits and tensor is not None and tensor.device == device and (not layout.slots or tensor[0].is_contiguous()),
            f"{name} is {given}; expected {shape} {spec.dtype} on {device}, contiguous inside a slot",
        )
