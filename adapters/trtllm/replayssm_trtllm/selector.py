"""The one function of the engine that chooses a cache manager, wrapped once a process."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from replayssm import LayerKind, UnsupportedError
from replayssm_trtllm.architectures import ARCHITECTURES, kind_of
from replayssm_trtllm.compat import Engine
from replayssm_trtllm.llm_fields import TRANSCEIVER
from replayssm_trtllm.manager import make_manager_class
from replayssm_trtllm.runtime_checks import check_disaggregation
from replayssm_trtllm.settings import from_the_environment_alone, read_settings, text_config
from replayssm_trtllm.surface import SELECTOR, SELECTOR_MODULE

MARK = "__replayssm__"


def install(engine: Engine) -> None:
    """Wrap the engine's selector; a second call changes nothing."""
    module = importlib.import_module(SELECTOR_MODULE)
    original = getattr(module, SELECTOR)
    if not hasattr(original, MARK):
        setattr(module, SELECTOR, wrapped(original, engine))


def wrapped(original: Callable[..., type], engine: Engine) -> Callable[..., type]:
    """The selector that extends what the engine's own chooses, for models that carry a configuration.

    The engine's function took one, two or four arguments over time; all are passed on. It also chooses the manager of a
    drafter's own attention layers, after the model's.
    """
    served = False

    @functools.wraps(original)
    def select(*args: Any, **kwargs: Any) -> type:  # noqa: ANN401
        nonlocal served
        base = original(*args, **kwargs)
        model_config = args[0] if args else kwargs["model_config"]
        pretrained = model_config.pretrained_config
        config = read_settings(pretrained)
        if config is None:
            return base
        kind = kind_of_model(pretrained)
        if kind is None:
            if served and from_the_environment_alone(pretrained):
                return base
            raise UnsupportedError(
                f"{architecture_of(pretrained)} carries a ReplaySSM configuration and has no recurrent layers that the "
                f"plugin serves; it serves {', '.join(entry.name for entry in ARCHITECTURES)}. Leave replay_ssm out"
            )
        # For a drafter's manager the engine leaves the transceiver out; the model's was chosen with it.
        if len(args) > 3 or TRANSCEIVER in kwargs:
            check_disaggregation(
                bool(kwargs.get("is_disagg", args[2] if len(args) > 2 else False)),
                kwargs.get(TRANSCEIVER, args[3] if len(args) > 3 else None),
            )
        extended = make_manager_class(base, engine, kind, config)
        served = True
        return extended

    setattr(select, MARK, True)
    return select


def kind_of_model(pretrained: Any) -> LayerKind | None:  # noqa: ANN401  a Hugging Face configuration
    """Kind of a model's recurrent layers, None for one that is not extended."""
    return kind_of(architecture_of(pretrained))


def architecture_of(pretrained: Any) -> str | None:  # noqa: ANN401  a Hugging Face configuration
    """Architecture of the text model: the nested configuration's where it names one that is served, else the top's."""
    for holder in (text_config(pretrained), pretrained):
        names = getattr(holder, "architectures", None) or []
        served = [name for name in names if kind_of(name) is not None]
        if served:
            return str(served[0])
    names = getattr(pretrained, "architectures", None)
    return str(names[0]) if names else None
