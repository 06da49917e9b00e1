"""What is refused, and why, before anything runs."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers.cache_utils import DynamicCache

from replayssm import InputError, UnsupportedError
from replayssm_transformers.cache_map import recurrent_layers
from replayssm_transformers.layer import ReplayLayer, check_layer
from replayssm_transformers.surface import MODEL_CACHE_NAMES, check_cache_surface, check_surface
from replayssm_transformers.table import FAMILIES, mixers_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from replayssm_transformers.session import Session
    from replayssm_transformers.table import Family

SERVED_MODES = ("greedy_search", "sample", "assisted_generation")
TOKENS = ("input_ids", "inputs_embeds")
SERVED_CACHES = (None, "dynamic")
GENERATE_CACHE_NAMES = ("cache", "past_key_values")
"""Under which of its names generate makes the cache itself; 5.17 does not for Mamba2."""


def check_model(model: Any) -> dict[nn.Module, Family]:  # noqa: ANN401  what the user passes
    """The state-space layers of a model that can be enabled.

    Raises:
        InputError: not a model.
        UnsupportedError: not hybrid, an unknown layer beside known ones, compiled, on hub kernels, or a transformers
            release that does not match `surface`.
    """
    if not isinstance(model, nn.Module) or not hasattr(model, "config"):
        raise InputError(f"model is a {type(model).__name__}; expected a transformers model (a PreTrainedModel)")
    if hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None) is not None:
        raise UnsupportedError("the model is compiled; enable ReplaySSM on the uncompiled model")
    if getattr(model, "use_kernels", False):
        raise UnsupportedError("use_kernels=True replaces the model's operators by hub kernels; load it without")
    mixers = mixers_of(model)
    unknown = set(recurrent_layers(model)) - {getattr(mixer, "layer_idx", None) for mixer in mixers}
    if unknown or not mixers:
        raise UnsupportedError(_not_hybrid(model, sorted(unknown)))
    _check_release(set(mixers.values()))
    return mixers


def check_forward(session: Session, arguments: dict[str, Any]) -> None:
    """One forward of an enabled model.

    Args:
        arguments: what the model's forward got, by name.

    Raises:
        InputError: an empty prompt, another batch size than the cache's, or a cache that a refused step left broken.
        UnsupportedError: training, gradients, compilation, or a cache that cannot be served. A forward with
            use_cache=False keeps no state and is not refused.
    """
    given = {name: arguments[name] for name in TOKENS if arguments.get(name) is not None}
    for name, tokens in given.items():
        if tokens.shape[0] == 0 or tokens.shape[1] == 0:
            raise InputError(f"{name} is empty, shape {tuple(tokens.shape)}; expected at least one row and one token")
    cache = find_cache(arguments)
    if cache is not None:
        _check_cache(session, cache, {tokens.shape[0] for tokens in given.values()})
    elif not _uses_cache(session, arguments):
        return
    if torch.compiler.is_compiling():
        raise UnsupportedError("torch.compile is not served; run the model eagerly")
    if session.model.training:
        raise UnsupportedError("training mode with a cache is not served; call model.eval() or pass use_cache=False")
    if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in session.model.parameters()):
        raise UnsupportedError(
            "gradients do not pass through a replay state; run under torch.no_grad() or pass use_cache=False"
        )


def find_cache(arguments: dict[str, Any]) -> Any:  # noqa: ANN401  transformers is untyped
    """The cache among the arguments of a model's forward, None when there is none."""
    return next((arguments[name] for name in MODEL_CACHE_NAMES if arguments.get(name) is not None), None)


