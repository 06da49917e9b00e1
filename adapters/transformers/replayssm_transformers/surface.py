"""Every transformers symbol that this adapter reads, calls or replaces, and what it must look like.

`enable` checks it before anything is changed; `doctor` and the contract tests check all of it. A release that does not
match is refused with the reason.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from replayssm import LayerKind
from replayssm_transformers.table import GDN, KDA, MAMBA2, Family

Verdict = tuple[bool, str]

DELTA_PARAMETERS = (
    "query",
    "key",
    "value",
    "g",
    "beta",
    "initial_state",
    "output_final_state",
    "use_qk_l2norm_in_kernel",
)
STEP_PARAMETERS = ("state", "hidden_states", "dt", "A", "B", "C", "D", "dt_bias", "dt_softplus", "z")
SCAN_PARAMETERS = (
    *("hidden_states", "dt", "A", "B", "C", "chunk_size", "D", "dt_bias", "initial_states"),
    *("dt_softplus", "dt_limit", "return_final_states"),
)

OPERATORS: dict[LayerKind, dict[str, tuple[str, ...]]] = {
    GDN: {
        "torch_recurrent_gated_delta_rule": DELTA_PARAMETERS,
        "torch_chunk_gated_delta_rule": DELTA_PARAMETERS,
    },
    KDA: {
        "recurrent_kimi_delta_attention": DELTA_PARAMETERS,
        "chunk_kimi_delta_attention": DELTA_PARAMETERS,
    },
    MAMBA2: {
        "mamba2_selective_state_update": STEP_PARAMETERS,
        "mamba2_chunk_scan": SCAN_PARAMETERS,
    },
}
"""Kind → module-level operators that are replaced, with the parameters that are read."""

CONV_STEP = "causal_conv1d_update"
CONV_FULL = "causal_conv1d_fn"
CONVOLUTIONS = {
    CONV_STEP: ("hidden_states", "conv_state", "weight", "bias", "activation"),
    CONV_FULL: ("hidden_states", "weight", "bias", "activation"),
}
"""The convolution of one token is replaced (see `operators`), the other one called."""

MIXER_CACHE_NAMES = ("cache", "cache_params")
"""Names of the cache in a mixer's forward: from 5.18 on, and in 5.17."""

MODEL_CACHE_NAMES = ("cache", "past_key_values", "cache_params")
"""Names of the cache in a model's forward, newest release first."""

MIXER_ATTRIBUTES: dict[LayerKind, tuple[str, ...]] = {
    GDN: ("layer_idx", "num_v_heads", "num_k_heads", "head_k_dim", "head_v_dim"),
    KDA: ("layer_idx", "num_heads", "head_dim"),
    MAMBA2: ("layer_idx", "num_heads", "head_dim", "n_groups", "ssm_state_size"),
}

CACHE_MODULE = "transformers.cache_utils"
CACHE_LAYERS = (
    "LinearAttentionLayer",
    "LinearAttentionAndFullAttentionLayer",
    "LinearAttentionAndSlidingWindowAttentionLayer",
)
"""Cache layers that can be taken over; static ones cannot."""

CACHE_LAYER_METHODS: dict[str, tuple[str, ...]] = {
    "update_conv_state": ("conv_states", "state_idx", "conv_kernel_size"),
    "update_recurrent_state": ("recurrent_states", "state_idx"),
    "crop": ("tokens_to_remove",),
    "reset": (),
    "offload": (),
    "prefetch": (),
    "reorder_cache": ("beam_idx",),
    "activate_past_recording": (),
}
CACHE_LAYER_ATTRIBUTES = (
    *("number_of_states", "conv_states", "recurrent_states", "is_recurrent_states_initialized"),
    *("is_conv_states_initialized", "has_previous_state", "conv_kernel_size", "record_past"),
)
CACHE_CROP = "crop"
CACHE_CROP_PARAMETERS = ("self", "tokens_to_remove")

GENERATION_MODULE = "transformers.generation.utils"
VALIDATE = "_validate_generation_mode"
VALIDATE_PARAMETERS = ("generation_mode", "generation_config", "generation_mode_kwargs")
STATEFUL = "_is_stateful"
HUB_RECIPE = "_get_deprecated_gen_repo"
"""Asked before the check, where a release has it: it turns contrastive search and DoLa down for want of trust."""


def check_surface(family: Family) -> Verdict:
    """Whether the installed transformers has one family's modelling module as expected: `(True, "")` or a reason."""
    try:
        module = importlib.import_module(family.module)
    except ImportError as error:
        return False, f"{family.module} cannot be imported: {error}"
    mixer = getattr(module, family.mixer, None)
    if mixer is None:
        return False, f"{family.module} has no class {family.mixer}"
    if not set(MIXER_CACHE_NAMES) & set(_parameters(mixer.forward)):
        return False, f"{family.mixer}.forward takes none of {', '.join(MIXER_CACHE_NAMES)}"
    functions = OPERATORS[family.kind] | CONVOLUTIONS
    return _first_failure(_has_parameters(module, name, names, family.module) for name, names in functions.items())


def check_cache_surface() -> Verdict:
    """Whether the cache and the generation loop are as expected: `(True, "")` or a reason."""
    try:
        cache, generation = (importlib.import_module(name) for name in (CACHE_MODULE, GENERATION_MODULE))
    except ImportError as error:
        return False, str(error)
    return _first_failure((*_check_layers(cache), _check_generation(generation)))


def _check_layers(cache: Any) -> Iterable[Verdict]:  # noqa: ANN401  transformers is untyped
    for name in ("Cache", "DynamicCache", "LinearAttentionCacheLayerMixin", *CACHE_LAYERS):
        yield hasattr(cache, name), f"{CACHE_MODULE} has no class {name}"
        if not hasattr(cache, name):
            return
    yield _has_parameters(cache.Cache, CACHE_CROP, CACHE_CROP_PARAMETERS, "Cache")
    for name in CACHE_LAYERS:
        layer = getattr(cache, name)
        for method, names in CACHE_LAYER_METHODS.items():
            yield _has_parameters(layer, method, names, name)
    made = cache.LinearAttentionLayer()
    for attribute in CACHE_LAYER_ATTRIBUTES:
        yield hasattr(made, attribute), f"LinearAttentionLayer has no attribute {attribute}"
    made = cache.DynamicCache()
    for attribute in ("layers", "offloading"):
        yield hasattr(made, attribute), f"DynamicCache has no attribute {attribute}"


def _check_generation(generation: Any) -> Verdict:  # noqa: ANN401  transformers is untyped
    mixin = getattr(generation, "GenerationMixin", None)
    if mixin is None:
        return False, f"{GENERATION_MODULE} has no class GenerationMixin"
    return _has_parameters(mixin, VALIDATE, VALIDATE_PARAMETERS, "GenerationMixin")


def _has_parameters(owner: Any, name: str, names: tuple[str, ...], where: str) -> Verdict:  # noqa: ANN401
    function = getattr(owner, name, None)
    if not callable(function):
        return False, f"{where} has no {name}"
    found = _parameters(function)
    missing = [parameter for parameter in names if parameter not in found]
    return not missing, f"{where}.{name} lacks the parameters {', '.join(missing)}; it has {', '.join(found)}"


def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def _first_failure(verdicts: Iterable[Verdict]) -> Verdict:
    return next((verdict for verdict in verdicts if not verdict[0]), (True, ""))
