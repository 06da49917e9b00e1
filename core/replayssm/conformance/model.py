"""The simple model that subjects are judged by: per slot a list of float64 states, one after another, and plain integers.

No ring, no window algebra. It rounds a state where the layout says that one is stored (with the core's formats, which have
tests of their own), so that every preset can be followed closely and not only within its drift.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from replayssm.formats import MatrixFormat
from replayssm.inputs import TokenInputs
from replayssm.layout import StateLayout
from replayssm.philox import uniform
from replayssm.reference.recurrence import Token, read, token_at, write
from replayssm.schedule import FlushPolicy, first_limits


@dataclass(frozen=True)
class Record:
    """A new token, the correction u that its step computed, and its parent among the step's tokens (−1: the history)."""

    token: Token
    u: Tensor
    parent: int


class Expected(NamedTuple):
    """Outputs of a step `[B, T, H, V]` float64, and beside each the sum of its terms' magnitudes, Σ_k |S_vk q_k|."""

    out: Tensor
    magnitude: Tensor


@dataclass(frozen=True)
class SlotModel:
    """One slot. Replaced as a whole at every change, so a copy is an assignment.

    Attributes:
        states: `[1, H, V, K]` each: the checkpoint, then the state after each committed record.
        seen: what a non-flush step reads, after the committed records.
        limit: records that the window may hold.
        position: tokens in the state.
        flushes: states stored since the slot was loaded.
        pending: new tokens of the last step.
    """

    states: list[Tensor]
    seen: Tensor
    limit: int
    position: int
    flushes: int
    pending: list[Record] = field(default_factory=list)

    @property
    def committed(self) -> int:
        """Records since the checkpoint."""
        return len(self.states) - 1


