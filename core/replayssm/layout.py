"""What a slot's state looks like in memory: every buffer's name, shape, dtype and bytes. No engine in sight."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from replayssm.errors import InputError
from replayssm.formats import MatrixFormat
from replayssm.precision import PrecisionPolicy
from replayssm.recurrence import Recurrence

MAX_WINDOW = 256
MAX_DRAFT = 64
WORD = 4
"""Bytes at whose multiples slots of one-byte numbers start."""
ACTIVATIONS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)

Buffers = dict[str, Tensor]


@dataclass(frozen=True)
class BufferSpec:
    """One buffer: `[slots, *shape]`; the slot stride is free, the inner dimensions are contiguous."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    role: str

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot, without padding between slots."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class StateLayout:
    """Frozen description of one layer's replay state.

    Attributes:
        recurrence: geometry and rule.
        slots: sequences that the buffers hold.
        window: W, committed records after which the next token folds them.
        max_draft: T, most new tokens of one step.
        precision: number formats of the state.
        activation: dtype of the value and key rings (what the model computes in).

    Raises:
        InputError: a value out of range, K not a multiple of what the precision needs, or products that would round
            activations.
    """

    recurrence: Recurrence
    slots: int
    window: int = 16
    max_draft: int = 1
    precision: PrecisionPolicy = PrecisionPolicy()
    activation: torch.dtype = torch.bfloat16

    def __post_init__(self) -> None:
        for name, high in (("slots", 2**31 - 1), ("window", MAX_WINDOW), ("max_draft", MAX_DRAFT)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= high:
                raise InputError(f"{name}={value!r} must be an integer from 1 to {high}")
        for name, kind in (("recurrence", Recurrence), ("precision", PrecisionPolicy)):
            if not isinstance(getattr(self, name), kind):
                hint = "; PrecisionPolicy.preset(name) makes one" if kind is PrecisionPolicy else ""
                raise InputError(f"{name}={getattr(self, name)!r} must be a {kind.__name__}{hint}")
        if self.activation not in ACTIVATIONS:
            names = ", ".join(str(dtype) for dtype in ACTIVATIONS)
            raise InputError(f"activation={self.activation} is not served; expected one of {names}")
        multiple = self.precision.key_multiple
        if self.recurrence.key_dim % multiple:
            raise InputError(
                f"key_dim={self.recurrence.key_dim} must be a multiple of {multiple} for {self.precision.describe()}"
            )
        if self.precision.dot == "tf32" and self.activation.itemsize > 2:
            raise InputError(f"dot='tf32' would round activations of {self.activation}; expected 'tf32x3' or None")

    @property
    def dot(self) -> str:
        """What products of reads are made of, "tf32" or "tf32x3"."""
        return self.precision.dot or ("tf32" if self.activation.itemsize <= 2 else "tf32x3")

    @property
    def rows(self) -> int:
        """R, rows of a ring: `max(W, T) + T`, so that new tokens never overwrite records that a flush folds."""
        return max(self.window, self.max_draft) + self.max_draft

    @cached_property
    def buffers(self) -> tuple[BufferSpec, ...]:
        """Every buffer of the layer, state first, rings after."""
        return (*self._state_buffers(), *self._ring_buffers())

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot in all buffers."""
        return sum(spec.slot_bytes for spec in self.buffers)

    @property
    def ring_bytes(self) -> int:
        """Bytes of one slot's rings."""
        return sum(spec.slot_bytes for spec in self._ring_buffers())

    def names(self, prefix: str, fmt: MatrixFormat) -> tuple[str, ...]:
        """Buffer names of a stored matrix, in the order of the format's parts."""
        geometry = self.recurrence
        return tuple(prefix + part.suffix for part in fmt.parts(geometry.value_dim, geometry.key_dim))

    def allocate(self, device: torch.device | str = "cpu") -> Buffers:
        """Zeroed buffers on a device."""
        return {
            spec.name: torch.zeros((self.slots, *spec.shape), dtype=spec.dtype, device=device) for spec in self.buffers
        }

    def check(self, buffers: Buffers, device: torch.device | str = "cpu") -> None:
        """Check memory handed in by an engine.

        Raises:
            InputError: a buffer is missing, of the wrong shape, dtype or device, its inner dimensions are not contiguous,
                its slots overlap, or those of one-byte numbers start between words.
        """
        if not isinstance(buffers, Mapping):
            raise InputError(f"buffers is a {type(buffers).__name__}; expected a mapping of names to tensors")
        homes: dict[int, str] = {}
        for spec in self.buffers:
            buffer = buffers.get(spec.name)
            if buffer is None:
                raise InputError(
                    f"buffers lack {spec.name!r} ({spec.role}), shape [slots, {', '.join(map(str, spec.shape))}]"
                )
            expected = (self.slots, *spec.shape)
            if not isinstance(buffer, Tensor):
                raise InputError(
                    f"buffer {spec.name!r} is a {type(buffer).__name__}; expected a tensor of shape {expected}"
                )
            if tuple(buffer.shape) != expected or buffer.dtype != spec.dtype:
                raise InputError(
                    f"buffer {spec.name!r} is {tuple(buffer.shape)} {buffer.dtype}; expected {expected} {spec.dtype}"
                )
            if buffer.device.type != torch.device(device).type:
                raise InputError(f"buffer {spec.name!r} is on {buffer.device}; the state is on {device}")
            if not buffer[0].is_contiguous():
                raise InputError(f"buffer {spec.name!r}: the dimensions inside a slot must be contiguous")
            if _between_words(spec, buffer):
                raise InputError(
                    f"buffer {spec.name!r}: every slot must start at a multiple of {WORD} bytes, since numbers of a byte "
                    f"and less are read by words; address {buffer.data_ptr():#x}, slot stride {buffer.stride(0)}"
                )
            if self.slots > 1 and buffer.stride(0) < math.prod(spec.shape):
                raise InputError(f"buffer {spec.name!r}: slot stride {buffer.stride(0)} makes slots overlap")
            twin = homes.setdefault(buffer.data_ptr(), spec.name)
            if twin != spec.name:
                raise InputError(
                    f"buffers {twin!r} and {spec.name!r} start at the same address; each needs its own memory"
                )

    def _state_buffers(self) -> tuple[BufferSpec, ...]:
        specs = self._matrix("checkpoint", self.precision.checkpoint_format, "state that is folded")
        read = self.precision.read_format
        if read is not None:
            specs += self._matrix("read_copy", read, "state that non-flush steps read")
        return specs

    def _matrix(self, prefix: str, fmt: MatrixFormat, role: str) -> tuple[BufferSpec, ...]:
        geometry = self.recurrence
        return tuple(
            BufferSpec(prefix + part.suffix, (geometry.heads, *part.shape), part.dtype, role)
            for part in fmt.parts(geometry.value_dim, geometry.key_dim)
        )

    def _ring_buffers(self) -> tuple[BufferSpec, ...]:
        r, rows = self.recurrence, self.rows
        gate = (r.heads, rows, r.key_dim) if r.channel_decay else (r.heads, rows)
        value = BufferSpec("value_ring", (r.heads, rows, r.value_dim), self.activation, "u (delta rule) or x (Mamba-2)")
        key = BufferSpec("key_ring", (r.groups, rows, r.key_dim), self.activation, "k, or B (Mamba-2), as given")
        gates = BufferSpec("gate_ring", gate, self.compute_dtype, "log decay g, or Δ (Mamba-2)")
        if not r.delta_rule:
            return (value, key, gates)
        return (
            value,
            BufferSpec("raw_value_ring", (r.heads, rows, r.value_dim), self.activation, "v, for the exact fold"),
            BufferSpec("beta_ring", (r.heads, rows), self.compute_dtype, "β, for the exact fold"),
            key,
            BufferSpec("key_scale_ring", (r.groups, rows), self.compute_dtype, "1 / ‖k‖, or 1 where k came normalised"),
            gates,
        )

    @property
    def compute_dtype(self) -> torch.dtype:
        """What gates are stored and states are computed in: fp32, fp64 with fp64 activations."""
        return torch.float64 if self.activation == torch.float64 else torch.float32


def _between_words(spec: BufferSpec, buffer: Tensor) -> bool:
    """Whether slots of bytes, which could all start at words, do not."""
    if spec.dtype.itemsize > 1 or spec.slot_bytes % WORD:
        return False
    return bool(buffer.data_ptr() % WORD or (len(buffer) > 1 and buffer.stride(0) % WORD))
