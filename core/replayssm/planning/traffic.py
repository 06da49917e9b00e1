"""State bytes that accepted tokens move."""

from __future__ import annotations

from dataclasses import dataclass

from replayssm.hybrid import HybridModel
from replayssm.layout import MAX_WINDOW
from replayssm.planning.settings import PlanSettings
from replayssm.steady import occupancy, steady_state
from replayssm.traffic import ordinary_bytes

WINDOWS = range(1, MAX_WINDOW + 1)
ACCEPTANCES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


@dataclass(frozen=True)
class TrafficFact:
    """State bytes, on average over a steady state.

    Attributes:
        read, written: of one layer, for each accepted token.
        gain: how many times fewer than the ordinary way.
        step_bytes: of one step of the whole batch, all recurrent layers.
    """

    read: float
    written: float
    gain: float
    step_bytes: float


@dataclass(frozen=True)
class WindowFact:
    """The window (of all that a layout may have) that moves the fewest bytes; how many times fewer than the ordinary way."""

    window: int
    gain: float


@dataclass(frozen=True)
class FlushFact:
    """At one acceptance: tokens accepted in a step, share of the steps that flush."""

    acceptance: float
    tokens: float
    rate: float


def ordinary_traffic(model: HybridModel, settings: PlanSettings) -> TrafficFact:
    """fp32 state: read once a step, written for each of its T tokens."""
    read, written = ordinary_bytes(settings.layout(model, "exact"), settings.draft)
    tokens = occupancy(settings.window, settings.draft, settings.acceptance).tokens
    return TrafficFact(read / tokens, written / tokens, 1.0, _whole(model, settings, read + written))


def replay_traffic(model: HybridModel, settings: PlanSettings, preset: str, window: int | None = None) -> TrafficFact:
    """A preset's traffic, with the settings' window or another."""
    cadence = steady_state(settings.layout(model, preset, window), settings.draft, settings.acceptance)
    step = cadence.bytes_read + cadence.bytes_written
    ordinary = sum(ordinary_bytes(settings.layout(model, preset), settings.draft))
    read, written = cadence.bytes_read / cadence.tokens, cadence.bytes_written / cadence.tokens
    return TrafficFact(read, written, ordinary / step, _whole(model, settings, step))


def best_window(model: HybridModel, settings: PlanSettings, preset: str) -> WindowFact:
    """The window with the least traffic; the smaller of two that tie."""
    gains = {window: replay_traffic(model, settings, preset, window).gain for window in WINDOWS}
    window = max(gains, key=lambda w: gains[w])
    return WindowFact(window, gains[window])


def flush_facts(settings: PlanSettings) -> tuple[FlushFact, ...]:
    """Flush rate by acceptance."""
    found = ((p, occupancy(settings.window, settings.draft, p)) for p in ACCEPTANCES)
    return tuple(FlushFact(p, o.tokens, o.flush_rate) for p, o in found)


def flush_rate(settings: PlanSettings, window: int) -> float:
    """Share of the steps that flush, with another window."""
    return occupancy(window, settings.draft, settings.acceptance).flush_rate


def _whole(model: HybridModel, settings: PlanSettings, step: float) -> float:
    return step * settings.batch * model.recurrent_layers