class Model:
    """All slots of one layer.

    Args:
        layout: as the subject's.
        A: as the subject's.
        policy: as the subject's.
        seed: as the subject's.
        row: the number that a slot has inside the subject.
        device: where the model computes.
    """

    def __init__(
        self,
        layout: StateLayout,
        A: Tensor | None,
        policy: FlushPolicy,
        seed: int = 0,
        row: Callable[[int], int] = int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.layout, self.policy, self.row, self.device = layout, policy, row, torch.device(device)
        self.A = None if A is None else A.to(self.device)
        self.seed = torch.tensor([seed], device=self.device)
        self.slots: dict[int, SlotModel] = {}

    def load(self, slot: int, state: Tensor, position: int = 0) -> None:
        """A state `[H, V, K]` was written to a slot."""
        checkpoint, seen = self._store(slot, state.to(self.device)[None], 0)
        rows = torch.tensor([self.row(slot)])
        limit = int(first_limits(self.policy, self.layout.window, self.layout.max_draft, rows)[0])
        self.slots[slot] = SlotModel([checkpoint], seen, limit, position, 1)

    def copy(self, source: int, target: int) -> None:
        """Clone a slot."""
        self.slots[target] = self.slots[source]

    def materialise(self, source: int, target: int, count: int) -> None:
        """The state after `count` records, as a fresh slot."""
        slot = self.slots[source]
        self.load(target, slot.states[count][0], slot.position - slot.committed + count)

    def flush(self, number: int) -> None:
        """Fold all committed records; pending tokens are dropped."""
        slot = replace(self.slots[number], pending=[])
        self.slots[number] = self._folded(number, slot) if slot.committed else slot

    def decide(self, slots: list[int], lengths: list[int], drain: list[bool]) -> list[bool]:
        """Which rows flush in a step."""
        forced = list(drain)
        early = []
        for i, number in enumerate(slots):
            slot = self.slots[number]
            if self.policy.boundary is not None and slot.position % self.policy.boundary == 0:
                forced[i] = True
            fits = slot.committed + lengths[i] <= self.layout.window
            if fits and slot.committed >= self.policy.early * self.layout.window:
                early.append((-slot.committed, i))
        if self.policy.budget is not None:
            for _, i in sorted(early)[: self.policy.budget]:
                forced[i] = True
        rows = [self.slots[number] for number in slots]
        return [
            s.committed > 0 and (f or s.committed + n > s.limit) for s, f, n in zip(rows, forced, lengths, strict=True)
        ]

    def step(
        self,
        inputs: TokenInputs,
        slots: list[int],
        lengths: list[int],
        parents: list[list[int]] | None,
        drain: list[bool],
    ) -> Expected:
        """Outputs, zero where there is no token; slot −1 is padding."""
        rows = [i for i, slot in enumerate(slots) if slot >= 0]
        flush = self.decide([slots[i] for i in rows], [lengths[i] for i in rows], [drain[i] for i in rows])
        geometry = self.layout.recurrence
        shape = (inputs.batch, inputs.draft, geometry.heads, geometry.value_dim)
        expected = Expected(torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64))
        for i, folds in zip(rows, flush, strict=True):
            chain = list(range(-1, inputs.draft - 1)) if parents is None else parents[i]
            row = self._row(inputs, i, slots[i], chain[: lengths[i]], folds)
            for whole, part in zip(expected, row, strict=True):
                whole[i, : lengths[i]] = part
        return expected

    def commit(self, number: int, path: list[int]) -> None:
        """Accept the tokens `path` of the last step, in order."""
        slot = self.slots[number]
        states, seen = list(slot.states), slot.seen
        for record in (slot.pending[t] for t in path):
            as_written = seen * record.token.decay[:, :, None, :] + _outer(record)
            exact, _ = write(self.layout.recurrence, states[-1], record.token)
            drifting = states[-1] * record.token.decay[:, :, None, :] + _outer(record)
            states.append(exact if self.layout.precision.exact_fold else drifting)
            seen = as_written
        position = slot.position + len(path)
        self.slots[number] = replace(slot, states=states, seen=seen, position=position, pending=[])

    def state(self, number: int, count: int | None = None) -> Tensor:
        """`[H, V, K]` float64 after `count` records, all when None."""
        states = self.slots[number].states
        return states[-1 if count is None else count][0]

    def _row(self, inputs: TokenInputs, row: int, number: int, parents: list[int], folds: bool) -> Expected:
        recurrence, slot = self.layout.recurrence, self.slots[number]
        # A flush step reads the folded state before it is rounded for storage.
        base = slot.states[-1] if folds else slot.seen
        slot = self._folded(number, slot) if folds else slot
        processed = inputs.process(recurrence, torch.tensor([row], device=inputs.v.device), torch.float64)
        out: list[Tensor] = []
        magnitude: list[Tensor] = []
        states: list[Tensor] = []
        records: list[Record] = []
        for t, parent in enumerate(parents):
            token = Token(
                *(x.to(self.device) for x in token_at(recurrence, processed, t, self._rates(inputs.v.device)))
            )
            state, u = write(recurrence, base if parent < 0 else states[parent], token)
            states.append(state)
            records.append(Record(token, u, parent))
            out.append(read(state, token)[0])
            magnitude.append(read(state.abs(), token._replace(q=token.q.abs()))[0])
        self.slots[number] = replace(slot, pending=records)
        return _finished(inputs, torch.stack(out), torch.stack(magnitude), row)

    def _folded(self, number: int, slot: SlotModel) -> SlotModel:
        checkpoint, seen = self._store(number, slot.states[-1], slot.flushes)
        return replace(slot, states=[checkpoint], seen=seen, limit=self.layout.window, flushes=slot.flushes + 1)

    def _store(self, number: int, state: Tensor, flushes: int) -> tuple[Tensor, Tensor]:
        """What is left of a state after storing it: as checkpoint, and as non-flush steps read it."""
        precision, state = self.layout.precision, state.double()
        noise = None
        if precision.stochastic_rounding:
            row, count = (torch.tensor([number], device=self.device) for number in (self.row(number), flushes))
            numbers = uniform(self.seed, row, count, state.numel())
            noise = numbers.reshape(state.shape).double()
        checkpoint = _stored(precision.checkpoint_format, state, noise)
        read_format = precision.read_format
        return checkpoint, checkpoint if read_format is None else _stored(read_format, state, None)

    def _rates(self, device: torch.device) -> Tensor | None:
        return None if self.A is None else self.A.to(device)


def _stored(fmt: MatrixFormat, state: Tensor, noise: Tensor | None) -> Tensor:
    return fmt.decode(fmt.encode(state, noise), torch.float64)


def _outer(record: Record) -> Tensor:
    return record.u[..., :, None] * record.token.k[..., None, :]


def _finished(inputs: TokenInputs, out: Tensor, magnitude: Tensor, row: int) -> Expected:
    """Skip weight and output gate, for the tokens that `out [t, H, V]` holds."""
    count, device = len(out), inputs.v.device
    z = None if inputs.z is None else inputs.z[:, :count]
    short = replace(inputs, v=inputs.v[:, :count], z=z)
    finished = short.finish(out[None].to(device), torch.tensor([row], device=device))[0].to(out.device)
    return Expected(finished, magnitude if z is None else magnitude * F.silu(z[row].double()).abs().to(out.device))
