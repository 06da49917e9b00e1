"""Every SGLang symbol that this adapter reads, calls or replaces, and what it must look like.

Probed by signature: a version only says what was tested. `register`, `replayssm doctor --engine sglang` and the contract
test check all of it; an SGLang that does not match is refused with the first difference.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from types import ModuleType

from replayssm_sglang.calls import Foreign

Verdict = tuple[bool, str]

RAN = ("0.5.16", "0.5.23")
"""Oldest and newest release that the adapter was run with; docs/engines/sglang.md says how far."""


@dataclass(frozen=True)
class Symbol:
    """One symbol.

    Attributes:
        path: dotted, as SGLang's hook registry takes it.
        parameters: names that its signature must have; None for what is not called.
        use: why we need it.
        sets: attributes that its body must name, which we replace.
    """

    path: str
    parameters: tuple[str, ...] | None
    use: str
    sets: tuple[str, ...] = ()


_SRT = "sglang.srt"
_LINEAR = f"{_SRT}.layers.attention.linear"
_HYBRID = f"{_SRT}.layers.attention.hybrid_linear_attn_backend"
_POOL = f"{_SRT}.mem_cache.memory_pool"
_SIZES = f"{_SRT}.mem_cache.kv_cache_configurator.KVCacheConfigurator"
_STATE = ("ssm_states", "cache_indices")
_DELTA = ("q", "k", "v", "a", "b", "A_log", "dt_bias", *_STATE)

KERNELS = ("decode_kernel", "verify_kernel")
"""Attributes of a dispatcher that hold its kernels."""

TRACKED = ("track_ssm_h_dst", "track_ssm_final_dst")
"""Fields of a batch's metadata with slots that prefill writes states for the prefix cache to."""

ADD_CLI_ARGS = Symbol(f"{_SRT}.server_args.ServerArgs.add_cli_args", ("parser",), "flags")
FROM_CLI_ARGS = Symbol(f"{_SRT}.server_args.ServerArgs.from_cli_args", ("args",), "flags")
CHECK_SERVER_ARGS = Symbol(f"{_SRT}.server_args.ServerArgs.check_server_args", ("self",), "refusals before a launch")
SCHEDULER_INIT = Symbol(f"{_SRT}.managers.scheduler.Scheduler.__init__", ("server_args",), "start of a scheduler")

