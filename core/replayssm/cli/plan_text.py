"""A plan as plain text of at most 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from replayssm.cli.table import aligned, pairs, size
from replayssm.planning import Plan
from replayssm.planning.memory import MemoryFact
from replayssm.planning.traffic import TrafficFact

_WIDTH = 100


def render(plan: Plan) -> Iterator[str]:
    """The plan's lines."""
    yield f"ReplaySSM in {plan.model.source}"
    yield "Counted bytes, not measured times: a kernel can at best be as fast as the bytes that it moves."
    for section in (_model, _buffers, _memory, _traffic, _flushes, _warnings):
        yield ""
        yield from section(plan)


def _model(plan: Plan) -> Iterator[str]:
    model, settings, r = plan.model, plan.settings, plan.model.recurrence
    rank = f", one of {settings.tp} ranks" if settings.tp > 1 else ""
    yield f"Model ({model.model_type}{rank})"
    geometry = f"{r.kind}, {r.heads} heads in {r.groups} groups, V = {r.value_dim}, K = {r.key_dim}"
    state, conv = model.state_bytes, model.conv_bytes(settings.draft)
    activation = str(model.activation).removeprefix("torch.")
    facts = [
        ("recurrent layers", f"{model.recurrent_layers} of {model.layers}: {geometry}"),
        ("fp32 state", f"{size(state)} a slot and layer, {size(state * model.recurrent_layers)} a sequence"),
        ("convolution", f"{size(conv)} a slot and layer ({activation}), with room for T = {settings.draft}"),
        ("attention layers", _attention(plan)),
        (
            "settings",
            f"batch {settings.batch}, T = {settings.draft} new token{'s' if settings.draft > 1 else ''} a step, "
            f"W = {settings.window}" + (f", acceptance {settings.acceptance:g}" if settings.draft > 1 else ""),
        ),
    ]
    yield from pairs(facts)


def _attention(plan: Plan) -> str:
    model, context = plan.model, plan.settings.context
    if not model.attention_layers:
        return "none"
    cost = f"{model.attention_layers}, {size(model.kv_token_bytes)} of KV cache a token and layer"
    return f"{cost}; not counted below (--context)" if context is None else f"{cost}; {context:,} tokens counted below"


def _buffers(plan: Plan) -> Iterator[str]:
    yield f"Buffers of one slot and layer, preset {plan.settings.preset} (rings of R = {plan.rows} records)"
    rows = [(b.name, _shape(b.shape), b.dtype, f"{b.bytes:,}", f"{b.share:.1%}") for b in plan.buffers]
    total = sum(b.bytes for b in plan.buffers)
    share = total / plan.model.state_bytes
    ring = sum(b.share for b in plan.buffers if b.name.endswith("_ring"))
    rows.append(("total", "", "", f"{total:,}", f"{share:.1%}"))
    yield from aligned(("buffer", "shape", "dtype", "bytes", "of fp32 state"), rows, left=3)
    yield f"  The rings add {ring:.1%} of the fp32 state."


def _memory(plan: Plan) -> Iterator[str]:
    settings, ordinary = plan.settings, plan.ordinary_memory
    context = "" if settings.context is None else f" and {settings.context:,} tokens of KV cache"
    yield f"Sequences in {settings.memory_gib:g} GiB (state, convolution{context})"
    rows = [_memory_row(_ordinary_name(plan), ordinary, ordinary)]
    rows += [_memory_row(fact.preset, fact.memory, ordinary) for fact in plan.presets]
    header = ("preset", "slot and layer", "of fp32 state", "a sequence", "slots", "times")
    yield from aligned(header, rows)
    yield from _unserved(plan)


def _memory_row(name: str, memory: MemoryFact, ordinary: MemoryFact) -> tuple[str, ...]:
    times = f"{ordinary.sequence_bytes / memory.sequence_bytes:.2f}x"
    return (
        name,
        size(memory.slot_bytes),
        f"{memory.share:.1%}",
        size(memory.sequence_bytes),
        f"{memory.slots:,}",
        times,
    )


def _traffic(plan: Plan) -> Iterator[str]:
    layers, batch = plan.model.recurrent_layers, plan.settings.batch
    yield f"State traffic: of a layer for each accepted token; of a step of {batch} rows in all {layers} layers"
    rows = [(*_traffic_row(_ordinary_name(plan), plan.ordinary_traffic), "", "")]
    for fact in plan.presets:
        best = fact.best_window
        rows.append((*_traffic_row(fact.preset, fact.traffic), str(best.window), f"{best.gain:.2f}x"))
    header = ("preset", "read", "written", "both", "fewer", "a step", "least at W =", "fewer")
    yield from aligned(header, rows)
    yield "  shared-* presets fold what they read and drift with length: baselines, not advice."


def _traffic_row(name: str, traffic: TrafficFact) -> tuple[str, ...]:
    both = traffic.read + traffic.written
    return (
        name,
        size(traffic.read),
        size(traffic.written),
        size(both),
        f"{traffic.gain:.2f}x",
        size(traffic.step_bytes),
    )


def _flushes(plan: Plan) -> Iterator[str]:
    settings = plan.settings
    if settings.draft == 1:
        yield f"A row flushes once in {settings.window} steps."
        return
    yield f"Flushes by acceptance, W = {settings.window}, T = {settings.draft}"
    rows = [
        (f"{fact.acceptance:.1f}", f"{fact.tokens:.2f}", f"{fact.rate:.1%}", f"{fact.tokens / fact.rate:.1f}")
        for fact in plan.flushes
    ]
    yield from aligned(("acceptance", "tokens a step", "steps that flush", "tokens a flush"), rows)


def _warnings(plan: Plan) -> Iterator[str]:
    if not plan.warnings:
        yield "No warnings."
    for sentence in plan.warnings:
        yield from textwrap.wrap(f"Warning: {sentence}", _WIDTH, subsequent_indent="  ")


def _unserved(plan: Plan) -> Iterator[str]:
    for name, reason in plan.unserved.items():
        yield from textwrap.wrap(f"  {name}: {reason}", _WIDTH, subsequent_indent="    ")


def _ordinary_name(plan: Plan) -> str:
    draft = plan.settings.draft
    return "ordinary fp32" if draft == 1 else f"ordinary fp32, {draft} snapshots"


def _shape(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"
