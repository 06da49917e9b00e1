"""What is served, in one table: checks at run time and the documentation page come from here."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from importlib.util import find_spec

import torch

from replayssm.external import external_supports
from replayssm.layout import ACTIVATIONS, StateLayout
from replayssm.precision import CHECKPOINTS, READ_COPIES, PrecisionPolicy
from replayssm.recurrence import LayerKind

ALL_LAYERS = tuple(LayerKind)
STANDARD, DRAFT, TREE = "standard", "draft", "tree"


@dataclass(frozen=True)
class Capability:
    """What one backend serves.

    Attributes:
        layers: layer kinds.
        modes: "standard" (T = 1), "draft" (a chain of T), "tree".
        checkpoints, read_copies: formats by name.
        devices: torch device types.
        activations: dtypes of the rings.
        graph_capture: whether a step may be captured in a CUDA graph.
        key_dims: what K may be; None for any.
        nvfp4_key_dim: what K must be at least for NVFP4.
        copied: checkpoints that may have a read copy; None for all.
        external: whether an adapter brings it, which then looks at what is installed (`replayssm.external`).
    """

    backend: str
    layers: tuple[LayerKind, ...]
    modes: tuple[str, ...]
    checkpoints: tuple[str, ...]
    read_copies: tuple[str | None, ...]
    devices: tuple[str, ...]
    activations: tuple[torch.dtype, ...]
    graph_capture: bool
    key_dims: tuple[int, ...] | None = None
    nvfp4_key_dim: int = 16
    copied: tuple[str, ...] | None = None
    external: bool = False


# Under its interpreter Triton runs kernels on the CPU.
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

_EVERYTHING = Capability(
    backend="naive",
    layers=ALL_LAYERS,
    modes=(STANDARD, DRAFT, TREE),
    checkpoints=CHECKPOINTS,
    read_copies=READ_COPIES,
    devices=("cpu", "cuda"),
    activations=ACTIVATIONS,
    graph_capture=False,
)
_FUSED = Capability(
    backend="triton",
    layers=ALL_LAYERS,
    modes=(STANDARD, DRAFT, TREE),
    checkpoints=("fp32", "bf16", "fp16", "fp8", "nvfp4"),
    read_copies=READ_COPIES,
    devices=("cpu", "cuda") if _INTERPRETED else ("cuda",),
    activations=(torch.bfloat16, torch.float16, torch.float32),
    graph_capture=True,
    key_dims=(16, 32, 64, 128, 256),
    # Each of four threads reads one block of 16, or two.
    nvfp4_key_dim=64,
    # One in 4 bits is read itself.
    copied=("fp32", "bf16", "fp16", "fp8"),
)
_FLASHINFER = Capability(
    backend="flashinfer",
    layers=(LayerKind.MAMBA2,),
    modes=(STANDARD, DRAFT),
    checkpoints=("fp32", "bf16", "fp16", "fp8"),
    read_copies=(None,),
    devices=("cuda",),
    activations=(torch.bfloat16,),
    graph_capture=True,
    key_dims=(64, 128),
    external=True,
)

CAPABILITIES: dict[str, Capability] = {
    row.backend: row for row in (_EVERYTHING, replace(_EVERYTHING, backend="torch"), _FUSED, _FLASHINFER)
}
"""Backend → what it serves."""


def supports(backend: str, layout: StateLayout, device: torch.device, mode: str = STANDARD) -> tuple[bool, str]:
    """Whether a backend serves a layout on a device: `(True, "")`, or `(False, reason)` naming what would work."""
    row = CAPABILITIES.get(backend)
    if row is None:
        return False, f"backend {backend!r} is unknown; expected one of {', '.join(CAPABILITIES)}"
    reason = _refusal(row, layout, device, mode)
    if not reason and row.external:
        reason = external_supports(backend, layout, device)[1]
    if not reason:
        return True, ""
    others = [
        repr(name)
        for name, other in CAPABILITIES.items()
        if not other.external and not _refusal(other, layout, device, mode)
    ]
    return False, reason + (
        f"; backend {' and '.join(others)} serve{'s' * (len(others) == 1)} it all" if others else ""
    )


def _refusal(row: Capability, layout: StateLayout, device: torch.device, mode: str) -> str:
    """Why a backend does not serve a layout; empty where it does."""
    precision: PrecisionPolicy = layout.precision
    for what, value, served in (
        ("layer", layout.recurrence.kind, row.layers),
        ("decode mode", mode, row.modes),
        ("checkpoint", precision.checkpoint, row.checkpoints),
        ("read copy", precision.read_copy, row.read_copies),
        ("device", device.type, row.devices),
        ("activation dtype", layout.activation, row.activations),
    ):
        if value not in served:
            return f"backend {row.backend!r} does not serve {what} {value}; it serves {', '.join(map(str, served))}"
    key_dim = layout.recurrence.key_dim
    if row.key_dims is not None and key_dim not in row.key_dims:
        return f"backend {row.backend!r} does not serve K = {key_dim}; it serves {', '.join(map(str, row.key_dims))}"
    if "nvfp4" in (precision.checkpoint, precision.read_copy) and key_dim < row.nvfp4_key_dim:
        return f"backend {row.backend!r} has no NVFP4 where K = {key_dim} is below {row.nvfp4_key_dim}"
    if row.copied is not None and precision.read_copy is not None and precision.checkpoint not in row.copied:
        return f"backend {row.backend!r} has no read copy of a checkpoint of {precision.checkpoint}"
    return ""


def choose_backend(layout: StateLayout, device: torch.device) -> str:
    """The fastest backend that serves the layout on the device."""
    if runs_triton(device) and supports("triton", layout, device)[0]:
        return "triton"
    return "torch" if supports("torch", layout, device)[0] else "naive"


def runs_triton(device: torch.device) -> bool:
    """Whether fused kernels may be chosen unasked: Triton is installed, and the GPU has TF32 products (8.0 and up)."""
    if device.type != "cuda" or find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(device)[0] >= 8


def markdown_table() -> str:
    """The table as Markdown, for docs/capabilities.md."""
    header = "| backend | layers | decode modes | checkpoint | read copy | devices | activations | K | CUDA graphs |"
    lines = [header, "|" + " --- |" * header.count(" |")]
    for row in CAPABILITIES.values():
        cells = [
            row.backend,
            ", ".join(row.layers),
            ", ".join(row.modes),
            ", ".join(row.checkpoints),
            ", ".join(str(copy or "none") for copy in row.read_copies),
            ", ".join(row.devices),
            ", ".join(str(dtype).removeprefix("torch.") for dtype in row.activations),
            "any" if row.key_dims is None else ", ".join(map(str, row.key_dims)),
            "yes" if row.graph_capture else "no",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
