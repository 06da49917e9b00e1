"""Warnings that a plan gives before anything is served."""

from __future__ import annotations

from collections.abc import Iterator

from replayssm.planning.memory import MemoryFact
from replayssm.planning.settings import PlanSettings
from replayssm.planning.traffic import TrafficFact, WindowFact, flush_rate

# From here on the checkpoint is written on most steps, and what the ring saves is spent on folding it.
_OFTEN = 0.5
# Fewer bytes than this are not worth the larger ring, or the trouble.
_WORTH = 1.1


def warnings(settings: PlanSettings, memory: MemoryFact, traffic: TrafficFact, best: WindowFact) -> tuple[str, ...]:
    """What to mind in the settings, for the chosen preset."""
    window = tuple(_frequent_flushes(settings, best)) or tuple(_other_window(settings, traffic, best))
    return (*window, *_no_gain(traffic), *_full_memory(settings, memory))


def _frequent_flushes(settings: PlanSettings, best: WindowFact) -> Iterator[str]:
    rate = flush_rate(settings, settings.window)
    if settings.window < settings.draft:
        reason = f"window {settings.window} is below the draft length {settings.draft}"
    elif rate > _OFTEN and settings.draft > 1:
        reason = (
            f"drafts of {settings.draft} at acceptance {settings.acceptance:g} soon fill a window of {settings.window}"
        )
    elif rate > _OFTEN:
        reason = f"a window of {settings.window} is soon full"
    else:
        return
    yield (
        f"{reason}: {rate:.0%} of the steps flush and write a checkpoint. "
        f"Window {best.window} moves the fewest bytes ({flush_rate(settings, best.window):.0%} flush)."
    )


def _other_window(settings: PlanSettings, traffic: TrafficFact, best: WindowFact) -> Iterator[str]:
    # With a 4-bit copy the steps between flushes are so short that the flushes, and in long windows the ring, count most.
    if best.gain >= _WORTH * traffic.gain:
        yield (
            f"with preset {settings.preset} window {best.window} moves {best.gain / traffic.gain:.2f} times fewer bytes "
            f"than window {settings.window}."
        )


def _no_gain(traffic: TrafficFact) -> Iterator[str]:
    if traffic.gain <= 1.0:
        yield f"these settings move {1 / traffic.gain:.2f} times the bytes of the ordinary way: nothing is gained."


def _full_memory(settings: PlanSettings, memory: MemoryFact) -> Iterator[str]:
    if memory.slots < settings.batch:
        need = settings.batch * memory.sequence_bytes / 2**30
        yield (
            f"a batch of {settings.batch} needs {need:.1f} GiB with preset {settings.preset}; "
            f"{settings.memory_gib:g} GiB hold {memory.slots}."
        )
