"""Errors first, then microseconds: a contestant whose results are wrong gets no time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from replayssm.bench.scenario import Scenario
from replayssm.bench.timing import Launch, Machine
from replayssm_flashinfer.bench.calls import Checked, arguments, fresh_layer, round_of_calls, stored_states
from replayssm_flashinfer.bench.contestants import OURS, Contestant

LARGEST_ERROR = 3e-2
"""Relative error of outputs above which a function is wrong, not inaccurate: bf16 operands give about 3e-3."""
LARGEST_STATE_ERROR = 0.1
"""The same of folded states: bf16 operands give about 3e-3, fp8 with stochastic rounding 4e-2."""


@dataclass(frozen=True)
class Errors:
    """Relative L2 errors against float64.

    Attributes:
        out: of the outputs of all rows.
        state: of the states of rows that folded.
        untouched: whether states of all other rows kept their bits.
    """

    out: float
    state: float
    untouched: bool

    @property
    def ok(self) -> bool:
        """Whether a time means something."""
        return self.untouched and self.out < LARGEST_ERROR and self.state < LARGEST_STATE_ERROR


@dataclass(frozen=True)
class Result:
    """What a contestant did; `us` is None where it refused or was wrong, and `note` says why."""

    name: str
    us: float | None
    errors: Errors | None
    note: str = ""


def errors_of(contestant: Contestant, checked: Checked) -> Errors:
    """Run the checked call once, and compare."""
    layout, tokens, device = checked.layout, checked.tokens, checked.start.device
    layer, before = fresh_layer(layout, tokens.A, device), fresh_layer(layout, tokens.A, device)
    out = torch.full_like(tokens.inputs.v, float("nan"))
    contestant.launch(arguments(layer, tokens, checked.start, checked.live, out))()
    folds = checked.folds
    kept, was = stored_states(layer)[~folds], stored_states(before)[~folds]
    return Errors(
        out=_relative(out.double(), checked.out),
        state=_relative(stored_states(layer)[folds], checked.folded[folds]),
        untouched=bool(torch.equal(kept, was)),
    )


def run(contestant: Contestant, scenario: Scenario, checked: Checked, machine: Machine) -> Result:
    """Check a contestant and measure it; whatever it raises is its result."""
    try:
        with contestant.tuning_context():
            errors = errors_of(contestant, checked)
        if not errors.ok:
            return Result(contestant.name, None, errors, f"wrong results: {errors}")
        calls = round_of_calls(scenario, machine)
        with contestant.tuning_context():
            contestant.launch(calls[0])()
        launches: list[Launch] = [contestant.launch(call) for call in calls]
        return Result(contestant.name, machine.clock.measure(launches), errors)
    except Exception as error:  # an engine's kernel may refuse a shape in any way
        if contestant.name == OURS:
            raise
        return Result(contestant.name, None, None, f"{type(error).__name__}: {error}"[:300])


def _relative(found: Tensor, truth: Tensor) -> float:
    return float((found - truth).norm() / truth.norm()) if truth.numel() else 0.0
