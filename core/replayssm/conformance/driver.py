"""Drives a subject and the model in lock step, with NaN wherever the subject must not look."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from replayssm.conformance.inputs import LARGEST_DECAY, Source, poison
from replayssm.conformance.memory import Snapshot, bits, snapshot, spoil_dead_rows, spoil_slots
from replayssm.conformance.model import Expected, Model
from replayssm.conformance.subject import Feature, StateOptions, Subject
from replayssm.conformance.tolerances import AMPLIFICATION, Tolerance, tolerance
from replayssm.inputs import TokenInputs
from replayssm.layout import Buffers, StateLayout
from replayssm.schedule import FlushPolicy


class Driver:
    """A subject's state beside the model of it.

    Args:
        subject: what is tested.
        layout: of the state.
        policy: flush policy.
        seed: of inputs and of stochastic rounding.
        raw, extras: see `Source`.
        buffers: memory handed in.
        model_device: where the model computes; a GPU for states of a real model's size.
    """

    def __init__(
        self,
        subject: Subject,
        layout: StateLayout,
        *,
        policy: FlushPolicy | None = None,
        seed: int = 0,
        raw: bool = False,
        extras: bool = False,
        buffers: Buffers | None = None,
        model_device: torch.device | str = "cpu",
    ) -> None:
        self.subject, self.layout = subject, layout
        policy = policy or FlushPolicy()
        self.source = Source(layout.recurrence, layout.activation, subject.device, seed=seed, raw=raw, extras=extras)
        self.state = subject.make(layout, StateOptions(A=self.source.A, flush=policy, seed=seed, buffers=buffers))
        self.model = Model(layout, self.source.A, policy, seed, subject.row, model_device)
        self.visible = Feature.MEMORY in subject.features
        self.steps = 0
        self.decay_sum = LARGEST_DECAY * layout.rows
        self.slots: list[int] = []
        if self.visible:
            spoil_slots(self.state.buffers, torch.arange(layout.slots, device=subject.device))

    def tensor(self, numbers: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
        """Integers on the subject's device."""
        return torch.tensor(numbers, dtype=torch.int64, device=self.subject.device)

    def load(self, slots: list[int], position: int = 0, state: Tensor | None = None) -> Tensor:
        """Start slots from random states (or the given ones), with the ring's origin anywhere."""
        state = self.source.states(len(slots)) if state is None else state
        self.state.load(self.tensor(slots), state, position)
        for slot, matrix in zip(slots, state, strict=True):
            self.model.load(slot, matrix, position)
        if self.visible:
            # An empty ring may begin anywhere: the origin is wherever the last window ended.
            origins = self.source.integers(0, self.layout.rows - 1, (len(slots),)).to(torch.int32)
            self.state.cursors.origin[self.tensor(slots)] = origins.to(self.subject.device)
        return state

    def step(
        self,
        slots: list[int],
        draft: int = 1,
        lengths: list[int] | None = None,
        parents: list[list[int]] | None = None,
        drain: list[bool] | None = None,
        inputs: TokenInputs | None = None,
    ) -> Tensor:
        """One step on both; outputs are compared row by row and the subject's are returned."""
        inputs = self.source.tokens(len(slots), draft) if inputs is None else inputs
        counts = [inputs.draft] * len(slots) if lengths is None else lengths
        live = torch.arange(inputs.draft) < torch.tensor(counts)[:, None]
        live &= torch.tensor(slots)[:, None] >= 0
        inputs = poison(inputs, live.to(inputs.v.device))
        device = self.subject.device
        out = self.state.verify(
            inputs,
            self.tensor(slots),
            None if lengths is None else self.tensor(lengths),
            None if parents is None else self.tensor(parents),
            None if drain is None else torch.tensor(drain, device=device),
        )
        expected = self.model.step(inputs, slots, counts, parents, drain or [False] * len(slots))
        self.steps, self.slots = self.steps + 1, slots
        self._compare_outputs(out, expected, live)
        return out

    def commit(self, accepted: list[int] | int) -> None:
        """Accept so many tokens of each row of the last step."""
        counts = [accepted] * len(self.slots) if isinstance(accepted, int) else accepted
        self.state.commit(self.tensor(counts))
        self.settle([list(range(count)) for count in counts])

    def commit_path(self, paths: list[list[int]]) -> None:
        """Accept a path of each row's tree."""
        depth = max(map(len, paths))
        padded = [path + [-1] * (depth - len(path)) for path in paths]
        self.state.commit_path(self.tensor(padded).reshape(len(paths), depth))
        self.settle(paths)

    def random_step(self, slots: list[int], draft: int | None = None, ragged: bool = True) -> None:
        """A step of random length with random acceptance, 0 included, another in each row."""
        longest = self.layout.max_draft
        draft = int(self.source.integers(1, longest, ())) if draft is None else draft
        ragged = ragged and draft > 1 and Feature.LENGTHS in self.subject.features
        lengths = self.source.integers(1, draft, (len(slots),)).tolist() if ragged else [draft] * len(slots)
        self.step(slots, draft, lengths if ragged else None)
        self.commit([int(self.source.integers(0, length, ())) for length in lengths])

    def check(self, slots: list[int] | None = None) -> None:
        """Compare states and cursors of all (or some) loaded slots."""
        numbers = sorted(self.model.slots) if slots is None else slots
        actual = self.state.state(self.tensor(numbers)).double().cpu()
        for row, slot in zip(actual, numbers, strict=True):
            close(row, self.model.state(slot), self.tolerance.state, f"state of slot {slot}")
        if self.visible:
            for name in ("committed", "position"):
                theirs = getattr(self.state.cursors, name)[self.tensor(numbers)].tolist()
                ours = [getattr(self.model.slots[slot], name) for slot in numbers]
                assert theirs == ours, f"cursor {name} is {theirs}, expected {ours}"

    def evidence(self, slots: list[int]) -> Snapshot:
        """All bits of some slots that the kit may see: buffers and cursors where they are visible, else the states."""
        numbers = self.tensor(slots)
        return snapshot(self.state, numbers) if self.visible else {"state": bits(self.state.state(numbers))}

    @property
    def tolerance(self) -> Tolerance:
        """Bounds after the steps so far."""
        return tolerance(self.layout, self.subject.operand(self.layout.activation), self.steps, self.decay_sum)

    def settle(self, paths: list[list[int]]) -> None:
        """The subject committed these paths: so does the model, and ring rows without a record become NaN."""
        for slot, path in zip(self.slots, paths, strict=True):
            if slot >= 0:
                self.model.commit(slot, path)
        if self.visible:
            spoil_dead_rows(self.layout, self.state.buffers, self.state.cursors)

    def _compare_outputs(self, out: Tensor, expected: Expected, live: Tensor) -> None:
        out, shape = out.double().cpu(), expected.out.shape
        assert out.shape == shape, f"outputs are {tuple(out.shape)}, expected {tuple(shape)}"
        assert bool((out[~live] == 0).all()), "outputs of padding must be zero"
        for row in live.any(-1).nonzero()[:, 0].tolist():
            what = f"outputs of row {row} at step {self.steps}"
            # Where a row's terms cancel by more than the bound allows for, it holds relative to the terms.
            floor = float(expected.magnitude[row].norm()) / AMPLIFICATION
            close(out[row], expected.out[row], self.tolerance.output, what, floor)


def close(actual: Tensor, expected: Tensor, bound: float, what: str, floor: float = 0.0) -> None:
    """Relative error of norms within a bound; NaN is never close."""
    error = relative_error(actual, expected, floor)
    assert error <= bound, f"{what}: relative error {error:.3g} above {bound:.3g}"


def relative_error(actual: Tensor, expected: Tensor, floor: float = 0.0) -> float:
    """‖actual − expected‖ / max(‖expected‖, floor) in float64."""
    actual, expected = actual.detach().double().cpu(), expected.detach().double().cpu()
    return float((actual - expected).norm() / expected.norm().clamp(min=max(floor, 1e-300)))


def finest(subject: Subject) -> torch.dtype:
    """The finest activation dtype that the subject serves."""
    order = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    return next(dtype for dtype in order if dtype in subject.capability.activations)
