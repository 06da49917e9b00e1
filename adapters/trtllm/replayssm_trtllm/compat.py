"""Which generation of TensorRT-LLM is installed, and whether it is as this adapter knows it. Probed, never by version."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from replayssm import UnsupportedError
from replayssm_trtllm import surface
from replayssm_trtllm.architectures import ARCHITECTURES
from replayssm_trtllm.surface import COMMON, MANAGERS, OLD_MANAGERS, SYMBOLS, V2, V2_MODULE, check, find

TOO_OLD = (
    "generation A: its cache managers own their buffers and take no state of a model; use mode='native', or a release "
    "with kv_cache.mamba_cache_manager.common"
)


@dataclass(frozen=True)
class Examination:
    """What was found.

    Attributes:
        generation: A to D, None for none of them.
        lines: `(symbol, ok, detail)` of what was checked.
        reason: why the plugin refuses, empty where it does not.
    """

    generation: str | None
    lines: tuple[tuple[str, bool, str], ...] = field(default=())
    reason: str = ""

    @property
    def ok(self) -> bool:
        """Whether the plugin would run."""
        return not self.reason

    @property
    def summary(self) -> str:
        """What the plugin would do, or why not."""
        if self.reason:
            return self.reason
        how = "a strategy for its manager" if self.generation == "B" else "a subclass of its manager"
        names = ", ".join(entry.name for entry in ARCHITECTURES)
        return f"would extend {names} with {how}; contract-checked, not executed here"


@dataclass(frozen=True)
class Engine:
    """The engine's symbols that are called or subclassed."""

    generation: str
    manager: type
    mixin: type
    payload: Callable[..., Any]
    metadata: Callable[..., Any]
    strategy: type
    effective_tp: Callable[[Any], int]
    local_layout: Callable[..., Any]
    register_estimator: Callable[[str, Callable[..., int]], None] | None


def generation() -> tuple[str | None, str]:
    """The generation, and a reason where it is none or more than one."""
    found = {
        "B": find(COMMON, "MambaStateUpdateStrategy") is not None,
        "C": find(COMMON, "MambaState") is not None and find(V2_MODULE, f"{V2}._initialize_model_state") is not None,
        "D": find(V2_MODULE, f"{V2}._initialize_spec_state") is not None,
    }
    matching = [name for name, yes in found.items() if yes]
    if len(matching) > 1:
        return None, f"it looks like generations {' and '.join(matching)} at once; none of them is known to be so"
    if matching:
        return matching[0], ""
    if _is_package(MANAGERS):
        return None, f"{COMMON} has neither MambaStateUpdateStrategy nor MambaState with {V2}'s hooks"
    if (
        find(OLD_MANAGERS, "MambaHybridCacheManager") is not None
        or find(MANAGERS, "MambaHybridCacheManager") is not None
    ):
        return "A", TOO_OLD
    return None, f"neither {MANAGERS} nor {OLD_MANAGERS} is there: not a generation that is known"


def examine() -> Examination:
    """Check the installed engine; a failed check is a line, never an exception."""
    name, reason = generation()
    if name not in surface.SERVED:
        return Examination(name, (), reason)
    verdicts = [(symbol.label, *check(symbol)) for symbol in SYMBOLS if name in symbol.generations]
    for entry in ARCHITECTURES:
        there = find(entry.module, entry.cls) is not None
        verdicts.append((entry.name, there, "" if there else f"{entry.module} has no {entry.cls}"))
    failed = [detail for _, ok, detail in verdicts if not ok]
    lines = tuple((label, ok, detail or "as expected") for label, ok, detail in verdicts)
    return Examination(name, lines, f"generation {name} does not match: {'; '.join(failed)}" if failed else "")


def probe() -> Engine:
    """The installed engine.

    Raises:
        UnsupportedError: not installed, an unknown generation, or one that does not match; names what is missing.
    """
    found = examine()
    if not found.ok or found.generation is None:
        raise UnsupportedError(f"TensorRT-LLM cannot be extended: {found.reason}")
    return _engine(found.generation, find(V2_MODULE, V2))


@functools.cache
def _engine(name: str, manager: type) -> Engine:
    from replayssm_trtllm.manager import ReplaySSMManagerMixin
    from replayssm_trtllm.strategy import ReplaySSMManagerShim

    earlier = name == "B"
    return Engine(
        generation=name,
        manager=manager,
        mixin=ReplaySSMManagerShim if earlier else ReplaySSMManagerMixin,
        payload=find(COMMON, "SpeculativeMambaLayerCache" if earlier else "IntermediateLayerCache"),
        metadata=find(COMMON, "ReplayStateUpdateMetadata"),
        strategy=find(COMMON, "MambaStateUpdateStrategy") if earlier else object,
        effective_tp=find(COMMON, "_mamba_effective_tp_size"),
        local_layout=find(COMMON, "_get_local_mamba_cache_layout"),
        register_estimator=find(COMMON, "register_mamba_aux_cache_estimator") if earlier else None,
    )


def _is_package(module: str) -> bool:
    try:
        return hasattr(importlib.import_module(module), "__path__")
    except ImportError:
        return False
