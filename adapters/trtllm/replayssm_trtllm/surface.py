"""Every TensorRT-LLM symbol that this adapter reads, calls or replaces, and what it must look like.

Names, parameters, and, where only a body tells, names and constants that a function's body uses. `compat` checks all of
it for the generation that it finds; one line that does not hold, and the plugin refuses.
"""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from typing import Any

PACKAGE = "tensorrt_llm"
TORCH = f"{PACKAGE}._torch"
SELECTOR_MODULE = f"{TORCH}.pyexecutor._util"
SELECTOR = "get_kv_cache_manager_cls"
MANAGERS = f"{TORCH}.pyexecutor.kv_cache.mamba_cache_manager"
COMMON = f"{MANAGERS}.common"
V2_MODULE = f"{MANAGERS}.mamba_cache_manager_v2"
OLD_MANAGERS = f"{TORCH}.pyexecutor.mamba_cache_manager"
REGISTRY = f"{TORCH}.models.modeling_utils"
MAMBA2_MODULE = f"{TORCH}.modules.mamba.mamba2_mixer"
GDN_MODULE = f"{TORCH}.modules.mamba.gdn_mixer"
V2 = "MambaHybridCacheManagerV2"
MAMBA2_MIXER, GDN_MIXER = "Mamba2Mixer", "Qwen3NextGatedDeltaNet"

GENERATIONS = ("A", "B", "C", "D")
SERVED = ("B", "C", "D")
LATER = ("C", "D")

Verdict = tuple[bool, str]


@dataclass(frozen=True)
class Symbol:
    """One symbol.

    Attributes:
        module: import path.
        name: attribute path inside it.
        parameters: that it must take (fields, for a class).
        uses: names that its body must use.
        constants: strings that its body must hold.
        generations: where it must be.
    """

    module: str
    name: str
    parameters: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    generations: tuple[str, ...] = SERVED

    @property
    def label(self) -> str:
        """Its last module and name."""
        return f"{self.module.rpartition('.')[2]}:{self.name}"


def _v2(name: str, *parameters: str, uses: tuple[str, ...] = (), generations: tuple[str, ...] = SERVED) -> Symbol:
    return Symbol(V2_MODULE, f"{V2}.{name}", parameters, uses, (), generations)


def _strategy(name: str, *parameters: str) -> Symbol:
    return Symbol(COMMON, f"MambaStateUpdateStrategy.{name}", parameters, generations=("B",))


MIXED = ("num_prefill_tokens", "num_prefill", "num_decodes", "state_indices_p", "state_indices_d", "batch_size")

