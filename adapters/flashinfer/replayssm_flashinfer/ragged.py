"""Rows of different lengths as a packed batch, without a look at the host: FlashInfer folds by a row's real length."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from replayssm.cursors import StepPlan
from replayssm.inputs import TokenInputs


@dataclass(frozen=True)
class Packed:
    """A packed batch `[1, B T + 1, …]`: tokens of rows one after the other, then whatever rows lack.

    Attributes:
        v, gate, k, q, z: as of `TokenInputs`.
        starts: `[B + 1]` int32, where rows start.
        places: `[B, T]` int64, where each token is; tokens past a row's length are all in the last place.
    """

    v: Tensor
    gate: Tensor
    k: Tensor
    q: Tensor
    z: Tensor | None
    starts: Tensor
    places: Tensor


def pack_tokens(plan: StepPlan, inputs: TokenInputs) -> Packed:
    """Pack the tokens that a plan's rows have."""
    ends = plan.lengths.cumsum(0, dtype=torch.int32)
    order = torch.arange(plan.draft, device=ends.device)
    spare = plan.batch * plan.draft
    places = torch.where(plan.live, (ends - plan.lengths)[:, None] + order, spare).long()

    def packed(x: Tensor) -> Tensor:
        out = x.new_zeros(1, spare + 1, *x.shape[2:])
        out[0, places.flatten()] = x.flatten(0, 1)
        return out

    v, gate, k, q = (packed(x) for x in (inputs.v, inputs.gate, inputs.k, inputs.q))
    z = None if inputs.z is None else packed(inputs.z)
    return Packed(v, gate, k, q, z, F.pad(ends, (1, 0)), places)


def unpack_tokens(plan: StepPlan, tokens: Packed, out: Tensor) -> Tensor:
    """Outputs `[1, B T + 1, H, V]` by row, `[B, T, H, V]`; zeros past a row's length."""
    rows = out[0, tokens.places]
    return torch.where(plan.live[:, :, None, None], rows, torch.zeros((), dtype=out.dtype, device=out.device))
