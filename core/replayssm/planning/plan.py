"""All facts of a plan, in one frozen object that prints and serialises."""

from __future__ import annotations

from dataclasses import dataclass

from replayssm.errors import InputError
from replayssm.hybrid import HybridModel
from replayssm.planning.advice import warnings
from replayssm.planning.memory import BufferFact, MemoryFact, buffer_facts, memory_fact, ordinary_memory
from replayssm.planning.settings import PlanSettings
from replayssm.planning.traffic import (
    FlushFact,
    TrafficFact,
    WindowFact,
    best_window,
    flush_facts,
    ordinary_traffic,
    replay_traffic,
)
from replayssm.precision import PRESETS


@dataclass(frozen=True)
class PresetFact:
    """One preset in the model: what it takes, moves, and which window moves least."""

    preset: str
    precision: str
    memory: MemoryFact
    traffic: TrafficFact
    best_window: WindowFact


@dataclass(frozen=True)
class Plan:
    """What ReplaySSM costs and saves in a model.

    Attributes:
        model: the model, or one rank of it.
        settings: what was asked.
        rows: R, records that a ring holds.
        buffers: of the chosen preset, for one slot and layer.
        ordinary_memory, ordinary_traffic: the ordinary way, an fp32 state for each of the T tokens of a step.
        presets: every preset that the model's geometry allows.
        unserved: preset → why not.
        flushes: flush rate by acceptance.
        warnings: sentences.
    """

    model: HybridModel
    settings: PlanSettings
    rows: int
    buffers: tuple[BufferFact, ...]
    ordinary_memory: MemoryFact
    ordinary_traffic: TrafficFact
    presets: tuple[PresetFact, ...]
    unserved: dict[str, str]
    flushes: tuple[FlushFact, ...]
    warnings: tuple[str, ...]


def make_plan(model: HybridModel, settings: PlanSettings) -> Plan:
    """Count everything.

    Raises:
        InputError: the model cannot be divided over `tp` ranks, or its K does not suit the chosen preset.
    """
    part = model.shard(settings.tp)
    layout = settings.layout(part, settings.preset)
    presets, unserved = _presets(part, settings)
    chosen = next(fact for fact in presets if fact.preset == settings.preset)
    return Plan(
        model=part,
        settings=settings,
        rows=layout.rows,
        buffers=buffer_facts(layout, part.state_bytes),
        ordinary_memory=ordinary_memory(part, settings),
        ordinary_traffic=ordinary_traffic(part, settings),
        presets=tuple(presets),
        unserved=unserved,
        flushes=flush_facts(settings),
        warnings=warnings(settings, chosen.memory, chosen.traffic, chosen.best_window),
    )


def _presets(model: HybridModel, settings: PlanSettings) -> tuple[list[PresetFact], dict[str, str]]:
    facts, unserved = [], {}
    for name in PRESETS:
        try:
            facts.append(_preset(model, settings, name))
        except InputError as error:
            unserved[name] = str(error)
    return facts, unserved


def _preset(model: HybridModel, settings: PlanSettings, name: str) -> PresetFact:
    layout = settings.layout(model, name)
    return PresetFact(
        name,
        layout.precision.describe(),
        memory_fact(model, settings, layout.slot_bytes),
        replay_traffic(model, settings, name),
        best_window(model, settings, name),
    )
