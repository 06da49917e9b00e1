"""The recurrent layers of one rank as the core's states: one plan a forward, made by the first layer, settled by the last.

No engine in sight: tensors in, tensors out. The checkpoint is memory that is handed in; rings, read copies and cursors
are allocated here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from replayssm import InputError, ReplayState, StateLayout, StepError, TokenInputs, UnsupportedError
from replayssm.backends import load_backend
from replayssm.capability import supports
from replayssm.capture import capturing
from replayssm.cursors import PAD_SLOT
from replayssm.schedule import FlushPolicy

if TYPE_CHECKING:
    from replayssm.cursors import StepPlan
    from replayssm.layout import Buffers

CHECKPOINT = "checkpoint"
REFRESHED_TOGETHER = 16
"""Slots whose read copies are made in one go: bounds the memory of the fp32 states."""


class ReplayLayers:
    """Rings, read copies and cursors of a rank's layers, over checkpoints that belong to the engine.

    Args:
        layout: of every layer.
        checkpoints: `[slots, H, V, K]` each, in the layout's checkpoint dtype; the slot stride is free.
        backend: the core's backend.
        seeds: of stochastic rounding, one a layer.

    Raises:
        InputError: a checkpoint that is not as the layout says.
        UnsupportedError: the backend does not serve the layout on the checkpoints' device.
    """

    def __init__(self, layout: StateLayout, checkpoints: Sequence[Tensor], backend: str, seeds: Sequence[int]) -> None:
        self.layout, self.backend, self.device = layout, backend, checkpoints[0].device
        ok, reason = supports(backend, layout, self.device)
        if not ok:
            raise UnsupportedError(reason)
        self.buffers: list[Buffers] = [self._memory(checkpoint) for checkpoint in checkpoints]
        self.cursors = load_backend(backend).cursors(
            layout.slots, layout.rows, layout.window, layout.max_draft, FlushPolicy(), self.device
        )
        self._seeds = list(seeds)
        self._states: list[ReplayState | None] = [None] * len(self.buffers)
        self._plan: StepPlan | None = None
        self._settled: StepPlan | None = None

    @property
    def attached(self) -> bool:
        """Whether every layer has its constants."""
        return all(state is not None for state in self._states)

    def attach(self, constants: Sequence[Tensor | None]) -> None:
        """Give every layer its constants: `A [H]` below 0 for Mamba-2, None for Gated DeltaNet.

        Raises:
            InputError: another number of layers.
            StepError: while a CUDA graph is captured.
        """
        if capturing(self.device):
            raise StepError("the first forward is being captured; run one before the capture, as a warm-up does")
        if len(constants) != len(self._states):
            raise InputError(f"{len(constants)} layers are attached to a cache of {len(self._states)}")
        self._states = [
            ReplayState(
                self.layout,
                A=A,
                backend=self.backend,
                device=self.device,
                buffers=buffers,
                cursors=self.cursors,
                # On a GPU a check of values would wait for it.
                check_inputs=self.device.type == "cpu",
                seed=seed,
            )
            for A, buffers, seed in zip(constants, self.buffers, self._seeds, strict=True)
        ]
        self._refresh(torch.arange(self.layout.slots, device=self.device))

    def restart(self, slots: Tensor) -> None:
        """The engine wrote (or will write) states of `slots [n]`: their rings are empty, their read copies anew."""
        if len(slots):
            self.cursors.reset(slots.long(), 0)
            self._refresh(slots.long())

    def relocate(self, old: Tensor, new: Tensor) -> None:
        """Rings, read copies and cursors of slots `old [n]` move to `new [n]`; all are read before one is written.

        Checkpoints are the engine's to move.
        """
        old, new = old.long(), new.long()
        for buffers in self.buffers:
            for name, buffer in buffers.items():
                if name != CHECKPOINT:
                    buffer[new] = buffer[old]
        self.cursors.copy(old, new)

    def step(self, layer: int, inputs: TokenInputs, slots: Tensor) -> Tensor:
        """One layer's part of a forward: `slots [B]`, −1 for rows of padding → outputs `[B, T, H, V]`.

        Raises:
            StepError: layers out of order, or before `attach`.
        """
        state = self._states[layer]
        if state is None:
            raise StepError(f"layer {layer} has no constants yet; attach comes before the first step")
        if layer == 0:
            if self._plan is not None:
                raise StepError("layer 0 runs again before the last layer of the step ran")
            self._plan = state.plan(inputs, slots)
        if self._plan is None:
            raise StepError(f"layer {layer} runs before layer 0")
        out = state.run(self._plan, inputs)
        if layer == len(self._states) - 1:
            state.settle(self._plan)
            self._plan, self._settled = None, self._plan
        return out

    def commit(self, accepted: Tensor | int) -> None:
        """Accept the first `accepted [B]` tokens of each row of the last step.

        Raises:
            StepError: no step awaits one.
        """
        if self._settled is None:
            raise StepError("acceptance was reported and no step awaits it")
        self._first().commit(accepted, self._settled)
        self._settled = None

    @property
    def awaits_commit(self) -> bool:
        """Whether a step was settled and not committed."""
        return self._settled is not None

    def check_accepted(self) -> None:
        """Check that no live row waits for its acceptance; the drafts of a warm-up, all padding, may.

        Raises:
            StepError: rows wait for it, and another step would reject their tokens in silence.
        """
        if self._settled is not None and bool((self._settled.slots != PAD_SLOT).any()):
            self._settled = None
            raise StepError(
                "the last step was verified and its acceptance was never reported; the drafter must call "
                "update_mamba_states after each step"
            )

    def forget(self) -> None:
        """The last step was never accepted: its drafts are rejected. One that stopped half-way is a torn state.

        Raises:
            StepError: a step with live rows ran in some layers and not in others.
        """
        plan, self._plan, self._settled = self._plan, None, None
        if plan is not None and bool((plan.slots != PAD_SLOT).any()):
            raise StepError("a forward stopped between two recurrent layers; the states of its requests are lost")

    def state(self, layer: int, slots: Tensor) -> Tensor:
        """fp32 state `[n, H, V, K]` of `slots [n]`, committed records folded."""
        state = self._states[layer]
        if state is None:
            raise StepError(f"layer {layer} has no constants yet")
        return state.state(slots)

    def _first(self) -> ReplayState:
        state = self._states[0]
        assert state is not None
        return state

    def _memory(self, checkpoint: Tensor) -> Buffers:
        ours = {spec.name: spec for spec in self.layout.buffers if spec.name != CHECKPOINT}
        memory = {
            name: torch.zeros((self.layout.slots, *spec.shape), dtype=spec.dtype, device=self.device)
            for name, spec in ours.items()
        }
        buffers = {CHECKPOINT: checkpoint, **memory}
        self.layout.check(buffers, self.device)
        return buffers

    def _refresh(self, slots: Tensor) -> None:
        """Make read copies of the checkpoints as they are now; the checkpoints keep their bits."""
        if self.layout.precision.read_copy is None:
            return
        for state in filter(None, self._states):
            for part in slots.split(REFRESHED_TOGETHER):
                stored = state.layer.buffers[CHECKPOINT][part].to(self.layout.compute_dtype)
                state.backend.store(state.layer, part, stored, torch.zeros_like(part, dtype=torch.int32))


def scratch_bytes(layout: StateLayout) -> int:
    """Bytes of one slot in one layer beside the checkpoint."""
    return sum(spec.slot_bytes for spec in layout.buffers if spec.name != CHECKPOINT)
