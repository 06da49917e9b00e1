"""From a `ReplaySSMConfig` to LLM arguments and environment variables; every rule is applied here, whoever asks."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from replayssm import InputError, UnsupportedError
from replayssm_trtllm.config import NATIVE, PLUGIN, ReplaySSMConfig
from replayssm_trtllm.llm_checks import (
    carried_configs,
    check_arguments,
    check_environment,
    check_names,
    mapping,
    overrides,
)
from replayssm_trtllm.llm_fields import (
    CUDA_GRAPHS,
    ENV_CONFIG,
    ENV_GDN_REPLAY,
    ENV_MAMBA_REPLAY,
    ENV_OVERRIDES,
    KV_CACHE,
    MODEL_KWARGS,
    NESTED,
    PHILOX_ROUNDS,
    REPLAY_KEY,
    SPECULATIVE,
    STATE_DTYPE,
    STATE_ROUNDING,
    USE_V2,
)
from replayssm_trtllm.mode_checks import check_native, check_plugin
from replayssm_trtllm.speculation import check_speculation, tokens_per_step

NATIVE_ENV = {ENV_MAMBA_REPLAY: "1", ENV_GDN_REPLAY: "1"}


def llm_arguments(
    config: ReplaySSMConfig,
    speculative: Mapping[str, Any] | None,
    llm: Mapping[str, Any] | None,
    *,
    sm: int | None,
    nested: str | None,
) -> dict[str, Any]:
    """See `ReplaySSMConfig.to_llm_kwargs`."""
    given = dict(mapping(llm, "llm"))
    speculative = _speculation(speculative, given)
    _check_choices(sm, nested)
    check_names(given)
    check_speculation(speculative)
    check_arguments(given)
    plugin = config.resolved_mode == PLUGIN
    _check_carried_once(given, plugin, nested)
    check_environment(os.environ | overrides(given), plugin)
    if plugin:
        check_plugin(config, speculative, given)
        carried: dict[str, Any] = {REPLAY_KEY: _carried(config, speculative)}
        ours: dict[str, Any] = {MODEL_KWARGS: carried if nested is None else {nested: carried}}
    else:
        check_native(config, speculative, given, sm)
        ours = {ENV_OVERRIDES: NATIVE_ENV}
    ours |= _written(config)
    if speculative is not None:
        ours[SPECULATIVE] = dict(speculative)
    return _merged(given, ours, "")


def environment(config: ReplaySSMConfig, speculative: Mapping[str, Any] | None, *, sm: int | None) -> dict[str, str]:
    """See `ReplaySSMConfig.to_env`."""
    llm_arguments(config, speculative, None, sm=sm, nested=None)
    lost = [name for name, _ in missing({}, _written(config))]
    if lost:
        raise UnsupportedError(
            f"no environment variable carries {', '.join(lost)}; use to_yaml (`replayssm trtllm yaml`) or to_llm_kwargs"
        )
    return {ENV_CONFIG: json.dumps(_carried(config, speculative))} if config.resolved_mode == PLUGIN else NATIVE_ENV


def check_complete(config: ReplaySSMConfig, given: Mapping[str, Any]) -> None:
    """Check that arguments that somebody else wrote hold all that a configuration needs beside itself.

    Raises:
        InputError: what is missing, and its value.
    """
    for name, value in missing(given, _written(config)):
        raise InputError(f"{name} is missing or left open; ReplaySSMConfig needs {value!r} there")


def missing(given: Mapping[str, Any], needed: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    """Paths and values that are needed and not given. The manager is not needed: models that replay choose V2 themselves."""
    for name, value in needed.items():
        if isinstance(value, Mapping):
            yield from missing(mapping(given.get(name), name), value, f"{where}{name}.")
        elif name != USE_V2 and (name not in given or _left_open(name, given[name])):
            yield f"{where}{name}", value


def _written(config: ReplaySSMConfig) -> dict[str, Any]:
    """What the engine itself must be told, beside a mode's own switch."""
    native = config.resolved_mode == NATIVE
    cache: dict[str, Any] = {USE_V2: True}
    if config.checkpoint_dtype != "auto":
        cache[STATE_DTYPE] = config.checkpoint_dtype
    if native and config.stochastic_rounding:
        cache |= {STATE_ROUNDING: True, PHILOX_ROUNDS: config.philox_rounds}
    return {KV_CACHE: cache} if config.graphs else {KV_CACHE: cache, CUDA_GRAPHS: None}


def _carried(config: ReplaySSMConfig, speculative: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the ranks receive: nothing is left to choose."""
    window = config.resolved_window(tokens_per_step(speculative))
    return config.model_dump() | {"mode": PLUGIN, "window": window, "backend": config.resolved_backend}


def _check_choices(sm: object, nested: object) -> None:
    if sm is not None and (not isinstance(sm, int) or isinstance(sm, bool)):
        raise InputError(f"sm={sm!r} must be a compute capability as one integer, e.g. 90 or 100")
    if nested not in (None, NESTED):
        raise InputError(
            f"nested={nested!r}; ranks look in {NESTED!r} only, use it for composite models or leave it out"
        )


def _check_carried_once(given: Mapping[str, Any], plugin: bool, nested: str | None) -> None:
    """What stands where the plugin's configuration goes is compared with it; anywhere else it would be a second one."""
    others = [place for place in carried_configs(given) if not plugin or place != nested]
    if others:
        where = ".".join(name for name in (MODEL_KWARGS, others[0], REPLAY_KEY) if name)
        what = f"nested={nested!r} puts it elsewhere" if plugin else "this configuration is native"
        raise InputError(f"{where} carries a configuration of the plugin, and {what}; leave one of them out")


def _speculation(speculative: Mapping[str, Any] | None, given: dict[str, Any]) -> Mapping[str, Any] | None:
    own = given.pop(SPECULATIVE, None)
    if own is not None and speculative is not None and own != speculative:
        raise InputError(f"{SPECULATIVE} is given twice and differs: {own!r} and {speculative!r}")
    chosen = own if speculative is None else speculative
    return None if chosen is None else mapping(chosen, SPECULATIVE)


def _merged(given: Mapping[str, Any], ours: Mapping[str, Any], where: str) -> dict[str, Any]:
    result = dict(given)
    for name, value in ours.items():
        path = f"{where}{name}"
        theirs = result.get(name)
        if isinstance(value, Mapping) and (theirs is None or isinstance(theirs, Mapping)):
            result[name] = _merged(theirs or {}, value, f"{path}.")
        elif name in result and theirs != value and not _left_open(name, theirs):
            raise InputError(f"{path}={theirs!r} contradicts ReplaySSMConfig, which needs {value!r}; leave it out")
        else:
            result[name] = value
    return result


def _left_open(name: str, value: object) -> bool:
    """Whether a user's value only leaves the choice to TensorRT-LLM."""
    return name in (USE_V2, STATE_DTYPE) and value in ("auto", None)
