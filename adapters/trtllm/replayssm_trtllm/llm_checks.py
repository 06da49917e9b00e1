"""Refusals that are known from the LLM arguments alone, before a model loads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replayssm import InputError, UnsupportedError
from replayssm_trtllm.llm_fields import (
    ENV_GDN_REPLAY,
    ENV_MAMBA_REPLAY,
    ENV_MANAGER,
    ENV_OVERRIDES,
    ENV_PYTHON_MAMBA,
    ENV_VERIFY_OP,
    KV_CACHE,
    KV_CACHE_FIELDS,
    MODEL_KWARGS,
    NESTED,
    REPLAY_KEY,
    STATE_DTYPE,
    STATE_DTYPES,
    TOP_LEVEL,
    TRANSCEIVER,
    USE_V2,
)
from replayssm_trtllm.nearest import nearest

TRANSPORT = {"backend": "NIXL", "transceiver_runtime": "PYTHON"}
"""What moves recurrent states of the V2 manager between servers."""


def check_names(arguments: Mapping[str, Any]) -> None:
    """Look for misspelt fields.

    Raises:
        InputError: a field that is near to a known one; names it and the known one.
    """
    _check_near(arguments, TOP_LEVEL, "the LLM arguments")
    _check_near(section(arguments, KV_CACHE), KV_CACHE_FIELDS, KV_CACHE)


def _check_near(given: Mapping[str, Any], known: frozenset[str], where: str) -> None:
    for name in given:
        close = None if name in known else nearest(str(name), known)
        if close:
            raise InputError(f"{where} has {name!r}; did you mean {close!r}?")


def mapping(value: object, where: str) -> Mapping[str, Any]:
    """A mapping of names, empty for None.

    Raises:
        InputError: something else than a mapping, or a key that is no name.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InputError(f"{where} is a {type(value).__name__}; expected a mapping")
    for name in value:
        if not isinstance(name, str):
            raise InputError(f"{where} has the key {name!r}; expected names")
    return value


def section(arguments: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A nested mapping of the arguments, empty when it is absent or null; errors as those of `mapping`."""
    return mapping(arguments.get(name), name)


def carried_configs(arguments: Mapping[str, Any]) -> dict[str | None, Any]:
    """The plugin's configurations in `model_kwargs`, by the section of it that holds one, None for its top.

    Raises:
        InputError: one that is misspelt, or where no rank looks.
    """
    model_kwargs = section(arguments, MODEL_KWARGS)
    unread = [
        name
        for name, value in model_kwargs.items()
        if name != NESTED and isinstance(value, Mapping) and REPLAY_KEY in value
    ]
    if unread:
        raise InputError(
            f"{MODEL_KWARGS}.{unread[0]} holds {REPLAY_KEY!r}, and ranks look in {NESTED} only; move it there"
        )
    found: dict[str | None, Any] = {}
    for place, holder in ((None, model_kwargs), (NESTED, section(model_kwargs, NESTED))):
        for name in holder:
            if name != REPLAY_KEY and nearest(name, (REPLAY_KEY,)):
                raise InputError(f"{MODEL_KWARGS} has {name!r}; did you mean {REPLAY_KEY!r}?")
        if REPLAY_KEY in holder:
            found[place] = holder[REPLAY_KEY]
    return found


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Check what neither mode serves.

    Raises:
        InputError, UnsupportedError: the reason, and what would work.
    """
    check_beams(arguments.get("max_beam_width"))
    if arguments.get("kv_connector_config") is not None:
        raise UnsupportedError(
            "kv_connector_config: a connector moves attention blocks and neither state nor ring; leave it out"
        )
    if section(arguments, KV_CACHE).get(USE_V2) is False:
        raise UnsupportedError(f"{KV_CACHE}.{USE_V2}=false selects a V1 manager; leave it out, or set true")
    dtype = section(arguments, KV_CACHE).get(STATE_DTYPE)
    if dtype not in (None, *STATE_DTYPES):
        raise InputError(f"{KV_CACHE}.{STATE_DTYPE}={dtype!r}; expected one of {', '.join(STATE_DTYPES)}")
    backend = arguments.get("backend")
    if backend not in (None, "pytorch"):
        raise UnsupportedError(f"backend={backend!r} has no recurrent cache manager to extend; use 'pytorch'")
    transceiver = section(arguments, TRANSCEIVER)
    if transceiver:
        check_transport(transceiver)


def check_beams(width: int | None) -> None:
    """Check that there is no beam search.

    Raises:
        UnsupportedError: there is.
    """
    if width not in (None, 1):
        raise UnsupportedError(f"max_beam_width={width!r}: a beam search would copy rings at each step; use 1")


def check_transport(transceiver: Mapping[str, Any]) -> None:
    """Check a disaggregated server's transport.

    Raises:
        UnsupportedError: another transport than NIXL, or another runtime than Python's.
    """
    for name, wanted in TRANSPORT.items():
        value = transceiver.get(name)
        if value != wanted:
            raise UnsupportedError(
                f"{TRANSCEIVER}.{name}={value!r}: recurrent states of the V2 manager move with {wanted} only; set {name}: "
                f"{wanted}"
            )


def overrides(arguments: Mapping[str, Any]) -> Mapping[str, str]:
    """The environment variables among the arguments.

    Raises:
        InputError: a value that is no string, which TensorRT-LLM refuses.
    """
    given = section(arguments, ENV_OVERRIDES)
    for name, value in given.items():
        if not isinstance(value, str):
            kind = type(value).__name__
            raise InputError(f"{ENV_OVERRIDES}.{name}={value!r} is of type {kind}; variables are text, write '{value}'")
    return given


def check_environment(environment: Mapping[str, str], plugin: bool) -> None:
    """Check the variables that choose another manager, another verification or another replay.

    Raises:
        UnsupportedError: one of them is set.
    """
    if environment.get(ENV_PYTHON_MAMBA, "0") == "1":
        raise UnsupportedError(f"{ENV_PYTHON_MAMBA}=1 forces a V1 manager; unset it")
    if environment.get(ENV_MANAGER):
        raise UnsupportedError(f"{ENV_MANAGER}={environment[ENV_MANAGER]} forces a V1 manager; unset it")
    if not plugin:
        return
    if environment.get(ENV_VERIFY_OP, "0") == "1":
        raise UnsupportedError(f"{ENV_VERIFY_OP}=1 verifies drafts in an operator that reads no ring; unset it")
    for name in (ENV_MAMBA_REPLAY, ENV_GDN_REPLAY):
        if environment.get(name) == "1":
            raise UnsupportedError(
                f"{name}=1 asks for TensorRT-LLM's own replay and this configuration for the plugin's; unset it, or use "
                "mode='native'"
            )