LOAD_MODEL = Symbol(f"{_SRT}.model_executor.model_runner.ModelRunner.load_model", ("self",), "geometry before weights")
INIT_ATTENTION = Symbol(
    f"{_SRT}.model_executor.model_runner.ModelRunner.init_attention_backends", ("self",), "whether layers are ours"
)
HANDLE_MAX_MAMBA_CACHE = Symbol(f"{_SIZES}._handle_max_mamba_cache", ("total_rest_memory",), "number of slots")
POOL_CLASS = Symbol(f"{_POOL}.HybridReqToTokenPool.mamba_pool_cls", None, "state pool")
FORWARD_METADATA = Symbol(f"{_HYBRID}.MambaAttnBackendBase._forward_metadata", ("forward_batch",), "prefill")
TRACK_DECODE = Symbol(
    f"{_HYBRID}.MambaAttnBackendBase._track_mamba_state_decode",
    ("forward_batch", "conv_states", *_STATE),
    "states for the prefix cache",
)
GDN_INIT = Symbol(f"{_LINEAR}.gdn_backend.GDNAttnBackend.__init__", ("model_runner",), "GDN layers")
GDN_EXTEND = Symbol(f"{_LINEAR}.gdn_backend.GDNAttnBackend.forward_extend", ("layer", "forward_batch"), "GDN prefill")
KDA_INIT = Symbol(f"{_LINEAR}.kda_backend.KDAAttnBackend.__init__", ("model_runner",), "KDA layers")
KDA_DECODE = Symbol(f"{_LINEAR}.kda_backend.KDAAttnBackend.forward_decode", ("layer", "forward_batch"), "KDA layers")
KDA_EXTEND = Symbol(f"{_LINEAR}.kda_backend.KDAAttnBackend.forward_extend", ("layer", "forward_batch"), "KDA prefill")
MAMBA2_INIT = Symbol(f"{_HYBRID}.Mamba2AttnBackend.__init__", ("model_runner",), "Mamba-2 layers")
MAMBA2_FORWARD = Symbol(
    f"{_HYBRID}.Mamba2AttnBackend.forward", ("mixer", "layer_id", "forward_batch"), "Mamba-2 prefill and tracking"
)
SSU = Symbol(
    "sglang.kernels.ops.mamba.triton_ops.ssu_dispatch.selective_state_update",
    (
        *("state", "x", "dt", "A", "B", "C", "D", "z", "dt_bias", "dt_softplus", "state_batch_indices", "out"),
        *("disable_state_update", "retrieve_parent_token"),
    ),
    "Mamba-2 layers",
)
COMMIT = Symbol(
    f"{_SRT}.speculative.spec_utils.commit_mamba_states_after_verify",
    ("target_worker", "batch", "accept_lens", "accept_index", "draft_token_num"),
    "acceptance",
)
UPDATE_AFTER_VERIFY = Symbol(
    f"{_HYBRID}.HybridLinearAttnBackend.update_mamba_state_after_mtp_verify",
    ("last_correct_step_indices", "mamba_track_indices", "mamba_steps_to_track", "model"),
    "acceptance",
)
REPORT_DECODE = Symbol(
    f"{_SRT}.managers.scheduler_components.metrics_reporter.SchedulerMetricsReporter.report_decode_stats",
    ("can_run_cuda_graph", "running_batch"),
    "metrics",
)

REPLACED = (
    *(ADD_CLI_ARGS, FROM_CLI_ARGS, CHECK_SERVER_ARGS, SCHEDULER_INIT),
    *(LOAD_MODEL, INIT_ATTENTION, HANDLE_MAX_MAMBA_CACHE, FORWARD_METADATA, TRACK_DECODE),
    *(
        GDN_INIT,
        GDN_EXTEND,
        KDA_INIT,
        KDA_DECODE,
        KDA_EXTEND,
        MAMBA2_INIT,
        MAMBA2_FORWARD,
        SSU,
        COMMIT,
        UPDATE_AFTER_VERIFY,
        REPORT_DECODE,
    ),
)
"""Functions that are wrapped or replaced."""

