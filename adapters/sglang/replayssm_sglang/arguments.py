"""SGLang's arguments that do not go with ReplaySSM: refused before anything is loaded, each with what to do instead."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from replayssm import LayerKind, ReplayConfig, UnsupportedError
from replayssm.capability import CAPABILITIES
from replayssm_sglang import facts, launch, surface
from replayssm_sglang.calls import Foreign

STATE_DTYPE_VARIABLE = "SGLANG_MAMBA_SSM_DTYPE"
_settled: list[str] = []
"""What this process has left in that variable for its children: not the user's word when a second engine starts."""
SPECULATION = ("EAGLE", "EAGLE3", "NEXTN", "NGRAM")
"""Algorithms whose acceptance is committed where we commit ours."""


@dataclass(frozen=True)
class Refusal:
    """An argument, when it is in the way, and what to do instead."""

    field: str
    conflicts: Callable[[Foreign], bool]
    advice: str


def _given(value: object) -> bool:
    return bool(value)


_OWN = "is SGLang's own ReplaySSM; use it or --replayssm, not both"

REFUSALS = (
    Refusal("enable_linear_replayssm", _given, _OWN),
    Refusal("enable_linear_replayssm_spec", _given, _OWN),
    Refusal("enable_gdn_replayssm_spec", _given, _OWN),
    Refusal(
        "disaggregation_mode",
        lambda mode: mode not in (None, "null"),
        "sends states without their rings; serve prefill and decode in one server",
    ),
    Refusal("enable_hierarchical_cache", _given, "copies states that lag behind their rings; leave it out"),
    Refusal("enable_lmcache", _given, "copies states that lag behind their rings; leave it out"),
    Refusal("enable_unified_cache_external_linker", _given, "copies states that lag behind their rings; leave it out"),
    Refusal("enable_int8_mamba_checkpoint", _given, "stores states that lag behind their rings; leave it out"),
    Refusal("enable_unified_memory", _given, "has a pool of its own that rings cannot join; leave it out"),
    Refusal("enable_page_major_kv_layout", _given, "strides states in a way that is not tested; leave it out"),
    Refusal("enable_memory_saver", _given, "would not free the rings; leave it out"),
    Refusal(
        "enable_mamba_cache_stochastic_rounding", _given, "rounds on its own; use --replayssm fp16-sr in its place"
    ),
    Refusal("enable_two_batch_overlap", _given, "interleaves the layers of two batches; leave it out"),
    Refusal("enable_pdmux", _given, "interleaves prefill and decode; leave it out"),
    Refusal("enable_torch_compile", _given, "traces the layers, which is not tested; leave it out"),
    Refusal("enable_dp_attention", _given, "gives each rank requests of its own, which is not tested; leave it out"),
    Refusal(
        "pp_size", lambda ranks: (ranks or 1) > 1, "spreads the layers of a step, which is not tested; use --tp-size"
    ),
    Refusal("enable_mis", _given, "scores several items on one state, which is not tested; leave it out"),
    Refusal("use_ray", _given, "starts processes that do not load plugins; start without Ray"),
    Refusal(
        "speculative_algorithm",
        lambda name: name is not None and str(name).upper() not in SPECULATION,
        f"commits its drafts elsewhere; {', '.join(SPECULATION)} are served",
    ),
    Refusal("speculative_adaptive", _given, "changes the draft length, which is not tested; leave it out"),
)


def check(server_args: Foreign) -> None:
    """Refuse what cannot be served, and settle the dtype of SGLang's states for the processes to come.

    Raises:
        SystemExit: the first reason.
    """
    config = launch.active_config()
    assert config is not None, "checked only where ReplaySSM was asked for"
    view = surface.resolved(server_args)
    reasons = (*conflicts(view), *speculation_conflicts(config, view), *backend_conflicts(config, view))
    reason = next(iter(reasons), None)
    if reason is not None:
        launch.refuse(reason)
    forget_dtype()
    try:
        check_model(server_args, view)
        dtype = state_dtype(config, getattr(view, "mamba_ssm_dtype", None), os.environ.get(STATE_DTYPE_VARIABLE))
    except UnsupportedError as error:
        launch.refuse(str(error))
    if STATE_DTYPE_VARIABLE not in os.environ:
        _settled[:] = [dtype]
    os.environ[STATE_DTYPE_VARIABLE] = dtype


