"""The gate before any speed: the very step that will be timed, against the float64 model, in poisoned memory."""

from __future__ import annotations

from dataclasses import replace

import torch

from replayssm.bench.scenario import Scenario
from replayssm.bench.stepping import BACKEND, skip_weight
from replayssm.capability import DRAFT, STANDARD, supports
from replayssm.conformance.core_subject import CoreSubject
from replayssm.conformance.driver import Driver
from replayssm.errors import UnsupportedError
from replayssm.kernels.tiles import Tiles, forced

_SLOTS = [2, 0]


def require_served(scenario: Scenario, device: torch.device) -> None:
    """Refuse what the kernels do not serve.

    Raises:
        UnsupportedError: with the reason.
    """
    ok, reason = supports(BACKEND, scenario.layout, device, STANDARD if scenario.draft == 1 else DRAFT)
    if not ok:
        raise UnsupportedError(f"{scenario.describe()}: {reason}")


def check_step(scenario: Scenario, tiles: Tiles, device: torch.device, seed: int = 0) -> None:
    """Two slots through more than a window, one of them flushed early, beside the model; NaN wherever none may look.

    Raises:
        AssertionError: outputs, states or cursors are wrong; says which and by how much.
    """
    layout = replace(scenario.layout, slots=3)
    # Products round their operands to TF32, whose mantissa is float16's.
    subject = CoreSubject(BACKEND, device=device, rounds_to=torch.float16)
    with forced(tiles):
        driver = Driver(subject, layout, seed=seed, raw=True, model_device=device)
        driver.source.D = skip_weight(driver.source)
        driver.load(_SLOTS)
        for step in range(layout.window // scenario.draft + 3):
            driver.step(_SLOTS, scenario.draft, drain=[step == 2, False])
            accepted = driver.source.integers(1, scenario.draft, (len(_SLOTS),)).tolist()
            # The second row takes all, so that its window fills in as few steps as there can be.
            driver.commit([accepted[0], scenario.draft])
        driver.check()
