"""The one place where the benchmark meets the kernels: a layer's memory as in use, plans, and the launch of a step."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from replayssm.bench.timing import Launch
from replayssm.conformance.inputs import Source, mapped
from replayssm.cursors import StepPlan
from replayssm.inputs import RawGate, TokenInputs
from replayssm.kernels.launch import launch_step
from replayssm.kernels.tiles import Tiles, forced
from replayssm.layer import LayerState
from replayssm.layout import StateLayout
from replayssm.recurrence import LayerKind, Recurrence

BACKEND = "triton"
_DISTINCT_ROWS = 8


def new_inputs(
    recurrence: Recurrence, activation: torch.dtype, batch: int, draft: int, device: torch.device, seed: int = 0
) -> tuple[TokenInputs, Tensor | None]:
    """Inputs as engines hold them (raw gates, unnormalised q and k, skip weight D), and A for Mamba-2.

    A few rows are random, the others repeat them in memory of their own: times do not depend on values.
    """
    source = Source(recurrence, activation, device, seed=seed, raw=True)
    tokens = source.tokens(min(batch, _DISTINCT_ROWS), draft)
    # No bounds on Δ, which not every engine's kernel has.
    raw = None if tokens.raw is None else replace(tokens.raw, dt_limit=RawGate().dt_limit)
    copies = -(-batch // tokens.batch)
    tokens = mapped(tokens, lambda x: x.repeat(copies, *[1] * (x.dim() - 1))[:batch].contiguous())
    A = None if source.A is None else source.A.float()
    return replace(tokens, raw=raw, D=skip_weight(source)), A


def skip_weight(source: Source) -> Tensor | None:
    """D `[H]` for Mamba-2."""
    if source.recurrence.kind is not LayerKind.MAMBA2:
        return None
    return source.normal(source.recurrence.heads).to(source.device, torch.float32)


def filled_layer(layout: StateLayout, A: Tensor | None, device: torch.device) -> LayerState:
    """A layer whose checkpoint and rings hold random numbers of a plausible size, each row of every ring live."""
    buffers = {}
    for spec in layout.buffers:
        shape = (layout.slots, *spec.shape)
        if not spec.dtype.is_floating_point:
            buffers[spec.name] = torch.randint(0, 256, shape, device=device, dtype=spec.dtype)
            continue
        numbers = torch.empty(shape, dtype=torch.float32, device=device)
        if spec.name == "gate_ring":
            # Δ of Mamba-2, log decays of the delta rule.
            numbers.uniform_(0.01, 0.1) if not layout.recurrence.delta_rule else numbers.uniform_(-0.1, -0.001)
        elif spec.name.endswith("_scale") or spec.name in ("beta_ring", "key_scale_ring"):
            numbers.uniform_(0.05, 0.1)
        else:
            numbers.normal_()
        buffers[spec.name] = numbers.to(spec.dtype)
    return LayerState(layout, buffers, A, torch.zeros(1, dtype=torch.int64, device=device))


def make_plan(layout: StateLayout, committed: Tensor, flush: Tensor, draft: int, device: torch.device) -> StepPlan:
    """A step of all slots with T tokens each, every ring beginning at another row."""
    batch = len(committed)
    index = torch.arange(batch, device=device)
    return StepPlan(
        rows=index,
        slots=index,
        lengths=torch.full((batch,), draft, dtype=torch.int32, device=device),
        origin=(index % layout.rows).to(torch.int32),
        committed=committed.to(device, torch.int32),
        flush=flush.to(device, torch.bool),
        flushes=torch.zeros(batch, dtype=torch.int32, device=device),
        batch=batch,
        draft=draft,
        order=committed.to(device).argsort(descending=True, stable=True).to(torch.int32),
    )


def step_launch(layer: LayerState, plan: StepPlan, inputs: TokenInputs, tiles: Tiles) -> Launch:
    """What the clock measures: one step."""

    def launch() -> Tensor:
        with forced(tiles):
            return launch_step(layer, plan, inputs)

    return launch
