"""Calls of `checkpointing_ssu` as an engine makes them: the same arguments for FlashInfer's function and for ours."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from replayssm.bench.scenario import Scenario, step_counts
from replayssm.bench.stepping import filled_layer, new_inputs
from replayssm.bench.timing import Machine, round_of
from replayssm.inputs import RawGate, TokenInputs
from replayssm.layer import LayerState
from replayssm.layout import StateLayout
from replayssm.reference.recurrence import run_recurrence
from replayssm.traffic import StateBytes

Arguments = dict[str, Any]
_CHECKED_ROWS = 16
"""Rows of a call whose results are checked: every length of a history of 16."""


@dataclass(frozen=True)
class Tokens:
    """New tokens of a step, and A; weights in the dtype of the tokens, as models hold them."""

    inputs: TokenInputs
    A: Tensor

    @classmethod
    def new(cls, layout: StateLayout, batch: int, draft: int, device: torch.device, seed: int = 0) -> Tokens:
        """Random ones."""
        inputs, A = new_inputs(layout.recurrence, layout.activation, batch, draft, device, seed)
        assert A is not None
        assert inputs.raw is not None
        assert inputs.raw.dt_bias is not None
        assert inputs.D is not None
        raw = RawGate(dt_bias=inputs.raw.dt_bias.to(layout.activation))
        return cls(replace(inputs, raw=raw, D=inputs.D.to(layout.activation)), A)


def arguments(layer: LayerState, tokens: Tokens, start: Tensor, live: Tensor, out: Tensor) -> Arguments:
    """Keyword arguments of the function, but for its tuning."""
    heads, dim, dstate = layer.layout.recurrence.state_shape
    buffers, inputs = layer.buffers, tokens.inputs
    assert inputs.raw is not None
    assert inputs.raw.dt_bias is not None
    assert inputs.D is not None
    return {
        "state": buffers["checkpoint"],
        "x_cache": buffers["value_ring"],
        "B_cache": buffers["key_ring"],
        "dt_cache": buffers["gate_ring"],
        "ring_start": start,
        "prev_num_accepted_tokens": live,
        "x": inputs.v,
        "dt": inputs.gate[..., None].expand(*inputs.gate.shape, dim),
        "A": tokens.A[:, None, None].expand(heads, dim, dstate),
        "B": inputs.k,
        "C": inputs.q,
        "out": out,
        "D": inputs.D[:, None].expand(heads, dim),
        "dt_bias": inputs.raw.dt_bias[:, None].expand(heads, dim),
        "dt_softplus": True,
        "state_batch_indices": torch.arange(len(start), dtype=torch.int32, device=start.device),
        "state_scale": buffers.get("checkpoint_scale"),
        "rand_seed": layer.seed if layer.layout.precision.stochastic_rounding else None,
    }


def round_of_calls(scenario: Scenario, machine: Machine) -> list[Arguments]:
    """Calls of one round of the schedule, on states that are not in the L2."""
    layout, device = scenario.layout, machine.device
    tokens = Tokens.new(layout, scenario.batch, scenario.draft, device)
    start = (torch.arange(scenario.batch, device=device) % layout.rows).to(torch.int32)
    lives = [committed.to(device, torch.int32) for committed, _ in step_counts(scenario)]
    copies = machine.copies(scenario.batch * StateBytes.of(layout).read_state)
    layers = [filled_layer(layout, tokens.A, device) for _ in range(copies)]
    out = torch.empty_like(tokens.inputs.v)
    steps = range(round_of(len(lives), copies))
    return [arguments(layers[i % copies], tokens, start, lives[i % len(lives)], out) for i in steps]


@dataclass(frozen=True)
class Checked:
    """A small call whose results are known.

    Attributes:
        layout: with a slot a row. tokens, start: of the call.
        live: `[B]` records of each row, from none to a whole window.
        out: `[B, T, H, P]` float64 outputs. folded: `[B, H, P, N]` float64 states after the records.
    """

    layout: StateLayout
    tokens: Tokens
    start: Tensor
    live: Tensor
    out: Tensor
    folded: Tensor

    @classmethod
    def of(cls, scenario: Scenario, device: torch.device, seed: int = 0) -> Checked:
        """Of a scenario's step; what it starts from is made anew by `layer`, alike for everybody."""
        window = scenario.window
        layout = replace(scenario.layout, slots=_CHECKED_ROWS)
        tokens = Tokens.new(layout, _CHECKED_ROWS, scenario.draft, device, seed)
        live = (torch.arange(_CHECKED_ROWS, device=device) % (window + 1)).to(torch.int32)
        live[-1] = window
        start = (torch.arange(_CHECKED_ROWS, device=device) * 7 % layout.rows).to(torch.int32)
        layer = fresh_layer(layout, tokens.A, device)
        outs, states = [], []
        for row in range(_CHECKED_ROWS):
            state = _replayed(layer, row, int(start[row]), int(live[row]), tokens.A)
            step = _row_of(tokens.inputs, row)
            outs.append(run_recurrence(layout.recurrence, state, step, tokens.A)[0])
            states.append(state)
        return cls(layout, tokens, start, live, torch.cat(outs), torch.cat(states))

    @property
    def folds(self) -> Tensor:
        """`[B]` bool, rows that fold."""
        return (self.live > 0) & (self.live + self.tokens.inputs.draft > self.layout.window)


def fresh_layer(layout: StateLayout, A: Tensor, device: torch.device) -> LayerState:
    """A layer of random numbers, the same ones at each call."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(20)
        return filled_layer(layout, A, device)


def stored_states(layer: LayerState) -> Tensor:
    """Checkpoints in float64."""
    state = layer.buffers["checkpoint"].double()
    scale = layer.buffers.get("checkpoint_scale")
    return state if scale is None else state * scale.double()[..., None]


def _replayed(layer: LayerState, row: int, start: int, count: int, A: Tensor) -> Tensor:
    """A slot's state after its records, `[1, H, P, N]` float64."""
    state, buffers = stored_states(layer)[row : row + 1], layer.buffers
    if not count:
        return state
    rows = (start + torch.arange(count, device=state.device)) % layer.layout.rows
    v, k, gate = (buffers[name][row, :, rows].transpose(0, 1)[None] for name in ("value_ring", "key_ring", "gate_ring"))
    return run_recurrence(layer.layout.recurrence, state, TokenInputs(q=k, k=k, v=v, gate=gate), A)[1]


def _row_of(inputs: TokenInputs, row: int) -> TokenInputs:
    q, k, v, gate = (x[row : row + 1] for x in (inputs.q, inputs.k, inputs.v, inputs.gate))
    return TokenInputs(q=q, k=k, v=v, gate=gate, raw=inputs.raw, D=inputs.D)
