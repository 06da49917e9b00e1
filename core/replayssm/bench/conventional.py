"""The ordinary decode that ReplaySSM is compared with: what any implementation of it takes and gives.

Standard decode updates the state in place. With T > 1 tokens the state stays, and a snapshot of it is written after each
token, as engines do for speculation; copying the accepted snapshot back is left out, in favour of the ordinary way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from replayssm.bench.timing import Machine, round_of
from replayssm.conformance.driver import relative_error
from replayssm.conformance.inputs import mapped
from replayssm.conformance.tolerances import DTYPES, ROUNDOFF, accumulated
from replayssm.errors import UnsupportedError
from replayssm.inputs import TokenInputs
from replayssm.recurrence import Recurrence
from replayssm.reference.recurrence import run_recurrence

STATE_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_CHECKED_ROWS = 3


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

    def few(self) -> Ordinary:
        """The same of a few rows, for a check."""
        return replace(self, inputs=mapped(self.inputs, lambda x: x[:_CHECKED_ROWS].contiguous()))


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

    def variants(self, step: Ordinary) -> Sequence[str]:
        """Launch configurations to try; their best counts.

        Raises:
            UnsupportedError: the step is not served.
        """
        ...

    def prepare(self, step: Ordinary, start: Tensor, variant: str) -> Prepared:
        """Memory and launch for a step from a state `[B, H, V, K]`, of which the implementation takes a copy."""
        ...


@dataclass(frozen=True)
class Timed:
    """The fastest conventional kernel of a step, and how all of them did.

    Attributes:
        us: the fastest.
        name: implementation and launch configuration of the fastest.
        others: best time of each implementation, or why there is none.
    """

    us: float
    name: str
    others: dict[str, float | str]


def check(implementation: Implementation, step: Ordinary, variant: str) -> None:
    """Compare a few rows with the float64 reference.

    Raises:
        UnsupportedError: outputs or state are wrong.
    """
    few = step.few()
    start = few.start()
    prepared = implementation.prepare(few, start, variant)
    out = prepared.run()
    expected, state = run_recurrence(few.recurrence, start, few.inputs, few.A)
    activation, stored = DTYPES[few.inputs.v.dtype], DTYPES[few.state_dtype]
    sums = accumulated(ROUNDOFF["fp32"], few.recurrence.key_dim * few.inputs.draft)
    bounds = {
        # Engines may round operands of the output to the activation dtype.
        "outputs": (out, expected, sums + accumulated(ROUNDOFF[activation], 1) + ROUNDOFF[stored]),
        "state": (prepared.state(), state, sums + accumulated(ROUNDOFF[activation], 1) + ROUNDOFF[stored]),
    }
    for what, (actual, wanted, bound) in bounds.items():
        error = relative_error(actual, wanted)
        if not error <= bound:
            raise UnsupportedError(f"its {what} are off: relative error {error:.2g} above {bound:.2g}")


def time_best(machine: Machine, implementations: Sequence[Implementation], step: Ordinary) -> Timed:
    """Check, then time, every implementation that serves the step."""
    best: tuple[float, str] | None = None
    others: dict[str, float | str] = {}
    for implementation in implementations:
        try:
            times = {
                variant: _time(machine, implementation, step, variant) for variant in implementation.variants(step)
            }
        except UnsupportedError as error:
            others[implementation.name] = str(error)
            continue
        variant = min(times, key=times.__getitem__)
        others[implementation.name] = times[variant]
        name = f"{implementation.name} {variant}".rstrip()
        best = min(best or (times[variant], name), (times[variant], name))
    if best is None:
        raise UnsupportedError(f"no conventional kernel serves the step: {others}")
    return Timed(*best, others)


def _time(machine: Machine, implementation: Implementation, step: Ordinary, variant: str) -> float:
    check(implementation, step, variant)
    copies = machine.copies(step.state_bytes)
    prepared = [implementation.prepare(step, step.start(), variant) for _ in range(copies)]
    return machine.clock.measure([prepared[i % copies].run for i in range(round_of(copies))])
