"""The protocol in float64 and plain loops: row by row, record by record. Slow, and meant to be obviously right."""

from __future__ import annotations

import torch
from torch import Tensor

from replayssm.backends.base import PlainMemory, output_buffer
from replayssm.cursors import StepPlan
from replayssm.inputs import ProcessedInputs, TokenInputs
from replayssm.layer import LayerState
from replayssm.reference.recurrence import Token, log_decay, read, token_at, write
from replayssm.storage import read_matrix


class NaiveBackend(PlainMemory):
    """Reference backend. Replays every record through the ordinary recurrence; no window algebra."""

    name = "naive"

    def step(self, layer: LayerState, plan: StepPlan, inputs: TokenInputs) -> Tensor:
        """See `Backend.step`."""
        plan = plan.compacted
        new = inputs.process(layer.layout.recurrence, plan.rows, torch.float64)
        out = output_buffer(layer, plan, torch.float64, inputs.v.device)
        for i, row in enumerate(plan.rows.tolist()):
            out[row] = self._row(layer, plan, new, i)
        finished = inputs.finish(out[plan.rows], plan.rows)
        out[plan.rows] = torch.where(plan.live[..., None, None], finished, 0.0)
        return out.to(inputs.v.dtype)

    def _row(self, layer: LayerState, plan: StepPlan, new: ProcessedInputs, i: int) -> Tensor:
        recurrence = layer.layout.recurrence
        one = slice(i, i + 1)
        slots, origin, committed = plan.slots[one], plan.origin[one], plan.committed[one]
        if bool(plan.flush[i]):
            base = self.fold(layer, slots, origin, committed)
            self.store(layer, slots, base, plan.flushes[one])
        else:
            base = self._replayed(layer, slots, int(origin), int(committed))
        out = torch.zeros(plan.draft, recurrence.heads, recurrence.value_dim, dtype=torch.float64, device=base.device)
        states: list[Tensor] = []
        for t in range(int(plan.lengths[i])):
            token = _row_of(token_at(recurrence, new, t, layer.A), i)
            parent = _parent(plan, i, t)
            state, u = write(recurrence, base if parent < 0 else states[parent], token)
            states.append(state)
            out[t] = read(state, token)[0]
            self._append(layer, slots, int(origin) + int(committed) + t, new, i, t, u)
        return out

    def _replayed(self, layer: LayerState, slots: Tensor, origin: int, committed: int) -> Tensor:
        """Read copy (or checkpoint) with the records as they were written, u included."""
        prefix = "checkpoint" if layer.layout.precision.read_copy is None else "read_copy"
        state = read_matrix(layer.layout, layer.buffers, prefix, slots, torch.float64)
        for j in range(committed):
            record = _record(layer, slots, (origin + j) % layer.layout.rows, exact=False)
            weight = record.weight[..., None] if not layer.layout.recurrence.delta_rule else 1.0
            state = state * record.decay[:, :, None, :] + (weight * record.v)[..., None] * record.k[:, :, None, :]
        return state

    def fold(self, layer: LayerState, slots: Tensor, origin: Tensor, count: Tensor) -> Tensor:
        """See `Backend.fold`."""
        layout = layer.layout
        state = read_matrix(layout, layer.buffers, "checkpoint", slots, torch.float64)
        for i in range(len(slots)):
            one = slice(i, i + 1)
            for j in range(int(count[i])):
                ring_row = (int(origin[i]) + j) % layout.rows
                exact = layout.precision.exact_fold or not layout.recurrence.delta_rule
                record = _record(layer, slots[one], ring_row, exact)
                if exact:
                    state[one], _ = write(layout.recurrence, state[one], record)
                else:
                    decayed = state[one] * record.decay[:, :, None, :]
                    state[one] = decayed + record.v[..., None] * record.k[:, :, None, :]
        return state

    def _append(
        self, layer: LayerState, slots: Tensor, ring_row: int, new: ProcessedInputs, i: int, t: int, u: Tensor
    ) -> None:
        buffers, slot, ring_row = layer.buffers, int(slots[0]), ring_row % layer.layout.rows
        buffers["key_ring"][slot, :, ring_row] = new.k[i, t].to(buffers["key_ring"].dtype)
        buffers["gate_ring"][slot, :, ring_row] = new.gate[i, t].to(buffers["gate_ring"].dtype)
        value = new.v[i, t] if new.beta is None else u[0]
        limit = torch.finfo(buffers["value_ring"].dtype).max
        buffers["value_ring"][slot, :, ring_row] = value.clamp(-limit, limit).to(buffers["value_ring"].dtype)
        if new.beta is not None:
            buffers["raw_value_ring"][slot, :, ring_row] = new.v[i, t].to(buffers["raw_value_ring"].dtype)
            buffers["beta_ring"][slot, :, ring_row] = new.beta[i, t].to(buffers["beta_ring"].dtype)
            buffers["key_scale_ring"][slot, :, ring_row] = new.k_scale[i, t].to(buffers["key_scale_ring"].dtype)


def _record(layer: LayerState, slots: Tensor, ring_row: int, exact: bool) -> Token:
    """One record as a token; its value is u as written, or the raw v for an exact fold of the delta rule."""
    layout, buffers = layer.layout, layer.buffers
    recurrence = layout.recurrence

    def take(name: str) -> Tensor:
        return buffers[name][slots, :, ring_row].double()

    gate, key = take("gate_ring"), take("key_ring")
    if recurrence.delta_rule:
        key = key * take("key_scale_ring")[..., None]
    return Token(
        q=torch.zeros(0),
        k=key.repeat_interleave(recurrence.heads_per_group, dim=1),
        v=take("raw_value_ring" if exact and recurrence.delta_rule else "value_ring"),
        decay=log_decay(recurrence, gate, layer.A).exp(),
        weight=take("beta_ring") if recurrence.delta_rule else gate,
    )


def _row_of(token: Token, i: int) -> Token:
    return Token(*(field[i : i + 1] for field in token))


def _parent(plan: StepPlan, i: int, t: int) -> int:
    """Nearest ancestor of token t among the new tokens, −1 for none."""
    if plan.ancestors is None:
        return t - 1
    earlier = plan.ancestors[i, t, :t].nonzero()
    return int(earlier[-1]) if len(earlier) else -1