def check_generation(session: Session, mode: Any, config: Any, kwargs: dict[str, Any]) -> None:  # noqa: ANN401
    """One call of generate, as transformers decided its mode.

    Raises:
        InputError: no drafts at all, or more than max_draft serves.
        UnsupportedError: beam search and other modes, a cache implementation, training mode.
    """
    name = check_mode(mode)
    if config.cache_implementation not in SERVED_CACHES:
        raise UnsupportedError(
            f"cache_implementation={config.cache_implementation!r} is not served; leave it out (dynamic cache)"
        )
    if session.model.training:
        raise UnsupportedError("the model is in training mode; call model.eval() before generate")
    if name == "assisted_generation":
        if not set(GENERATE_CACHE_NAMES) & set(inspect.signature(session.model.forward).parameters):
            raise UnsupportedError(
                f"assisted decoding needs a cache that generate makes, and in this release of transformers "
                f"{type(session.model).__name__} makes its own; update transformers"
            )
        _check_drafts(session, config, kwargs.get("assistant_model"))


def check_mode(mode: Any) -> str:  # noqa: ANN401  transformers is untyped
    """The name of a served mode of generate.

    Raises:
        UnsupportedError: beam search, contrastive search, DoLa and other modes.
    """
    name = str(getattr(mode, "value", mode))
    if name not in SERVED_MODES:
        what = "beam search" if "beam" in name else name.replace("_", " ")
        raise UnsupportedError(f"{what} is not served; use greedy decoding, sampling, or assisted decoding with either")
    return name


def _check_drafts(session: Session, config: Any, assistant: Any) -> None:  # noqa: ANN401  transformers is untyped
    for option in ("use_mtp", "assistant_early_exit", "speculation_type"):
        if getattr(config, option, None):
            raise UnsupportedError(f"{option} is not served; use assistant_model or prompt_lookup_num_tokens")
    option, drafts = "prompt_lookup_num_tokens", config.prompt_lookup_num_tokens
    if assistant is not None:
        option, drafts = "num_assistant_tokens", assistant.generation_config.num_assistant_tokens or 20
    if drafts is not None and drafts < 1:
        raise InputError(f"{option}={drafts} drafts nothing; give at least 1, or leave it out")
    limit = session.config.max_draft
    if drafts is not None and drafts + 1 > limit:
        where = "assistant_model.generation_config." if assistant is not None else ""
        raise InputError(
            f"{option}={drafts} drafts and the token before them need max_draft={drafts + 1}, but it is {limit}; "
            f"raise ReplayConfig(max_draft=...) or lower {where}{option}"
        )


def _check_cache(session: Session, cache: Any, batches: set[int]) -> None:  # noqa: ANN401  transformers is untyped
    if not isinstance(cache, DynamicCache):
        raise UnsupportedError(
            f"a cache of class {type(cache).__name__} is not served; make it with DynamicCache(config=model.config)"
        )
    if getattr(cache, "offloading", False):
        raise UnsupportedError("offloaded caches are not served; use DynamicCache(config=model.config)")
    for index in session.layer_indices:
        if index >= len(cache.layers):
            raise UnsupportedError(
                f"the cache has {len(cache.layers)} layers and none for layer {index}; "
                "make it with DynamicCache(config=model.config)"
            )
        layer = cache.layers[index]
        check_layer(layer, session)
        if isinstance(layer, ReplayLayer):
            for rows in batches:
                layer.check_rows(rows)


def _uses_cache(session: Session, arguments: dict[str, Any]) -> bool:
    wanted = arguments.get("use_cache")
    if wanted is None:
        model: Any = session.model
        wanted = getattr(model.config.get_text_config(decoder=True), "use_cache", True)
    return bool(wanted)


def _not_hybrid(model: Any, unknown: list[int]) -> str:  # noqa: ANN401  transformers is untyped
    served = ", ".join(family.name for family in FAMILIES)
    name = type(model).__name__
    if unknown:
        return (
            f"{name} has recurrent layers of a class that is not served (layers {unknown}); served families: {served}"
        )
    return f"{name} is not a hybrid model: it has no state-space layer; served families: {served}"


def _check_release(families: Iterable[Family]) -> None:
    for ok, reason in (check_cache_surface(), *(check_surface(family) for family in families)):
        if not ok:
            raise UnsupportedError(f"the installed transformers does not match this adapter: {reason}")
