"""`ReplayState`: one layer's state-space memory for many sequences, and everything one does with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from replayssm import checks
from replayssm.backends import load_backend
from replayssm.backends.base import WritesOutputs
from replayssm.capability import CAPABILITIES, DRAFT, STANDARD, TREE, choose_backend, supports
from replayssm.capture import capturing
from replayssm.checks import SlotsLike
from replayssm.counts import SlotCounts
from replayssm.cursors import PAD_SLOT, Cursors, StepPlan
from replayssm.errors import InputError, StepError, UnsupportedError
from replayssm.inputs import TokenInputs
from replayssm.layer import LayerState
from replayssm.layout import Buffers, StateLayout
from replayssm.recurrence import LayerKind
from replayssm.schedule import FlushPolicy
from replayssm.stats import SlotStats, slot_stats
from replayssm.tree import check_path, check_prefix

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
        check_inputs: whether values are checked (finite, in range, no slot twice), for which the host waits for the
            device; never while a CUDA graph is captured. Shapes and dtypes always are, and integers too where the
            backend reads them on the host anyway.
        seed: Philox seed of stochastic rounding.
        meter: counts flushes, drafts and state bytes when given.
        stats: whether `stats` can be asked for; then each step counts, on the device, what it did to its slots.

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
        stats: bool = False,
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
        if meter is not None:
            meter.place(device)
        self.backend = load_backend(name)
        memory = layout.allocate(device) if buffers is None else buffers
        seeds = torch.tensor([seed], dtype=torch.int64, device=device)
        self.layer = LayerState(layout, memory, _decay_rates(layout, A, device), seeds)
        self.cursors = cursors or self.backend.cursors(
            layout.slots, layout.rows, layout.window, layout.max_draft, flush or FlushPolicy(), device
        )
        self.flush_policy = self.cursors.policy
        if stats and self.cursors.counts is None:
            self.cursors.counts = SlotCounts(layout.slots, device)
        self._open: StepPlan | None = None

    # Writing states.

    def reset(self, slots: SlotsLike | None = None) -> None:
        """Zero state and empty ring for `slots` (all of them when None)."""
        index = self._slots(slots)
        zero = torch.zeros(1, *self.layout.recurrence.state_shape, device=self.device)
        self._install(index, zero.expand(len(index), -1, -1, -1), 0)

    def load(self, slots: SlotsLike, state: Tensor, position: Tensor | Sequence[int] | int = 0) -> None:
        """Start `slots [n]` from a prefill's final state: checkpoint and read copy written, ring empty.

        Args:
            state: `[n, H, V, K]`, any float dtype.
            position: tokens that the state has seen, for flushes at prefix-cache boundaries.
        """
        index = self._slots(slots)
        checks.check_state(self.layout, state, len(index), self.device, self._checks_values)
        self._install(index, state, checks.check_position(position, len(index), self.device, self._checks_integers))

    def adopt(self, slots: SlotsLike, position: Tensor | Sequence[int] | int = 0) -> None:
        """The engine itself wrote the checkpoints of `slots [n]`: take them over, ring empty, read copy made anew.

        Args:
            position: see `load`.
        """
        index = self._slots(slots)
        self.cursors.reset(index, checks.check_position(position, len(index), self.device, self._checks_integers))
        self.refresh(index)

    def refresh(self, slots: SlotsLike) -> None:
        """Make the read copies of `slots [n]` from their checkpoints; nothing to do where the precision has none."""
        if self.layout.precision.read_copy is None:
            return
        index = self._slots(slots)
        none = torch.zeros_like(index, dtype=torch.int32)
        state = self.backend.fold(self.layer, index, none, none)
        self.backend.store(self.layer, index, state, none)

    def copy(self, source: SlotsLike, target: SlotsLike) -> None:
        """Clone slots bit for bit: state, ring and cursors. Drafts that await acceptance stay with the source.

        All sources are read before a target is written, so a beam search may permute its slots in one call.
        """
        src, dst = self._pair(source, target)
        self.backend.copy(self.layer, src, dst)
        self.cursors.copy(src, dst)

    def select(self, slots: SlotsLike, cursors: Cursors | None = None) -> ReplayState:
        """A state of its own that holds `slots [n]`, which may repeat, as slots 0 … n − 1, bit for bit.

        Drafts that await acceptance stay with the source.

        Args:
            cursors: those of another layer's selection of the same slots, to be shared; made when None.
        """
        index = self._sources(slots, "slots")
        selected = ReplayState(
            replace(self.layout, slots=len(index)),
            A=self.layer.A,
            backend=self.backend.name,
            device=self.device,
            buffers={name: buffer[index] for name, buffer in self.layer.buffers.items()},
            cursors=cursors or self.cursors.select(index),
            check_inputs=self.check_inputs,
            meter=self.meter,
        )
        selected.layer.seed.copy_(self.layer.seed)
        return selected

    def materialise(
        self, source: SlotsLike, target: SlotsLike, count: Tensor | Sequence[int] | int | None = None
    ) -> None:
        """Fold the first `count` committed records of `source` into `target`; the source stays as it is.

        Args:
            source: `[n]`; a slot may serve several targets.
            target: `[n]`, none of them another row's source.
            count: `[n]`, None for all committed records. The target starts with an empty ring at that token.
        """
        src, dst = self._pair(source, target)
        if self._checks_integers:
            checks.check_targets(src, dst)
        taken = self._counts(src, count)
        origin, first = self.cursors.read("origin", src), torch.zeros_like(taken)
        self.backend.fold_into(self.layer, src, dst, origin, taken, first)
        position = self.cursors.read("position", src) - self.cursors.read("committed", src) + taken
        self.cursors.reset(dst, position)

    def state(self, slots: SlotsLike | None = None, count: Tensor | Sequence[int] | int | None = None) -> Tensor:
        """State after the first `count` committed records (all when None): `[n, H, V, K]` fp32 (fp64 for fp64 rings)."""
        index = self._slots(slots)
        return self.backend.fold(self.layer, index, self.cursors.read("origin", index), self._counts(index, count))

    def stats(self, slot: int) -> SlotStats:
        """What the steps of one slot did since its state was written, and how far its read copy is off; the host waits.

        Raises:
            StepError: the state was made without `stats=True`.
            InputError: no such slot.
        """
        if self.cursors.counts is None:
            raise StepError("statistics were not counted; make the state with ReplayState(..., stats=True)")
        index = checks.check_slots(self.layout, [slot], self.device, name="slot", values=True)
        return slot_stats(self.layer, self.cursors.counts, int(index[0]))

    # The step protocol.

    def decode(self, inputs: TokenInputs, slots: SlotsLike) -> Tensor:
        """One token a row, accepted at once: inputs with T = 1 → outputs `[B, 1, H, V]` in the dtype of v."""
        checks.check_inputs(self.layout, inputs, self.device)
        if inputs.draft != 1:
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
        values = self._checks_integers
        checks.check_inputs(self.layout, inputs, self.device)
        index = checks.check_slots(self.layout, slots, self.device, padding=True, values=values)
        if len(index) != inputs.batch:
            raise InputError(f"slots has {len(index)} entries for B={inputs.batch} rows of inputs")
        length = checks.check_lengths(self.layout, lengths, inputs, index, values)
        tree = None if parents is None else checks.check_parents(parents, inputs, index, values)
        self._require(TREE if parents is not None else DRAFT if inputs.draft > 1 else STANDARD)
        drain = checks.check_drain(drain, inputs.batch, self.device)
        return self.cursors.plan(index, length, inputs.draft, drain, tree)

    def run(self, plan: StepPlan, inputs: TokenInputs, out: Tensor | None = None) -> Tensor:
        """Execute a planned step on this layer's buffers.

        Args:
            out: `[B, T, H, V]`, contiguous, that takes the outputs and is returned; made when None.

        Raises:
            InputError: the inputs are not of the plan's rows and tokens, or of another layout, or not finite; or `out`
                is not of their shape, or not contiguous.
            StepError: the plan is stale or of other cursors.
        """
        self.cursors.check_plan(plan)
        checks.check_inputs(self.layout, inputs, self.device)
        if (inputs.batch, inputs.draft) != (plan.batch, plan.draft):
            theirs, ours = (inputs.batch, inputs.draft), (plan.batch, plan.draft)
            raise InputError(f"inputs have (B, T) = {theirs}; the plan is of {ours}")
        checks.check_output(out, inputs, self.device)
        return self._execute(plan, inputs, out)

    @torch.no_grad()
    def _execute(self, plan: StepPlan, inputs: TokenInputs, out: Tensor | None = None) -> Tensor:
        """A step whose plan and shapes are checked: values, then the backend."""
        if self._checks_values:
            checks.check_finite(self.layout, inputs, plan)
            checks.check_decay(self.layout, inputs, plan)
        if self.meter is not None:
            self.meter.record(self.layout, plan)
        if out is None:
            return self.backend.step(self.layer, plan, inputs)
        if isinstance(self.backend, WritesOutputs):
            self.backend.step_into(self.layer, plan, inputs, out)
            return out
        return out.copy_(self.backend.step(self.layer, plan, inputs))

    def settle(self, plan: StepPlan) -> None:
        """Move the cursors past what the step folded; once per step for all layers that share them.

        Raises:
            StepError: the plan is stale (settled before, for one) or of other cursors.
        """
        self.cursors.check_plan(plan)
        self.cursors.settle(plan)
        self._open = plan

    def commit(self, accepted: Tensor | Sequence[int] | int, plan: StepPlan | None = None) -> None:
        """Accept the first `accepted [B]` new tokens of each row of a step (the bonus token included).

        A second commit of the same step finds nothing pending and changes nothing.

        Args:
            accepted: `[B]`, or one number for all rows; what padded rows hold is ignored.
            plan: the step, when it is not the last one that this state settled (a replayed graph, for one).

        Raises:
            StepError: no step has run, or the plan is of other cursors.
            InputError: more tokens than the row drafted, or after a tree step tokens that are not a path of the tree.
        """
        plan = plan or self._last_step("commit")
        self.cursors.check_owner(plan)
        taken = checks.check_counts("accepted", accepted, plan.slots.shape, self.device)
        if self._checks_values:
            real = plan.without_padding()
            checks.check_range("accepted", taken[real.rows], real.lengths, "the row's new tokens")
            check_prefix(taken[real.rows], real.ancestors, real.lengths)
        self._commit(plan, taken)

    def commit_path(self, path: Tensor | Sequence[Sequence[int]], plan: StepPlan | None = None) -> None:
        """Accept one path of each row's draft tree: `[B, P]` token numbers from the history down, −1 for padding.

        The other layers that share the cursors need `compact` before.

        Raises:
            StepError: no tree step awaits a commit, or the plan is of other cursors.
            InputError: a path that is not in the tree.
        """
        plan = plan or self._last_step("commit_path")
        tokens = self._compact(plan, path)
        self._commit(plan, (tokens >= 0).sum(-1))

    def compact(self, plan: StepPlan, path: Tensor | Sequence[Sequence[int]]) -> None:
        """Move the records of an accepted path to where a chain's would be: `commit_path` without the cursors.

        For each further layer of a model; before `commit_path`, which ends the step for all of them.
        """
        self._compact(plan, path)

    def flush(self, slots: SlotsLike | None = None) -> None:
        """Fold all committed records of `slots` now (drain before a transfer, an offload or a preemption).

        Pending drafts are dropped, as by a commit of 0.
        """
        plan = self.plan_flush(slots)
        self.fold(plan)
        self.cursors.settle(plan)

    def plan_flush(self, slots: SlotsLike | None = None) -> StepPlan:
        """A step without tokens that folds all committed records of `slots`; changes nothing (see `fold`)."""
        index = self._slots(slots)
        none = torch.zeros_like(index)
        return self.cursors.plan(index, none, 0, torch.ones_like(index, dtype=torch.bool))

    def fold(self, plan: StepPlan) -> None:
        """Fold this layer's records as planned by `plan_flush`; the cursors stay.

        Raises:
            StepError: the plan is stale or of other cursors.
        """
        self.cursors.check_plan(plan)
        target = torch.where(plan.flush, plan.slots, PAD_SLOT)
        self.backend.fold_into(self.layer, plan.slots, target, plan.origin, plan.committed, plan.flushes)

    def _compact(self, plan: StepPlan, path: Tensor | Sequence[Sequence[int]]) -> Tensor:
        self.cursors.check_owner(plan)
        if plan.ancestors is None:
            raise StepError("commit_path needs a step with parents; use commit for a chain of drafts")
        tokens = checks.integers("path", path, self.device)
        if tokens.dim() != 2 or len(tokens) != plan.batch:
            raise InputError(f"path must be [{plan.batch}, P] integers, got shape {tuple(tokens.shape)}")
        if self._checks_integers:
            real = plan.without_padding()
            assert real.ancestors is not None
            check_path(tokens[real.rows], real.ancestors, real.lengths)
        # Rows committed, flushed or reset since have nothing pending: moving their records would tear them.
        slots = torch.where(self.cursors.read("pending", plan.slots) > 0, plan.slots, PAD_SLOT)
        self.backend.compact(self.layer, slots, plan.origin + plan.committed, tokens)
        return tokens

    def _commit(self, plan: StepPlan, taken: Tensor) -> None:
        if self.meter is not None:
            self.meter.record_commit(self.cursors.read("pending", plan.slots), taken)
        self.cursors.commit(plan.slots, taken)

    @torch.no_grad()
    def _install(self, slots: Tensor, state: Tensor, position: Tensor | int) -> None:
        state = state.to(self.device, torch.float64 if state.dtype == torch.float64 else torch.float32)
        self.backend.store(self.layer, slots, state, torch.zeros_like(slots, dtype=torch.int32))
        self.cursors.reset(slots, position)

    def _slots(self, slots: SlotsLike | None, name: str = "slots") -> Tensor:
        if slots is None:
            return torch.arange(self.layout.slots, device=self.device)
        values = self._checks_integers
        index = checks.check_slots(self.layout, slots, self.device, name=name, values=values).long()
        return index if values else self._in_range(index)

    def _sources(self, slots: SlotsLike, name: str) -> Tensor:
        """Slots that may repeat."""
        values = self._checks_integers
        index = checks.integers(name, slots, self.device).long()
        index = index[None] if index.dim() == 0 else index
        distinct = index.unique(dim=0) if values else index
        checks.check_slots(self.layout, distinct, self.device, name=name, values=values)
        return index if values else self._in_range(index)

    def _pair(self, source: SlotsLike, target: SlotsLike) -> tuple[Tensor, Tensor]:
        src, dst = self._sources(source, "source"), self._slots(target, "target")
        if len(src) != len(dst):
            raise InputError(f"source has {len(src)} slots and target {len(dst)}; expected as many")
        return src, dst

    def _in_range(self, slots: Tensor) -> Tensor:
        """Slots that no host looked at: those out of range are padding."""
        return torch.where((slots >= 0) & (slots < self.layout.slots), slots, PAD_SLOT)

    def _counts(self, slots: Tensor, count: Tensor | Sequence[int] | int | None) -> Tensor:
        committed = self.cursors.read("committed", slots)
        if count is None:
            return committed
        counts = checks.check_counts("count", count, committed.shape, self.device)
        if self._checks_integers:
            checks.check_range("count", counts, committed, "the slot's committed records")
        return torch.minimum(counts.clamp(min=0), committed).to(torch.int32)

    @property
    def _checks_values(self) -> bool:
        return not self._is_captured() and self.check_inputs

    @property
    def _checks_integers(self) -> bool:
        return not self._is_captured() and (self.check_inputs or not CAPABILITIES[self.backend.name].graph_capture)

    def _is_captured(self) -> bool:
        if not capturing(self.device):
            return False
        if not CAPABILITIES[self.backend.name].graph_capture:
            raise UnsupportedError(
                f"backend {self.backend.name!r} waits for the device; a CUDA graph cannot capture it"
            )
        return True

    def _require(self, mode: str) -> None:
        ok, reason = supports(self.backend.name, self.layout, self.device, mode)
        if not ok:
            raise UnsupportedError(reason)

    def _last_step(self, call: str) -> StepPlan:
        if self._open is None:
            raise StepError(f"{call} before any step; call verify (or decode) first")
        return self._open


def _decay_rates(layout: StateLayout, A: Tensor | None, device: torch.device) -> Tensor | None:
    recurrence = layout.recurrence
    if recurrence.kind is not LayerKind.MAMBA2:
        if A is not None:
            raise InputError(f"A is given, but {recurrence.kind} has its decay in the gates; leave it out")
        return None
    if A is None:
        raise InputError(f"A is missing: Mamba-2 needs its decay rates [{recurrence.heads}], all below 0")
    if not isinstance(A, Tensor) or tuple(A.shape) != (recurrence.heads,) or not A.is_floating_point():
        raise InputError(f"A must be a float tensor [{recurrence.heads}], got {checks.describe(A)}")
    if bool((A >= 0).any()) or not bool(torch.isfinite(A).all()):
        raise InputError(f"A must be finite and below 0, got {A.tolist()}")
    return A.detach().to(device, torch.float64 if A.dtype == torch.float64 else torch.float32)
