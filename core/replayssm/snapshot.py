"""Slots to and from safetensors files: for moving sequences between processes, machines and layouts of other sizes.

A file holds the slots' buffers bit for bit and their cursors, with the layout and a digest beside them; the number of slots
may differ between writer and reader, everything else must match. The read copy travels along, so that a restored slot
continues bit for bit, but for stochastic rounding: its noise depends on the slot's number.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from replayssm.checks import SlotsLike, check_slots
from replayssm.cursors import Cursors
from replayssm.errors import InputError, StateFileError
from replayssm.layout import StateLayout
from replayssm.state import ReplayState

FORMAT = "replayssm-state-1"
_CURSOR = "cursor."


def save_slots(state: ReplayState, slots: SlotsLike, path: str | os.PathLike[str]) -> None:
    """Write slots to a safetensors file; pending drafts are left out, as if rejected.

    Raises:
        InputError: a slot out of range or twice.
        StateFileError: the file cannot be written.
    """
    index = check_slots(state.layout, slots, state.device)
    tensors = {name: buffer[index].contiguous().cpu() for name, buffer in state.layer.buffers.items()}
    for name in Cursors.NAMES:
        value = getattr(state.cursors, name)[index]
        tensors[_CURSOR + name] = (torch.zeros_like(value) if name == "pending" else value).cpu()
    if state.layer.A is not None:
        tensors["A"] = state.layer.A.cpu()
    # Written beside the target and moved over it, so that a crash leaves no half file under the name.
    target = Path(path)
    partial = target.with_name(target.name + ".partial")
    metadata = {"format": FORMAT, "layout": json.dumps(_facts(state.layout)), "digest": digest(tensors)}
    try:
        save_file(tensors, partial, metadata=metadata)
        partial.replace(target)
    except (SafetensorError, OSError) as error:
        partial.unlink(missing_ok=True)
        raise StateFileError(f"{target} cannot be written: {error}") from None


def load_slots(state: ReplayState, slots: SlotsLike, path: str | os.PathLike[str]) -> None:
    """Read a file's slots into `slots`, in order.

    Raises:
        StateFileError: not a state file, truncated, or of another layout or layer; nothing is changed.
        InputError: a slot out of range or twice, or not as many slots as the file holds.
    """
    index = check_slots(state.layout, slots, state.device)
    tensors = _read(Path(path), state.layout)
    A, ours = tensors.pop("A", None), state.layer.A
    if (A is None) != (ours is None) or (A is not None and ours is not None and not torch.equal(A, ours.cpu())):
        raise StateFileError(f"{path}: the file's decay rates A are not this layer's; it belongs to another layer")
    _check_tensors(path, tensors, state)
    count = len(tensors[_CURSOR + "origin"])
    if count != len(index):
        raise InputError(f"slots has {len(index)} entries; {path} holds {count} slots")
    for name, buffer in state.layer.buffers.items():
        buffer[index] = tensors[name].to(state.device)
    state.cursors.restore(index, {name: tensors[_CURSOR + name].to(state.device) for name in Cursors.NAMES})


def _read(path: Path, layout: StateLayout) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise StateFileError(f"{path} is not a ReplaySSM state file (format {metadata.get('format')!r})")
            _check_layout(path, metadata.get("layout", ""), layout)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            if metadata.get("digest") != digest(tensors):
                raise StateFileError(f"{path} is damaged: its digest does not match its contents")
            return tensors
    except FileNotFoundError:
        raise StateFileError(f"{path} does not exist") from None
    except (SafetensorError, OSError) as error:
        raise StateFileError(f"{path} is truncated or not a safetensors file: {error}") from None


def digest(tensors: dict[str, Tensor]) -> str:
    """SHA-256 over names and bytes, in order of the names."""
    sha = hashlib.sha256()
    for name in sorted(tensors):
        sha.update(name.encode())
        sha.update(tensors[name].contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def _facts(layout: StateLayout) -> dict[str, Any]:
    facts = asdict(layout)
    facts.pop("slots")
    # How steps read is no part of what is stored: a file goes with any choice.
    facts["precision"].pop("dot")
    facts["activation"] = str(layout.activation)
    return facts


def _check_layout(path: Path, text: str, layout: StateLayout) -> None:
    try:
        theirs = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        raise StateFileError(f"{path}: the layout in the file is not readable") from None
    if not isinstance(theirs, dict):
        raise StateFileError(f"{path}: the layout in the file is not readable")
    ours = json.loads(json.dumps(_facts(layout)))
    differing = [f"{key}: file {theirs.get(key)}, here {ours[key]}" for key in ours if theirs.get(key) != ours[key]]
    if differing:
        raise StateFileError(f"{path} was written by another layout ({'; '.join(differing)})")


def _check_tensors(path: str | os.PathLike[str], tensors: dict[str, Tensor], state: ReplayState) -> None:
    """Names, shapes, dtypes and cursor ranges: a file that passes cannot put a slot out of order."""
    wanted = {name: (buffer.shape[1:], buffer.dtype) for name, buffer in state.layer.buffers.items()}
    wanted |= {_CURSOR + name: (torch.Size(), torch.int32) for name in Cursors.NAMES}
    if set(tensors) != set(wanted):
        raise StateFileError(f"{path}: tensors differ from the layout's: {sorted(set(tensors) ^ set(wanted))}")
    count = tensors[_CURSOR + "origin"].numel()
    for name, (shape, dtype) in wanted.items():
        tensor = tensors[name]
        if tensor.shape != torch.Size((count, *shape)) or tensor.dtype != dtype:
            raise StateFileError(
                f"{path}: {name} is {tuple(tensor.shape)} {tensor.dtype}, not {(count, *shape)} {dtype}"
            )
        if not name.endswith("_ring") and tensor.is_floating_point() and not bool(torch.isfinite(tensor.float()).all()):
            raise StateFileError(f"{path}: {name} holds NaN or infinity")
    for name, (low, high) in _cursor_ranges(state.layout).items():
        value = tensors[_CURSOR + name]
        if count and (int(value.min()) < low or int(value.max()) > high):
            raise StateFileError(f"{path}: cursor {name} is out of range ({low} to {high})")


def _cursor_ranges(layout: StateLayout) -> dict[str, tuple[int, int]]:
    """Lowest and highest value of each cursor in a file; drafts are never saved as pending."""
    return {
        "origin": (0, layout.rows - 1),
        "committed": (0, max(layout.window, layout.max_draft)),
        "pending": (0, 0),
        "limit": (1, layout.window),
        "position": (0, 2**31 - 1),
        "flushes": (0, 2**31 - 1),
    }
