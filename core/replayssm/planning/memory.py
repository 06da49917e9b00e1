"""Bytes that sequences occupy."""

from __future__ import annotations

from dataclasses import dataclass

from replayssm.hybrid import HybridModel
from replayssm.layout import StateLayout
from replayssm.planning.settings import PlanSettings


@dataclass(frozen=True)
class BufferFact:
    """One buffer of one slot and layer: `bytes`, and their `share` of the ordinary fp32 state."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    share: float


@dataclass(frozen=True)
class MemoryFact:
    """What a slot takes.

    Attributes:
        slot_bytes: state (and rings) of one slot and layer.
        share: of the ordinary fp32 state of one slot and layer.
        sequence_bytes: all layers, convolution inputs, and KV cache where a context was given.
        slots: sequences that fit in the memory.
    """

    slot_bytes: int
    share: float
    sequence_bytes: int
    slots: int


def buffer_facts(layout: StateLayout, state_bytes: int) -> tuple[BufferFact, ...]:
    """The buffers of a layout beside an fp32 state of `state_bytes`."""
    return tuple(
        BufferFact(
            name=spec.name,
            shape=spec.shape,
            dtype=str(spec.dtype).removeprefix("torch."),
            bytes=spec.slot_bytes,
            share=spec.slot_bytes / state_bytes,
        )
        for spec in layout.buffers
    )


def memory_fact(model: HybridModel, settings: PlanSettings, slot_bytes: int) -> MemoryFact:
    """Memory of sequences whose recurrent layers hold `slot_bytes` each."""
    recurrent = model.recurrent_layers * (slot_bytes + model.conv_bytes(settings.draft))
    attention = model.attention_layers * model.kv_token_bytes * (settings.context or 0)
    sequence = recurrent + attention
    return MemoryFact(
        slot_bytes, slot_bytes / model.state_bytes, sequence, int(settings.memory_gib * 2**30) // sequence
    )


def ordinary_memory(model: HybridModel, settings: PlanSettings) -> MemoryFact:
    """The ordinary way: an fp32 state for each of the T tokens of a step."""
    return memory_fact(model, settings, settings.draft * model.state_bytes)
