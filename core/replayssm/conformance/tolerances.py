"""How far a result may lie from float64: one table of roundoffs and a few formulas, nothing tuned by a test.

All errors are norms of a difference relative to the norm of the reference.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from replayssm.layout import StateLayout

ROUNDOFF: dict[str, float] = {
    "fp64": 2.0**-53,
    "fp32": 2.0**-24,
    "fp16": 2.0**-11,
    "bf16": 2.0**-8,
    "fp8": 2.0**-4,
    "nvfp4": 2.0**-2,
}
"""Largest relative error of rounding to nearest: half a unit in the last of p significant bits, 2^-p."""

DTYPES: dict[torch.dtype, str] = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
}

AMPLIFICATION = 4.0
"""Terms of a sum may be larger than the sum: the readout adds a state part and a ring part of either sign, and the delta
rule subtracts a prediction of the value's own size. Over random inputs the ratio of norms is seldom above 4; where an
output's own terms cancel further, the driver measures the error against the terms."""


@dataclass(frozen=True)
class Tolerance:
    """Bounds for one layout: outputs of a step, and the state."""

    output: float
    state: float


def accumulated(roundoff: float, terms: int) -> float:
    """Error of a sum of `terms` products: roundings are independent, so they add as a random walk."""
    return AMPLIFICATION * roundoff * math.sqrt(terms)


def jumps(grid: str, perturbation: float, elements: int) -> float:
    """Error that storage on a coarse grid adds to a small perturbation δ of the value before rounding.

    A value lands on the other side of a rounding boundary with probability about δ / g and then differs by a grid step of
    g: the root mean square is √(δ g). Few elements see either no jump or one, so one jump of one element is allowed too.
    """
    step = 2 * ROUNDOFF[grid]
    if step <= 4 * perturbation:
        return step
    return AMPLIFICATION * math.sqrt(perturbation * step) + step / math.sqrt(elements)


def tolerance(layout: StateLayout, operand: torch.dtype, flushes: int, decay_sum: float = 0.0) -> Tolerance:
    """Bounds after `flushes` folds for a subject that rounds output operands to `operand`.

    - Fold: sums over at most R records and K channels in fp32 (fp64 for fp64 activations) whatever the operand: an
      operand rounded to bf16 on its way into the fold is a defect, and this bound shows it. Folds add as a random walk.
    - Decays: a difference of running sums of log decays; a sum as large as `decay_sum` carries an error of 2^-53 of it
      even in float64. (In fp32 it would carry 2^-24: too much beside one strong decay, so that is not granted.)
    - State: the fold, jumps where the checkpoint's grid is coarser than the fold, and without the exact fold the
      corrections u as the ring keeps them, in the activation dtype.
    - Output: the state that was read, its own sums over K channels and R records, the cast of the result, and for the
      delta rule corrections u that the ring keeps in the activation dtype.
    """
    r, precision = layout.recurrence, layout.precision
    fold_dtype = "fp64" if layout.activation == torch.float64 else "fp32"
    activation = ROUNDOFF[DTYPES[layout.activation]]
    terms = r.key_dim + layout.rows
    elements = r.heads * r.value_dim * r.key_dim
    folds = math.sqrt(flushes + 1)

    fold = (accumulated(ROUNDOFF[fold_dtype], terms) + ROUNDOFF["fp64"] * decay_sum) * folds
    state = fold
    if ROUNDOFF[precision.checkpoint] > ROUNDOFF[fold_dtype]:
        state += folds * jumps(precision.checkpoint, fold, elements)
    if r.delta_rule and not precision.exact_fold:
        state += AMPLIFICATION * activation * folds
    read = state if precision.read_copy is None else state + jumps(precision.read_copy, state, elements)
    u_in_ring = AMPLIFICATION * activation if r.delta_rule else 0.0
    output = read + accumulated(ROUNDOFF[DTYPES[operand]], terms) + activation + u_in_ring
    return Tolerance(output, state)
