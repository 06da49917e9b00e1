"""The int8 checkpoint of FlashInfer's callers, which the core does not have.

Its steps read one all the same (a row with a scale is a row with a scale); what writes it is here.
"""

from __future__ import annotations

import triton

from replayssm.cursors import StepPlan
from replayssm.kernels.arguments import OPTIONS, plan_rows, row_slices
from replayssm.layer import LayerState
from replayssm_flashinfer.kernels.int8 import fold_int8_kernel

ROWS = 16
"""Rows of V of a program."""


def fold_int8(layer: LayerState, plan: StepPlan) -> None:
    """Fold what a plan flushes into int8 checkpoints; records that the step appended are not among them."""
    assert layer.A is not None
    rates = layer.A.contiguous()
    r, layout = layer.layout.recurrence, layer.layout
    names = ("checkpoint", "checkpoint_scale", "value_ring", "key_ring", "gate_ring")
    memory = [layer.buffers[name] for name in names]
    for some in row_slices(plan.batch):
        rows = [x[some] for x in plan_rows(plan)]
        fold_int8_kernel[(triton.cdiv(r.value_dim, ROWS), r.heads, len(rows[0]))](
            *rows,
            layer.seed,
            rates,
            *memory,
            *(buffer.stride(0) for buffer in memory),
            **window_of(layout.window, layout.rows),
            H=r.heads,
            G=r.groups,
            V=r.value_dim,
            K=r.key_dim,
            BV=ROWS,
            SR=layout.precision.stochastic_rounding,
            DOT=layout.dot,
            num_warps=2,
            **OPTIONS,
        )


def window_of(window: int, rows: int) -> dict[str, int]:
    """R, and J, the records of a window as a power of two of at least 16."""
    return {"R": rows, "J": max(16, triton.next_power_of_2(window))}
