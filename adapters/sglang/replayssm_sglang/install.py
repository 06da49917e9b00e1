"""A scheduler process: our parts in place of SGLang's, each verified."""

from __future__ import annotations

import functools
from collections.abc import Callable

from replayssm import LayerKind, ReplayConfig, ReplaySSMError
from replayssm_sglang import arguments, budget, facts, launch, mamba2, pool, prefill, speculation, surface
from replayssm_sglang.calls import Foreign, Original, bind
from replayssm_sglang.delta import DeltaKernel
from replayssm_sglang.metrics import Exporter
from replayssm_sglang.report import log_layers
from replayssm_sglang.session import Session
from replayssm_sglang.surface import Symbol


def install(config: ReplayConfig, server_args: Foreign) -> Session:
    """Start the session of this process and hook SGLang.

    Raises:
        SystemExit: a hook did not take.
    """
    from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    view = surface.resolved(server_args)
    started = Session(config)
    started.draft, started.tree = arguments.draft_length(view), arguments.drafts_trees(view)
    started.metrics = bool(getattr(view, "enable_metrics", False))
    started.running_requests = arguments.running_requests(view)
    hooks: dict[Symbol, tuple[Callable[..., Foreign], HookType]] = {
        surface.LOAD_MODEL: (before_load, HookType.BEFORE),
        surface.INIT_ATTENTION: (after_attention, HookType.AFTER),
        surface.HANDLE_MAX_MAMBA_CACHE: (budget.fit_slots, HookType.AROUND),
        surface.FORWARD_METADATA: (prefill.begin, HookType.AFTER),
        surface.TRACK_DECODE: (prefill.around_tracking, HookType.AROUND),
        surface.GDN_INIT: (take_delta_kernels, HookType.AFTER),
        surface.KDA_INIT: (take_delta_kernels, HookType.AFTER),
        surface.GDN_EXTEND: (prefill.around_delta, HookType.AROUND),
        surface.KDA_DECODE: (around_kda_decode, HookType.AROUND),
        surface.KDA_EXTEND: (prefill.around_delta, HookType.AROUND),
        surface.MAMBA2_INIT: (build_mamba2, HookType.AFTER),
        surface.MAMBA2_FORWARD: (prefill.around_mamba2, HookType.AROUND),
        surface.SSU: (mamba2.selective_state_update, HookType.REPLACE),
        surface.COMMIT: (speculation.note_acceptance, HookType.BEFORE),
        surface.UPDATE_AFTER_VERIFY: (speculation.commit, HookType.REPLACE),
        surface.REPORT_DECODE: (functools.partial(after_decode, Exporter()), HookType.AFTER),
    }
    before = {symbol: surface.resolve(symbol.path) for symbol in hooks}
    for symbol, (hook, kind) in hooks.items():
        HookRegistry.register(symbol.path, functools.partial(hook, started), kind)
    HookRegistry.apply_hooks()
    missing = [symbol.path for symbol, original in before.items() if surface.resolve(symbol.path) is original]
    if missing:
        launch.refuse(f"SGLang's hook registry did not take {', '.join(missing)}; see its log")
    # A class attribute, which the registry does not reach.
    HybridReqToTokenPool.mamba_pool_cls = pool.pool_class(HybridReqToTokenPool.mamba_pool_cls, started)
    return started


def before_load(started: Session, runner: Foreign) -> None:
    """Before `ModelRunner.load_model`: the layers' geometry, and whether the core serves it, before weights are read."""
    if runner.is_draft_worker:
        return
    import torch
    from sglang.srt.configs import hybrid_arch

    try:
        kind = facts.layer_kind(runner.model_config, hybrid_arch)
        params = facts.cache_params(hybrid_arch.mambaish_config(runner.model_config))
        started.facts = facts.read_facts(kind, params, runner.model_config.dtype)
        started.check(torch.device(runner.device))
    except ReplaySSMError as error:
        launch.refuse(str(error))


def after_attention(started: Session, _result: None, runner: Foreign) -> None:
    """After `ModelRunner.init_attention_backends`: the layers are ours, or the process ends."""
    if runner.is_draft_worker:
        return
    if not started.ready:
        launch.refuse("SGLang made no attention backend whose recurrent layers are served on this platform")
    log_layers(started)


def after_decode(exporter: Exporter, started: Session, result: None, *args: Foreign, **kwargs: Foreign) -> None:
    """After SGLang counted a decode batch: it went through our layers, or the process ends. Then the metrics."""
    if not started.steps.ran:
        launch.refuse(
            "SGLang decoded on a path that does not reach our layers; start without --replayssm, and report it"
        )
    exporter.report(started, result, *args, **kwargs)


def take_delta_kernels(started: Session, _result: None, backend: Foreign, runner: Foreign) -> None:
    """After the GDN or KDA backend was made: its decode and verify kernels are ours, its prefill stays."""
    if runner.is_draft_worker:
        return
    kernel, dispatcher = DeltaKernel(started), backend.kernel_dispatcher
    for name in (*surface.KERNELS, "tree_verify_kernel"):
        setattr(dispatcher, name, kernel)
    for name in ("supports_packed_decode", "supports_packed_decode_safe_gate"):
        setattr(dispatcher, name, True)
    _keep_off_fused_paths(backend)
    started.build(decay_rates=None)


def around_kda_decode(_started: Session, original: Original, *args: Foreign, **kwargs: Foreign) -> Foreign:
    """Around `KDAAttnBackend.forward_decode`: no decode past the dispatcher.

    A model that offers its output norm to be fused would have the whole decode fused with it. The offer is withdrawn; the
    model then norms by itself.
    """
    layer = bind(original, args, kwargs)["layer"]
    if getattr(layer, "_k3_onorm_gate", None) is not None:
        layer._k3_onorm_gate = None
    return original(*args, **kwargs)


def build_mamba2(started: Session, _result: None, _backend: Foreign, runner: Foreign) -> None:
    """After the Mamba-2 backend was made: the layers, with the decay rates of the loaded model."""
    if runner.is_draft_worker or started.recurrence.kind is not LayerKind.MAMBA2:
        return
    from sglang.srt.layers.attention.mamba.mamba import MambaMixer2

    layer_ids = sorted(runner.req_to_token_pool.mamba_map)
    try:
        started.build(mamba2.decay_rates(runner.model, MambaMixer2, layer_ids))
    except ReplaySSMError as error:
        launch.refuse(str(error))


def _keep_off_fused_paths(backend: Foreign) -> None:
    """SGLang's KDA backend has paths that never ask the dispatcher; the general one is always taken."""
    backend._fused_chain_verify_fn = None
    backend._can_run_dspark_cutedsl_mtp = lambda **_options: False
    if getattr(backend, "accept_lens_pool", None) is not None:
        launch.refuse("FlashInfer's KDA verify commits on its own; use --linear-attn-verify-backend triton")
    if hasattr(backend, "supports_prefill_graph_extend"):
        backend.supports_prefill_graph_extend = lambda: False