SYMBOLS: tuple[Symbol, ...] = (
    Symbol(SELECTOR_MODULE, SELECTOR, ("model_config",)),
    Symbol(REGISTRY, "register_auto_model", ("name",)),
    Symbol(
        COMMON,
        "ReplayStateUpdateMetadata",
        ("prev_num_accepted_tokens", "cache_buf_idx", "replay_step_width", "replay_history_size"),
    ),
    Symbol(COMMON, "_mamba_effective_tp_size", ("mapping",)),
    Symbol(
        COMMON,
        "_get_local_mamba_cache_layout",
        ("model_config", "mapping", "spec_config", "is_draft", "use_separate_draft_kv_cache"),
    ),
    _v2("update_mamba_states", "attn_metadata", "num_accepted_tokens", "state_indices", "accepted_leaf_positions"),
    _v2("_setup_state_indices", "requests", "num_contexts", uses=("_request_id_to_state_index", "py_request_id")),
    _v2("get_ssm_states", "layer_idx", uses=("all_ssm_states", "mamba_layer_offsets")),
    _v2("get_conv_states", "layer_idx", uses=("all_conv_states", "mamba_layer_offsets")),
    _v2("on_state_transfer_complete", "request_ids"),
    _v2("shutdown"),
    # Generations C and D: the model's manager overrides hooks.
    Symbol(
        COMMON,
        "IntermediateLayerCache",
        ("conv", "temporal", "intermediate_conv_window"),
        generations=LATER,
    ),
    Symbol(COMMON, "MambaState", generations=LATER),
    Symbol(
        COMMON,
        "MambaStateLayout",
        (
            *("mamba_pp_layers", "conv_state_shape", "ssm_state_shape", "conv_state_dtype", "ssm_state_dtype"),
            *("n_groups_per_rank", "max_batch_size", "slot_capacity", "spec_config", "stochastic_rounding"),
            "seed_rank_offset",
        ),
        generations=LATER,
    ),
    Symbol(
        COMMON,
        "MambaAcceptanceBatch",
        (
            *("num_accepted_tokens", "accepted_positions", "source_state_indices", "destination_state_indices"),
            "is_dummy_request",
        ),
        generations=LATER,
    ),
    _v2("__init__", uses=("_state_layout", "_initialize_model_state"), generations=("C",)),
    _v2("__init__", uses=("_state_layout", "_initialize_spec_state"), generations=("D",)),
    _v2("_initialize_model_state", generations=("C",)),
    _v2("_initialize_spec_state", generations=("D",)),
    _v2("_setup_model_state", generations=LATER),
    _v2("_reset_model_slots", "slots", "host_slots", generations=LATER),
    _v2("_on_state_slots_relocated", "old_slots", "new_slots", generations=LATER),
    _v2("_update_speculative_state", "batch", generations=LATER),
    _v2("_extra_scratch_bytes_per_slot", generations=LATER),
    _v2("_extra_state_bytes_per_rank", "model_config", "mapping", generations=LATER),
    _v2("_refresh_dummy_request_mask", "is_dummy", uses=("_dummy_request_mask",), generations=LATER),
    # Generation B: the manager takes a strategy.
    Symbol(
        COMMON,
        "SpeculativeMambaLayerCache",
        ("conv", "temporal", "intermediate_conv_window"),
        generations=("B",),
    ),
    Symbol(
        COMMON,
        "MambaCacheBuildContext",
        (
            *("mamba_pp_layers", "conv_state_shape", "ssm_state_shape", "conv_state_dtype", "ssm_state_dtype"),
            *("n_groups_per_rank", "max_batch_size", "slot_capacity", "spec_config", "stochastic_rounding"),
            *("seed_rank_offset", "state_index_capacity"),
        ),
        generations=("B",),
    ),
    Symbol(COMMON, "register_mamba_aux_cache_estimator", ("key", "estimator"), generations=("B",)),
    _v2("__init__", "state_update_strategy", generations=("B",)),
    _strategy("key"),
    _strategy("validate", "context"),
    _strategy("bytes_per_slot", "context", "layer_id"),
    _strategy("bind", "context", "manager"),
    _strategy("make_layer_cache", "layer_offset", "conv", "temporal"),
    _strategy("reset_slots", "slots", "host_slots"),
    _strategy("relocate_slots", "old_slots", "new_slots"),
    _strategy("refresh_dummy_request_mask", "is_dummy"),
    _strategy("dummy_request_mask", "start", "end"),
    _strategy("source_state_indices", "count"),
    _strategy("update", "batch", "manager"),
    _strategy("get_replay_metadata"),
    _strategy("on_state_transfer_complete", "request_ids", "manager"),
    _strategy("iter_buffers"),
    _strategy("shutdown", "manager"),
    # Mixers.
    Symbol(MAMBA2_MODULE, f"{MAMBA2_MIXER}.__init__", uses=("selective_state_update_func", "layer_idx", "A")),
    Symbol(MAMBA2_MODULE, f"{MAMBA2_MIXER}.forward", uses=("selective_state_update_func",)),
    Symbol(GDN_MODULE, f"{GDN_MIXER}.__init__", uses=("A_log", "dt_bias", "layer_idx")),
    Symbol(
        GDN_MODULE,
        f"{GDN_MIXER}.forward_decode",
        uses=("fused_sigmoid_gating_delta_rule_update", "_replay_verify_recurrent"),
    ),
    Symbol(GDN_MODULE, f"{GDN_MIXER}.forward_extend", ("output", "is_target_verify"), constants=MIXED),
    Symbol(GDN_MODULE, f"{GDN_MIXER}.forward_core", uses=("forward_decode", "forward_extend")),
    Symbol(
        GDN_MODULE,
        f"{GDN_MIXER}._replay_verify_recurrent",
        (
            *("query", "key", "value", "a", "b", "ssm_states", "state_indices_d", "num_decodes", "draft_token_num"),
            *("replay_metadata", "layer_cache", "replay_work_items", "replay_n_writes", "output_d"),
        ),
    ),
    Symbol(
        GDN_MODULE,
        "fused_sigmoid_gating_delta_rule_update",
        (
            *("A_log", "a", "dt_bias", "softplus_beta", "softplus_threshold", "q", "k", "v", "b"),
            *("initial_state_source", "initial_state_indices", "scale", "use_qk_l2norm_in_kernel", "output"),
        ),
    ),
)
"""All symbols, of all generations that are served. Models are in `architectures`."""


def find(module: str, name: str) -> Any:  # noqa: ANN401  the engine is untyped here
    """A symbol by module and attribute path, None where it is not."""
    try:
        found: Any = importlib.import_module(module)
    except ImportError:
        return None
    for part in name.split("."):
        found = getattr(found, part, None)
        if found is None:
            return None
    return found


def check(symbol: Symbol) -> Verdict:
    """Whether a symbol is there and as expected: `(True, "")` or a reason."""
    found = find(symbol.module, symbol.name)
    if found is None:
        return False, f"{symbol.module} has no {symbol.name}"
    found = found.fget if isinstance(found, property) else found
    lacking = [name for name in symbol.parameters if name not in _parameters(found)]
    if lacking:
        return False, f"{symbol.label} lacks {', '.join(lacking)}"
    body = _body(found)
    unused = [name for name in symbol.uses if name not in body[0]]
    if unused:
        return False, f"{symbol.label} does not use {', '.join(unused)}"
    absent = [text for text in symbol.constants if text not in body[1]]
    return not absent, f"{symbol.label} does not read {', '.join(absent)}" if absent else ""


def _parameters(found: Any) -> set[str]:  # noqa: ANN401
    fields = getattr(found, "__dataclass_fields__", None) or getattr(found, "_fields", None)
    if fields is not None:
        return set(fields)
    try:
        return set(inspect.signature(found).parameters)
    except (TypeError, ValueError):
        return set()


def _body(found: Any) -> tuple[set[str], set[str]]:  # noqa: ANN401
    """Names and strings in a function's code, nested functions included."""
    code = getattr(inspect.unwrap(found), "__code__", None) if callable(found) else None
    names: set[str] = set()
    strings: set[str] = set()
    pending = [] if code is None else [code]
    while pending:
        code = pending.pop()
        names.update(code.co_names)
        for constant in code.co_consts:
            if isinstance(constant, str):
                strings.add(constant)
            elif isinstance(constant, tuple):
                strings.update(text for text in constant if isinstance(text, str))
            elif inspect.iscode(constant):
                pending.append(constant)
    return names, strings
