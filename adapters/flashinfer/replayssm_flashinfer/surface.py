"""Every FlashInfer symbol that this adapter replaces or calls, and the parameters that it must take.

Releases differ: the ring of `checkpointing_ssu` came, went and came back under one version number, so its parameters are
looked at and its version is not.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

from replayssm_flashinfer import gdn, mamba, materialize

Verdict = tuple[bool, str]


@dataclass(frozen=True)
class Symbol:
    """One function of FlashInfer.

    Attributes:
        module: where it is defined.
        name: of the function.
        ours: what takes its place.
        needs: parameters that tell the contract that we serve from older ones.
        required: whether `install` refuses without it; others are left as they are.
    """

    module: str
    name: str
    ours: Callable[..., Any]
    needs: tuple[str, ...]
    required: bool = False

    @property
    def label(self) -> str:
        """Module and name."""
        return f"{self.module}.{self.name}"


_SSU = "flashinfer.mamba.checkpointing_ssu"
_GDN = "flashinfer.gdn_kernels"
_RING = ("x_cache", "B_cache", "dt_cache", "ring_start", "prev_num_accepted_tokens")
_UCACHE = ("k_cache", "u_cache", "g_cache", "hist_len")

SYMBOLS: tuple[Symbol, ...] = (
    Symbol(_SSU, "checkpointing_ssu", mamba.checkpointing_ssu, _RING, required=True),
    Symbol(
        _SSU,
        "allocate_checkpointing_ssu_scratch",
        mamba.allocate_checkpointing_ssu_scratch,
        ("batch_size", "num_heads", "num_predicted_tokens", "max_window"),
    ),
    Symbol(
        "flashinfer.mamba.replayssm_materialize",
        "replayssm_materialize",
        materialize.replayssm_materialize,
        ("state_ptrs", "src_slots", "dst_slots", "ring_start", "replay_prefix_len", "active_request_indices"),
    ),
    Symbol(
        f"{_GDN}.gdn_decode_bf16_wy_ucache_flush",
        "gated_delta_rule_mtp_ucache_flush",
        gdn.gated_delta_rule_mtp_ucache_flush,
        (*_UCACHE, "cache_base", "flush_min"),
    ),
    Symbol(
        f"{_GDN}.gdn_decode_bf16_wy_ucache", "gated_delta_rule_mtp_ucache", gdn.gated_delta_rule_mtp_ucache, _UCACHE
    ),
    Symbol(
        f"{_GDN}.gdn_prefix_materialize",
        "gdn_prefix_materialize",
        gdn.gdn_prefix_materialize,
        ("state", "src_slots", "dst_slots", "cache_base", "count", "active_request_indices"),
    ),
)


def find(symbol: Symbol) -> tuple[Callable[..., Any] | None, str]:
    """FlashInfer's function, or None and why it cannot be had."""
    try:
        found = getattr(import_module(symbol.module), symbol.name, None)
    except Exception as error:  # whatever FlashInfer raises while it is imported
        return None, f"{symbol.module} cannot be imported: {type(error).__name__}: {error}"
    if not callable(found):
        return None, f"{symbol.module} has no {symbol.name}"
    return found, ""


def find_theirs(symbol: Symbol) -> tuple[Callable[..., Any] | None, str]:
    """FlashInfer's own function with a contract that we know, or None and why it cannot be had."""
    found, reason = find(symbol)
    if found is None:
        return None, reason
    if found is symbol.ours:
        return None, f"{symbol.label} is ours in this process; replayssm_flashinfer.uninstall() first"
    ok, reason = check(symbol, found)
    return (found, "") if ok else (None, reason)


def check(symbol: Symbol, found: Callable[..., Any]) -> Verdict:
    """Whether we can stand in for a function: `(True, "")`, or why not."""
    try:
        return _compare(symbol, found)
    except (TypeError, ValueError) as error:
        return False, f"{symbol.label} has parameters that cannot be looked at: {error}"


@lru_cache(maxsize=64)
def _compare(symbol: Symbol, found: Callable[..., Any]) -> Verdict:
    theirs = inspect.signature(found).parameters
    lacking = [name for name in symbol.needs if name not in theirs]
    if lacking:
        return False, f"{symbol.label} has no parameter {', '.join(lacking)}: another release's contract"
    ours = inspect.signature(symbol.ours).parameters
    new = [name for name in theirs if name not in ours]
    if new:
        return False, f"{symbol.label} takes {', '.join(new)}, which ours does not know"
    order = [name for name, p in theirs.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    if list(ours)[: len(order)] != order:
        return False, f"{symbol.label} takes its arguments in another order: {', '.join(order)}"
    return True, ""
