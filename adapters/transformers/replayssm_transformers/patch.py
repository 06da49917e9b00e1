"""Replaces the operators of a modelling module, once for all enabled models, and restores them with the last one.

So it does with the crop of a cache, which must not cut the attention layers before one of ours refuses.

A replaced operator serves only calls from inside an enabled model's mixer that has a cache; any other call, from another
model of the same module too, goes to the original unchanged.
"""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from transformers import cache_utils

from replayssm import LayerKind, ReplaySSMError
from replayssm_transformers.active import current
from replayssm_transformers.layer import ReplayLayer
from replayssm_transformers.operators import convert
from replayssm_transformers.surface import CACHE_CROP, CONV_FULL, CONV_STEP, OPERATORS
from replayssm_transformers.table import Family

Function = Callable[..., Any]


@dataclass
class _Patch:
    users: int
    originals: dict[str, Function]


_patches: dict[str, _Patch] = {}
_cache_originals: dict[str, Function] = {}
_lock = threading.Lock()


def install(family: Family) -> None:
    """Replace the family's operators, or count one more user of the replacement."""
    with _lock:
        if family.module in _patches:
            _patches[family.module].users += 1
            return
        if not _patches:
            _cache_originals[CACHE_CROP] = getattr(cache_utils.Cache, CACHE_CROP)
            setattr(cache_utils.Cache, CACHE_CROP, _crop(_cache_originals[CACHE_CROP]))
        module = importlib.import_module(family.module)
        wrappers = {name: _operator(family, getattr(module, name)) for name in OPERATORS[family.kind]}
        wrappers[CONV_STEP] = _convolution(module, getattr(module, CONV_STEP))
        originals = {name: getattr(module, name) for name in wrappers}
        for name, wrapper in wrappers.items():
            setattr(module, name, wrapper)
        _patches[family.module] = _Patch(1, originals)


def uninstall(family: Family) -> None:
    """One user less; the last one puts the originals back."""
    with _lock:
        patch = _patches[family.module]
        patch.users -= 1
        if patch.users:
            return
        module = importlib.import_module(family.module)
        for name, original in patch.originals.items():
            setattr(module, name, original)
        del _patches[family.module]
        if not _patches:
            setattr(cache_utils.Cache, CACHE_CROP, _cache_originals.pop(CACHE_CROP))


def installed() -> dict[str, int]:
    """Modelling modules whose operators are replaced → models that use the replacement."""
    with _lock:
        return {name: patch.users for name, patch in _patches.items()}


def _crop(original: Function) -> Function:
    @functools.wraps(original)
    def crop(cache: Any, tokens_to_remove: int) -> None:  # noqa: ANN401  transformers is untyped
        for layer in cache.layers:
            if isinstance(layer, ReplayLayer):
                layer.check_crop(tokens_to_remove)
        original(cache, tokens_to_remove)

    return crop


def _operator(family: Family, original: Function) -> Function:
    @functools.wraps(original)
    def operator(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  the original's own
        layer = current()
        if layer is None:
            return original(*args, **kwargs)
        return _serve(layer, family.kind, original, args, kwargs)

    return operator


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _serve(
    layer: ReplayLayer, kind: LayerKind, original: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:  # noqa: ANN401  the original's own
    """Outside of any graph: a compiled model calls back for each state-space layer."""
    try:
        return layer.serve(convert(kind, original, args, kwargs))
    except ReplaySSMError as error:
        layer.refuse_step(error)
        raise


def _convolution(module: ModuleType, original: Function) -> Function:
    """Some mixers send a single token here although the cache records its past, and then the past would be lost."""

    @functools.wraps(original)
    def convolution(
        hidden_states: Any,  # noqa: ANN401
        conv_state: Any,  # noqa: ANN401
        weight: Any,  # noqa: ANN401
        bias: Any = None,  # noqa: ANN401
        activation: str | None = None,
    ) -> Any:  # noqa: ANN401
        layer = current()
        if layer is None or not layer.record_past:
            return original(hidden_states, conv_state, weight, bias, activation)
        full = layer.update_conv_state(hidden_states)
        out = getattr(module, CONV_FULL)(full, weight, bias, activation=activation)
        return out[:, :, -hidden_states.shape[-1] :]

    return convolution
