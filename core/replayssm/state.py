"""`ReplayState`: one layer's state-space memory for many sequences, and everything one does with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from replayssm import checks
from replayssm.backends import load_backend
from replayssm.capability import DRAFT, STANDARD, TREE, choose_backend, supports
from replayssm.checks import SlotsLike
from replayssm.cursors import PAD_SLOT, Cursors, StepPlan
from replayssm.errors import InputError, StepError, UnsupportedError
from replayssm.inputs import TokenInputs
from replayssm.layer import LayerState
from replayssm.layout import Buffers, StateLayout
from replayssm.recurrence import LayerKind
from replayssm.schedule import FlushPolicy
from replayssm.tree import ancestor_mask, check_path, check_prefix

if TYPE_CHECKING:
    from replayssm.traffic import TrafficMeter


class ReplayState:
    """Checkpoint, read copy, rings and cursors of one layer.

    Args:
        layout: geometry, window, precision, slots.
        A: `[H]` negative decay rates; Mamba-2 only, and required there.
        backend: "auto", "torch", "naive" or "triton".
        flush: schedule of the flushes.
        device: where the buffers live.
        buffers: an engine's own memory (see `StateLayout.check`); allocated when None.
        cursors: cursors shared with the other layers of a model; made when None. Their owner plans and settles.
        check_inputs: whether values are checked (finite, in range); shapes and dtypes always are.
        seed: Philox seed of stochastic rounding.
        meter: counts flushes, drafts and state bytes when given.

    Raises:
        InputError: buffers or A do not match the layout.
        UnsupportedError: the backend does not serve this layout on this device.
    """

    def __init__(
        self,
        layout: StateLayout,
        *,
        A: Tensor | None = None,
        backend: str = "auto",
        flush: FlushPolicy | None = None,
        device: torch.device | str = "cpu",
        buffers: Buffers | None = None,
        cursors: Cursors | None = None,
        check_inputs: bool = True,
        seed: int = 0,
        meter: TrafficMeter | None = None,
    ) -> None:
        if not isinstance(layout, StateLayout):
            raise InputError(f"layout={layout!r} must be a StateLayout")
        if flush is not None and not isinstance(flush, FlushPolicy):
            raise InputError(f"flush={flush!r} must be a FlushPolicy, such as FlushPolicy.staggered()")
        if not isinstance(seed, int) or not 0 <= seed < 2**63:
            raise InputError(f"seed={seed!r} must be an integer from 0 to 2^63 − 1")
        device = torch.device(device)
        name = choose_backend(layout, device) if backend == "auto" else backend
        ok, reason = supports(name, layout, device)
        if not ok:
            raise UnsupportedError(reason)
        if buffers is not None:
            layout.check(buffers, device)
        if cursors is not None:
            cursors.check(layout.slots, layout.rows, layout.window, layout.max_draft)
            if flush is not None and flush != cursors.policy:
                raise InputError(f"flush={flush} differs from the shared cursors' {cursors.policy}; leave it out")
        self.layout, self.device, self.check_inputs, self.meter = layout, device, check_inputs, meter
        self.backend = load_backend(name)
        self.flush_policy = flush or FlushPolicy()
        memory = layout.allocate(device) if buffers is None else buffers
        seeds = torch.tensor([seed], dtype=torch.int64, device=device)
        self.layer = LayerState(layout, memory, _decay_rates(layout, A, device), seeds)
        self.cursors = cursors or Cursors(
            layout.slots, layout.rows, layout.window, layout.max_draft, self.flush_policy, device
        )
        self._open: StepPlan | None = None

    # Writing states.

    def reset(self, slots: SlotsLike | None = None) -> None:
        """Zero state and empty ring for `slots` (all of them when None)."""
        index = self._slots(slots)
        geometry = self.layout.recurrence
        self._install(index, torch.zeros(len(index), *geometry.state_shape, device=self.device), 0)

    def load(self, slots: SlotsLike, state: Tensor, position: Tensor | Sequence[int] | int = 0) -> None:
        """Start `slots [n]` from a prefill's final state: checkpoint and read copy written, ring empty.

        Args:
            state: `[n, H, V, K]`, any float dtype.
            position: tokens that the state has seen, for flushes at prefix-cache boundaries.
        """
        index = self._slots(slots)
        checks.check_state(self.layout, state, len(index), self.check_inputs)
        self._install(index, state, checks.check_position(position, len(index), self.device))

    def copy(self, source: SlotsLike, target: SlotsLike) -> None:
        """Clone slots bit for bit: state, ring and cursors. Drafts that await acceptance stay with the source."""
        src, dst = self._pair(source, target)
        for buffer in self.layer.buffers.values():
            buffer[dst] = buffer[src]
        self.cursors.copy(src, dst)

    def materialise(
        self, source: SlotsLike, target: SlotsLike, count: Tensor | Sequence[int] | int | None = None
    ) -> None:
        """Fold the first `count` committed records of `source` into `target`; the source stays as it is.

        Args:
            count: `[n]`, None for all committed records. The target starts with an empty ring at that token.
        """
        src, dst = self._pair(source, target)
        taken = self._counts(src, count)
        state = self.backend.fold(self.layer, src, self.cursors.origin[src], taken)
        position = self.cursors.position[src] - self.cursors.committed[src] + taken
        self._install(dst, state, position)

    def state(self, slots: SlotsLike | None = None, count: Tensor | Sequence[int] | int | None = None) -> Tensor:
        """State after the first `count` committed records (all when None): `[n, H, V, K]` fp32 (fp64 for fp64 rings)."""
        index = self._slots(slots)
        return self.backend.fold(self.layer, index, self.cursors.origin[index], self._counts(index, count))

    # The step protocol.

    def decode(self, inputs: TokenInputs, slots: SlotsLike) -> Tensor:
        """One token a row, accepted at once: inputs with T = 1 → outputs `[B, 1, H, V]` in the dtype of v."""
        if inputs.v.dim() == 4 and inputs.draft != 1:
            raise InputError(f"decode takes T=1 token a row, got T={inputs.draft}; use verify for drafts")
        out = self.verify(inputs, slots)
        self.commit(1)
        return out

    def verify(
        self,
        inputs: TokenInputs,
        slots: SlotsLike,
        lengths: Tensor | Sequence[int] | None = None,
        parents: Tensor | Sequence[Sequence[int]] | None = None,
        drain: Tensor | Sequence[bool] | None = None,
    ) -> Tensor:
        """Append T new tokens a row and return their outputs; `commit` then says how many count.

        Args:
            inputs: `[B, T, …]`, T at most the layout's `max_draft`.
            slots: `[B]`, −1 for padded rows, which are ignored.
            lengths: `[B]` tokens of each row, T when None.
            parents: `[B, T]` draft tree, a chain when None.
            drain: `[B]` bool, rows that must fold their committed records now.

        Returns:
            `[B, T, H, V]`; zeros in padded rows and past a row's length.
        """
        plan = self.plan(inputs, slots, lengths, parents, drain)
        out = self._execute(plan, inputs)
        self.settle(plan)
        return out

    def plan(
        self,
        inputs: TokenInputs,
        slots: SlotsLike,
        lengths: Tensor | Sequence[int] | None = None,
        parents: Tensor | Sequence[Sequence[int]] | None = None,
        drain: Tensor | Sequence[bool] | None = None,
    ) -> StepPlan:
        """Check a step and decide it; changes nothing. For engines whose layers share cursors."""
        checks.check_inputs(self.layout, inputs, self.device)
        index = checks.check_slots(self.layout, slots, self.device, padding=True)
        if len(index) != inputs.batch:
            raise InputError(f"slots has {len(index)} entries for B={inputs.batch} rows of inputs")
        real = index != PAD_SLOT
        length = checks.check_lengths(self.layout, lengths, inputs, real)
        ancestors = None if parents is None else ancestor_mask(checks.check_parents(parents, inputs, real))
        self._require(TREE if parents is not None else DRAFT if inputs.draft > 1 else STANDARD)
        rows = real.nonzero()[:, 0]
        drain = checks.check_drain(drain, inputs.batch, self.device)
        draining = None if drain is None else drain[rows]
        chosen = None if ancestors is None else ancestors[rows]
        return self.cursors.plan(rows, index[rows], length[rows], inputs.batch, inputs.draft, draining, chosen)

    def run(self, plan: StepPlan, inputs: TokenInputs) -> Tensor:
        """Execute a planned step on this layer's buffers.

        Raises:
            InputError: the inputs are not of the plan's rows and tokens, or of another layout, or not finite.
            StepError: the plan is stale or of other cursors.
        """
        self.cursors.check_plan(plan)
        checks.check_inputs(self.layout, inputs, self.device)
        if (inputs.batch, inputs.draft) != (plan.batch, plan.draft):
            theirs, ours = (inputs.batch, inputs.draft), (plan.batch, plan.draft)
            raise InputError(f"inputs have (B, T) = {theirs}; the plan is of {ours}")
        return self._execute(plan, inputs)

    @torch.no_grad()
    def _execute(self, plan: StepPlan, inputs: TokenInputs) -> Tensor:
        """A step whose plan and shapes are checked: values, then the backend."""
        if self.check_inputs:
            checks.check_finite(self.layout, inputs, plan)
            checks.check_decay(self.layout, inputs, plan)
        if self.meter is not None:
            self.meter.record(self.layout, plan)
        return self.backend.step(self.layer, plan, inputs)

    def settle(self, plan: StepPlan) -> None:
        """Move the cursors past what the step folded; once per step for all layers that share them.

        Raises:
            StepError: the plan is stale (settled before, for one) or of other cursors.
        """
        self.cursors.check_plan(plan)
        self.cursors.settle(plan)
        self._open = plan

    def commit(self, accepted: Tensor | Sequence[int] | int) -> None:
        """Accept the first `accepted [B]` new tokens of each row of the last step (the bonus token included).

        A second commit of the same step finds nothing pending and changes nothing.

        Raises:
            StepError: no step has run.
            InputError: more tokens than the row drafted, or after a tree step tokens that are not a path of the tree.
        """
        plan = self._last_step("commit")
        taken = _per_row(plan, accepted, "accepted")
        if self.check_inputs:
            taken = checks.check_counts("accepted", taken, plan.lengths, "the row's new tokens")
            check_prefix(taken, plan.ancestors, plan.lengths)
        if self.meter is not None:
            self.meter.record_commit(self.cursors.pending[plan.slots], taken)
        self.cursors.commit(plan.slots, taken)

    def commit_path(self, path: Tensor | Sequence[Sequence[int]]) -> None:
        """Accept one path of each row's draft tree: `[B, P]` token numbers from the history down, −1 for padding.

        Raises:
            StepError: no tree step awaits a commit.
            InputError: a path that is not in the tree.
        """
        plan = self._last_step("commit_path")
        if plan.ancestors is None:
            raise StepError("commit_path needs a step with parents; use commit for a chain of drafts")
        tokens = checks.integers("path", path, self.device)
        if tokens.dim() != 2 or len(tokens) != plan.batch:
            raise InputError(f"path must be [{plan.batch}, P] integers, got shape {tuple(tokens.shape)}")
        tokens = tokens[plan.rows]
        taken = check_path(tokens, plan.ancestors, plan.lengths)
        # Rows committed, flushed or reset since have nothing pending: moving their records would tear them.
        open_rows = (self.cursors.pending[plan.slots] > 0).nonzero()[:, 0]
        slots, tokens, taken = plan.slots[open_rows], tokens[open_rows], taken[open_rows]
        first = self.cursors.origin[slots] + self.cursors.committed[slots]
        self.backend.compact(self.layer, slots, first, tokens)
        if self.meter is not None:
            self.meter.record_commit(self.cursors.pending[slots], taken)
        self.cursors.commit(slots, taken)

    def flush(self, slots: SlotsLike | None = None) -> None:
        """Fold all committed records of `slots` now (drain before a transfer, an offload or a preemption).

        Pending drafts are dropped, as by a commit of 0.
        """
        index = self._slots(slots)
        cursors = self.cursors
        cursors.pending[index] = 0
        index = index[cursors.committed[index] > 0]
        if not len(index):
            return
        none = torch.zeros_like(cursors.pending[index])
        drain = torch.ones(len(index), dtype=torch.bool, device=self.device)
        plan = cursors.plan(torch.arange(len(index), device=self.device), index, none, len(index), 0, drain)
        state = self.backend.fold(self.layer, index, plan.origin, plan.committed)
        self.backend.store(self.layer, index, state, plan.flushes)
        cursors.settle(plan)

    @torch.no_grad()
    def _install(self, slots: Tensor, state: Tensor, position: Tensor | int) -> None:
        state = state.to(self.device, torch.float64 if state.dtype == torch.float64 else torch.float32)
        # The first write of a slot's life counts as number 0; flushes that follow count from 1.
        zeros = torch.zeros(len(slots), dtype=torch.int32, device=self.device)
        self.backend.store(self.layer, slots, state, zeros)
        self.cursors.reset(slots, position)
        self.cursors.flushes[slots] = 1

    def _slots(self, slots: SlotsLike | None, name: str = "slots") -> Tensor:
        if slots is None:
            return torch.arange(self.layout.slots, device=self.device)
        return checks.check_slots(self.layout, slots, self.device, name=name)

    def _pair(self, source: SlotsLike, target: SlotsLike) -> tuple[Tensor, Tensor]:
        src = checks.integers("source", source, self.device)
        src = src[None] if src.dim() == 0 else src
        # A source may serve several targets, so only its shape and range are checked.
        checks.check_slots(self.layout, src.unique(dim=0), self.device, name="source")
        dst = self._slots(target, "target")
        if len(src) != len(dst):
            raise InputError(f"source has {len(src)} slots and target {len(dst)}; expected as many")
        return src, dst

    def _counts(self, slots: Tensor, count: Tensor | Sequence[int] | int | None) -> Tensor:
        committed = self.cursors.committed[slots]
        if count is None:
            return committed
        return checks.check_counts("count", count, committed, "the slot's committed records")

    def _require(self, mode: str) -> None:
        ok, reason = supports(self.backend.name, self.layout, self.device, mode)
        if not ok:
            raise UnsupportedError(reason)

    def _last_step(self, call: str) -> StepPlan:
        if self._open is None:
            raise StepError(f"{call} before any step; call verify (or decode) first")
        return self._open


def _per_row(plan: StepPlan, counts: Tensor | Sequence[int] | int, name: str) -> Tensor:
    """Counts of the batch `[B]` (or one for all) → those of the plan's rows, `[n]`."""
    tensor = checks.integers(name, counts, plan.slots.device)
    if tensor.dim() == 0:
        return tensor.expand(len(plan.rows))
    if tensor.shape != (plan.batch,):
        raise InputError(f"{name} must be one integer or [{plan.batch}], got shape {tuple(tensor.shape)}")
    return tensor[plan.rows]


def _decay_rates(layout: StateLayout, A: Tensor | None, device: torch.device) -> Tensor | None:
    recurrence = layout.recurrence
    if recurrence.kind is not LayerKind.MAMBA2:
        if A is not None:
            raise InputError(f"A is given, but {recurrence.kind} has its decay in the gates; leave it out")
        return None
    if A is None:
        raise InputError(f"A is missing: Mamba-2 needs its decay rates [{recurrence.heads}], all below 0")
    if tuple(A.shape) != (recurrence.heads,) or bool((A >= 0).any()) or not bool(torch.isfinite(A).all()):
        raise InputError(
            f"A must be [{recurrence.heads}] finite and below 0, got shape {tuple(A.shape)}, max {A.max():.3g}"
        )
    return A.detach().to(device, torch.float64 if A.dtype == torch.float64 else torch.float32)
