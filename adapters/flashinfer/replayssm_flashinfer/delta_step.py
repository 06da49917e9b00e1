"""A step of GDN or KDA on a caller's memory in the core's own layout: the exact fold, read copies, windows of any length."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from replayssm import LayerKind, PrecisionPolicy, Recurrence, StateLayout
from replayssm.inputs import TokenInputs
from replayssm.layer import LayerState
from replayssm_flashinfer.copy_checks import Copy, copy_format, scaled_buffers
from replayssm_flashinfer.mamba_checks import STATES
from replayssm_flashinfer.packed import launch_into
from replayssm_flashinfer.plan import RingCursors, plan_step

STOCHASTIC = (torch.float16, torch.float8_e4m3fn)
RINGS = {
    "k_cache": "key_ring",
    "k_scale_cache": "key_scale_ring",
    "u_cache": "value_ring",
    "v_cache": "raw_value_ring",
    "beta_cache": "beta_ring",
    "g_cache": "gate_ring",
}
"""Ring arguments, and the buffers of the core that they are."""


@dataclass(frozen=True)
class DeltaMemory:
    """A layer's memory; slot strides are free.

    Attributes:
        state: `[S, HV, V, K]` fp32, bf16, fp16 or fp8 e4m3, the last with `state_scale [S, HV, V]` fp32.
        k: `[S, H, L, K]` keys as they came. k_scale: `[S, H, L]` fp32, 1 / ‖k‖.
        u: `[S, HV, L, V]` corrections. v: `[S, HV, L, V]` values as they came. beta: `[S, HV, L]` fp32.
        g: `[S, HV, L]` fp32 log decays, `[S, HV, L, K]` for KDA.
        read_copy: the copy, its block scales, its scales.
    """

    state: Tensor
    k: Tensor
    k_scale: Tensor
    u: Tensor
    v: Tensor
    beta: Tensor
    g: Tensor
    state_scale: Tensor | None
    read_copy: Copy

    @property
    def kind(self) -> LayerKind:
        """GDN, or KDA where gates have channels."""
        return LayerKind.KDA if self.g.dim() == 4 else LayerKind.GDN

    def layout(self, draft: int, *, stochastic: bool) -> StateLayout:
        """The core's layout of this memory, W = L − T."""
        read = copy_format(self.read_copy)
        return delta_layout(
            self.kind, tuple(self.state.shape), self.k.shape[1], self.k.shape[2], draft,
            (STATES[self.state.dtype], stochastic, read), self.k.dtype,
        )  # fmt: skip

    def layer(self, layout: StateLayout, seed: Tensor | None) -> LayerState:
        """Under the core's names."""
        buffers = {
            "checkpoint": self.state,
            "value_ring": self.u,
            "raw_value_ring": self.v,
            "beta_ring": self.beta,
            "key_ring": self.k,
            "key_scale_ring": self.k_scale,
            "gate_ring": self.g,
        }
        buffers |= scaled_buffers(self.state_scale, self.read_copy)
        return LayerState(layout, buffers, None, self.g if seed is None else seed)


@lru_cache(maxsize=1024)
def delta_layout(
    kind: LayerKind,
    state: tuple[int, int, int, int],
    groups: int,
    rows: int,
    draft: int,
    precision: tuple[str, bool, str | None],
    activation: torch.dtype,
) -> StateLayout:
    """The core's layout of state `[slots, HV, V, K]` with rings of L = `rows`, W = L − T."""
    slots, heads, value_dim, key_dim = state
    recurrence = Recurrence(kind, heads, groups, value_dim, key_dim)
    return StateLayout(recurrence, slots, rows - draft, draft, PrecisionPolicy(*precision), activation)


def step_delta(
    memory: DeltaMemory, cursors: RingCursors, inputs: TokenInputs, seed: Tensor | None, out: Tensor
) -> None:
    """Append, fold where a row is full, and write outputs; cursors are only read."""
    draft = inputs.draft
    seed = seed if memory.state.dtype in STOCHASTIC else None
    layout = memory.layout(draft, stochastic=seed is not None)
    plan = plan_step(
        cursors, batch=inputs.batch, draft=draft, slots=layout.slots, rows=layout.rows, window=layout.window,
        limit=layout.window,
    )  # fmt: skip
    launch_into(memory.layer(layout, seed), plan, inputs, out)
