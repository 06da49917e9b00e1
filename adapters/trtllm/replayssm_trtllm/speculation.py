"""What a `speculative_config` means for a recurrent state: tokens of a step, and what cannot be served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replayssm import InputError, UnsupportedError

ONE_ENGINE = ("MTP", "Eagle3", "DFlash", "PARD", "SA")
"""Drafters whose worker reports acceptance on the device, inside the forward: what a cursor needs."""

TREE_FIELDS = ("use_dynamic_tree", "eagle_choices", "medusa_choices", "dynamic_tree_max_topK")
DYNAMIC_FIELDS = ("draft_len_schedule", "acceptance_rate_threshold")
LENGTH_FIELDS = ("max_draft_len", "num_nextn_predict_layers")


def tokens_per_step(speculative: Mapping[str, Any] | None) -> int:
    """T: the drafts and the token that they follow; 1 without speculation.

    Raises:
        InputError: no draft length, or not a positive integer.
    """
    if speculative is None:
        return 1
    given = {name: speculative[name] for name in LENGTH_FIELDS if speculative.get(name) is not None}
    if not given:
        raise InputError(f"speculative_config has no draft length; set {LENGTH_FIELDS[0]}")
    name, drafts = next(iter(given.items()))
    if not isinstance(drafts, int) or isinstance(drafts, bool) or drafts < 1:
        raise InputError(f"speculative_config.{name}={drafts!r} must be an integer of at least 1")
    return drafts + 1


def check_speculation(speculative: Mapping[str, Any] | None) -> None:
    """Check that a cursor can follow the drafter.

    Raises:
        InputError: not a mapping, or without a decoding type.
        UnsupportedError: draft trees, or a drafter whose acceptance is not known on the device.
    """
    if speculative is None:
        return
    if not isinstance(speculative, Mapping):
        raise InputError(f"speculative_config is a {type(speculative).__name__}; expected a mapping")
    kind = speculative.get("decoding_type")
    if not isinstance(kind, str):
        raise InputError(f"speculative_config.decoding_type={kind!r} must be one of {', '.join(ONE_ENGINE)}")
    trees = [name for name in TREE_FIELDS if speculative.get(name)]
    if trees:
        raise UnsupportedError(
            f"speculative_config.{trees[0]} drafts a tree; TensorRT-LLM reports a leaf, not the path that a ring must "
            "keep. Draft a chain (leave it out)"
        )
    if kind.casefold() not in {name.casefold() for name in ONE_ENGINE}:
        raise UnsupportedError(
            f"speculative_config.decoding_type={kind!r}: its acceptance is not reported to the recurrent state on the "
            f"device; use one of {', '.join(ONE_ENGINE)}"
        )