def forget_dtype() -> None:
    """Take back what an earlier engine of this process left to its children."""
    if _settled and os.environ.get(STATE_DTYPE_VARIABLE) == _settled[0]:
        del os.environ[STATE_DTYPE_VARIABLE]
    _settled.clear()


def conflicts(view: Foreign) -> Iterator[str]:
    """Reasons against a set of arguments; a field that a release lacks is in nobody's way."""
    for refusal in REFUSALS:
        value = getattr(view, refusal.field, None)
        if refusal.conflicts(value):
            flag = "--" + refusal.field.replace("_", "-")
            yield f"{flag}{'' if value is True else f' {value}'} {refusal.advice}"


def speculation_conflicts(config: ReplayConfig, view: Foreign) -> Iterator[str]:
    """Reasons against the draft length."""
    draft = draft_length(view)
    if draft > config.window:
        yield (
            f"--replayssm-window {config.window} is below the {draft} tokens of a verify step; "
            f"use at least {draft}, better {max(16, 4 * draft)}"
        )


def backend_conflicts(config: ReplayConfig, view: Foreign) -> Iterator[str]:
    """Reasons against a backend of the core that was named."""
    row = CAPABILITIES.get(config.backend)
    captured = getattr(view, "device", None) == "cuda" and not getattr(view, "disable_cuda_graph", False)
    if row is not None and captured and not row.graph_capture:
        yield (
            f"backend {config.backend!r} waits for the device, which a CUDA graph cannot capture; "
            "leave it out, or add --disable-cuda-graph"
        )


def draft_length(view: Foreign) -> int:
    """T, tokens of a verify step; 1 without speculation."""
    if getattr(view, "speculative_algorithm", None) is None:
        return 1
    return int(getattr(view, "speculative_num_draft_tokens", None) or 1)


def drafts_trees(view: Foreign) -> bool:
    """Whether verify steps hold trees."""
    return draft_length(view) > 1 and int(getattr(view, "speculative_eagle_topk", None) or 1) > 1


def state_dtype(config: ReplayConfig, flag: str | None, variable: str | None) -> str:
    """Name of the dtype that SGLang's pool must have.

    Raises:
        UnsupportedError: the checkpoint is of a format that the pool cannot have, or the user set another dtype.
    """
    wanted = str(facts.state_dtype(config.policy)).removeprefix("torch.")
    for name, value in (("--mamba-ssm-dtype", flag), (STATE_DTYPE_VARIABLE, variable)):
        if value not in (None, wanted):
            raise UnsupportedError(f"{name} {value} differs from the checkpoint's {wanted}; leave it out")
    return wanted


def served_kind(server_args: Foreign) -> LayerKind:
    """Which layers the model to be served has.

    Raises:
        UnsupportedError: none that are served.
    """
    return facts.layer_kind(*_model(server_args))


def check_model(server_args: Foreign, view: Foreign) -> None:
    """That the model's recurrent layers are served, and split over the ranks.

    Raises:
        UnsupportedError: they are not, or do not.
    """
    model_config, hybrid_arch = _model(server_args)
    facts.layer_kind(model_config, hybrid_arch)
    facts.check_split(hybrid_arch.mambaish_config(model_config), int(getattr(view, "tp_size", None) or 1))


def _model(server_args: Foreign) -> tuple[Foreign, Foreign]:
    """SGLang's description of the model, and the module that knows hybrid ones."""
    from sglang.srt.configs import hybrid_arch
    from sglang.srt.configs.model_config import ModelConfig

    return ModelConfig.from_server_args(server_args), hybrid_arch


def running_requests(view: Foreign) -> int:
    """Most requests that decode at once, 0 where SGLang decides."""
    return int(getattr(view, "max_running_requests", None) or 0)
