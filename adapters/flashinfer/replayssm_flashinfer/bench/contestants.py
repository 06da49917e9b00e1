"""Who is measured: our function as it is, and FlashInfer's at every tactic that its signature and its tuner offer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from replayssm import UnsupportedError
from replayssm.bench.scenario import Scenario
from replayssm_flashinfer.bench.calls import Arguments
from replayssm_flashinfer.mamba import allocate_checkpointing_ssu_scratch, checkpointing_ssu
from replayssm_flashinfer.surface import SYMBOLS, find_theirs

OURS = "ours"
TUNED = "tuned"
_PRECOMPUTED = (0, 1, 4)
"""Heads a program of its precompute kernel: its own choice, the smallest, and one between."""


@dataclass(frozen=True)
class Contestant:
    """A function with its tuning.

    Attributes:
        name: in tables.
        function: `checkpointing_ssu`.
        tuning: keyword arguments besides those of the call.
        scratch: whether it takes scratch.
    """

    name: str
    function: Callable[..., Any]
    tuning: dict[str, Any]
    scratch: bool = False

    def launch(self, arguments: Arguments) -> Callable[[], object]:
        """The call."""
        options = dict(self.tuning)
        if self.scratch:
            options |= scratch_of(arguments)
        return lambda: self.function(**arguments, **options)

    def tuning_context(self) -> AbstractContextManager[Any]:
        """What a first call runs in, for FlashInfer's own tuner to measure."""
        if self.name != TUNED:
            return nullcontext()
        context: AbstractContextManager[Any] = import_module("flashinfer.autotuner").autotune(True)
        return context


def ours() -> Contestant:
    """Our function."""
    return Contestant(OURS, checkpointing_ssu, {})


def theirs(scenario: Scenario) -> Iterator[Contestant]:
    """FlashInfer's function, tactic by tactic.

    Raises:
        UnsupportedError: it is not installed, has another contract, or is ours (after `install`).
    """
    function, reason = find_theirs(SYMBOLS[0])
    if function is None:
        raise UnsupportedError(reason)
    quantised = scenario.checkpoint.startswith("fp8")
    splits = (1,) if quantised else (1, 2)
    for split in splits:
        yield Contestant(f"monolith/{split}", function, {"algorithm": "monolith", "d_split": split})
    if quantised:
        return
    for split in splits:
        for heads in _PRECOMPUTED:
            tuning = {"algorithm": "two-kernel", "d_split": split, "precompute_heads_per_cta": heads}
            yield Contestant(f"two-kernel/{split}/{heads}", function, tuning, scratch=True)
    yield Contestant(TUNED, function, {"algorithm": "auto"}, scratch=True)


def scratch_of(arguments: Arguments) -> Arguments:
    """Scratch for a call."""
    x, rows = arguments["x"], arguments["x_cache"].shape[2]
    batch, draft, heads, _ = x.shape
    tensors = allocate_checkpointing_ssu_scratch(batch, heads, draft, rows - draft, x.dtype, x.device)
    return dict(zip(("cb_scaled", "cumAdt_vec", "cb_old"), tensors, strict=True))
