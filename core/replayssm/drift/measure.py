"""Policies side by side on the same tokens, and the ordinary recurrence in float64 beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from replayssm.conformance.inputs import select
from replayssm.drift.tokens import Tokens
from replayssm.errors import InputError
from replayssm.inputs import TokenInputs
from replayssm.layout import MAX_DRAFT, StateLayout
from replayssm.precision import PrecisionPolicy
from replayssm.recurrence import Recurrence
from replayssm.reference.recurrence import run_recurrence
from replayssm.state import ReplayState


@dataclass(frozen=True)
class Error:
    """Relative L2 errors after `steps` tokens, root mean square over rows and heads.

    Attributes:
        state: of the state.
        worst: of the head that is worst.
        output: of the outputs of the last window, which reads of a copy enter.
    """

    policy: str
    steps: int
    state: float
    worst: float
    output: float


@dataclass(frozen=True)
class Setup:
    """What the policies are run on.

    Attributes:
        draft: tokens of a step; 0 for the two steps that do what W steps of one token do (see `drift`).
        fp32_outputs: outputs in fp32 whatever activations are, without the rounding that hides other errors; of a backend
            that writes where it is told to.
    """

    recurrence: Recurrence
    rows: int = 4
    window: int = 16
    activation: torch.dtype = torch.bfloat16
    backend: str = "torch"
    device: torch.device = torch.device("cpu")
    seed: int = 0
    draft: int = 0
    fp32_outputs: bool = False

    @property
    def parts(self) -> list[tuple[int, int]]:
        """First token and end of each step of a window."""
        if self.draft:
            starts = range(0, self.window, self.draft)
            return [(start, min(start + self.draft, self.window)) for start in starts]
        return [(0, 1), (1, self.window)][: self.window]


def variants(presets: Mapping[str, PrecisionPolicy], recurrence: Recurrence) -> dict[str, PrecisionPolicy]:
    """The policies by name and, for the delta rule, those without a shared low-precision state also without exact fold."""
    found = dict(presets)
    if recurrence.delta_rule:
        plain = {name: policy for name, policy in presets.items() if policy.checkpoint != "nvfp4"}
        found |= {f"{name}, plain fold": replace(policy, exact_fold=False) for name, policy in plain.items()}
    return found


def with_products(presets: Mapping[str, PrecisionPolicy], dots: Sequence[str]) -> dict[str, PrecisionPolicy]:
    """Each policy with each kind of products, by name; the policies as they are where no kind is given."""
    if not dots:
        return dict(presets)
    return {f"{name}, {dot}": replace(policy, dot=dot) for name, policy in presets.items() for dot in dots}


def drift(setup: Setup, policies: Mapping[str, PrecisionPolicy], marks: Sequence[int]) -> Iterator[Error]:
    """Errors of every policy after each of `marks` tokens, as they come.

    A window is a step of one token, which flushes the one before, and a step of the others, which reads what steps that
    do not flush read: as W steps of one token. With a draft it is steps of that many tokens, all accepted.

    Raises:
        InputError: a mark that is not a whole number of windows, or a window whose second step is too long.
        UnsupportedError: a policy that the backend does not serve.
    """
    longest = max(stop - start for start, stop in setup.parts)
    if any(mark % setup.window or mark < 1 for mark in marks) or longest > MAX_DRAFT:
        raise InputError(
            f"steps={list(marks)} must be multiples of the window, {setup.window}, of at most {MAX_DRAFT + 1}"
        )
    tokens = Tokens(setup.recurrence, setup.rows, setup.activation, setup.device, setup.seed)
    states = {name: _state(setup, policy, tokens) for name, policy in policies.items()}
    shape = (setup.rows, *setup.recurrence.state_shape)
    truth = torch.zeros(shape, dtype=torch.float64, device=setup.device)
    for done in range(setup.window, max(marks) + 1, setup.window):
        new = tokens.next(setup.window)
        outputs = {name: _window(setup, state, new) for name, state in states.items()}
        true_outputs, truth = run_recurrence(setup.recurrence, truth, new, tokens.A)
        if done in marks:
            for name, state in states.items():
                by_head = relative(state.state(), truth, (2, 3))
                output = relative(outputs[name], true_outputs, (1, 3))
                yield Error(name, done, _rms(by_head), float(by_head.max()), _rms(output))


def relative(x: Tensor, truth: Tensor, dims: tuple[int, ...]) -> Tensor:
    """‖x − truth‖ / ‖truth‖ over some dimensions, in float64."""
    error: Tensor = (x.double() - truth).norm(dim=dims) / truth.norm(dim=dims)
    return error


def _state(setup: Setup, policy: PrecisionPolicy, tokens: Tokens) -> ReplayState:
    layout = StateLayout(setup.recurrence, setup.rows, setup.window, max(setup.window - 1, 1), policy, setup.activation)
    state = ReplayState(
        layout, A=tokens.A, backend=setup.backend, device=setup.device, check_inputs=False, seed=setup.seed
    )
    state.reset()
    return state


def _window(setup: Setup, state: ReplayState, new: TokenInputs) -> Tensor:
    slots = torch.arange(new.batch, device=new.v.device)
    outputs = []
    for start, stop in setup.parts:
        tokens = select(new, slice(None), slice(start, stop))
        out = torch.empty(tokens.v.shape, device=setup.device) if setup.fp32_outputs else None
        plan = state.plan(tokens, slots)
        outputs.append(state.run(plan, tokens, out))
        state.settle(plan)
        state.commit(stop - start)
    return torch.cat(outputs, dim=1)


def _rms(errors: Tensor) -> float:
    return float(errors.square().mean().sqrt())
