"""The ordinary decode that ReplaySSM is compared with: what any implementation of it takes and gives.

Standard decode updates the state in place. With T > 1 tokens the state stays, and a snapshot of it is written after each
token, as engines do for speculation; copying the accepted snapshot back is left out, in favour of the ordinary way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from replayssm.bench.geometry import Geometry
from replayssm.bench.stepping import new_inputs
from replayssm.bench.timing import Machine, round_of
from replayssm.bench.workers import Workers
from replayssm.conformance.driver import relative_error
from replayssm.conformance.tolerances import DTYPES, ROUNDOFF, accumulated
from replayssm.errors import UnsupportedError
from replayssm.inputs import TokenInputs
from replayssm.recurrence import Recurrence
from replayssm.reference.recurrence import run_recurrence

STATE_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_CHECKED_ROWS = 3


@dataclass(frozen=True)
class Kind:
    """What tells ordinary steps apart, but for the batch.

    Attributes:
        geometry: the layer.
        state: format of the state: fp32, bf16 or fp16.
        draft: T.
        activation: dtype of the inputs.
    """

    geometry: Geometry
    state: str
    draft: int
    activation: torch.dtype = torch.bfloat16

    def step(self, batch: int, device: torch.device) -> Ordinary:
        """A step of so many rows with random inputs."""
        inputs, A = new_inputs(self.geometry.recurrence, self.activation, batch, self.draft, device)
        return Ordinary(self.geometry.recurrence, STATE_DTYPES[self.state], inputs, A)


@dataclass(frozen=True)
class Ordinary:
    """One ordinary step.

    Attributes:
        recurrence: the layer.
        state_dtype: of state and snapshots.
        inputs: `[B, T, …]`, raw gates.
        A: `[H]`, Mamba-2 only.
    """

    recurrence: Recurrence
    state_dtype: torch.dtype
    inputs: TokenInputs
    A: Tensor | None

    @property
    def state_bytes(self) -> int:
        """Bytes of all rows' states, without snapshots."""
        heads, value_dim, key_dim = self.recurrence.state_shape
        return self.inputs.batch * heads * value_dim * key_dim * self.state_dtype.itemsize

    def start(self) -> Tensor:
        """A random state `[B, H, V, K]`."""
        shape = (self.inputs.batch, *self.recurrence.state_shape)
        return torch.randn(shape, dtype=torch.float32, device=self.inputs.v.device).to(self.state_dtype)


@dataclass(frozen=True)
class Prepared:
    """A step on memory of its own.

    Attributes:
        run: one step; outputs `[B, T, H, V]`.
        state: the state after the last token, `[B, H, V, K]`.
    """

    run: Callable[[], Tensor]
    state: Callable[[], Tensor]


class Implementation(Protocol):
    """A conventional kernel, ours or an engine's."""

    @property
    def name(self) -> str:
        """Who made it, with a version."""
        ...

    def variants(self, kind: Kind) -> Sequence[str]:
        """Launch configurations or layouts to try; their best counts.

        Raises:
            UnsupportedError: the kind of step is not served.
        """
        ...

    def prepare(self, step: Ordinary, start: Tensor, variant: str) -> Prepared:
        """Memory and launch for a step from a state `[B, H, V, K]`, of which the implementation takes a copy."""
        ...


@dataclass(frozen=True)
class Candidate:
    """One way to run a step, as the table names it: `ours 32x2`."""

    implementation: Implementation
    variant: str

    def __str__(self) -> str:
        return f"{self.implementation.name} {self.variant}".rstrip()


@dataclass(frozen=True)
class Verified:
    """Candidates for a kind of step that agree with the reference, and why others are not among them."""

    candidates: list[Candidate]
    refused: dict[str, str]


@dataclass(frozen=True)
class Timed:
    """The fastest conventional kernel of a step, and how all of them did.

    Attributes:
        us: the fastest.
        name: candidate that was fastest.
        others: time of each candidate, or why there is none.
    """

    us: float
    name: str
    others: dict[str, float | str]


def verify(
    implementations: Sequence[Implementation], kinds: Iterable[Kind], device: torch.device, workers: Workers
) -> dict[Kind, Verified]:
    """Check every candidate of every kind."""
    found = {kind: Verified([], {}) for kind in kinds}
    pending: list[tuple[Kind, Candidate]] = []
    for kind, verified in found.items():
        for implementation in implementations:
            try:
                variants = implementation.variants(kind)
            except UnsupportedError as error:
                verified.refused[implementation.name] = str(error)
                continue
            pending += [(kind, Candidate(implementation, variant)) for variant in variants]
    failures = workers.failures([partial(check, candidate, kind, device) for kind, candidate in pending])
    for (kind, candidate), failure in zip(pending, failures, strict=True):
        if failure is None:
            found[kind].candidates.append(candidate)
        else:
            found[kind].refused[str(candidate)] = failure
    return found


def check(candidate: Candidate, kind: Kind, device: torch.device) -> None:
    """Compare a few rows with the float64 reference.

    Raises:
        AssertionError: outputs or state are wrong.
    """
    step = kind.step(_CHECKED_ROWS, device)
    start = step.start()
    prepared = candidate.implementation.prepare(step, start, candidate.variant)
    out = prepared.run()
    expected, state = run_recurrence(step.recurrence, start, step.inputs, step.A)
    activation, stored = ROUNDOFF[DTYPES[step.inputs.v.dtype]], ROUNDOFF[kind.state]
    # Engines may round operands to the activation dtype, and a state is rounded as often as it is stored.
    bound = accumulated(ROUNDOFF["fp32"], step.recurrence.key_dim * kind.draft) + accumulated(activation, 1)
    bound += kind.draft * stored
    for what, actual, wanted in (("outputs", out, expected), ("state", prepared.state(), state)):
        error = relative_error(actual, wanted)
        assert error <= bound, f"{what} are off: relative error {error:.2g} above {bound:.2g}"


def time_best(machine: Machine, verified: Verified, step: Ordinary) -> Timed:
    """Time every candidate.

    Raises:
        UnsupportedError: there is none.
    """
    times: dict[str, float] = {}
    others: dict[str, float | str] = {**verified.refused}
    for candidate in verified.candidates:
        copies = machine.copies(step.state_bytes)
        try:
            prepared = [candidate.implementation.prepare(step, step.start(), candidate.variant) for _ in range(copies)]
            rounds = [prepared[i % copies].run for i in range(round_of(copies))]
            others[str(candidate)] = times[str(candidate)] = machine.clock.measure(rounds)
        except (RuntimeError, ValueError) as error:
            # An engine's kernel that cannot be captured in a graph, or does not fit.
            others[str(candidate)] = f"{type(error).__name__}: {error}"[:300]
    if not times:
        raise UnsupportedError(f"no conventional kernel serves the step: {others}")
    best = min(times, key=times.__getitem__)
    return Timed(times[best], best, others)
