"""What a `speculative_config` means for a recurrent state: tokens of a step, and what cannot be served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replayssm import InputError, UnsupportedError
from replayssm_trtllm.llm_fields import SPECULATIVE, SPECULATIVE_FIELDS
from replayssm_trtllm.nearest import nearest, unknown

ONE_ENGINE = ("MTP", "Eagle3", "Eagle", "DFlash", "PARD", "SA")
"""Drafters whose worker reports acceptance on the device, inside the forward: what a cursor needs. TensorRT-LLM's PyTorch
backend takes "Eagle" for "Eagle3"."""

TREE_FIELDS = ("use_dynamic_tree", "eagle_choices", "medusa_choices", "dynamic_tree_max_topK")
DYNAMIC_FIELDS = ("draft_len_schedule", "max_concurrency", "acceptance_rate_threshold")
KIND, DRAFTS, TOTAL, MTP_LAYERS = "decoding_type", "max_draft_len", "max_total_draft_tokens", "num_nextn_predict_layers"


def tokens_per_step(speculative: Mapping[str, Any] | None) -> int:
    """T, as the engine counts it: K drafts and the token that they follow, for PARD K and as many masks; 1 without drafts.

    Raises:
        InputError: no draft length, or not a positive integer.
    """
    if speculative is None:
        return 1
    given = {name: speculative[name] for name in (DRAFTS, MTP_LAYERS) if speculative.get(name) is not None}
    if not given:
        raise InputError(f"{SPECULATIVE} has no draft length; set {DRAFTS}")
    name, drafts = next(iter(given.items()))
    if not isinstance(drafts, int) or isinstance(drafts, bool) or drafts < 1:
        raise InputError(f"{SPECULATIVE}.{name}={drafts!r} must be an integer of at least 1")
    return 2 * drafts if speculative.get(KIND) == "PARD" else drafts + 1


def check_speculation(speculative: Mapping[str, Any] | None) -> None:
    """Check that a cursor can follow the drafter.

    Raises:
        InputError: unknown or contradictory fields, no decoding type, or no draft length.
        UnsupportedError: draft trees, or a drafter whose acceptance is not known on the device.
    """
    if speculative is None:
        return
    for name in speculative:
        if name not in SPECULATIVE_FIELDS:
            raise InputError(unknown(name, SPECULATIVE_FIELDS, SPECULATIVE))
    _check_drafter(speculative.get(KIND))
    _check_lengths(speculative)
    _check_chain(speculative)


def _check_drafter(kind: object) -> None:
    served = ", ".join(ONE_ENGINE)
    if not isinstance(kind, str):
        raise InputError(f"{SPECULATIVE}.{KIND}={kind!r} must be one of {served}")
    if kind in ONE_ENGINE:
        return
    close = nearest(kind, ONE_ENGINE)
    if close is not None:
        raise InputError(f"{SPECULATIVE}.{KIND}={kind!r}; did you mean {close!r}?")
    raise UnsupportedError(
        f"{SPECULATIVE}.{KIND}={kind!r}: its acceptance is not reported to the recurrent state on the device; use one of "
        f"{served}"
    )


def _check_chain(speculative: Mapping[str, Any]) -> None:
    trees = [f"{name} drafts" for name in TREE_FIELDS if speculative.get(name)]
    total, drafts = speculative.get(TOTAL), speculative.get(DRAFTS) or speculative.get(MTP_LAYERS)
    if total is not None and total != drafts:
        trees.append(f"{TOTAL}={total!r} beside {DRAFTS}={drafts!r} is")
    if trees:
        raise UnsupportedError(
            f"{SPECULATIVE}.{trees[0]} a tree; TensorRT-LLM reports a leaf, not the path that a ring must keep. Draft a "
            "chain (leave it out)"
        )


def _check_lengths(speculative: Mapping[str, Any]) -> None:
    layers, drafts = speculative.get(MTP_LAYERS), speculative.get(DRAFTS)
    if layers is not None and speculative[KIND] != "MTP":
        raise InputError(f"{SPECULATIVE}.{MTP_LAYERS} is MTP's; set {DRAFTS}")
    if layers is not None and drafts not in (None, layers):
        raise InputError(
            f"{SPECULATIVE}.{MTP_LAYERS}={layers!r} contradicts {DRAFTS}={drafts!r}, which TensorRT-LLM takes; leave it out"
        )
    tokens_per_step(speculative)
