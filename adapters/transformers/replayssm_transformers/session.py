"""`enable` and `disable`: one session for each enabled model."""

from __future__ import annotations

import inspect
import logging
import types
import weakref
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from replayssm import InputError, Recurrence, ReplayConfig, StateLayout, UnsupportedError
from replayssm.capability import choose_backend, supports
from replayssm_transformers import active, patch
from replayssm_transformers.cache_map import empty_layers
from replayssm_transformers.guards import check_forward, check_generation, check_mode, check_model, find_cache
from replayssm_transformers.layer import BROKEN, ReplayLayer, adopt
from replayssm_transformers.meter import ModelMeter
from replayssm_transformers.surface import HUB_RECIPE, MIXER_CACHE_NAMES, STATEFUL, VALIDATE
from replayssm_transformers.table import Family, geometry, mixers_of

logger = logging.getLogger(__name__)

_sessions: weakref.WeakKeyDictionary[nn.Module, Session] = weakref.WeakKeyDictionary()


class Session:
    """An enabled model.

    Attributes:
        config: the configuration in force.
        layers: one line for each kind of layer: recurrence, window, precision, bytes.
        layer_indices: numbers of the state-space layers.
        meter: counts the steps of all layers and caches.
        layers_alive: cache layers that were taken over and still exist.
    """

    def __init__(self, model: nn.Module, config: ReplayConfig, mixers: dict[nn.Module, Family]) -> None:
        self.config = config
        self.layers = _describe(config, mixers)
        self.meter = ModelMeter()
        self.layers_alive: weakref.WeakSet[ReplayLayer] = weakref.WeakSet()
        self.layer_indices = sorted({int(mixer.layer_idx) for mixer in mixers})  # type: ignore[arg-type]
        self._model = weakref.ref(model)
        self._mixers = weakref.WeakKeyDictionary(mixers)
        self._families = set(mixers.values())
        self._empty = empty_layers(model)
        self._hooks: list[Any] = []

    @property
    def model(self) -> nn.Module:
        """The model."""
        model = self._model()
        if model is None:
            raise UnsupportedError("the enabled model is gone")
        return model

    def totals(self) -> dict[str, int]:
        """Sums over all layers and caches since `enable`.

        steps, flushes, drafted, accepted and rolled_back count rows of a layer; bytes_read and bytes_written are state
        bytes, ordinary_bytes what an fp32 state that is read and written for every token would have moved.
        """
        return self.meter.totals()

    def open(self) -> None:
        """Install operators, hooks and the check of generate."""
        model: Any = self.model
        for family in self._families:
            patch.install(family)
        # Runs in close, or when the model goes without it.
        self._restore = weakref.finalize(model, _uninstall, self._families)
        self._restore.atexit = False
        for mixer in self._mixers:
            self._hooks.append(mixer.register_forward_pre_hook(self._enter, with_kwargs=True))
            self._hooks.append(mixer.register_forward_hook(self._leave, always_call=True))
        self._hooks.append(model.register_forward_pre_hook(self._check, with_kwargs=True))
        # transformers refuses assisted decoding for models that cannot roll back; an enabled one can.
        setattr(model, STATEFUL, False)
        if hasattr(model, VALIDATE):
            setattr(model, VALIDATE, types.MethodType(_validate, model))
        if hasattr(model, HUB_RECIPE):
            setattr(model, HUB_RECIPE, types.MethodType(_hub_recipe, model))

    def close(self) -> None:
        """Undo `open`; caches alive become ordinary ones and keep their states."""
        if any(layer.broken for layer in self.layers_alive):
            logger.warning("%s; as an ordinary one it can no longer refuse", BROKEN)
        for layer in list(self.layers_alive):
            layer.release()
        for hook in self._hooks:
            hook.remove()
        _restore_model(self.model)
        self._restore()

    def shares_layers(self, mixers: Iterable[nn.Module]) -> bool:
        """Whether any of these layers belongs to this session."""
        return any(mixer in self._mixers for mixer in mixers)

    def _check(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if model is not self.model:
            return
        bound = inspect.signature(model.forward).bind_partial(*args, **kwargs)
        arguments = {**bound.arguments, **bound.arguments.get("kwargs", {})}
        check_forward(self, arguments)
        cache = find_cache(arguments)
        for index in self._empty if cache is not None else ():
            adopt(cache.layers[index], self, next(iter(self._families)).kind, index)

    def _enter(self, mixer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ANN401
        active.leave()
        family = self._mixers.get(mixer)
        cache = next((kwargs[name] for name in MIXER_CACHE_NAMES if kwargs.get(name) is not None), None)
        if cache is None and len(args) > 1:
            cache = args[1]
        if family is not None and cache is not None:
            layer = adopt(cache.layers[mixer.layer_idx], self, family.kind, mixer.layer_idx)
            # A model inside the enabled one may have been called, past the check of the whole.
            layer.check_rows(len(args[0] if args else kwargs["hidden_states"]))
            active.enter(layer, cache.layers)

    def _leave(self, *_: object) -> None:
        active.leave()

    def __deepcopy__(self, memo: dict[int, object]) -> Session:
        # A copied cache still belongs to the same model.
        return self


def enable(model: nn.Module, config: ReplayConfig | None = None) -> Session:
    """Run a model's state-space layers with ReplaySSM, until `disable`.

    Everything around the layers stays as it is; `generate` and plain forwards with a cache are served.

    Args:
        model: a hybrid model of transformers (see `table.FAMILIES`), its text model, or a multimodal wrapper of it.
        config: window, draft limit, precision. When None, those of the environment variable REPLAYSSM_CONFIG (JSON, or a
            path to a JSON file), and the defaults where it is not set.

    Returns:
        The session; the same one when the model is enabled with this configuration already.

    Raises:
        InputError: not a model, not a ReplayConfig, a bad REPLAYSSM_CONFIG, enabled with another configuration, or
            dimensions that the precision does not serve.
        UnsupportedError: the model, or the installed transformers, cannot be served. Nothing was changed.
    """
    if config is None:
        config = ReplayConfig.from_environment() or ReplayConfig()
    if not isinstance(config, ReplayConfig):
        raise InputError(
            f"config={config!r} must be a ReplayConfig, as in ReplayConfig(preset=...) or ReplayConfig.from_dict({{...}})"
        )
    present = _sessions.get(model) if isinstance(model, nn.Module) else None
    if present is not None:
        if present.config != config:
            raise InputError(f"the model is enabled with {present.config!r}; call disable(model) before another config")
        return present
    mixers = check_model(model)
    if any(other.shares_layers(mixers) for other in _sessions.values()):
        raise InputError(
            f"layers of this {type(model).__name__} are enabled already through a model around or inside it"
        )
    session = Session(model, config, mixers)
    session.open()
    _sessions[model] = session
    for line in session.layers:
        logger.info("ReplaySSM in %s: %s", type(model).__name__, line)
    return session


def disable(model: nn.Module) -> None:
    """Put a model back as it was. Its caches become ordinary ones and can go on.

    Raises:
        InputError: the model is not enabled.
    """
    session = _sessions.pop(model, None) if isinstance(model, nn.Module) else None
    if session is None:
        raise InputError(f"this {type(model).__name__} is not enabled; call enable(model) first")
    session.close()


def session_of(model: nn.Module | None) -> Session | None:
    """The session of an enabled model, None when it is not enabled."""
    return _sessions.get(model) if isinstance(model, nn.Module) else None


def _validate(model: Any, mode: Any, config: Any, kwargs: dict[str, Any]) -> None:  # noqa: ANN401
    """Stands before transformers' own check of a call of generate."""
    session = _sessions.get(model)
    if session is None:
        _restore_model(model)
    else:
        check_generation(session, mode, config, kwargs)
        _check_assistant(kwargs.get("assistant_model"))
    getattr(type(model), VALIDATE)(model, mode, config, kwargs)


def _hub_recipe(model: Any, mode: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
    """Stands before transformers' look for a mode that moved to the hub, so that the reason given is ours."""
    if session_of(model) is None:
        _restore_model(model)
    else:
        check_mode(mode)
    return getattr(type(model), HUB_RECIPE)(model, mode, *args, **kwargs)


def _restore_model(model: Any) -> None:  # noqa: ANN401  transformers is untyped
    """Of a model that is enabled no more, or a copy of an enabled one, which is an ordinary model."""
    for name in (STATEFUL, VALIDATE, HUB_RECIPE):
        model.__dict__.pop(name, None)


def _check_assistant(assistant: Any) -> None:  # noqa: ANN401  transformers is untyped
    if assistant is not None and mixers_of(assistant) and session_of(assistant) is None:
        raise UnsupportedError(
            f"the assistant {type(assistant).__name__} is hybrid too, and without ReplaySSM its state cannot roll back; "
            "call enable(assistant_model) first"
        )


def _uninstall(families: Iterable[Family]) -> None:
    for family in families:
        patch.uninstall(family)


def _describe(config: ReplayConfig, mixers: dict[nn.Module, Family]) -> list[str]:
    """One line for each kind of layer; refuses what the core would refuse at the first token."""
    groups: Counter[tuple[str, Recurrence, torch.dtype]] = Counter()
    for mixer, family in mixers.items():
        parameter = next(mixer.parameters())
        recurrence = geometry(family.kind, mixer)
        layout = StateLayout(recurrence, 1, config.window, config.max_draft, config.policy, parameter.dtype)
        backend = choose_backend(layout, parameter.device) if config.backend == "auto" else config.backend
        ok, reason = supports(backend, layout, parameter.device)
        if not ok:
            raise UnsupportedError(reason)
        groups[family.name, recurrence, parameter.dtype] += 1
    return [_line(config, *group, count) for group, count in groups.items()]


def _line(config: ReplayConfig, family: str, recurrence: Recurrence, dtype: torch.dtype, count: int) -> str:
    layout = StateLayout(recurrence, 1, config.window, config.max_draft, config.policy, dtype)
    return (
        f"{count} {recurrence.kind} layers ({family}), standard decode and up to {config.max_draft - 1} drafts, "
        f"window {config.window}, {config.policy.describe()}, {layout.slot_bytes:,} bytes per slot and layer"
    )
