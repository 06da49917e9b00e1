"""Every precision policy side by side: the scenarios, and how good a policy's state and outputs are, in the same run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from replayssm.bench.scenario import CHECKPOINTS, READ_COPIES, Scenario
from replayssm.bench.settings import Selection
from replayssm.bench.stepping import BACKEND
from replayssm.capability import supports
from replayssm.drift.measure import Setup, drift
from replayssm.errors import InputError
from replayssm.kernels.tiles import Tiles, forced
from replayssm.precision import PRESETS, PrecisionPolicy

STEPS, ROWS = 512, 4
"""Tokens, and sequences, after which the errors are taken."""


@dataclass(frozen=True)
class Quality:
    """Relative L2 errors against float64 after STEPS tokens of random inputs, through the very kernels that are timed."""

    state_error: float
    output_error: float


def parts_of(policy: PrecisionPolicy) -> tuple[str, str]:
    """Names of a preset's checkpoint and read copy in the benchmark."""
    bare = replace(policy, read_copy=None)
    checkpoint = next(name for name, known in CHECKPOINTS.items() if known == bare)
    return checkpoint, next(name for name, known in READ_COPIES.items() if known == policy.read_copy)


def policy_name(checkpoint: str, read_copy: str | None) -> str:
    """The preset of a row."""
    found = (name for name in PRESETS if parts_of(PRESETS[name]) == (checkpoint, read_copy or "none"))
    return next(found, f"{checkpoint} + {read_copy}")


def policy_scenarios(
    selection: Selection, policies: Sequence[str], device: torch.device
) -> tuple[list[Scenario], dict[str, str]]:
    """Scenarios of the policies that the kernels serve, geometry by geometry, and why the others are left out.

    All stand beside the ordinary decode of an fp32 state, so that their ratios can be compared.

    Raises:
        InputError: none of the policies is served.
    """
    refused: dict[str, str] = {}
    found: list[Scenario] = []
    for one in selection.scenarios():
        for name in policies:
            checkpoint, copy = parts_of(PRESETS[name])
            scenario = replace(one, checkpoint=checkpoint, read_copy=READ_COPIES[copy], ordinary="fp32")
            ok, reason = supports(BACKEND, scenario.layout, device)
            if ok:
                found.append(scenario)
            else:
                refused[name] = reason
    if not found:
        raise InputError(f"nothing to measure: {'; '.join(refused.values())}")
    return found, refused


def whole_windows(scenario: Scenario) -> int:
    """STEPS, or as many fewer as end with a window."""
    return STEPS // scenario.window * scenario.window


def measure_quality(scenario: Scenario, tiles: Tiles, device: torch.device) -> Quality:
    """Errors of a scenario's policy, in steps of its T tokens, all accepted."""
    setup = Setup(
        recurrence=scenario.geometry.recurrence,
        rows=ROWS,
        window=scenario.window,
        activation=scenario.activation,
        backend=BACKEND,
        device=device,
        draft=scenario.draft,
    )
    with forced(tiles):
        error = next(drift(setup, {"": scenario.layout.precision}, [whole_windows(scenario)]))
    return Quality(error.state, error.output)


def qualities(scenarios: Sequence[Scenario], tiles: Sequence[Tiles], device: torch.device) -> list[dict[str, object]]:
    """Quality of every geometry and policy, at the shortest draft that is measured, as JSON data."""
    first: dict[tuple[str, str, str | None], tuple[Scenario, Tiles]] = {}
    for scenario, shape in sorted(zip(scenarios, tiles, strict=True), key=lambda pair: pair[0].draft):
        first.setdefault((scenario.geometry.name, scenario.checkpoint, scenario.read_copy), (scenario, shape))
    return [
        {
            "geometry": scenario.geometry.name,
            "policy": policy_name(scenario.checkpoint, scenario.read_copy),
            "steps": whole_windows(scenario),
            **vars(measure_quality(scenario, shape, device)),
        }
        for scenario, shape in first.values()
    ]