READ = (
    POOL_CLASS,
    Symbol(f"{_SRT}.plugins.hook_registry.HookRegistry.register", ("target", "hook", "hook_type"), "hooks"),
    Symbol(f"{_SRT}.plugins.hook_registry.HookRegistry.apply_hooks", (), "hooks"),
    Symbol(f"{_SRT}.configs.hybrid_arch.mambaish_config", ("model_config",), "which layers"),
    Symbol(f"{_SRT}.configs.hybrid_arch.hybrid_gdn_config", ("model_config",), "which layers"),
    Symbol(f"{_SRT}.configs.hybrid_arch.kimi_linear_config", ("model_config",), "which layers"),
    Symbol(f"{_SRT}.configs.model_config.ModelConfig.from_server_args", ("server_args",), "which layers"),
    Symbol(f"{_POOL}.MambaPool.__init__", ("size", "cache_params", "mamba_layer_ids", "device"), "state pool"),
    Symbol(f"{_POOL}.MambaPool.clear_slots", ("indices",), "state pool"),
    Symbol(f"{_POOL}.MambaPool.copy_from", ("src_indices", "dst_indices"), "state pool"),
    Symbol(f"{_POOL}.MambaPool.get_cpu_copy", ("indices",), "state pool"),
    Symbol(f"{_POOL}.MambaPool.load_cpu_copy", ("mamba_cache_cpu", "indices"), "state pool"),
    Symbol(f"{_HYBRID}.ForwardMetadata", ("mamba_cache_indices", *TRACKED), "slots of a batch"),
    Symbol(f"{_LINEAR}.gdn_backend.GDNKernelDispatcher.__init__", ("decode_backend",), "GDN layers", KERNELS),
    Symbol(f"{_LINEAR}.kda_backend.KDAKernelDispatcher.__init__", ("decode_backend",), "KDA layers", KERNELS),
    Symbol(f"{_LINEAR}.gdn_backend.GDNKernelDispatcher.packed_decode", ("mixed_qkv", "a", "b", *_STATE), "GDN layers"),
    Symbol(f"{_LINEAR}.gdn_backend.GDNKernelDispatcher.target_verify", _DELTA, "GDN layers"),
    Symbol(f"{_LINEAR}.kda_backend.KDAKernelDispatcher.packed_decode", ("mixed_qkv", "a", "b", *_STATE), "KDA layers"),
    Symbol(f"{_LINEAR}.kda_backend.KDAKernelDispatcher.target_verify", _DELTA, "KDA layers"),
    Symbol(f"{_SRT}.layers.attention.mamba.mamba.MambaMixer2.forward", ("layer_cache", "metadata"), "Mamba-2 layers"),
    Symbol(
        "sglang.kernels.ops.mamba.mamba_state_scatter_triton.fused_conv_window_scatter_with_mask",
        ("dst", "src", "dst_indices_raw", "step_indices_raw"),
        "convolution states after acceptance",
    ),
)
"""What is called or subclassed."""

_VIEWS = (f"{_SRT}.arg_groups.overrides", f"{_SRT}.arg_groups.model_override_base")
"""Homes of `resolved_view`, by release."""


def version() -> str:
    """Of the installed SGLang; "absent" without one."""
    try:
        return installed_version("sglang")
    except PackageNotFoundError:
        return "absent"


def check() -> Verdict:
    """Whether the installed SGLang has the whole surface: `(True, "")` or the first difference."""
    return next((verdict for _, verdict in report() if not verdict[0]), (True, ""))


def report() -> Iterator[tuple[Symbol, Verdict]]:
    """Every symbol with its verdict."""
    for symbol in (*REPLACED, *READ):
        yield symbol, probe(symbol)


def probe(symbol: Symbol) -> Verdict:
    """Whether a symbol is there with the parameters that we use."""
    try:
        found = resolve(symbol.path)
    except Exception as error:
        # An engine's import may fail with anything; that is the finding.
        return False, f"{symbol.path} ({symbol.use}): {type(error).__name__}: {error}"
    if symbol.parameters is None:
        return True, ""
    names = tuple(inspect.signature(found).parameters)
    missing = [name for name in symbol.parameters if name not in names]
    if missing:
        return False, f"{symbol.path} ({symbol.use}) lacks {', '.join(missing)}; it has {', '.join(names)}"
    unset = [name for name in symbol.sets if name not in inspect.unwrap(found).__code__.co_names]
    if unset:
        return False, f"{symbol.path} ({symbol.use}) sets no {', '.join(unset)}"
    return True, ""


def resolve(path: str) -> Foreign:
    """The object of a dotted path. Unlike `pkgutil.resolve_name`, an import that fails says why."""
    first, *rest = path.split(".")
    found: Foreign = importlib.import_module(first)
    for part in rest:
        if isinstance(found, ModuleType) and not hasattr(found, part):
            importlib.import_module(f"{found.__name__}.{part}")
        found = getattr(found, part)
    return found


def resolved(server_args: Foreign) -> Foreign:
    """Server arguments as SGLang resolved them.

    0.5.23 keeps the operator's values apart from its decisions, 0.5.16 writes decisions over them.
    """
    for home in _VIEWS:
        try:
            view = getattr(importlib.import_module(home), "resolved_view", None)
        except ImportError:
            continue
        if view is not None:
            return view(server_args)
    return server_args
