"""The torch backend: the window algebra over whole batches, on CPU and CUDA, in fp32 (fp64 for fp64 activations)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from replayssm.backends.base import PlainMemory, output_buffer
from replayssm.backends.window import NewTokens, fold_window, lower, read_window
from replayssm.cursors import StepPlan
from replayssm.inputs import ProcessedInputs, TokenInputs
from replayssm.layer import LayerState
from replayssm.reference.recurrence import log_decay
from replayssm.storage import (
    NewRecords,
    Records,
    append_records,
    gather_records,
    read_matrix,
)


class TorchBackend(PlainMemory):
    """Vectorised over rows and heads. Synchronises with the host, so it is not for CUDA-graph capture."""

    name = "torch"

    def step(self, layer: LayerState, plan: StepPlan, inputs: TokenInputs) -> Tensor:
        """See `Backend.step`."""
        plan = plan.compacted
        with _full_precision():
            out = output_buffer(layer, plan, layer.layout.compute_dtype, inputs.v.device)
            if len(plan.rows):
                out[plan.rows] = self._rows(layer, plan, inputs)
        return out.to(inputs.v.dtype)

    def _rows(self, layer: LayerState, plan: StepPlan, inputs: TokenInputs) -> Tensor:
        dtype = layer.layout.compute_dtype
        new = inputs.process(layer.layout.recurrence, plan.rows, dtype)
        state = self._base_states(layer, plan, dtype)
        live_history = torch.where(plan.flush, 0, plan.committed)
        history = gather_records(layer.layout, layer.buffers, plan.slots, plan.origin, live_history, dtype)
        out, u = _outputs(layer, plan, state, history, new)
        first = plan.origin + plan.committed
        append_records(layer.layout, layer.buffers, plan.slots, first, plan.lengths, _new_records(new, u))
        finished = inputs.finish(out.transpose(1, 2), plan.rows)
        return torch.where(plan.live[..., None, None], finished, 0.0)

    def _base_states(self, layer: LayerState, plan: StepPlan, dtype: torch.dtype) -> Tensor:
        """`[n, H, V, K]`: what each row reads, after the fold of the rows that flush."""
        layout = layer.layout
        state = torch.empty(len(plan.slots), *layout.recurrence.state_shape, dtype=dtype, device=plan.slots.device)
        flush, keep = plan.flush.nonzero()[:, 0], (~plan.flush).nonzero()[:, 0]
        if len(keep):
            prefix = "checkpoint" if layout.precision.read_copy is None else "read_copy"
            state[keep] = read_matrix(layout, layer.buffers, prefix, plan.slots[keep], dtype)
        if len(flush):
            folded = self.fold(layer, plan.slots[flush], plan.origin[flush], plan.committed[flush])
            self.store(layer, plan.slots[flush], folded, plan.flushes[flush])
            state[flush] = folded
        return state

    def fold(self, layer: LayerState, slots: Tensor, origin: Tensor, count: Tensor) -> Tensor:
        """See `Backend.fold`."""
        dtype, layout = layer.layout.compute_dtype, layer.layout
        state = read_matrix(layout, layer.buffers, "checkpoint", slots, dtype)
        records = gather_records(layout, layer.buffers, slots, origin, count, dtype)
        key, g = _per_head(layer, records)
        value, beta = records.value, None
        if not layout.recurrence.delta_rule:
            value = records.gate[..., None] * value
        elif layout.precision.exact_fold and records.raw_value is not None:
            value, beta = records.raw_value, records.beta
        with _full_precision():
            return fold_window(state, key, value, g, beta)


def _outputs(
    layer: LayerState, plan: StepPlan, state: Tensor, history: Records, new: ProcessedInputs
) -> tuple[Tensor, Tensor]:
    recurrence = layer.layout.recurrence
    old_key, old_g = _per_head(layer, history)
    old_u = history.value if recurrence.delta_rule else history.gate[..., None] * history.value
    repeat = recurrence.heads_per_group
    q = new.q.transpose(1, 2).repeat_interleave(repeat, dim=1)
    k = (new.k * new.k_scale[..., None]).transpose(1, 2).repeat_interleave(repeat, dim=1)
    g = log_decay(recurrence, new.gate, layer.A).transpose(1, 2)
    weight = (new.gate if new.beta is None else new.beta).transpose(1, 2)
    live = plan.live[:, None, :]
    tokens = NewTokens(
        q=silenced(q, live[..., None]),
        k=silenced(k, live[..., None]),
        v=silenced(new.v.transpose(1, 2), live[..., None]),
        g=silenced(g, live[..., None]),
        weight=silenced(weight, live),
    )
    return read_window(state, (old_key, old_u, old_g), tokens, _ancestors(plan), recurrence.delta_rule)


def silenced(x: Tensor, live: Tensor) -> Tensor:
    """Zero the tokens past a row's length: padding may hold anything, NaN included."""
    return torch.where(live, x, torch.zeros((), dtype=x.dtype, device=x.device))


def _ancestors(plan: StepPlan) -> Tensor:
    if plan.ancestors is not None:
        return plan.ancestors[:, None]
    return lower(plan.draft, plan.slots.device, strict=False)[None, None]


def _per_head(layer: LayerState, records: Records) -> tuple[Tensor, Tensor]:
    """Keys repeated for every head of their group, and log decays with the K axis last."""
    recurrence = layer.layout.recurrence
    gate = records.gate.transpose(1, 2)
    g = log_decay(recurrence, gate, layer.A).transpose(1, 2)
    return records.key.repeat_interleave(recurrence.heads_per_group, dim=1), g


def _new_records(new: ProcessedInputs, u: Tensor) -> NewRecords:
    delta_rule = new.beta is not None
    v = new.v.transpose(1, 2)
    return NewRecords(
        key=new.k.transpose(1, 2),
        key_scale=new.k_scale.transpose(1, 2),
        value=u if delta_rule else v,
        gate=new.gate.transpose(1, 2),
        raw_value=v if delta_rule else None,
        beta=new.beta.transpose(1, 2) if new.beta is not None else None,
    )


@contextmanager
def _full_precision() -> Iterator[None]:
    """fp32 products in fp32, whatever the process allows elsewhere: TF32 in a fold would stay in the recurrence."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
